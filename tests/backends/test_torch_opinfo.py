"""Our functions as operations of PyTorch's own test database, run by its own test machinery."""

import warnings
from itertools import product

import numpy as np
import pytest

import specs
from points import Row

pytestmark = [
    pytest.mark.only("torch"),
    # of the machinery itself (2.13)
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]
STEP = 1e-3
ALONG_SLICES = (*specs.SLICE_ROWS, *specs.REDUCTION_ROWS)
ROWS = {row.name: row for row in (*specs.ROWS, *ALONG_SLICES)}


def is_smooth(row, point):
    """Whether values around a point, on NumPy, are those that its stated derivatives foretell."""
    gradient, hessian = np.array(point.gradient), np.array(point.hessian, dtype=float)
    if not all(np.isfinite(x).all() for x in (hessian, point.args, point.value)):
        return False
    size = 1 + np.abs(gradient).sum() + np.abs(hessian).sum()
    for corner in product((-1, 0, 1), repeat=len(point.args)):
        move = STEP * np.array(corner)
        with np.errstate(all="ignore"):
            value = row.op(*(np.float64(x + d) for x, d in zip(point.args, move, strict=True)))
        foretold = point.value + gradient @ move + move @ hessian @ move / 2
        if not abs(value - foretold) <= 100 * STEP**3 * size:
            return False
    return True


def smooth_samples(row):
    """Return what `row.op` takes at points that have differences, and which entries are kept."""
    if isinstance(row, Row):
        points = [p for p in row.points if is_smooth(row, p)]
        if points:
            yield [np.array(x) for x in zip(*(p.args for p in points), strict=True)], None
        return
    full = next(s for s in row.slices if all(s.where) and s.flat is None)
    args = [np.array(a, dtype=float) * (1 + 0.1 * np.arange(len(a))) for a in full.args]
    for where in (np.array(full.where), np.array([True, *full.where[1:-1], False])):
        if np.isfinite(args).all() and np.isfinite(row.op(*args, where)).all():
            yield args, where


def as_opinfo(row):
    """Return a row as an operation of the database."""
    import torch
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

    def samples(_, device, dtype, requires_grad, **_options):
        for args, where in smooth_samples(row):
            tensors = [
                torch.tensor(a, dtype=dtype, device=device, requires_grad=requires_grad)
                for a in args
            ]
            mask = () if where is None else (torch.tensor(where, device=device),)
            yield SampleInput(tensors[0], args=(*tensors[1:], *mask))

    return OpInfo(
        row.name,
        op=row.op,
        dtypes=frozenset({torch.float64}),
        sample_inputs_func=samples,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
    )


def samples_of(name):
    """Return the operation and its samples, in float64 and with derivatives."""
    import torch

    info = as_opinfo(ROWS[name])
    found = list(info.sample_inputs("cpu", torch.float64, requires_grad=True))
    if not found:
        pytest.skip("has no point with differences")
    return info, [(s.input, *s.args) for s in found]


EVERY = pytest.mark.parametrize("name", ROWS)
# One of each way in which an operation is made: the checks below take seconds.
FEW = pytest.mark.parametrize("name", ["safe_div", "safe_sqrt", "safe_norm", "nansum"])


@EVERY
def test_gradcheck(name):
    """Reverse, forward and batched modes agree with differences, at first and second order."""
    from torch.testing._internal.common_utils import gradcheck, gradgradcheck

    info, samples = samples_of(name)

    for args in samples:
        assert gradcheck(
            info.op, args, check_forward_ad=True, check_batched_grad=True, check_undefined_grad=True
        )
        assert gradgradcheck(info.op, args, gen_non_contig_grad_outputs=True)


@FEW
def test_fake_tensors(name):
    """Fake tensors have the shapes, dtypes, devices and strides of the real ones."""
    from torch.testing._internal.optests import fake_check

    info, samples = samples_of(name)

    for args in samples:
        fake_check(info.op, args, {})


@FEW
def test_composite_compliance(name):
    """Value and both derivatives are made of operations that each tensor subclass can follow."""
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.composite_compliance import (
        check_backward_formula,
        check_forward_ad_formula,
        check_with_mode,
    )

    info, samples = samples_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args in samples:
            check_with_mode(info.op, args, {}, TestCase().assertEqual)
            check_backward_formula(info.get_op(), args, {}, assert_equal_fn=TestCase().assertEqual)
            check_forward_ad_formula(info.get_op(), args, {}, None, TestCase().assertEqual)


def test_a_wrong_derivative_fails():
    """The machinery finds a derivative that is not that of the value."""
    import torch
    from torch.autograd.gradcheck import GradcheckError
    from torch.testing._internal.common_utils import gradcheck

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0]

    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)

    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradcheck(Wrong.apply, (x,))
