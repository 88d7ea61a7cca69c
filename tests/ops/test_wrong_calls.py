"""Calls that a new user makes and that are wrong: the whole message of each, in every framework."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import safeops
from frameworks import asarray

FRAMEWORKS = (
    "one framework out of (numpy, torch, jax, tensorflow, or any of the array API standard)"
)
MAKERS = {
    "jax": "jnp.asarray",
    "torch": "torch.tensor",
    "tensorflow": "tf.constant",
    "numpy": "np.asarray",
}
LINES = Path(__file__).with_name("wrong_calls.txt").read_text().splitlines()
CALLS = dict(zip(LINES[::2], map(str.strip, LINES[1::2]), strict=True))


def names(framework):
    """Return what the calls name: arrays, a logarithm, the functions and modules of safeops."""
    math = import_module({"jax": "jax.numpy"}.get(framework, framework))
    values = {
        "x": ([0.5, 0.25], "float32"),
        "m": ([[1.0, 2.0], [3.0, 4.0]], "float32"),
        "i": ([1, 0], "int32"),
        "c": ([True, False], "bool"),
    }
    found = {name: getattr(safeops, name) for name in dir(safeops) if not name.startswith("_")}
    found["log"] = math.math.log if framework == "tensorflow" else math.log
    kinds = {float: "float32", int: "int32", bool: "bool", list: "float32"}
    found["A"] = lambda values: asarray(framework, values, kinds[type(values[0])])
    return found | {name: asarray(framework, *value) for name, value in values.items()}


def maker(call, framework):
    """Return how to make an array: in the framework of the others, or the first imported."""
    has_array = re.search(r"\b[xmic]\b", call.partition("(")[2])
    return MAKERS[framework if has_array else next(name for name in MAKERS if name in sys.modules)]


@pytest.mark.whole
@pytest.mark.only(*MAKERS)
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_says_what_to_write(call, framework):
    """The error names the argument, what was given, and the call to write."""
    known = names(framework)
    function = eval(call.partition("(")[0], known)  # noqa: S307  (our own table)
    bare = [x.replace(annotation=x.empty) for x in inspect.signature(function).parameters.values()]
    kind, _, message = CALLS[call].partition(": ")
    wanted = message.format(
        takes=f"{function.__name__}{inspect.Signature(bare)}",
        one=FRAMEWORKS,
        make=maker(call, framework),
        array=type(known["x"]).__name__,
    )

    with pytest.raises((TypeError, ValueError)) as raised:
        eval(call, known)  # noqa: S307  (as above)

    assert (type(raised.value).__name__, str(raised.value)) == (kind, wanted)
