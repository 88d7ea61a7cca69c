"""The numbers of the arguments that masked autodiff differentiates with respect to."""

from importlib import import_module
from re import escape

import numpy as np
import pytest

from frameworks import asarray, to_numpy
from safeops import autodiff, safe_sum

MASKED = ("jax", "tensorflow", "torch")
OURS = ("value_and_grad", "jacrev", "jacfwd", "hessian")


def product(a, b):
    """Return a number with the slopes b and a."""
    return safe_sum(a * b)


def doors(framework, f):
    """Return every door by its name: a function of numbers of arguments, and of arguments."""
    ours = import_module(f"safeops.autodiff.{framework}")
    makers = {"grad": autodiff.grad} | {name: getattr(ours, name, None) for name in OURS}
    found = {
        name: lambda n, *args, make=make: make(f, n)(*args) for name, make in makers.items() if make
    }
    found["explain"] = lambda n, *args: autodiff.explain(f, *args, argnums=n)
    return found


def pair(framework):
    """Return the two arguments of a product."""
    return [asarray(framework, values, "float32") for values in ([2.0, 3.0], [5.0, 7.0])]


@pytest.mark.whole
@pytest.mark.only(*MASKED)
@pytest.mark.parametrize("number", [2, -3])
def test_an_argument_that_is_not_there_is_an_error(framework, number):
    """No gradient of another argument is returned in its place, and none of 0."""
    said = f"expected argnums below 2, the number of arguments by position, got {number}"
    for door in doors(framework, product).values():
        with pytest.raises(TypeError, match=f"^{escape(said)}$"):
            door(number, *pair(framework))


@pytest.mark.whole
@pytest.mark.only(*MASKED)
@pytest.mark.parametrize("number", ["a", None, 0.0])
def test_what_is_no_number_of_an_argument_is_an_error(framework, number):
    """A name, None or a float is an error that says what is taken."""
    said = f"^expected an int( or a sequence of ints)? as argnums, got {escape(repr(number))}$"
    for door in doors(framework, product).values():
        with pytest.raises(TypeError, match=said):
            door(number, *pair(framework))


@pytest.mark.whole
@pytest.mark.only(*MASKED)
@pytest.mark.parametrize("number", [1, -1, np.int64(1)])
def test_the_second_argument_has_its_own_slope(framework, number):
    """A number counts from the end where it is negative, and may be of NumPy."""
    found = autodiff.grad(product, number)(*pair(framework))

    assert to_numpy(found).tolist() == [2.0, 3.0]


@pytest.mark.whole
@pytest.mark.only(*MASKED)
def test_other_arguments_may_have_names(framework):
    """A keyword reaches the function, and is a constant."""
    a, b = pair(framework)

    assert to_numpy(autodiff.grad(product)(a, b=b)).tolist() == [5.0, 7.0]


@pytest.mark.only("torch")
@pytest.mark.parametrize("made", [3.0, None])
def test_a_result_that_is_no_tensor_is_an_error(made, framework):
    """A function that returns a number of Python says what to return."""
    said = f"^expected a function to a tensor of one number, got {type(made).__name__}; return "
    found = doors(framework, lambda *_: made)
    for name in ("grad", "value_and_grad", "explain"):
        with pytest.raises(TypeError, match=said):
            found[name](0, *pair(framework))
