"""What a cotangent does to slices: inf, NaN, 1e30 and 1e-30 reach the entries that have a slope."""

import numpy as np
import pytest

import safeops as so
import whole
from assertions import assert_close
from derivatives import tools
from frameworks import asarray, to_numpy
from safeops._dispatch import backend_of

nan, inf = np.nan, np.inf
RTOL = 1e-12  # float64, of a few operations
RAMP = (1.0, -1.0, 2.0, 0.5)
COTANGENTS = (inf, -inf, nan, 1e30, 1e-30)
WHOLE = (3.0, 1.0, -2.0, 0.5)
# The slices that a cotangent comes to, which entries are kept, and one beside them all.
SLICES = (WHOLE, (3.0, nan, -2.0, 0.5), (nan, inf, 1.0, -inf), WHOLE)
KEPT = ((True,) * 4, (True, False, True, True), (False,) * 4, (True,) * 4)


def reduced(name, **options):
    """Return a call of an operation along the last axis, with a mask."""
    return lambda x, where: getattr(so, name)(x, axis=-1, where=where, **options)


OPS = {
    name: reduced(name)
    for family in ("safe_", "nan")
    for name in (family + kind for kind in ("sum", "prod", "mean", "max", "min"))
}
OPS |= {f"safe_norm, ord={p}": reduced("safe_norm", ord=p) for p in (1, 1.5, 2, 3, inf)}
OPS |= {
    "safe_norm, min_norm=1": reduced("safe_norm", min_norm=1.0),
    "squared_norm": reduced("squared_norm"),
    "safe_rms": reduced("safe_rms"),
    "safe_distance": lambda x, where: so.safe_distance(x, constant(x, 1.5), where=where),
    "safe_logsumexp": reduced("safe_logsumexp"),
    "safe_logmeanexp": reduced("safe_logmeanexp"),
    "nanmedian": reduced("nanmedian"),
    "nanquantile": lambda x, where: so.nanquantile(x, 0.3, axis=-1, where=where),
}
# Of these the entries of a slice reach each other: inf less inf is NaN among those kept.
SPREAD = {
    f"{name}, filled": reduced(name, correction=1, fill_value=0.0)
    for name in ("safe_var", "safe_std", "nanvar", "nanstd")
}
SPREAD |= {
    "safe_standardize": reduced("safe_standardize"),
    "safe_softmax": reduced("safe_softmax"),
    "safe_log_softmax": lambda x, where: finite(so.safe_log_softmax(x, where=where)),
    "safe_correlation": lambda x, where: so.safe_correlation(x, constant(x, RAMP), where=where),
    "safe_cosine_similarity": lambda x, where: so.safe_cosine_similarity(
        x, constant(x, RAMP), where=where
    ),
    "safe_cross_entropy": lambda x, where: so.safe_cross_entropy(x, constant(x, 0.25), where=where),
    "nancumsum": lambda x, where: so.nancumsum(x, axis=-1, where=where),
    "nancumprod": lambda x, where: so.nancumprod(x, axis=-1, where=where),
}


def constant(x, numbers):
    """Return numbers as an array like another, of which no slope is asked."""
    xp = backend_of(x).xp
    return xp.ones_like(x) * xp.asarray(np.asarray(numbers), dtype=x.dtype)


def finite(x):
    """Return an array with 0 in place of -inf."""
    xp = backend_of(x).xp
    return xp.where(xp.isinf(x), 0.0, x)


def pytest_generate_tests(metafunc):
    """Run a test in each mode of each selected framework, of those that differ in their kernels."""
    same = ("vmap", "grad-of-jit", "unknown-shape", "compiled-then-autograd")
    whole.pytest_generate_tests(metafunc, without=same)


def pulled_back(way, op, x, keep, cotangents):
    """Return what each of the cotangents, one for each slice, becomes at the entries."""
    framework, mode = way
    around, _, grad, _ = tools(framework, mode)

    def pull(x, keep, cotangent):
        xp = backend_of(x).xp

        def weighted(x):
            out = op(x, keep > 0)
            weights = cotangent if len(out.shape) == 1 else cotangent[:, None]
            return xp.sum(weights * out)

        return grad(weighted)(x)[0]

    run = around(pull)
    x, keep = asarray(framework, x), asarray(framework, np.asarray(keep, float))
    return [to_numpy(run(x, keep, asarray(framework, c))) for c in cotangents]


def slopes(way, op):
    """Return the slopes, and what the cotangents at all slices but the last make of them."""
    special = [np.array([c, c, c, 1.0]) for c in COTANGENTS]
    plain, *found = pulled_back(way, op, SLICES, KEPT, [np.ones(4), *special])
    return plain, found


@pytest.mark.parametrize("name", OPS)
def test_a_cotangent_reaches_what_has_a_slope(name, way):
    """A cotangent times the slope, 0 to what is left out, filled or no extreme, and no other's."""
    plain, found = slopes(way, OPS[name])

    for cotangent, got in zip(COTANGENTS, found, strict=True):
        with np.errstate(invalid="ignore"):  # inf times 0
            wanted = np.where(plain == 0, 0.0, plain * cotangent)
        wanted[3] = plain[3]
        assert_close(got, wanted, RTOL, f"{cotangent}")


@pytest.mark.parametrize("name", SPREAD)
def test_a_cotangent_keeps_to_its_slice(name, way):
    """What is left out or filled has 0 for any cotangent, and no slice another one's NaN."""
    plain, found = slopes(way, SPREAD[name])

    for got in found:
        assert not got[~np.array(KEPT)].any()
        np.testing.assert_array_equal(got[3], plain[3])


DIRECTIONS = {
    "safe_normalize": so.safe_normalize,
    "safe_clip_by_norm": lambda x: so.safe_clip_by_norm(x, constant(x[:, :1], 1.0), axis=-1),
    "safe_standardize": lambda x: so.safe_standardize(x, axis=-1),
    "safe_correlation": lambda x: so.safe_correlation(x, constant(x, RAMP)),
    "safe_cosine_similarity": lambda x: so.safe_cosine_similarity(x, constant(x, RAMP)),
}


@pytest.mark.parametrize("name", DIRECTIONS)
def test_a_cotangent_far_from_one_loses_no_term(name, way):
    """In float32 a slope times 1e30 or 1e-30 is right for slices of 2**-20 to 2**20."""
    x = np.asarray([WHOLE]) * 2.0 ** np.arange(-20, 21)[:, None]

    def pull(cotangent, dtype):
        def weighted(x):
            out = DIRECTIONS[name](x)
            return out * constant(out, cotangent * np.asarray(RAMP) if out.ndim > 1 else cotangent)

        return whole.gradient_in(way, weighted, x, dtype)

    exact = pull(1.0, "float64")
    for cotangent in (1e30, 1e-30):
        found = pull(cotangent, "float32") / cotangent / np.abs(exact).max(-1, keepdims=True)
        assert_close(found, exact / np.abs(exact).max(-1, keepdims=True), 0.0, atol=1e-5)
