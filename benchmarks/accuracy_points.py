"""Arguments for elementwise functions: numbers of all exponents, and next to singular points."""

import numpy as np

from exponents import FORMATS, around, rounded

COUNT = 60_000
# Where a function or a slope of one is singular or 0: 1 / e is the maximum of the entropy.
CENTRES = (1.0, -1.0, 0.5, np.exp(-1.0), 2.0, 3.0, 7.0)
MANTISSAS = tuple(np.linspace(1.0, 1.97, 9))


def exponents(random, form, count):
    """Return numbers of either sign, of all exponents of normal numbers alike."""
    size = 2 ** random.uniform(form.least, form.most + 1, count)
    return size * random.choice([-1.0, 1.0], count)


def whole_line(dtype):
    """Return one argument; of 16 bits all numbers."""
    form = FORMATS[dtype]
    if form.bits < 12:  # noqa: PLR2004  (16 bits of storage)
        powers = np.ldexp(1.0, np.arange(form.least, form.most + 1))[:, None]
        positive = (powers * np.arange(1, 2, form.eps)).ravel()
        return (np.concatenate([-positive, positive]),)
    random = np.random.default_rng(0)
    bound = np.log(form.max)
    some = [around(centre, dtype, MANTISSAS) for centre in CENTRES]
    some += [random.uniform(-a, a, COUNT // 4) for a in (1, 8, bound)]
    x = np.concatenate([exponents(random, form, COUNT), *some])
    return (np.unique(rounded(x, dtype)),)


def pairs(dtype):
    """Return two arguments: of all exponents, of usual ones, nearly equal, and next to 1 and -1."""
    form, random = FORMATS[dtype], np.random.default_rng(0)
    x, y = (exponents(random, form, COUNT // 2) for _ in range(2))
    usual = 2 ** random.uniform(-6, 6, (2, COUNT // 4)) * random.choice([-1, 1], (2, COUNT // 4))
    flat = random.uniform(-20, 20, (2, COUNT // 4))
    near = exponents(random, form, COUNT // 4)
    close = near * (1 + 2 ** random.uniform(1 - form.bits, -1, COUNT // 4))
    beside = np.concatenate([around(centre, dtype, MANTISSAS) for centre in CENTRES])
    other = 2 ** random.uniform(-6, 6, len(beside))
    xs = np.concatenate([x, usual[0], flat[0], near, close, beside, other])
    ys = np.concatenate([y, usual[1], flat[1], close, near, other, beside])
    return rounded(xs, dtype), rounded(ys, dtype)


def logits(dtype):
    """Return logits, those where no exponential is 0 or 1 among them, and labels."""
    random = np.random.default_rng(1)
    (x,) = whole_line(dtype)
    x = np.concatenate([x, rounded(random.uniform(-40, 40, COUNT // 4), dtype)])
    usual = random.choice([0, 0.25, 0.5, 1], len(x))
    other = rounded(random.uniform(size=len(x)), dtype)
    return x, np.where(random.choice([True, False], len(x)), usual, other)


def size_of_last(*args):
    """Return the size of the last argument."""
    return np.abs(args[-1])


def far_from_one(*args):
    """Return how far the size of the last argument is from 1."""
    return np.abs(1 - np.abs(args[-1]))


def above_minus_one(*args):
    """Return how far the last argument is from -1."""
    return np.abs(1 + args[-1])


def difference(x, y):
    """Return how far two arguments are from each other."""
    return np.abs(x - y)


FIRST = ("safe_pow", "safe_binary_cross_entropy", "safe_focal_loss")
# What the pictures have on their horizontal axis, where it is not the size of the last argument.
AXES = {
    **dict.fromkeys(("safe_asin", "safe_acos", "safe_atanh", "safe_acosh"), far_from_one),
    **dict.fromkeys(("safe_log1p", "xlog1py"), above_minus_one),
    "safe_erfinv": far_from_one,
    **dict.fromkeys(("safe_logit", "safe_ndtri"), lambda x: np.minimum(np.abs(x), np.abs(1 - x))),
    **dict.fromkeys(("safe_logaddexp", "safe_logsubexp"), difference),
    **dict.fromkeys(("safe_hypot", "safe_atan2"), np.hypot),
    **dict.fromkeys(("rel_entr", "logarithmic_mean"), np.minimum),
    **dict.fromkeys(FIRST, lambda *args: np.abs(args[0])),
}


def axis_of(name):
    """Return the function of the horizontal axis of a picture."""
    return AXES.get(name, size_of_last)
