"""The types of the house: an array of any framework, an axis, a condition, a reduction."""

from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np

# No type covers ndarray, torch.Tensor, jax.Array and tf.Tensor; the name says what is meant.
Array: TypeAlias = Any
Namespace: TypeAlias = "ModuleType | Any"
DType: TypeAlias = Any
Axis: TypeAlias = int | tuple[int, ...] | None
Function: TypeAlias = Callable[..., Any]


class IsArray(Protocol):
    """What type checkers take for an array: a list, or a number of Python, is none."""

    @property
    def shape(self) -> Any:
        """The lengths of its axes."""

    @property
    def dtype(self) -> Any:
        """What it holds."""


# What goes into an operation comes out: an ndarray, a torch.Tensor, a jax.Array. A parameter that
# takes a number of Python too is ``T | complex``; complex is what type checkers call each.
T = TypeVar("T", bound=IsArray)
P = ParamSpec("P")
# The methods of `numpy.quantile`.
Method: TypeAlias = Literal[
    "averaged_inverted_cdf", "closest_observation", "hazen", "higher", "interpolated_inverted_cdf",
    "inverted_cdf", "linear", "lower", "median_unbiased", "midpoint", "nearest", "normal_unbiased",
    "weibull",
]  # fmt: skip
Condition: TypeAlias = IsArray | bool
Where: TypeAlias = Condition | None
Like: TypeAlias = IsArray | complex  # an array, or a number of Python


class Reduction(Protocol[P]):
    """A reduction: of an ndarray it may be a number, of other arrays an array of their kind."""

    @property
    def __name__(self) -> str:
        """Its name."""

    @overload
    def __call__(self, x: "np.ndarray[Any, Any]", /, *args: P.args, **options: P.kwargs) -> Any: ...
    @overload
    def __call__(self, x: T, /, *args: P.args, **options: P.kwargs) -> T: ...


def reduces(function: Callable[Concatenate[Any, P], Any]) -> Reduction[P]:
    """Let type checkers know that a function is a reduction."""
    return cast("Reduction[P]", function)


# The options of operations that may be arrays.
ARRAY_OPTIONS = ("where", "fill_value", "initial", "b", "count", "weights")
