"""
Functions of matrices by PyTorch's factorisations, where each has one.

Factors of Cholesky, eigenvalues and the logarithm of a determinant have PyTorch's own derivatives,
which there are those of the steps at every order.
"""

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


def _are_matrices(a: Array) -> bool:
    return _are_plain(a) and a.numel() > 0 and a.ndim > 1 and a.shape[-1] == a.shape[-2]


def _det(steps: Function, a: Array, /) -> Array | None:
    if not _are_matrices(a):
        return None
    out = _Determinant.of(steps, None, a)
    bound = _LIMITS[a.dtype]
    usual = _are_finite(out) and _least(out.abs()) >= bound.smallest_normal / bound.eps
    return out if usual else None


def _slogdet(a: Array, /) -> tuple[Array, Array] | None:
    """Return sign and logarithm, if no matrix is singular."""
    if not _are_matrices(a):
        return None
    sign, size = torch.linalg.slogdet(a)
    return (sign, size) if _are_finite(size) else None


def _cholesky(a: Array, /) -> Array | None:
    """Return the lower factors, if each matrix has one."""
    if not _are_matrices(a):
        return None
    factor, info = torch.linalg.cholesky_ex(_hermitian(a))
    if _most(info) > 0 or not _are_finite(factor):
        return None
    return factor.tril()  # nothing comes from above the diagonal, a cotangent of NaN neither


def _hermitian(a: Array) -> Array:
    return (a + a.mT) / 2.0


def _eigh(a: Array, /) -> tuple[Array, Array] | None:
    """Return eigenvalues and vectors, if no two tie and each matrix is of a usual size."""
    if not _are_usual(a):
        return None
    values, vectors = torch.linalg.eigh(_hermitian(a))
    return (values, vectors) if _are_apart(values.detach()) else None


def _eigvalsh(a: Array, /) -> Array | None:
    """Return eigenvalues, likewise."""
    if not _are_usual(a):
        return None
    values = torch.linalg.eigvalsh(_hermitian(a))
    return values if _are_apart(values.detach()) else None


def _are_usual(a: Array) -> bool:
    """Whether matrices are finite, and the steps would not divide them by their size."""
    if not _are_matrices(a) or a.shape[-1] == 1:
        return False
    size = a.detach().abs().amax((-2, -1))
    return _least(size) > _USUAL and _most(size) < 1 / _USUAL


def _are_apart(values: Array) -> bool:
    """Whether no two eigenvalues are as near as rounding may part a tie."""
    rounding = 8.0 * _LIMITS[values.dtype].eps * values.shape[-1]
    return _least(values.diff() - rounding * values.abs().amax(-1, keepdim=True)) > 0


_USUAL = 2.0**-16
KERNELS: dict[str, Function] = {
    "safe_cholesky": _cholesky,
    "safe_eigh": _eigh,
    "safe_eigvalsh": _eigvalsh,
    "safe_slogdet": _slogdet,
}
OF_STEPS: dict[str, Function] = {"safe_det": _det}
