"""`safeops lint --confirm`: expressions executed at the singular point, in another process."""

import re
from functools import cache
from pathlib import Path

import pytest

import lint_cases
from frameworks import torch_from
from safeops.__main__ import main
from safeops._lint.formats import Row
from safeops._lint.linting import lint
from safeops._lint.proofs import NOT_PURE, prove
from safeops._lint.prover import FINITE
from safeops._lint.sources import Source

pytestmark = pytest.mark.whole  # facts of each framework

# A guard that lets NaN pass, and an eps of half precision: what is executed has float64.
APART = ("SO009", "SO011")
SPARED = {  # eager TensorFlow has slope 0 where the cotangent of a root is 0; XLA has not
    "tensorflow": 0.75,
    "torch": 0.85,  # modules are not executed
    "jax": 0.9,
}


def proofs(*snippets, limit=60.0):
    """Return what was seen of each finding in snippets."""
    rows = []
    for snippet in snippets:
        report = lint(snippet.source)
        source = Source(Path("a.py"), snippet.source)
        rows += [Row(source, found, report.file) for found in report.findings]
    prove(rows, limit)
    return [row.finding.proof for row in rows], [row.finding.trial for row in rows]


@cache
def of_all(framework):
    """Return the risky snippets of a framework, and what was seen without and with edits."""
    mine = [x for x in lint_cases.RISKY if x.framework == framework and x.rule not in APART]
    return mine, *proofs(*mine)


@pytest.mark.only("torch", "jax", "tensorflow")
def test_what_is_found_is_true(autodiff_framework):
    """Most risky snippets are proved: the gradient or the value was NaN or infinite."""
    mine, seen, _ = of_all(autodiff_framework)

    pairs = zip(mine, seen, strict=True)
    if autodiff_framework == "torch" and torch_from(2, 14):  # there they have slope 0 at their ends
        pairs = (x for x in pairs if not {"clip", "clamp"} & {*re.findall("[a-z]+", x[0].body)})
    others = [(str(x), said) for x, said in pairs if not said.startswith("confirmed: the ")]
    assert len(others) <= (1 - SPARED[autodiff_framework]) * len(mine), others


@pytest.mark.only("torch", "jax", "tensorflow")
def test_edits_are_executed(autodiff_framework):
    """What is confirmed and has an edit is executed with it, and the gradient is finite then."""
    mine, _, trials = of_all(autodiff_framework)

    others = [
        (str(x), said) for x, said in zip(mine, trials, strict=True) if said not in ("", FINITE)
    ]
    assert others == []
    assert trials.count(FINITE) >= len(mine) / 2


@pytest.mark.only("torch")
def test_an_edit_that_leaves_a_nan_is_not_confirmed():
    """Where a second quotient is singular too, the first edit alone is not confirmed."""
    body = "r = (1 - x) / y + x / y**3\nreturn torch.where(y > 0, r, 0.0)"

    _, (said,) = proofs(lint_cases.Snippet("torch", body))

    assert said == "still not finite with the edit alone"


@pytest.mark.only("torch")
def test_a_recipe_is_named(tmp_path, capsys):
    """A confirmed edit has the command that prints its function to copy."""
    file = tmp_path / "a.py"
    file.write_text(lint_cases.Snippet("torch", "return (x**2).sum().sqrt()").source)

    main(["lint", "--confirm", str(file)])

    assert f"  {FINITE}\n  no dependency wanted? python -m safeops recipe safe_norm\n" in (
        capsys.readouterr().out
    )


@pytest.mark.only("torch")
def test_the_nan_is_shown():
    """What was seen says for which array, and at which number."""
    (said,), _ = proofs(lint_cases.Snippet("torch", "return torch.where(x > 0, torch.log(x), 0.0)"))

    assert said == "confirmed: the gradient for x is nan at x = 0"


@pytest.mark.only("torch")
def test_a_finding_that_is_none_is_not_confirmed():
    """An expression whose gradient is finite is not confirmed: the proof can fail."""
    snippet = lint_cases.Snippet("torch", "return torch.where(x > 0, torch.log(x), 0.0)")
    report = lint(snippet.source)
    report.findings[0].numbers = dict.fromkeys(report.findings[0].numbers, 2.0)
    row = Row(Source(Path("a.py"), snippet.source), report.findings[0], report.file)

    prove([row])

    assert row.finding.proof == "not confirmed: the gradient is finite there"


@pytest.mark.only("torch")
def test_a_process_that_takes_too_long_is_ended():
    """The limit of time holds for each finding."""
    snippet = lint_cases.Snippet("torch", "return torch.where(x > 0, torch.log(x), 0.0)")

    assert proofs(snippet, limit=0.001)[0] == ["not executed: it took more than 0.001 seconds"]


@pytest.mark.only("numpy")
@pytest.mark.parametrize(
    "body",
    [
        "if torch.norm(x) <= 1e-6:\n    raise ValueError",
        "return torch.where(x > 0, torch.log(x), open('a').read())",
        "return torch.where(x > 0, torch.log(x), [y for y in x])",
        "return torch.where(x > 0, torch.log(x), exec('1'))",
    ],
)
def test_nothing_but_known_operations_is_executed(body):
    """What calls anything else is either an array to the expression, or is not executed."""
    (said,), _ = proofs(lint_cases.Snippet("torch", body), limit=0.001)

    assert said == NOT_PURE or said.startswith("not executed")
