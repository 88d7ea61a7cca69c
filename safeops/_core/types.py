"""The types of the house: an array of any framework, and what the file of a framework offers."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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
    "averaged_inverted_cdf",
    "closest_observation",
    "hazen",
    "higher",
    "interpolated_inverted_cdf",
    "inverted_cdf",
    "linear",
    "lower",
    "median_unbiased",
    "midpoint",
    "nearest",
    "normal_unbiased",
    "weibull",
]
Condition: TypeAlias = IsArray | bool


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


class Backend(Protocol):
    """
    What a framework's file in `_backends/` must satisfy.

    Nothing else in the house asks which framework an array belongs to.
    """

    name: str
    xp: Namespace  # functions by their names in the array API standard
    kernels: Mapping[str, Function]  # its own implementations of functions of the house, by name
    formulas: Mapping[
        str, Function
    ]  # products with logarithms, with derivatives that stay in range
    keeps_exponent: bool  # whether the slope of x**p for x rightly depends on p at p == 0
    differentiates: bool  # whether `grad` and `jvp` have derivatives

    # If two backends share a name (NumPy and dask), the larger number wins.
    precedence: int

    def kernel(self, name: str, generic: Function) -> Function | None:
        """Return the framework's own implementation of `generic`, or None; `name` is its name."""

    def owns(self, x: object) -> bool:
        """Whether `x` is an array of this framework."""

    def kin(self, x: Array) -> str | None:
        """Return the name of the backend for the type of `x`, if it is another backend."""

    def refuse(self, x: Array) -> None:
        """Raise TypeError for types of arrays that safeops cannot serve; called once for a type."""

    def is_compiling(self) -> bool:
        """Whether Python is being compiled, so that nothing may be written to a module."""

    def accepts_numpy(self, x: Any) -> bool:
        """Whether an array or scalar of NumPy may stand beside arrays of this framework."""

    def constant(self, x: Any, like: Array) -> Any:
        """Return an array or scalar of NumPy as a constant beside `like`."""

    def check(self, x: Array) -> None:
        """Raise TypeError for arrays that the framework has and safeops cannot serve."""

    def result_type(self, args: Sequence[Any]) -> DType:
        """Dtype of the framework's own division of `args`; Python scalars are weak."""

    def promoted(
        self, args: Sequence[Any], also: Sequence[Any] = (), *, complex_too: bool = False
    ) -> Sequence[Any]:
        """Return `args`, then `also`, in one floating dtype; scalars and None in `also` stay."""

    def cast(self, x: Any, dtype: DType, like: Array) -> Array:
        """Array or Python scalar as an array of `dtype`, scalars on the device of `like`."""

    def cholesky(self, x: Array) -> Array:
        """Return the lower factor, with NaN in it where there is none; it does not raise."""

    def slogdet(self, x: Array) -> tuple[Array, Array]:
        """Return the sign of a determinant, for complex x its phase, and the log of its size."""

    def flatten_axes(self, x: Array, axis: Axis) -> Array:
        """Return `x` with these axes as one, the last."""

    def with_trailing_shape(self, x: Array, tail: tuple[int, ...]) -> Array:
        """Return `x` where a trace does not know that these are its last lengths; or an error."""

    def as_index(self, x: Array) -> Array:
        """Return whole numbers as integers that index."""

    def rough_max(self, x: Array, axis: Axis) -> Array:
        """Return the largest entry of each slice, axes kept; it may pass over NaN."""

    def rough_size(self, x: Array, axis: Axis) -> Array:
        """
        Return for each slice a number up to its norm, axes kept, for finite sizes x.

        The number is at least the norm over the root of the number of entries.
        """

    def unfused_product(self, x: Array) -> Array:
        """Return a product, so that no compiler sums its squares by other products."""

    def rough_max_and_min(self, low: Array, high: Array, axis: Axis) -> tuple[Array, Array | None]:
        """Return `rough_max` of one array and the smallest of another, if that costs little."""

    def sums(self, arrays: Sequence[Array], axis: Axis) -> Sequence[Array]:
        """Return the sums of the slices of arrays of one shape, axes kept."""

    def lengths(self, x: Array, axis: Axis) -> Array:
        """Return how many entries a slice has, in the dtype of `x`, axes kept."""

    def extreme_and_max(
        self, x: Array, levels: Array, axis: Axis, sign: int
    ) -> tuple[Array, Array]:
        """Return `extreme` of one array, and `rough_max` of another, which has no NaN."""

    def extreme(self, x: Array, axis: Axis, sign: int) -> Array:
        """
        Return the largest entry of each slice for sign 1, the smallest for -1, axes kept.

        Equal extremes share the slope; other entries have slope 0, even if the cotangent is inf.
        """

    def product(self, x: Array, axis: Axis) -> Array:
        """Return the product of each slice, axes kept, with all its derivatives at zeros."""

    def cumulative(self, x: Array, axis: int, *, product: bool) -> Array:
        """Return running sums, or running products."""

    def positions(self, x: Array, axis: int) -> Array:
        """Return the place of each entry along an axis, in a shape that broadcasts against `x`."""

    def gather(self, x: Array, ids: Array) -> Array:
        """Return the entries of `x` with these indices, of any shape, along the first axis."""

    def ranks(self, knots: Array, x: Array) -> Array:
        """Return for each number how many knots are not above it; some number for NaN."""

    def pairs(self, x: Array) -> tuple[Array, Array]:
        """Return the indices i and j of all pairs ``i < j`` along the last axis but one."""

    def segment_sum(self, x: Array, ids: Array, number: int) -> Array:
        """Return the sums of the entries of `x` along the first axis that have the same id."""

    def segment_max(self, x: Array, ids: Array, number: int, least: float) -> Array:
        """Return the largest of such entries, `least` at least, as a constant; none is NaN."""

    def stop_gradient(self, x: Array) -> Array:
        """Return `x` as a constant: derivatives through it are 0."""

    def is_constant(self, x: Array) -> bool:
        """Whether it is known that nothing differentiates by x."""

    def special(self, name: str) -> Function | None:
        """Return the framework's function of this name in `scipy.special`, if it has one."""

    def with_slope(self, f: Function, slope: Function, is_filled: Function) -> Function:
        """Return a function of one array whose derivative is `slope`, and 0 where it is filled."""

    def barrier(
        self, excess: Function, arrays: tuple[Array, ...], constants: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """
        Return zeros like the arrays, and NaN where these have an excess.

        It counts as linear and as its own transpose: what it does to the arrays it does to their
        tangents and to the cotangents of the result. The excess of a matrix is a truth value with
        two axes kept, of the arrays and of the constants.
        """

    def quiet(self) -> AbstractContextManager[Any]:
        """Silence floating-point warnings that entries not taken would raise."""

    def grad(self, f: Function) -> Function:
        """
        Reverse mode: turn a scalar function into the function of its gradients.

        ``grad(f)(*args)`` is a tuple with an entry for each argument. `grad` can be nested.
        """

    def jvp(self, f: Function) -> Function:
        """Forward mode: ``jvp(f)(args, tangents)`` is the tangent of ``f(*args)``."""

    def nan_detector(self) -> AbstractContextManager[Any]:
        """Turn on the framework's own search for NaN, which raises when a NaN is made."""
