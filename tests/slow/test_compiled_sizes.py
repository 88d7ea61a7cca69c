"""Every public operation compiled by PyTorch for all sizes, in one graph."""

from functools import partial

import numpy as np
import pytest

import operations
import safeops
from exponents import EXHAUSTIVE
from operations import call_along, positive, rows, small, uneven, with_nan
from safeops import linalg, rotations, segments

SIZES = (7, 9)  # numbers of rows: no other axis of the rows below has one of these lengths
MORE = [
    rows("stop_gradient", lambda x: x * safeops.stop_gradient(x), uneven),
    rows("nanpercentile", lambda x: safeops.nanpercentile(x, 30.0, axis=-1), with_nan),
    *(
        rows(name, partial(call_along, getattr(safeops, name)), with_nan)
        for name in ("nanargmin", "safe_argmax", "safe_argmin")
    ),
    *(
        rows(name, getattr(safeops, name), arguments)
        for name, arguments in {
            "log_ndtr": uneven,
            "safe_digamma": uneven,
            "safe_lgamma": uneven,
            "safe_erfinv": small,
            "safe_ndtri": positive,
        }.items()
    ),
    *(
        rows(name, partial(getattr(safeops, name), 2.5), positive)  # no slope of the shape (2.13)
        for name in ("safe_gammainc", "safe_gammaincc")
    ),
]
ROWS = operations.ROWS | {row.name: row for row in MORE}
# These have a program for each size: as many steps as it has digits, or places of entries.
OF_SIZE = ("safe_logcumsumexp", "nancumprod", "segment_prod", "safe_pdist of points in parts")
OF_SIZE += ("nanmedian", "nanquantile", "nanpercentile", "safe_logcumsumexp, where")
SLOW = () if EXHAUSTIVE else ("safe_gammainc", "safe_gammaincc")  # more than a minute each
NAMES = [name for name in ROWS if name not in SLOW]
DOORS = (safeops, linalg, rotations, segments)


@pytest.mark.whole
def test_every_public_operation_has_a_row():
    """What is public is compiled below, and nothing has two rows of one name."""
    public = {name for door in DOORS for name in door.__all__}

    assert {name.split(",")[0] for name in ROWS} >= public
    assert len(ROWS) == len(operations.ROWS) + len(MORE)


@pytest.mark.only("torch")
@pytest.mark.parametrize("name", NAMES)
def test_one_graph_for_all_sizes(name):
    """With symbols for sizes, in one graph, value and gradient are those in eager mode."""
    torch = pytest.importorskip("torch")
    op, sizes = ROWS[name].ours, [ROWS[name].args(n) for n in SIZES]
    wanted = [passes(op, arrays) for arrays in sizes]
    torch.compiler.reset()
    compiled = torch.compile(op, backend="aot_eager", fullgraph=True, dynamic=True)

    with torch._dynamo.config.patch(error_on_recompile=name not in OF_SIZE):
        found = [passes(compiled, arrays) for arrays in sizes]

    for got, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-14, equal_nan=True)


def passes(f, arrays):
    """Return the value and the gradients of a weighted sum of it, if it has any."""
    import torch

    leaves = [torch.tensor(np.asarray(x)) for x in arrays]
    leaves = [x.requires_grad_(x.is_floating_point()) for x in leaves]
    value = f(*leaves)
    if not value.is_floating_point():
        return [value]
    weights = torch.as_tensor(2 + operations.wave(*value.shape, shift=0.7))
    moving = [x for x in leaves if x.requires_grad]
    slopes = torch.autograd.grad(value, moving, weights, materialize_grads=True)
    return [value.detach(), *slopes]
