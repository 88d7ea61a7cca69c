"""What `safeops lint` finds in other spellings: factors, selections and limits."""

import pytest

from safeops._lint.linting import lint

pytestmark = pytest.mark.only("numpy")  # nothing is executed: one session is enough

HEADS = {
    "jnp": "import jax.numpy as jnp\n\n\ndef f(x, y, mask):\n    ",
    "tf": "import tensorflow as tf\n\n\ndef f(x, y, mask):\n    ",
    "torch": "import torch\n\n\ndef f(x, y, mask):\n    ",
}
MINUS_INF = 'fill_value=float("-inf")'


def program(expression):
    """Return a function of an expression that names its framework first."""
    return f"{HEADS[expression.split('.')[0]]}return {expression}\n"


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("SO005", "torch.sign(x) * torch.sqrt(x.abs())", "torch.sign(x) * safe_sqrt(x.abs())"),
        ("SO005", "jnp.sign(x) * jnp.sqrt(jnp.abs(x))", "jnp.sign(x) * safe_sqrt(jnp.abs(x))"),
        ("SO005", "torch.sqrt(x) * mask", "safe_sqrt(x) * mask"),
        (
            "SO001",
            "jnp.select([x > 0, x < -1], [jnp.log(x), x], 0.0)",
            "jnp.select([x > 0, x < -1], [safe_log(x), x], 0.0)",
        ),
        (
            "SO001",
            "jnp.select([x > 0], [jnp.log(x)], default=x)",
            "jnp.select([x > 0], [safe_log(x)], default=x)",
        ),
        ("SO001", "tf.boolean_mask(tf.math.log(x), x > 0)", "tf.boolean_mask(safe_log(x), x > 0)"),
        (
            "SO001",
            "torch.masked_select(torch.log(x), x > 0)",
            "torch.masked_select(safe_log(x), x > 0)",
        ),
        (
            "SO003",
            "torch.sqrt(1 - x.clamp(-1, 1) ** 2)",
            "safe_sqrt(1 - x.clamp(-1, 1) ** 2)",
        ),
        (
            "SO004",
            "torch.clamp(torch.log(x), min=-100)",
            f"torch.clamp(safe_log(x, {MINUS_INF}), min=-100)",
        ),
        (
            "SO004",
            "jnp.maximum(-100.0, jnp.log(x))",
            f"jnp.maximum(-100.0, safe_log(x, {MINUS_INF}))",
        ),
        (
            "SO001",
            "torch.where(x > 0, torch.sqrt(abs(x)), 0.0)",
            "safe_where(x > 0, x, lambda x: torch.sqrt(abs(x)), fill_value=0.0)",
        ),
    ],
)
def test_it_is_found_and_edited(rule, old, new):
    """What drops an entry in another spelling has the rule of the usual one, and its edit."""
    (found,) = lint(program(old)).findings

    assert (found.rule, found.edit[2].strip()) == (rule, f"return {new}")


@pytest.mark.parametrize(
    "expression",
    [
        "torch.sign(x) * torch.log1p(torch.abs(x))",
        "torch.sign(x) * (torch.sqrt(x.abs() + 1) - 1)",
        "torch.clamp(torch.log(x + 1e-8), min=-100)",
        "torch.clamp(torch.log(x), max=10.0)",
        "jnp.select([x > 0, x < -1], [jnp.sin(x), x], 0.0)",
        "tf.boolean_mask(x, x > 0)",
        "torch.sqrt(1 - x.clamp(-0.99, 0.99) ** 2)",
        "torch.sqrt(1 + x.clamp(-1, 1) ** 2)",
    ],
)
def test_what_is_sound_is_left_alone(expression):
    """A factor of finite slope, a padded logarithm, a limit from above: nothing is found."""
    assert lint(program(expression)).findings == []


def test_a_constant_that_asks_for_a_gradient_is_differentiated():
    """Behind ``requires_grad_()`` an array of ones is a parameter."""
    body = "w = torch.ones(3).requires_grad_()\n    return torch.sqrt(w.clamp(min=0))\n"

    assert [x.rule for x in lint(HEADS["torch"] + body).findings] == ["SO003"]


def test_an_edit_may_make_a_file_shorter():
    """A file that ends with a statement is edited, when an edit joins lines before it."""
    lines = "jnp.where(\n        x > 0,\n        jnp.log(x),\n        0.0,\n    )"
    text = f"{HEADS['jnp']}return {lines}\n\n\nz = 1\n"

    fixed = lint(text).fixed

    assert len(fixed.splitlines()) < len(text.splitlines())
    assert fixed.endswith("\n\n\nz = 1\n")


def test_a_point_without_an_array_has_a_name():
    """Where numbers of Python alone are singular, the reason does not say ``at ,``."""
    body = "z = x / len(y)\n    return torch.where(torch.isfinite(z), z, 0.0)\n"
    (found,) = lint(HEADS["torch"] + body).findings

    assert "at its singular point," in found.message
