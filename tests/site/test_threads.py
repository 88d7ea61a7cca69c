"""The page of public reports: each has a number, a bug that shows and a cure that holds."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole  # facts of each framework

TEXT = (Path(__file__).parents[2] / "docs/threads.md").read_text()
REPORT = re.compile(r"^### ", re.MULTILINE)
ASSERTION = re.compile(r"^ *assert |assert_allclose", re.MULTILINE)
TITLES = {"PyTorch": "torch", "JAX": "jax", "TensorFlow": "tensorflow"}
SECTIONS = {
    part.partition("\n")[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
}


def cells(text):
    """Return the cells of a part of the page."""
    return re.findall(r"^```\{code-cell\} python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("users_defaults")
@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=pytest.mark.only(name)) for title, name in TITLES.items()]
)
def test_the_reports_of_a_framework(title):
    """In each report, run alone, the naive program fails, and the cure has the right gradient."""
    _, *reports = REPORT.split(SECTIONS[title])

    for report in reports:
        (cell,) = cells(report)
        exec(compile(cell, report.partition("\n")[0], "exec"), {"__name__": "threads"})

    assert reports


def test_each_report_has_its_number_and_two_assertions():
    """One assertion that the bug is there, one of the cure, and a number to look it up by."""
    reports = re.split(r"^### ", "".join(SECTIONS[title] for title in TITLES), flags=re.MULTILINE)[
        1:
    ]

    for report in reports:
        head, _, program = report.partition("```{code-cell}")
        assert re.search(r"\w#\d+", head.partition("\n## ")[0]), head
        assert len(ASSERTION.findall(program)) >= 2, head
        assert re.search(r"not finite|isfinite|wrong", program), head
