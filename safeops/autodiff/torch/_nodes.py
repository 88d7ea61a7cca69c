"""Which node of autograd runs, and whose code: a formula, a hook, or a function of the user."""

import sys
from pathlib import Path
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._backends.torch.elementwise import FillingFunction


def words(text: str) -> frozenset[str]:
    """Return names, which read best in a row."""
    return frozenset(text.split())


# Nodes whose forward operation is a selection: in their formulas a 0 means "not used". The same
# `where(cond, gradient, 0)` in the formula of a norm or of hardtanh is a convention about a slope,
# and a number. A name that is missing here costs precision, and hides nothing.
OURS = FillingFunction.__name__  # of all functions of ours that derive from it
SELECTIONS = words(
    f"""
    {OURS} Where MaskedFill MaskedScatter Maximum Minimum Fmax Fmin Amax Amin Aminmax Max Min Clamp
    ClampMin ClampMax Nansum NanToNum Median Nanmedian IndexPut IndexFill
    IndexCopy Scatter Tril Triu
    """
)
CLAMPS = frozenset(["Clamp", "ClampMin", "ClampMax"])
# Selections that PyTorch writes as a product with a boolean tensor.
BY_PRODUCT = words(f"{OURS} Amax Amin Aminmax Max Min Median Nanmedian Nansum NanToNum")
# Nodes that return a literal 0 for what they overwrote. (A slice assignment is a CopySlices.)
OVERWRITES = words("Fill Zero CopyBackwards torch::autograd::CopyBackwards")


def node_name() -> tuple[Any, str]:
    """Return the running node of autograd, and the name of its forward operation."""
    # There is no public way to ask which formula an operation belongs to.
    node = private.current_node()
    if node is None or is_custom(node):  # of which a user chooses the name
        return node, OURS if is_ours(node) else ""
    return node, stem_of(node.name())


def stem_of(name: str) -> str:
    """Return the name of the forward operation of a node."""
    stem, found, _ = name.rpartition("Backward")
    return stem if found and name not in OVERWRITES else name


def is_custom(node: Any) -> bool:
    """Whether the formula of a node is Python code of an `autograd.Function`."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def is_ours(node: Any) -> bool:
    """Whether a node is that of a function of ours which leaves entries out."""
    return is_custom(node) and issubclass(private.forward_class(node), FillingFunction)


def in_a_hook(node: Any) -> bool:
    """
    Whether an operation is called by Python code, and not by PyTorch's formula.

    A hook runs while the node is current whose input it sees; what it does with zeros is a product.

    The Python stack tells. A `TorchFunctionMode` that counts calls does not: `torch.autograd.grad`
    asks the modes by itself, and runs with the mode off, so that no hook reaches it (PyTorch 2.13).
    Nor could it tell a hook from the backward method of our own functions.
    """
    if is_custom(node):
        return is_ours(node) and not in_its_method()
    frame: Any = sys._getframe()  # noqa: SLF001  (`inspect` reads source files too)
    while frame is not None and is_between(frame.f_code.co_filename):
        frame = frame.f_back
    # A device has a thread of its own, where nothing is below the formula.
    return frame is not None and frame.f_code.co_name != private.ENGINE


def is_between(file: str) -> bool:
    """Whether the code of a file runs between the engine and an operation."""
    return file in OWN_FILES or file.startswith(OF_DTENSOR)


def is_foreign(node: Any) -> bool:
    """Whether an operation is not PyTorch's: a hook calls it, or a custom function."""
    return (is_custom(node) and not is_ours(node)) or in_a_hook(node)


def in_its_method() -> bool:
    """Whether the backward method of a custom function calls an operation, and not a hook."""
    frame: Any = sys._getframe()  # noqa: SLF001  (as above)
    while frame is not None and frame.f_code.co_name != private.ENGINE:
        if frame.f_code is APPLY:
            return True
        frame = frame.f_back
    return False


APPLY = torch.autograd.function.BackwardCFunction.apply.__code__  # it calls the method
# Between the engine and an operation there are these files and no other.
HERE = Path(__file__).parent
OURS_HERE = frozenset(map(str, {*HERE.rglob("*.py")} - {HERE / "__init__.py"}))
OWN_FILES = OURS_HERE | private.files_of_calls() | {private.__file__}
# And what DTensor does to run an operation on the part of a rank.
COLLECTIVES = private.collectives().__file__
OWN_FILES |= {COLLECTIVES}
OF_DTENSOR = str(Path(COLLECTIVES).parent / "tensor")
