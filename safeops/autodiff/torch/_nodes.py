"""Which node of autograd runs, and who calls: its formula, a hook, or a function of the user."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safeops._backends.torch import private
from safeops._backends.torch.fast_paths import FillingFunction


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Nodes whose forward operation is a selection: a 0 in their formulas means "not used". The same
# `where(cond, gradient, 0)` in the formula of a norm or of hardtanh is a convention about a slope,
# and its 0 is a number. A name that is missing here makes fewer entries absent, and hides nothing.
OURS = FillingFunction.__name__  # one name for all classes that derive from it
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
# Nodes that return a literal 0 for what they overwrote. (A slice assignment is a CopySlices node.)
OVERWRITES = words("Fill Zero CopyBackwards torch::autograd::CopyBackwards")


@contextmanager
def attached(handles: Iterable[Any]) -> Iterator[None]:
    """Keep hooks on nodes within a block; they are registered at its beginning."""
    every = list(handles)
    try:
        yield
    finally:
        for handle in every:
            handle.remove()


def node_name() -> tuple[Any, str]:
    """Return the running node of autograd, and the name of its forward operation."""
    # Private, as no public function tells to which formula an operation belongs.
    node = private.current_node()
    if node is None or is_custom(node):  # its name is the user's choice
        return node, OURS if is_ours(node) else ""
    return node, stem_of(node.name())


def stem_of(name: str) -> str:
    """Return the name of the forward operation of a node."""
    stem, found, _ = name.rpartition("Backward")
    return stem if found and name not in OVERWRITES else name


def is_custom(node: Any) -> bool:
    """Whether the formula of a node is Python code of an `autograd.Function`."""
    return isinstance(node, private.Custom)


def is_ours(node: Any) -> bool:
    """Whether a node is of a safeops function that fills entries."""
    return is_custom(node) and issubclass(private.forward_class(node), FillingFunction)


def in_a_hook(node: Any) -> bool:
    """Whether Python code calls an operation, and not PyTorch's formula."""
    # A hook on the input of a node runs while that node is current; a zero in a hook is a number.
    #
    # The Python stack tells. A `TorchFunctionMode` that counts calls cannot: `torch.autograd.grad`
    # hands itself to the modes and runs with the mode off, so that no call in a hook reaches the
    # mode (PyTorch 2.13). Nor could a mode tell a hook from the backward method of a safeops
    # function.
    if is_custom(node):
        return is_ours(node) and not in_its_method()
    frame: Any = sys._getframe()  # noqa: SLF001  (`inspect` reads source files too)
    while frame is not None and is_between(frame.f_code.co_filename):
        frame = frame.f_back
    # On a device the engine has a thread of its own, whose stack ends at the formula.
    return frame is not None and frame.f_code.co_name != private.ENGINE


def is_between(file: str) -> bool:
    """Whether code of a file may run between the engine and an operation of a formula."""
    return file in OWN_FILES or file.startswith(OF_DTENSOR)


def is_foreign(node: Any) -> bool:
    """Whether a hook or a custom function calls the running operation, not PyTorch's formula."""
    return (is_custom(node) and not is_ours(node)) or in_a_hook(node)


def in_its_method() -> bool:
    """Whether the backward method of a custom function calls the operation, and not a hook."""
    frame: Any = sys._getframe()  # noqa: SLF001  (as above)
    while frame is not None and frame.f_code.co_name != private.ENGINE:
        if frame.f_code in APPLY:
            return True
        frame = frame.f_back
    return False


APPLY = private.codes_of_apply()
# These files, and no other, run between the engine and an operation of a formula.
FOLDER = Path(__file__).parent
OURS_HERE = frozenset(map(str, {*FOLDER.rglob("*.py")} - {FOLDER / "__init__.py"}))
OWN_FILES = OURS_HERE | private.files_of_calls() | {private.__file__}
# And the files of DTensor, which runs an operation on the part of a rank.
COLLECTIVES = private.collectives().__file__
OWN_FILES |= {COLLECTIVES}
OF_DTENSOR = str(Path(COLLECTIVES).parent / "tensor")


# Which formula runs within the node of an in-place write into a view.
#
# PyTorch wraps the formula of such a write in a node `CopySlices`, and hands out neither the
# formula nor its name: `floor_` and `fill_` run the very same operations there. The C++ stack has
# the name.


COPY_SLICES = "torch::autograd::CopySlices"
DEEPEST = 96  # frames to search
WINDOW = 4  # frames to name at once: the formula, its caller, its node, and one more
# At which depth the formula was found last, by operation: naming a frame takes 0.5 ms.
KNOWN: dict[str, int] = {}


def inner_name(operation: str) -> str:
    """Return the name of the formula within the running `CopySlices`; "" if unknown."""
    known = KNOWN.get(operation)
    name, _ = ("", 0) if known is None else _named(known, WINDOW)
    if not name:
        name, KNOWN[operation] = _named(0, DEEPEST)
    return name


def _named(start: int, count: int) -> tuple[str, int]:
    """Return the formula among some frames of the stack, and its depth."""
    text = private.backtrace(start, count)
    above, found, _ = text.partition("CopySlices::apply(")
    *_, (number, name) = [("0", ""), *FORMULA.findall(above)]
    return (name, start + int(number)) if found else ("", start)


FORMULA = re.compile(r"frame #(\d+): [\w:]*?(\w+)::apply\(")
