"""The combinators: a branch never sees the entries that it does not supply."""

import re
from math import log
from typing import NamedTuple

import numpy as np
import pytest

from assertions import assert_close
from branches import minus, plus
from derivatives import SECOND
from elementwise import PLAIN, first_order, pytest_generate_tests, run_elementwise, under_detector
from frameworks import asarray, to_numpy
from points import Row
from safeops import make_safe, safe_where, stop_gradient, vectorized_cond
from safeops._core.dtypes import dtype_name
from safeops._dispatch import backend_of
from specs.where import SPECS

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`

ROWS = tuple(row for spec in SPECS for row in spec.rows)
# Those with a placeholder of their own.
PLACED = [row for row in ROWS if re.search("placeholder|parameter|make_safe", row.name)]
EACH = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def namespace(framework):
    """Return the namespace that serves the arrays of a framework."""
    return backend_of(asarray(framework, 1.0)).xp


def gradients(f, *args):
    """Return the gradients of the sum of a function, as NumPy arrays."""
    backend = backend_of(*args)
    return [to_numpy(g) for g in backend.grad(lambda *a: backend.xp.sum(f(*a)))(*args)]


# Values and derivatives.


@EACH
def test_values_and_derivatives_are_exact(row, way):
    """Value, gradient and second derivatives are those of the branch taken, in every mode."""
    got, exact = run_elementwise(row, first_order(row.op, way[0]), *way)

    for order, x in got.items():
        assert_close(x, exact[order], 1e-14, order)


@EACH
def test_naive_versions_are_nan(row, autodiff_framework):
    """With the outer `where` alone the gradient at the edge is NaN."""
    mode = PLAIN[autodiff_framework]
    row = Row(
        *(row.name, row.op, row.naive, row.points),
        unsupported={(autodiff_framework, mode): (SECOND, "")},
    )

    got, _ = run_elementwise(
        row, first_order(row.naive, autodiff_framework), autodiff_framework, mode
    )

    assert np.isnan(got["reverse"]).any()


@EACH
def test_values_are_exact_everywhere(row, framework):
    """Values are right where there are no derivatives too, and no warning is raised."""
    if framework == "array-api-strict" and row not in PLACED:
        pytest.skip("NumPy, of which it is made, warns of entries not taken")
    args = [asarray(framework, x) for x in zip(*(p.args for p in row.points), strict=True)]

    value = to_numpy(row.op(namespace(framework), *args))

    assert_close(value, [p.value for p in row.points], 1e-15)


def test_only_a_placeholder_protects_what_a_branch_closes_over(autodiff_framework):
    """By default the gradient to `x` is right, and that to a parameter of the branch is NaN."""
    xp = namespace(autodiff_framework)
    x, a = asarray(autodiff_framework, [2.0, 0.0]), asarray(autodiff_framework, 3.0)

    def f(x, a, placeholder=None):
        return safe_where(
            x > 0, x, lambda x: a * xp.log(x), fill_value=0.0, placeholder=placeholder
        )

    to_x, to_a = gradients(f, x, a)
    _, protected = gradients(lambda x, a: f(x, a, 1.0), x, a)

    np.testing.assert_array_equal(to_x, [1.5, 0.0])
    assert np.isnan(to_a)
    assert_close(protected, log(2), 1e-15)


@pytest.mark.parametrize("placeholder", [None, 1.0])
def test_a_scalar_operand_is_masked_entry_by_entry(autodiff_framework, placeholder):
    """The gradient to the scalar a of ``a / x`` is the sum over the entries taken."""
    xp = namespace(autodiff_framework)
    a, x = asarray(autodiff_framework, 3.0), asarray(autodiff_framework, [2.0, 0.0, 4.0])

    def safe(a, x):
        return vectorized_cond(
            x > 0, xp.divide, lambda a, _: xp.zeros_like(a), a, x, placeholder=placeholder
        )

    naive, _ = gradients(lambda a, x: xp.where(x > 0, xp.divide(a, x), 0.0), a, x)
    to_a, to_x = gradients(safe, a, x)

    assert np.isnan(naive)
    assert_close(to_a, 0.75, 1e-15)
    assert_close(to_x, [-3 / 4, 0, -3 / 16], 1e-15)


@pytest.mark.parametrize("shape", [(), (1,), (3,)], ids=str)
def test_a_placeholder_may_be_an_array(autodiff_framework, shape):
    """Dead entries see the array placeholder, whose own gradient is 0."""
    xp = namespace(autodiff_framework)
    x = asarray(autodiff_framework, [2.0, 0.0, -1.0])
    point = asarray(autodiff_framework, np.full(shape, 4.0))

    def f(x, point):
        return safe_where(x > 0, x, xp.log, fill_value=0.0, placeholder=point)

    to_x, to_point = gradients(f, x, point)

    np.testing.assert_array_equal(to_x, [0.5, 0.0, 0.0])
    np.testing.assert_array_equal(to_point, np.zeros(shape))


@pytest.mark.parametrize(
    ("placeholder", "in_true", "in_false"),
    [(None, [1, 2, 3], [1, 2, 3]), (9, [1, 9, 3], [9, 2, 9]), ((8, 9), [1, 8, 3], [9, 2, 9])],
)
def test_a_branch_sees_the_placeholder_in_dead_entries(framework, placeholder, in_true, in_false):
    """Each branch gets its own entries, and elsewhere the placeholder or the entry itself."""
    x = asarray(framework, [1.0, 2.0, 3.0])
    seen = []

    def look(x):
        seen.append(to_numpy(x))
        return x

    vectorized_cond(
        asarray(framework, [True, False, True], "bool"), look, look, x, placeholder=placeholder
    )

    np.testing.assert_array_equal(seen, [in_true, in_false])


def test_stop_gradient_keeps_the_value_alone(autodiff_framework):
    """The value passes, and the derivative in both modes is 0."""
    x = asarray(autodiff_framework, [3.0, -2.0])
    backend = backend_of(x)

    (plain,) = gradients(lambda x: x * x, x)
    (stopped,) = gradients(lambda x: stop_gradient(x) * x, x)
    tangent = backend.jvp(stop_gradient)((x,), (backend.xp.ones_like(x),))

    np.testing.assert_array_equal(plain, [6.0, -4.0])
    np.testing.assert_array_equal(stopped, [3.0, -2.0])
    np.testing.assert_array_equal(to_numpy(tangent), [0.0, 0.0])


@pytest.mark.only("numpy", "array-api-strict")
def test_stop_gradient_without_derivatives_is_the_identity(framework):
    """A framework without derivatives gets its array back."""
    x = asarray(framework, [1.0, 2.0])

    assert stop_gradient(x) is x


# Structures.


class Pair(NamedTuple):
    """A structure with fields."""

    first: object
    second: object


STRUCTURES = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "dict": lambda a, b: {"a": a, "b": b},
    "fields": Pair,
    "nested": lambda a, b: {"a": [a], "rest": ({"b": b}, ())},
}


def leaves(tree):
    """Return the arrays of a structure, from left to right."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if not isinstance(tree, (tuple, list)):
        return [tree]
    return [leaf for branch in tree for leaf in leaves(branch)]


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_branches_may_return_structures(framework, structure):
    """Each array of the structure is chosen by itself."""
    xp = namespace(framework)
    x = asarray(framework, [4.0, 0.0])

    out = vectorized_cond(
        x > 0,
        lambda x: structure(1 / x, xp.sqrt(x)),
        lambda x: structure(x - 1, x - 2),
        x,
        placeholder=1.0,
    )

    assert type(out) is type(structure(0, 0))
    np.testing.assert_array_equal([to_numpy(leaf) for leaf in leaves(out)], [[0.25, -1], [2, -2]])


def test_each_array_of_a_structure_has_its_gradient(autodiff_framework):
    """Gradients come through all arrays of a structure, where the naive ones are NaN."""
    xp = namespace(autodiff_framework)
    x = asarray(autodiff_framework, [4.0, 0.0])

    def branch(x):
        return {"inverse": 1 / x, "root": (xp.sqrt(x),)}

    def safe(x):
        out = vectorized_cond(x > 0, branch, lambda x: {"inverse": x, "root": (x,)}, x)
        return out["inverse"] + 3 * out["root"][0]

    (naive,) = gradients(lambda x: xp.where(x > 0, 1 / x + 3 * xp.sqrt(x), 4 * x), x)
    (safe_gradient,) = gradients(safe, x)

    assert np.isnan(naive[1])
    np.testing.assert_array_equal(safe_gradient, [-1 / 16 + 3 / 4, 4.0])


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (lambda x: (x, x), lambda x: [x, x], "got tuple of 2 and list of 2"),
        (lambda x: (x, x), lambda x: (x,), "got tuple of 2 and tuple of 1"),
        (lambda x: {"a": x}, lambda x: {"b": x}, r"dict with keys \['a'\] and .*\['b'\]"),
        (lambda x: (x, (x,)), lambda x: (x, [x]), "got tuple of 1 and list of 1"),
        (lambda x: x, lambda x: (x,), "got .* and tuple of 1"),
        (lambda x: {"a": x}, lambda x: x, "dict with keys"),
    ],
)
def test_structures_must_be_equal(framework, one, other, words):
    """Branches of two structures raise TypeError, which shows both."""
    x = asarray(framework, [4.0, 1.0])

    with pytest.raises(TypeError, match=f"branches that return one structure.*{words}"):
        vectorized_cond(x > 2, one, other, x)


def test_branches_may_return_python_scalars(framework):
    """A constant branch takes the dtype of the other."""
    x = asarray(framework, [4.0, 0.0], "float32")

    out = vectorized_cond(x > 0, lambda x: x, lambda _: 7.0, x)

    assert dtype_name(out.dtype) == "float32"
    np.testing.assert_array_equal(to_numpy(out), [4, 7])


# NaN.


def test_make_safe_keeps_nan(framework):
    """A NaN in any argument reaches the function, whatever the domain says of it."""
    divide = make_safe(
        lambda x, y: x / y, lambda _, y: y > 0, placeholder=(0.0, 1.0), fill_value=-1.0
    )
    x, y = [1.0, 1.0, np.nan, np.nan], [4.0, 0.0, 0.0, 2.0]

    out = divide(asarray(framework, x), asarray(framework, y))

    np.testing.assert_array_equal(to_numpy(out)[[0, 1, 3]], [0.25, -1.0, np.nan])
    assert np.isnan(to_numpy(out)[2])


# What a detector raises; under it the naive versions make an inf or a NaN.
DETECTED = {
    "numpy": (FloatingPointError, "divide by zero"),
    "torch": (RuntimeError, "returned nan values"),
    "jax": (FloatingPointError, "nan"),
    "tensorflow": (Exception, "Inf|NaN"),
}


@pytest.mark.parametrize("row", PLACED, ids=lambda row: row.name)
def test_detectors_are_silent_with_a_placeholder(row, framework):
    """With a placeholder in the domain no NaN or inf is made on the way."""
    xp = namespace(framework)
    args = [asarray(framework, x) for x in zip(*(p.args for p in row.points), strict=True)]

    value, gradient = under_detector(framework, lambda *a: row.op(xp, *a), args)

    assert np.isfinite(value).all()
    assert np.isfinite(gradient).all()


@pytest.mark.only(*DETECTED)
@pytest.mark.parametrize("row", PLACED, ids=lambda row: row.name)
def test_detectors_find_the_naive_version(row, framework):
    """The same detectors raise for the outer `where` alone."""
    xp = namespace(framework)
    args = [asarray(framework, x) for x in zip(*(p.args for p in row.points), strict=True)]
    error, words = DETECTED[framework]

    with pytest.raises(error, match=words):
        under_detector(framework, lambda *a: row.naive(xp, *a), args)


# What is refused, and in which words.


REFUSED = {
    "an array as f1": (
        lambda c, x: safe_where(c, x, x, fill_value=0),
        (TypeError, "expected a function as f1, got .*cannot be protected.*pass the function"),
    ),
    "an array as f2": (
        lambda c, x: safe_where(c, x, plus, x),
        (TypeError, "expected a function as f2"),
    ),
    "an array as true_fun": (
        lambda c, x: vectorized_cond(c, x, plus, x),
        (TypeError, "expected a function as true_fun"),
    ),
    "None as false_fun": (
        lambda c, x: vectorized_cond(c, plus, None, x),
        (TypeError, "expected a function as false_fun, got NoneType"),
    ),
    "a number as f": (
        lambda *_: make_safe(1.0, plus, placeholder=0.0, fill_value=0.0),
        (TypeError, "expected a function as f, got float"),
    ),
    "an array as domain": (
        lambda c, _: make_safe(plus, c, placeholder=0.0, fill_value=0.0),
        (TypeError, "expected a function as domain"),
    ),
    "numbers as cond": (
        lambda _, x: safe_where(x, x, plus, fill_value=0),
        (TypeError, r"expected a boolean array \(True = keep\), got float64 as cond; compare"),
    ),
    "a Python number as cond": (
        lambda _, x: safe_where(1, x, plus, fill_value=0),
        (TypeError, "boolean array.*got int as cond; compare"),
    ),
    "numbers as pred": (
        lambda _, x: vectorized_cond(x, plus, minus, x),
        (TypeError, "boolean array"),
    ),
    "a domain that is no condition": (
        lambda _, x: make_safe(plus, plus, placeholder=0.0, fill_value=0.0)(x),
        (TypeError, "boolean array"),
    ),
    "None as cond": (
        lambda _, x: safe_where(None, x, plus, fill_value=0),
        (TypeError, "boolean array.*, got None as cond"),
    ),
    "None as an operand": (
        lambda c, x: safe_where(c, (x, None), plus, fill_value=0),
        (TypeError, "expected arrays of one framework out of .*, got None"),
    ),
    "None as an operand of vectorized_cond": (
        lambda c, x: vectorized_cond(c, plus, minus, x, None),
        (TypeError, "expected arrays of one framework out of .*, got None"),
    ),
    "None to what make_safe made": (
        lambda _, x: make_safe(plus, lambda x, _: x > 0, placeholder=1.0, fill_value=0.0)(x, None),
        (TypeError, "expected arrays of one framework out of .*, got None"),
    ),
    "None as fill_value of make_safe": (
        lambda _, x: make_safe(plus, lambda x: x > 0, placeholder=1.0, fill_value=None)(x),
        (TypeError, "expected a number or an array as fill_value, got None"),
    ),
    "a list as an operand": (
        lambda c, _: safe_where(c, [1.0, 2.0], plus, fill_value=0),
        (TypeError, "expected arrays of one framework out of .*, got list"),
    ),
    "a list as fill_value": (
        lambda c, x: safe_where(c, x, plus, fill_value=[1.0, 2.0]),
        (TypeError, "expected arrays of one framework out of .*, got list"),
    ),
    "a list as placeholder": (
        lambda c, x: safe_where(c, x, plus, fill_value=0, placeholder=[1.0]),
        (TypeError, "expected arrays of one framework out of .*, got list"),
    ),
    "a placeholder too many": (
        lambda c, x: safe_where(c, x, plus, fill_value=0, placeholder=(1.0, 2.0)),
        (ValueError, "expected a placeholder for each of 1 arguments, got 2"),
    ),
    "a placeholder too few": (
        lambda _, x: make_safe(plus, lambda x, _: x > 0, placeholder=(1.0,), fill_value=0.0)(x, x),
        (ValueError, "expected a placeholder for each of 2 arguments, got 1"),
    ),
    "three placeholders for two branches": (
        lambda c, x: vectorized_cond(c, plus, minus, x, placeholder=(1.0, 2.0, 3.0)),
        (ValueError, "expected a pair of placeholders, one for each branch, got 3"),
    ),
    "a complex placeholder for real numbers": (
        lambda c, x: safe_where(c, x, plus, fill_value=0, placeholder=1j),
        (TypeError, "expected a placeholder that fits the dtype float64, got 1j"),
    ),
    "nothing to work on": (
        lambda *_: safe_where(True, 1.0, plus, fill_value=0),
        (TypeError, "expected at least one array"),
    ),
    "a list to stop_gradient": (
        lambda *_: stop_gradient([1.0]),
        (TypeError, "expected arrays of one framework out of .*, got list"),
    ),
    "a number to stop_gradient": (
        lambda *_: stop_gradient(1.0),
        (TypeError, "expected at least one array.*got the Python number 1.0"),
    ),
}


@pytest.mark.parametrize(("call", "refusal"), REFUSED.values(), ids=REFUSED)
def test_errors_say_what_was_given_and_the_way_out(framework, call, refusal):
    """What no combinator can serve raises, in words that name it."""
    error, words = refusal
    cond, x = asarray(framework, [True, False], "bool"), asarray(framework, [1.0, 2.0])

    with pytest.raises(error, match=words):
        call(cond, x)


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_a_fraction_is_no_placeholder_for_integers(framework, dtype):
    """A placeholder that would be rounded raises; a whole number fits, in any spelling."""
    x, cond = asarray(framework, [4, 0], dtype), asarray(framework, [True, False], "bool")
    half = asarray(framework, 0.5)

    for placeholder, given in ((0.5, "0.5"), (half, "float64")):
        with pytest.raises(TypeError, match=f"fits the dtype {dtype}, got {given}"):
            safe_where(cond, x, plus, fill_value=0, placeholder=placeholder)
    out = safe_where(cond, x, lambda x: x, fill_value=x, placeholder=1.0)

    np.testing.assert_array_equal(to_numpy(out), to_numpy(x))
