"""`explain` and `lint` have the same edit for the same code, and refuse the same ones."""

import re
from importlib.util import module_from_spec, spec_from_file_location

import pytest

import lint_cases
from frameworks import asarray, torch_from
from safeops import _recipes
from safeops._lint.linting import lint
from safeops.autodiff import explain

pytestmark = pytest.mark.only("torch", "jax")

# A body in the names of the array API, the point of x at which it fails, and the line edited; ""
# where both refuse.
PROGRAMS = [
    ("return xp.where(x > 0, xp.log(x), 0.0)", 0.0, "safe_where(x > 0, x, xp.log, fill_value=0.0)"),
    ("return xp.where(x != 0, 1 / x, 0.0)", 0.0, "safe_where(x != 0, x, lambda x: 1 / x,"),
    ("z = xp.log(x)\nreturn xp.where(x > 0, z, 0.0)", 0.0, "z = safe_log(x)"),
    ("z = x * xp.log(x)\nreturn xp.where(x > 0, z, 0.0)", 0.0, "z = x * safe_log(x)"),
    ("z = 2 * xp.log(x)\nreturn xp.where(x > 0, z, 0.0)", 0.0, "z = 2 * safe_log(x)"),
    ("z = xp.sqrt(x)\nreturn xp.where(x > 0, z, 0.0)", 0.0, "z = safe_sqrt(x)"),
    ("prob = x\nreturn prob * xp.log(prob)", 0.0, "return xlogy(prob, prob)"),
    ("prob = x\nreturn prob * xp.log(prob / y)", 0.0, "return rel_entr(prob, y)"),
    ("return xp.sqrt(xp.sum(x[:1]**2))", 0.0, "return safe_norm(x[:1])"),
    ("return xp.sqrt(xp.mean(x[:1] * x[:1]))", 0.0, "return safe_rms(x[:1])"),
    ("return xp.sqrt(x**2 + x * x)", 0.0, "return safe_hypot(x, x)"),
    ("return xp.sqrt(xp.clip(x, min=0))", 0.0, "return safe_sqrt(x)"),
    ("return xp.exp(x * xp.log(1 - xp.tanh(x)**2))", 20.0, "return xp.exp(x * log_sech2(x))"),
    ("return xp.exp(x * xp.log(1 - x))", 1.0, ""),
    ("return xp.log(1 - xp.tanh(x)**2)", 20.0, "return log_sech2(x)"),
    ("return xp.log10(1 - xp.tanh(x)**2)", 20.0, ""),
    ("z = xp.log(xp.sinh(x) / x)\nreturn xp.where(x != 0, z, 0.0)", 0.0, "z = log_sinhc(x)"),
    ("z = xp.exp(xp.log(x))\nreturn xp.where(x > 0, z, 0.0)", 0.0, "z = xp.exp(safe_log(x))"),
    ("return xp.exp(2 * xp.log(x))", 0.0, ""),
]


def edits_of_lint(source):
    """Return the new last line of each edit of `lint`."""
    return {x.edit[2].strip() for x in lint(source).findings if x.edit}


def edits_of_explain(folder, source, framework, at):
    """Return the new lines of each edit of `explain`, of a program in a file of its own."""
    file = folder / "program.py"
    file.write_text(source)
    spec = spec_from_file_location(f"program_{folder.name}", file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    y = asarray(framework, [1.0, 1.0])
    report = explain(lambda x: module.f(x, y, None).sum(), asarray(framework, [at, 0.25]))
    assert report.findings
    return {x.repair.edit.new.strip() for x in report.findings if x.repair.edit}


@pytest.mark.parametrize(("body", "at", "edit"), PROGRAMS)
def test_both_have_the_same_edit(tmp_path, autodiff_framework, body, at, edit):
    """What `explain` edits at the point, `lint` edits alike without it."""
    if "clip" in body and autodiff_framework == "torch" and torch_from(2, 14):
        pytest.skip("from 2.14 on `clip` has slope 0 at its ends, so that the root has no inf")
    source = lint_cases.Snippet(autodiff_framework, _recipes.spell(body, autodiff_framework)).source

    found = edits_of_lint(source), edits_of_explain(tmp_path, source, autodiff_framework, at)

    assert found[0] == found[1]
    assert len(found[0]) == bool(edit)
    assert _recipes.spell(edit, autodiff_framework) in "".join(found[0])


@pytest.mark.parametrize(
    ("expression", "at", "edit"),
    [
        ("log(cosh(x))", 1e3, "log_cosh(x)"),
        ("log(1 - exp(-x))", 1e-20, "log1mexp(x)"),
        ("log1p(-exp(-x))", 1e-20, "log1mexp(x)"),
        ("log(-expm1(-x))", 0.0, "log1mexp(x)"),
        ("log(exp(x) - 1)", 1e-20, "log_expm1(x)"),
        ("log(expm1(x))", 1e3, "log_expm1(x)"),
        ("log1p(-tanh(2 * x)**2)", 30.0, "log_sech2(2 * x)"),
        ("log(sinh(2 * x) / (2 * x))", 0.0, "log_sinhc(2 * x)"),
        ("where(x < 9, log(cosh(x)), 0.0)", 1e3, "safe_where("),
        ("log((exp(x) + exp(-x)) / 2)", 1e3, "log_cosh(x)"),
        ("log(0.5 * (exp(-x) + exp(x)))", -1e3, "log_cosh(x)"),
        ("exp(sum(log(x)))", 0.0, "safe_prod(x)"),
        ("1 - exp(sum(log1p(-x)))", 1.0, "1 - safe_prod(1 - x)"),
    ],
)
def test_explain_names_the_function_for_a_whole(tmp_path, autodiff_framework, expression, at, edit):
    """An expression that is a function by an identity becomes that function."""
    body = re.sub(r"([a-z]\w*)\(", r"xp.\1(", f"return {expression}")
    spelt = _recipes.spell(body, autodiff_framework)
    source = lint_cases.Snippet(autodiff_framework, spelt).source

    (new,) = edits_of_explain(tmp_path, source, autodiff_framework, at)

    assert new.startswith(f"return {edit}")
