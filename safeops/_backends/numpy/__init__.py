"""NumPy: it has values only, no derivatives, and warnings to silence."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from safeops._backends.array_api import ArrayAPI, of_scipy
from safeops._backends.numpy import elementwise, reductions
from safeops._core.types import Array, DType, Function

WEAK = (bool, int, float)


class Numpy(ArrayAPI):
    """NumPy arrays and scalars."""

    name = "numpy"
    kernels: Mapping[str, Function] = reductions.KERNELS | elementwise.KERNELS

    def owns(self, x: object) -> bool:
        """Whether `x` is an ndarray or a NumPy scalar."""
        return isinstance(x, (np.ndarray, np.generic))

    def refuse(self, x: Array) -> None:
        """Refuse masked arrays and matrices, whose meaning `np.where` drops."""
        if isinstance(x, np.ma.MaskedArray):
            msg = "expected a plain ndarray, got a MaskedArray; pass x.data, and where=~x.mask"
            raise TypeError(msg)
        if isinstance(x, np.matrix):
            msg = "expected a plain ndarray, got a matrix; pass np.asarray(x)"
            raise TypeError(msg)

    def result_type(self, args: Sequence[Any]) -> DType:
        """Return the dtype of NumPy's division; numbers of Python are weak beside bfloat16 too."""
        strong = [x for x in args if type(x) not in WEAK] or args
        try:
            dtype = np.result_type(*strong)
        except np.exceptions.DTypePromotionError:  # of bfloat16 and float16
            kinds = [np.result_type(x) for x in strong]
            dtype = reduce(lambda a, b: np.true_divide.resolve_dtypes((a, b, None))[-1], kinds)
        return np.dtype(np.float64) if dtype.kind in "biu" else dtype

    def cast(self, x: Any, dtype: DType, like: Array) -> Array:
        """Array or Python scalar as an array of `dtype`."""
        del like  # NumPy has one device
        return np.asarray(x, dtype=dtype)

    def segment_sum(self, x: Array, ids: Array, number: int) -> Array:
        """Return the sums of the entries of each id."""
        table = np.zeros((number, *x.shape[1:]), x.dtype)
        np.add.at(table, ids, x)
        return table

    def segment_max(self, x: Array, ids: Array, number: int, least: float) -> Array:
        """Return the largest entry of each id."""
        table = np.full((number, *x.shape[1:]), least, x.dtype)
        np.maximum.at(table, ids, x)
        return table

    def special(self, name: str) -> Function | None:
        """Return a function of SciPy."""
        return of_scipy(name)

    def quiet(self) -> AbstractContextManager[Any]:
        """Silence the warnings of entries not taken."""
        return np.errstate(all="ignore")

    def nan_detector(self) -> AbstractContextManager[Any]:
        """Raise FloatingPointError where a NaN or inf is made."""
        return np.errstate(all="raise", under="ignore")


backend = Numpy(xp)
