"""
Arrays of dask: an elementwise operation runs block by block, with the kernels of NumPy.

So the graph is as large as the graph of the plain operation; a double where would add a layer for
each of its steps. A call computes nothing but the operation on one entry, to learn the dtype.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import array_api_compat.dask.array as xp
import dask.array as da
import numpy as np

from safeops._backends.array_api import MATRICES, ArrayAPI, of_scipy
from safeops._core.dtypes import SCALARS
from safeops._core.types import Array, Axis, Function

ELEMENTWISE = """
    safe_div safe_reciprocal safe_mul safe_sqrt safe_rsqrt safe_log safe_log2 safe_log10 safe_log1p
    safe_exp safe_expm1 safe_pow safe_asin safe_acos safe_acosh safe_atanh safe_atan2 safe_hypot
    xlogy xlog1py xdivy entr rel_entr safe_logaddexp safe_logsubexp sinc safe_logit
    log1mexp log_cosh log_expm1 log_sech2 log_sinhc
    log_ndtr safe_ndtri safe_erfinv safe_lgamma safe_digamma safe_gammainc safe_gammaincc
"""


class OfBlocks:
    """A function of the house, which a pickle knows by its name, so that every worker finds it."""

    def __init__(self, function: Any, given: tuple[str, ...], options: dict[str, Any]) -> None:
        self.function, self.given, self.options = function, given, options
        self.__name__ = function.__name__  # dask names the layer of the graph by it

    def __call__(self, *blocks: Any) -> Any:
        """Return the value of blocks; the last blocks are the options in `given`."""
        first = len(blocks) - len(self.given)
        settings = dict(zip(self.given, blocks[first:], strict=True))
        value = self.function(*blocks[:first], **settings, **self.options)
        return np.asarray(value)


def blockwise(public: Function, *args: Any, **options: Any) -> Array | None:
    """Return an elementwise operation; None unless all arguments are of dask, NumPy or Python."""
    given = tuple(key for key, x in options.items() if isinstance(x, (da.Array, np.ndarray)))
    values = (*args, *(options[key] for key in given))
    if not all(isinstance(x, (da.Array, np.ndarray, np.generic, *SCALARS)) for x in values):
        return None  # the operation raises the error
    rest = {key: x for key, x in options.items() if key not in given}
    function = OfBlocks(public, given, rest)
    return da.core.elemwise(function, *values, dtype=function(*map(one_of, values)).dtype)


def one_of(x: Any) -> Any:
    """Return an array of one entry for an array of many."""
    return np.ones((1,) * x.ndim, x.dtype) if isinstance(x, (da.Array, np.ndarray)) else x


def quantile(
    public: Function,
    x: Array,
    q: Any,
    method: str,
    /,
    *,
    axis: Axis,
    keepdims: bool,
    where: Any,
    fill_value: Any,
) -> Array:
    """Return quantiles along axes; each slice becomes one chunk."""
    if axis is None or not isinstance(q, SCALARS) or not isinstance(fill_value, SCALARS):
        wanted = "axes, as no chunk has all entries" if axis is None else "one number as q and fill"
        msg = (
            f"expected {wanted}, for an array of dask; for others compute it, or use "
            "da.map_blocks(safeops.nanquantile, x, ...) where each slice is one chunk"
        )
        raise NotImplementedError(msg)
    axes = tuple(a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,)))
    x = x.rechunk(dict.fromkeys(axes, -1))
    arrays = [x] if where is None else [x, da.broadcast_to(where, x.shape).rechunk(x.chunks)]
    settings = {"axis": axes, "keepdims": keepdims, "where": None, "fill_value": fill_value}
    function = Quantile(public, ("where",)[: len(arrays) - 1], settings, (q, method))
    shape: dict[str, Any] = {"drop_axis": axes}
    if keepdims:
        shape = {"chunks": tuple((1,) if a in axes else c for a, c in enumerate(x.chunks))}
    return da.map_blocks(function, *arrays, dtype=function(*map(one_of, arrays)).dtype, **shape)


class Quantile(OfBlocks):
    """Quantiles of blocks."""

    def __init__(self, function: Any, given: Any, options: dict[str, Any], which: Any) -> None:
        super().__init__(function, given, {k: x for k, x in options.items() if k not in given})
        self.which = which

    def __call__(self, x: Any, *blocks: Any) -> Any:
        """Return the quantile of blocks."""
        return super().__call__(x, *self.which, *blocks)


class OfMatrices:
    """A function of matrices, the last two axes of blocks, or one of the arrays it returns."""

    def __init__(self, function: Any, part: int | None, args: Any, options: dict[str, Any]) -> None:
        self.function, self.part, self.args, self.options = function, part, args, options
        self.__name__ = function.__name__

    def __call__(self, a: Any) -> Any:
        """Return the value of a block."""
        value = self.function(a, *self.args, **self.options)
        return np.asarray(value if self.part is None else value[self.part])


def matrices(public: Function, a: Array, /, *args: Any, **options: Any) -> Any:
    """Return a function of matrices, each of which becomes one chunk."""
    batch = a.ndim - 2
    if batch < 0 or not all(n > 0 for n in a.shape[batch:]):  # not known, or none
        return None  # the generic function says what is wrong with it
    a = a.rechunk({batch: -1, batch + 1: -1})
    one = np.eye(*a.shape[batch:], dtype=a.dtype).reshape((1,) * batch + a.shape[batch:])
    whole = public(one, *args, **options)
    many = isinstance(whole, tuple)
    found = []
    for part, value in enumerate(whole if many else (whole,)):
        function = OfMatrices(public, part if many else None, args, options)
        rest = np.shape(value)[batch:]
        shape: dict[str, Any] = {"drop_axis": list(range(batch + len(rest), a.ndim))}
        chunks = (*a.chunks[:batch], *((n,) for n in rest))
        found.append(da.map_blocks(function, a, dtype=value.dtype, chunks=chunks, **shape))
    return tuple(found) if many else found[0]


class Dask(ArrayAPI):
    """Arrays of dask, and NumPy's beside them."""

    name = "dask"
    precedence = 1
    kernels: Mapping[str, Function] = {
        **dict.fromkeys(ELEMENTWISE.split(), blockwise),
        **dict.fromkeys(MATRICES.split(), matrices),
        "_quantile": quantile,
    }

    def kernel(self, name: str, generic: Function) -> Function | None:
        """Return a function that calls the public one block by block, or slice by slice."""
        kernel = self.kernels.get(name)
        return None if kernel is None else partial(kernel, cast("Any", generic).public)

    def special(self, name: str) -> Function | None:
        """Return a function of SciPy, which dask takes block by block."""
        return of_scipy(name)

    def accepts_numpy(self, x: Any) -> bool:
        """Take all of NumPy's, as dask does."""
        del x
        return True

    def constant(self, x: Any, like: Array) -> Array:
        """Return an array in the chunks of `like`, if it has its shape."""
        x = np.asarray(x)
        return da.from_array(x, chunks=like.chunks if x.shape == like.shape else -1)


backend = Dask(xp)
