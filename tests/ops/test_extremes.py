"""Ties and places of extremes, in any order of the entries."""

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from frameworks import asarray, to_numpy
from reducing import EXTREMES, HARMLESS, HOLES, INDICES, RTOL, call, derivatives, inf, named, nan
from safeops._core.dtypes import dtype_name


@pytest.mark.parametrize(
    ("entries", "where", "shares"),
    [
        ((2.0, 2.0, 1.0), (True, True, True), (0.5, 0.5, 0)),
        ((2.0, 2.0, 2.0), (True, True, True), (1 / 3, 1 / 3, 1 / 3)),
        ((2.0, 2.0, 2.0), (True, False, True), (0.5, 0, 0.5)),
        ((2.0, 9.0, 2.0), (True, False, True), (0.5, 0, 0.5)),
        ((0.0, -0.0, -1.0), (True, True, True), (0.5, 0.5, 0)),
    ],
)
@named(EXTREMES)
def test_ties_share_the_gradient(name, entries, where, shares, autodiff_framework):
    """Each of k equal extremes that are kept has 1 / k of the gradient, in forward mode too."""
    sign = 1.0 if name.endswith("max") else -1.0
    x = asarray(autodiff_framework, sign * np.array(entries))
    keep = asarray(autodiff_framework, where, "bool")
    direction = np.array([1.0, 10.0, 100.0])

    gradient, slope = derivatives(
        lambda x: call(name, x, where=keep), x, asarray(autodiff_framework, direction)
    )

    assert_close(gradient, shares, RTOL)
    assert_close(slope, np.dot(shares, direction), RTOL)


@pytest.mark.parametrize(
    ("name", "entries", "place"),
    [
        ("safe_argmax", (1.0, 3.0, 3.0, 2.0), 1),
        ("safe_argmax", (1.0, 3.0, nan, nan), 2),
        ("safe_argmax", (-inf, -inf, -inf, -inf), 0),
        ("safe_argmin", (3.0, 1.0, 2.0, 1.0), 1),
        ("safe_argmin", (3.0, nan, -inf, 1.0), 1),
        ("safe_argmin", (inf, inf, inf, inf), 0),
        ("nanargmax", (nan, 3.0, 3.0, nan), 1),
        ("nanargmax", (nan, -inf, nan, -inf), 1),
        ("nanargmax", (nan, nan, nan, nan), -1),
        ("nanargmin", (nan, 1.0, inf, 1.0), 1),
        ("nanargmin", (nan, inf, nan, inf), 1),
        ("nanargmin", (nan, nan, nan, nan), -1),
    ],
)
def test_places(name, entries, place, framework):
    """The first of ties, or of NaN where those are kept; -1 for nothing; along any axis."""
    x = np.array([entries, (nan, 5.0, 0.0, 7.0)])
    column, row = asarray(framework, x.T), asarray(framework, x)

    assert to_numpy(call(name, row))[0] == place
    assert to_numpy(call(name, row, axis=1))[0] == place
    assert to_numpy(call(name, column, axis=-2))[0] == place
    assert to_numpy(call(name, row[0, :], axis=None)) == place
    assert to_numpy(call(name, row, keepdims=True)).shape == (2, 1)
    assert "int" in dtype_name(call(name, row).dtype)


def test_places_of_all_entries(framework):
    """Without an axis a place counts through all entries, row by row."""
    x = asarray(framework, [[1.0, nan], [5.0, -2.0]])

    assert to_numpy(so.nanargmax(x)) == 2
    assert to_numpy(so.nanargmin(x)) == 3
    assert to_numpy(so.nanargmin(x, keepdims=True)).tolist() == [[3]]


@pytest.mark.only("jax", "tensorflow", "torch")
@named([*INDICES, "nanmedian", "nanquantile", "nancumsum"])
def test_places_in_a_compiled_function(name, framework):
    """What has rows with derivatives is traced there; the rest is traced here."""
    x = asarray(framework, np.where(HOLES, HARMLESS, nan))

    value = to_numpy(compiled(framework)(lambda x: call(name, x))(x))

    np.testing.assert_array_equal(value, to_numpy(call(name, x)))


def compiled(framework):
    """Return the compiler of a framework, which takes a function."""
    if framework == "jax":
        import jax

        return jax.jit
    if framework == "torch":
        import torch

        return lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")
    import tensorflow as tf

    return lambda f: tf.function(f, jit_compile=True)
