"""What the edits of `safeops lint` leave as it was: values in use, comments, what is not finite."""

import pytest

from safeops._lint.linting import lint

pytestmark = pytest.mark.only("numpy")  # nothing is executed: one session is enough

TORCH = "import torch\nimport torch.nn.functional as F\n\n\ndef f(x, y, mask):\n    "
JAX = "import jax\nimport jax.numpy as jnp\n\n\ndef f(x, y, mask):\n    "


def found_in(program):
    """Return the one finding of a program."""
    (found,) = lint(program).findings
    return found


def new_line(program):
    """Return the new lines of the one edit of a program; the reason if there is none."""
    found = found_in(program)
    return found.edit[2].strip() if found.edit else f"no: {found.reason}"


@pytest.mark.parametrize(
    ("body", "edit"),
    [
        ("y = x.log()\n    y = torch.where(x > 0, y, 0.0)\n    return y * y", "y = safe_log(x)"),
        (
            "y = x.pow(-0.5)\n    y = y.masked_fill(y == float('inf'), 0)\n    return y * y",
            "y = safe_pow(x, -0.5)",
        ),
        (
            "y = x.pow(-0.5)\n    y.masked_fill_(y == float('inf'), 0)\n    return y * y",
            "y = safe_pow(x, -0.5)",
        ),
        ("y = 1 / x\n    y[x == 0] = 0\n    return y * y", "y = safe_div(1, x)"),
    ],
)
def test_a_value_is_not_used_after_its_name_has_another(body, edit):
    """Behind the selection its name stands for the selected value: the edit may be made."""
    assert new_line(f"{TORCH}{body}\n") == edit


@pytest.mark.parametrize(
    "body",
    [
        "y = x.log()\n    if mask:\n        y = torch.where(x > 0, y, 0.0)\n    return y * y",
        "y = 1 / x\n    z = torch.exp(-y)\n    y[x == 0] = 0\n    return y * z",
        "y = 1 / x\n    if mask:\n        y[x == 0] = 0\n    return y * y",
        "y = x.log()\n    return torch.where(x > 0, y, 0.0) + y",
    ],
)
def test_a_value_in_use_is_kept(body):
    """A use before the selection, beside it, or without it, needs what is not finite."""
    assert new_line(f"{TORCH}{body}\n").startswith("no: line ")


@pytest.mark.parametrize(
    "body",
    [
        "r = 1 / x\n    return torch.where(r < 1e3, r, 1e3)",
        "r = x.abs() ** -1.5\n    return torch.where(r < 1e6, r, 1e6)",
        "z = x.log()\n    z[z < -5] = -5\n    return z",
    ],
)
def test_a_value_that_decides_is_kept(body):
    """Where the condition asks for the result, another number there would be kept: no edit."""
    assert new_line(f"{TORCH}{body}\n").startswith("no: its value decides")


def test_a_length_may_be_used_elsewhere():
    """The edit of a length has its value at 0 too."""
    body = "n = jnp.sqrt(jnp.sum(x**2))\n    u = jnp.where(n > 0, x / n, 0.0)\n    return n * u"
    assert new_line(f"{JAX}{body}\n") == "n = safe_norm(x)"


def test_a_write_by_mask_keeps_what_it_does_not_ask_for():
    """``z[isnan(z)] = 0`` keeps x / 0, which `safe_div` would fill in."""
    body = "z = x / y\n    z[torch.isnan(z)] = 0\n    return z"
    assert new_line(f"{TORCH}{body}\n").startswith("no: it keeps x / 0")


def test_a_write_by_mask_is_where_it_says():
    """The line that drops is that of the write, not that of the operation."""
    assert found_in(f"{TORCH}y = 1 / x\n    y[x == 0] = 0\n    return y\n").message.startswith(
        "line 7"
    )


def test_comments_stay():
    """A `where` with comments between its arguments keeps them."""
    body = "return jnp.where(\n        y != 0,  # no zero\n        x / y,  # ratio\n        0.0)"
    assert new_line(f"{JAX}{body}\n") == "safe_div(x, y),  # ratio"


def test_no_edit_loses_a_comment():
    """Where the edit would leave out a comment there is none."""
    body = "return jnp.sqrt(\n        jnp.sum(  # of squares\n            x**2\n        )\n    )"
    assert new_line(f"{JAX}{body}\n").endswith("lose a comment")


@pytest.mark.parametrize(
    ("old", "note"),
    [
        ("torch.nan_to_num(x / y, nan=0.0)", "in place of the largest number"),
        ("torch.nan_to_num(torch.log(x), nan=0.0)", "in place of the largest number"),
        ("torch.nan_to_num(torch.log(x), neginf=0.0)", ""),
        ("torch.nan_to_num(torch.sqrt(x), nan=0.0)", ""),
        ("torch.nan_to_num(x / y, nan=0.0, posinf=0.0, neginf=0.0)", ""),
        ("torch.where(x != 0, x.log(), torch.zeros_like(x))", "NaN before"),
        ("torch.where(x > 0, x.log(), torch.zeros_like(x))", ""),
        ("torch.atanh(x.clamp(-1, 1))", "in place of infinity"),
        ("torch.rsqrt(x.clamp(min=0))", "in place of infinity"),
        ("torch.asin(x.clamp(-1, 1))", ""),
    ],
)
def test_an_edit_says_what_it_chooses(old, note):
    """A number in the place of NaN, an infinity or the largest number is said beside the edit."""
    found = found_in(f"{TORCH}return {old}\n")
    assert found.edit
    assert found.cure.endswith(note) if note else not found.cure


def test_an_infinity_behind_what_is_tested_is_no_question():
    """A condition asks for infinity where it compares with it, not where a mask wrote it before."""
    scores = "s = torch.tanh(x.masked_fill(mask, -float('inf')))\n    "
    body = f"{scores}d = (s * y).pow(2).sum(-1).sqrt()\n    return torch.where(d > 0, 1 / d, 0.0)"
    found = lint(f"{TORCH}{body}\n").findings
    assert [(x.rule, x.edit[2].strip()) for x in found] == [
        ("SO001", "d = safe_norm(s * y, axis=-1)")
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from safeops import safe_sqrt\n", "from safeops import safe_log, safe_sqrt\n"),
        ('"""\nfrom safeops import x\n"""\n', '"""\nfrom safeops import x\n"""\n'),
    ],
)
def test_an_import_on_one_line_takes_the_new_names(before, after):
    """A name joins the import that is there; what only looks like one stays."""
    body = "y = torch.log(x)\n    return torch.where(x > 0, y, 0.0)"
    assert lint(f"{before}{TORCH}{body}\n").fixed.startswith(after)
