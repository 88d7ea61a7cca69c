"""`safe_*` and `nan*` of one formula: two functions, each with a docstring of its own."""

import inspect
import pickle

import pytest

import safeops

TWINS = ["sum", "prod", "mean", "var", "std", "max", "min", "argmax", "argmin"]
EACH = pytest.mark.parametrize("name", TWINS)


@EACH
def test_twins_have_one_signature(name):
    """Both take the same options, with a type each, and none that is not public."""
    keeping, skipping = getattr(safeops, f"safe_{name}"), getattr(safeops, f"nan{name}")

    assert str(inspect.signature(keeping)) == str(inspect.signature(skipping))
    assert next(iter(inspect.signature(keeping).parameters)) == "x"
    assert set(keeping.__annotations__) == {*inspect.signature(keeping).parameters, "return"}


@EACH
def test_each_docstring_says_what_becomes_of_nan(name):
    """That of `safe_*` keeps NaN throughout, that of `nan*` leaves it out throughout."""
    keeping, skipping = (inspect.getdoc(getattr(safeops, p + name)) for p in ("safe_", "nan"))

    assert "kept" in keeping.partition("\n")[0]
    assert "NaN in a kept entry stays NaN." in keeping
    assert f"`numpy.{name}`" in keeping
    assert "not NaN" in skipping.partition("\n")[0]
    assert "NaN is absent." in skipping
    assert "stays NaN" not in skipping
    assert f"`numpy.nan{name}`" in skipping
    assert f"safe_{name}" not in skipping


@EACH
@pytest.mark.parametrize("prefix", ["safe_", "nan"])
def test_twins_can_be_pickled(name, prefix):
    """A twin is found again by its module and name."""
    function = getattr(safeops, prefix + name)

    assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301  (our own)
