"""Eager JAX runs an operation as one program: the same values, and a program for each constant."""

import gc
import weakref
from unittest.mock import patch

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from frameworks import asarray, to_numpy
from safeops._backends import GENERIC, load

pytestmark = pytest.mark.only("jax")

X = np.array([[4.0, 0.0, -1.0], [np.nan, 0.25, np.inf], [0.0, 0.0, -0.0]])
OPTIONS = {
    "safe_div": ({"fill_value": -2.0}, 2),
    "safe_log": ({"fill_value": 7}, 1),
    "safe_pow": ({}, 2),
    "xlogy": ({}, 2),
    "safe_norm": ({"axis": (0, 1), "keepdims": True}, 1),
    "safe_softmax": ({"axis": 0}, 1),
    "nanmax": ({"axis": -1, "fill_value": 0.5}, 1),
    "safe_cross_entropy": ({}, 2),
}
NAMES = pytest.mark.parametrize("name", OPTIONS)


def generic(f, *args, **options):
    """Return what the operation makes of the arguments, step by step."""
    with patch.object(load("jax"), "kernels", {}):
        return f(*args, **options)


@pytest.fixture
def kernels():
    """Return kernels without a program."""
    fresh = type(load("jax").kernels)()
    with patch.object(load("jax"), "kernels", fresh):
        yield fresh


@NAMES
def test_values_and_gradients_are_those_of_the_steps(name):
    """Value and gradient of the program are those of the operations one by one."""
    import jax

    options, n = OPTIONS[name]
    f, args = getattr(so, name), [asarray("jax", X), asarray("jax", X[::-1].copy())][:n]

    def total(*args):
        out = f(*args, **options)
        return jax.numpy.where(jax.numpy.isfinite(out), out, 0.0).sum()

    every = tuple(range(n))
    got = f(*args, **options), *jax.grad(total, every)(*args)
    wanted = generic(f, *args, **options), *generic(jax.grad(total, every), *args)

    for a, b in zip(got, wanted, strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        assert_close(to_numpy(a), to_numpy(b), 1e-14, name)


def test_a_constant_is_told_by_type_and_sign(kernels):
    """0.0, -0.0, 1 and 1.0 are constants of their own."""
    x = asarray("jax", [0.0])

    found = [so.safe_div(x, x, fill_value=fill)[0] for fill in (0.0, -0.0, 1, 1.0)]

    assert [np.signbit(fill) for fill in found] == [False, True, False, False]
    assert len(kernels["safe_div"].programs) == 4


def test_ever_new_numbers_are_not_compiled(kernels):
    """A function called with a new number each time makes a bounded number of programs."""
    x = asarray("jax", [0.0])
    with patch("safeops._backends.jax._MOST", 3):
        found = [float(so.safe_div(x, x, fill_value=float(i))[0]) for i in range(5)]

    assert found == [0, 1, 2, 3, 4]
    assert len(kernels["safe_div"].programs) == 3


@pytest.mark.usefixtures("kernels")
def test_no_argument_is_held():
    """An array that was an argument is freed."""
    x = asarray("jax", [1.0, 2.0])
    gone = weakref.ref(x)
    so.safe_sqrt(x)

    del x
    gc.collect()

    assert gone() is None


def test_an_outer_program_has_nothing_of_it():
    """In a program of the user's an operation is its steps, as if there were no inner one."""
    import jax

    text = str(jax.make_jaxpr(so.safe_sqrt)(asarray("jax", [1.0])))

    assert "sqrt" in text
    assert "name=safe_sqrt" not in text


def test_what_is_no_constant_is_left_to_the_steps():
    """An array of another framework gets the error that it gets everywhere."""
    x = asarray("jax", [1.0])

    with pytest.raises(TypeError, match="expected arrays of one framework"):
        so.safe_div(x, np.ones(1))


def test_every_kernel_is_a_function_of_the_door():
    """What asks for a kernel has the name of a public function, or of what these share."""
    names = {name for name in GENERIC if not name.startswith("_")}

    assert names <= set(so.__all__)
    assert len(names) > 50


def test_an_option_may_be_an_array():
    """A floor that is an array is asked for its value, which a program has not."""
    import jax.numpy as jnp

    assert so.safe_norm(jnp.zeros(2), min_norm=jnp.asarray(0.5)) == 0.5
