"""
Programs and what `--fix` makes of them: a folder a rule, to which a case is added without Python.

In `fixtures/RULE/found.py` a line that is found ends in its rule, as in ``# SO001``, and no other
line is found. `fixed.py` is that program after `--fix`, where what is left ends in its rule.
"""

import re
from pathlib import Path

import pytest

from safeops._lint.linting import lint

FOLDER = Path(__file__).with_name("fixtures")
RULES = sorted(path.name for path in FOLDER.iterdir())
MARK = re.compile(r"  # (SO\d{3})$", re.MULTILINE)


def program_of(rule, name):
    """Return a program without marks, and what its marks say is found: lines and rules."""
    text = (FOLDER / rule / name).read_text()
    lines = enumerate(text.splitlines(), 1)
    return MARK.sub("", text), [(i, mark[1]) for i, line in lines if (mark := MARK.search(line))]


def found_in(program):
    """Return lines and rules of what is found."""
    return [(finding.lines[0], finding.rule) for finding in lint(program).findings]


@pytest.mark.parametrize("rule", RULES)
def test_what_is_marked_is_found(rule):
    """Each line with a mark is found, by the rule of its folder, and no other line."""
    program, marked = program_of(rule, "found.py")

    assert found_in(program) == marked
    assert {found for _, found in marked} == {rule}


@pytest.mark.parametrize("rule", RULES)
def test_what_is_fixed(rule):
    """`--fix` makes the one program of the other, in which only what has no edit is found."""
    program, marked = program_of(rule, "found.py")
    fixed, left = program_of(rule, "fixed.py")

    assert lint(program).fixed == fixed
    assert found_in(fixed) == left
    assert len(left) < len(marked) or program == fixed


def test_each_rule_has_a_folder():
    """What has a page has an example of what is found, and of its edit."""
    pages = (Path(__file__).parents[2] / "docs/lint/texts").glob("*.md")

    assert sorted(page.stem for page in pages) == RULES
