"""Functions of matrices by PyTorch's factorisations, where no matrix is nearly singular."""

from typing import Any

import torch

from safeops._backends.torch.fast_paths import _LIMITS, _are_finite, _are_plain, _least, _most
from safeops._backends.torch.fused import Fused, Given
from safeops._core.types import Array, Function

# Of the norms of a matrix and its inverse, as a product. Up to here the adjugate has as many digits
# as by singular values.
_MOST = 1e3


class _Determinant(Fused):
    """The determinant by triangular factors, and the adjugate by the inverse."""

    @classmethod
    def value(cls, *args: Any) -> Array:
        """Return the value, for which no inverse is needed."""
        return cls._factors(args[-1])[0]

    @classmethod
    def run(cls, a: Array) -> tuple[Array, Array]:
        out, factors, pivots = cls._factors(a)
        ones = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
        inverse = torch.linalg.lu_solve(factors, pivots, ones)
        size = (torch.linalg.matrix_norm(x) for x in (a, inverse))
        near = _most(next(size) * next(size))
        adjugate = out[..., None, None] * inverse
        if not near <= _MOST or not _are_finite(adjugate):
            out.fill_(torch.nan)
        return out, adjugate

    @staticmethod
    def _factors(a: Array) -> tuple[Array, Array, Array]:
        factors, pivots, _ = torch.linalg.lu_factor_ex(a)
        moved = pivots != torch.arange(1, a.shape[-1] + 1, dtype=pivots.dtype, device=a.device)
        turn = torch.where(moved, -1.0, 1.0).to(a.dtype).prod(-1)
        return factors.diagonal(dim1=-2, dim2=-1).prod(-1) * turn, factors, pivots

    @classmethod
    def pull(cls, cotangent: Array, given: Given) -> tuple[Any, ...]:
        return (given.kept[0].mT * cotangent[..., None, None],)


def _det(steps: Function, a: Array, /) -> Array | None:
    if not _are_plain(a) or not a.numel() or a.ndim < 2 or a.shape[-1] != a.shape[-2]:  # noqa: PLR2004  (a matrix)
        return None
    out = _Determinant.of(steps, None, a)
    bound = _LIMITS[a.dtype]
    usual = _are_finite(out) and _least(out.abs()) >= bound.smallest_normal / bound.eps
    return out if usual else None


OF_STEPS: dict[str, Function] = {"safe_det": _det}
