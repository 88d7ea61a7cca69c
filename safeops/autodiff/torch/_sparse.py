"""Products with a sparse matrix: an entry that it does not store reaches nothing."""

from typing import Any

import torch

from safeops._backends.torch import private
from safeops._typing import Array
from safeops.autodiff.torch._contractions import met_by
from safeops.autodiff.torch._evaluator import Call, unknown
from safeops.autodiff.torch._masks import as_numbers, is_finite, is_partial, spread
from safeops.autodiff.torch._tags import is_plain


def sparse_matrix(call: Call) -> Any:
    """Multiply a cotangent by a sparse matrix of coefficients."""
    places = [i for i in (0, 1) if is_plain(call.args[i])]
    if len(call.args) > 2 or len(places) != 1 or not is_partial(call.masks.get(places[0])):  # noqa: PLR2004  (two factors)
        return unknown(call)
    (i,) = places
    dense, sparse = call.args[i], call.args[1 - i]
    ones = as_numbers(spread(call.masks[i], dense), dense.dtype)

    def multiply(coefficients: Array, x: Array) -> Array:
        pair = (x, with_stored(sparse, coefficients))
        return call.func(*(pair if i == 0 else pair[::-1]))

    known = stored(sparse)
    value = multiply(torch.where(known.isfinite(), known, 0), dense)
    if not is_finite(known):
        # An active entry meets one that is not finite: there the IEEE product stands.
        hit = met_by(multiply, (~known.isfinite()).to(known.dtype), ones)
        value = torch.where(hit, call.run(), value)
    call.mode.state(value, met_by(multiply, torch.ones_like(known), ones))
    return value


def stored(x: Array) -> Array:
    """Return the stored values of a sparse tensor."""
    return private.stored_values(x) if x.layout is torch.sparse_coo else x.values()


def with_stored(x: Array, numbers: Array) -> Array:
    """Return a sparse tensor with other values at the same indices."""
    x = x.detach().clone()
    stored(x).copy_(numbers)
    return x
