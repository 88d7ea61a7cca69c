"""
Functions with a removable singularity and functions of a norm, as rows like those of `turning`.

The points are the singular one, and beside it 1e-30, 1e-9, 1e-4 and 1.
"""

from mpmath import mp

import safeops as so
import specs.radial
import specs.smooth
from safeops._dispatch import backend_of
from turning import AXIS, Row, norm

BESIDE = (0.0, 1e-30, -1e-9, 1e-4, 1.0)


def of(x):
    """Return the namespace of an array."""
    return backend_of(x).xp


def matern_three_halves(r, exp):
    """Matern's kernel 3/2, whose third derivative jumps at 0."""
    return (1 + r * 3**0.5) * exp(-(r * 3**0.5))


def matern_five_halves(r, exp):
    """Matern's kernel 5/2."""
    return (1 + r * 5**0.5 + r * r * 5 / 3) * exp(-(r * 5**0.5))


def gaussian(r, exp):
    """Gauss's kernel."""
    return exp(-(r * r) / 2)


def rational_quadratic(r, _):
    """The kernel of a mixture of Gauss's kernels."""
    return (1 + r * r) ** -1.5


# The kernels above have their numbers in floats, so that a formula has the same ones.
KERNELS = (matern_three_halves, matern_five_halves, gaussian, rational_quadratic)
VECTORS = [(size * AXIS,) for size in BESIDE]


def smooth(spec, points):
    """Return the row of a function of numbers."""
    return Row(
        spec.name,
        spec.op,
        lambda *args: [spec.mpmath(*(x[0] for x in args[:-1]))],
        points,
        naive=lambda *args: spec.naive(of(args[0]), *args),
    )


def radial(kernel):
    """Return the row of a kernel of the length."""
    return Row(
        f"radial of {kernel.__name__}",
        lambda x: so.radial(lambda r: kernel(r, of(r).exp), x),
        lambda x, _: [kernel(norm(x), mp.exp)],
        VECTORS,
        naive=lambda x: specs.radial.SPECS[0].naive(of(x), lambda r: kernel(r, of(r).exp), x),
    )


POINTS = {
    "exprel": [(x,) for x in BESIDE],
    "sinhc": [(x,) for x in BESIDE],
    "boxcox": [(1.75, p) for p in BESIDE],
    "inv_boxcox": [(0.75, p) for p in BESIDE],
    "logarithmic_mean": [(1.75, 1.75 + d) for d in BESIDE],
}
ROWS = (
    *(smooth(spec, POINTS[spec.name]) for spec in specs.smooth.SPECS),
    *map(radial, KERNELS),
)
