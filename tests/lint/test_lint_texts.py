"""The texts of the rules of `safeops lint`: pattern and cure, executed, found and not found."""

import sys
from pathlib import Path

import pytest

import safeops
from safeops import _recipes
from safeops._lint.found import TITLES
from safeops._lint.linting import lint

sys.path.append(str(Path(__file__).parents[2] / "docs"))

import lint_texts

SPELLED = ("torch", "jax", "tensorflow")
NOT_FOUND = {"SO007"}  # its pattern is written out: each framework has a softmax of its own


def spelled(rule, framework):
    """Return the code of pattern and cure in the spelling of a framework."""
    sections = lint_texts.read(rule).sections
    return [_recipes.spell(sections[name].code, framework) for name in ("The pattern", "The cure")]


@pytest.mark.only(*SPELLED)
@pytest.mark.usefixtures("users_defaults")
@pytest.mark.parametrize("rule", TITLES)
def test_pattern_and_cure_run(rule, framework):
    """The pattern fails as its page says, the cure does not, and elsewhere both are equal."""
    code = "\n\n\n".join(spelled(rule, framework))
    names = {name: getattr(safeops, name) for name in safeops.__all__}

    exec(compile(f"{_recipes.imports_of(code)}\n\n{code}", rule, "exec"), names)

    assert "assert" in code


@pytest.mark.only("numpy")
@pytest.mark.parametrize("spelling", SPELLED)
@pytest.mark.parametrize("rule", sorted(set(TITLES) - NOT_FOUND))
def test_the_pattern_is_found_and_the_cure_is_not(rule, spelling):
    """The rule finds the function of the pattern, and nothing in that of the cure."""
    pattern, cure = (lint_texts.function_of(code) for code in spelled(rule, spelling))
    pattern = pattern.replace('return "refused"', "raise ValueError")
    imports = _recipes.imports_of(pattern)

    found = [[x.rule for x in lint(f"{imports}\n\n{code}\n").findings] for code in (pattern, cure)]

    assert found == [[rule], []]


@pytest.mark.only("numpy")
@pytest.mark.parametrize("rule", TITLES)
def test_a_text_has_all_parts(rule):
    """There is a pattern, a public case, a cure as a diff, and when to ignore it."""
    text = lint_texts.read(rule)

    assert tuple(text.sections) == lint_texts.SECTIONS
    assert all(section.text for section in text.sections.values())
    assert "#" in text.sections["The public case"].text
    assert [line[0] for line in text.diff.splitlines() if line[0] in "+-"]
