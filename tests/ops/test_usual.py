"""Short formulas of usual arguments, which are taken if all entries are inside of their boxes."""

import numpy as np
import pytest

import safeops as so
from derivatives import tools
from frameworks import asarray, to_numpy
from safeops._backends import load

pytestmark = pytest.mark.only("jax", "tensorflow")

COMPILED = {"jax": "jit", "tensorflow": "function"}
POSITIVE, ORDER = (1e-3, 9.0), (-3.0, 3.0)
# By name: the ranges of the arguments, and numbers at which a formula is a limit or changes.
ROWS = {
    "boxcox": ((POSITIVE, ORDER), ((1.0, 0.0), (2.0, 0.0), (1.0, 2.0), (np.e, 1.0), (0.1, -1e-9))),
    "exprel": (((-30.0, 30.0),), ((0.0,), (1.0,), (-1.0,), (1e-9,))),
    "inv_boxcox": (((-0.4, 9.0), (0.0, 2.0)), ((1.0, 0.0), (0.0, 1.0), (1e-9, 1e-9), (1.5, 1.2))),
    "log_sech2": (((-90.0, 90.0),), ((0.0,), (40.0,), (-1e-9,))),
    "logarithmic_mean": ((POSITIVE, POSITIVE), ((2.0, 2.0), (1.0, 1.0 + 1e-6), (1.0, np.e))),
    "rel_entr": ((POSITIVE, POSITIVE), ((2.0, 2.0), (1.0, 1.0 + 1e-6), (1.0, np.e))),
    "safe_atan2": (((-9.0, 9.0), (-9.0, 9.0)), ((3.0, 4.0), (0.0, -1.0), (1e-8, 1e-8))),
    "safe_hypot": (((-9.0, 9.0), (-9.0, 9.0)), ((3.0, 4.0), (0.0, -1.0), (1e-8, 1e-8))),
    "safe_ndtri": (((1e-6, 1.0 - 1e-6),), ((0.5,), (0.25,), (0.75,))),
    "sinc": (((-9.0, 9.0),), ((0.0,), (1.0,), (0.5,), (-1e-9,))),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ROWS)
def test_a_number_outside_changes_no_other(name, dtype, autodiff_framework):
    """Values and slopes are those by the steps, which one NaN among the arguments asks for."""
    ranges, points = ROWS[name]
    rng = np.random.default_rng(0)
    usual = np.array([rng.uniform(*ends, 1000) for ends in ranges])
    usual = np.concatenate([usual, np.transpose(points)], 1).astype(dtype)
    spoilt = np.concatenate([usual, np.full((len(ranges), 1), np.nan)], 1)

    short, steps = (found(name, x, dtype, autodiff_framework) for x in (usual, spoilt))

    assert np.isnan(steps[:, -1]).all()
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(short, steps[:, :-1], rtol=64 * eps, atol=4 * eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["log1mexp", "log_expm1"])
def test_a_logarithm_of_the_least_numbers(name, dtype, autodiff_framework):
    """It is that of the number, of which a half is subnormal."""
    least = np.finfo(dtype).smallest_normal
    sizes = least * np.array([1.0, 1.5, 2.0, 3.0, 8.0], dtype)

    value, slope = found(name, [sizes], dtype, autodiff_framework)

    np.testing.assert_allclose(value, np.log(sizes), rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_allclose(slope, 1 / sizes, rtol=4 * np.finfo(dtype).eps)


def found(name, args, dtype, framework):
    """Return the value of a function, compiled, and its slopes."""
    backend, op = load(framework), getattr(so, name)
    around, *_ = tools(framework, COMPILED[framework])
    arrays = [asarray(framework, x, dtype) for x in args]
    slopes = backend.grad(lambda *args: backend.xp.sum(op(*args)))
    return np.array([to_numpy(x) for x in (around(op)(*arrays), *around(slopes)(*arrays))])
