"""The page that has the classes of masked autodiff side by side."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "docs"))

import masked_classes

pytestmark = pytest.mark.whole  # facts of each framework

FRAMEWORKS = list(masked_classes.FRAMEWORKS)


def operations(framework):
    """Return the operations that a framework has."""
    if framework == "torch":
        import torch

        return lambda name: hasattr(torch.ops.aten, name)
    if framework == "tensorflow":
        import tensorflow as tf

        return lambda name: hasattr(tf.raw_ops, name)
    import jax

    every = {**vars(jax.lax), **vars(jax.lax.linalg)}
    names = {x.name for x in every.values() if isinstance(x, jax.extend.core.Primitive)}
    names |= {"add_any", "custom_linear_solve"}  # they have no name in a public module
    return lambda name: name in names


@pytest.mark.parametrize("subject", masked_classes.SUBJECTS)
def test_subjects_name_operations_that_exist(autodiff_framework, subject):
    """Each name of a row is an operation of its framework."""
    if autodiff_framework == "jax":
        pytest.importorskip("jax.extend.core", reason="JAX is not installed")
    exists = operations(autodiff_framework)
    name = masked_classes.SUBJECTS[subject][FRAMEWORKS.index(autodiff_framework)]

    assert not name or exists(name)


def test_every_rule_says_what_it_does(autodiff_framework):
    """The rules of a framework are on the page, each in a sentence."""
    text = masked_classes.by_class(autodiff_framework, "")
    rules = masked_classes._module(autodiff_framework).RULES

    assert all(f"`{name}`" in text for name in rules)
    assert all(masked_classes.said(rule) for rule in rules.values())


def test_what_has_no_rule_is_said_to_have_none():
    """A cell says what the table says."""
    assert masked_classes.cell({}, "qr") == "`qr`: no rule"
    assert masked_classes.cell({"qr": operations}, "qr").startswith("`qr`: Return the op")
    assert masked_classes.cell({}, "") == ""
