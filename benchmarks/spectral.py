"""
How exact functions of matrices are: ``python benchmarks/spectral.py --out FILE``.

For each function, framework and matrix of `tests/support/spectra.py`: the error of the value, of
the gradient along a direction, and of the second derivative along it (forward over reverse mode),
as a part of the largest entry, or of 1 if that is more; beside each the same function by the
framework's own `eigh`. The exact numbers are differences in mpmath, with 60 digits. All is in
float64; JAX is compiled, PyTorch and TensorFlow run eagerly. SciPy's functions are there with
central differences, as they have no derivatives.

`--framework` and `--function` select; a file that exists keeps the rest.
"""

import argparse
import json
import os
import sys
from functools import cache, partial
from importlib import import_module
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / folder) for folder in ("tests", "tests/support")]

import numpy as np  # noqa: E402  (after the path)
import records  # noqa: E402  (after the path)
import scipy.linalg  # noqa: E402  (after the path)
from mpmath import mp  # noqa: E402  (after the path)

import spectra  # noqa: E402  (after the path)
from derivatives import derivatives_in  # noqa: E402  (after the path)
from frameworks import asarray, stacked  # noqa: E402  (after the path)
from safeops import linalg  # noqa: E402  (after the path)
from safeops._backends import load  # noqa: E402  (after the path)
from specs import linalg as specs  # noqa: E402  (after the path)

MODES = {"torch": "func", "jax": "jit", "tensorflow": "eager"}
LEFT_OUT = ("forward", "rev-rev", "rev-fwd", "fwd-fwd")
SPECS = {spec.name: spec for spec in specs.SPECS}
# Functions of eigenvalues, with SciPy's.
SCIPY = {
    "sqrtm_psd": scipy.linalg.sqrtm,
    "inv_sqrtm_psd": None,
    "logm_psd": scipy.linalg.logm,
    "expm_symmetric": scipy.linalg.expm,
}
# How many of the largest values the projector has, matrix by matrix: down to a gap.
LARGEST = (4, 2, 1, 2, 2, 1, 2, 2)
ROTATION, _ = np.linalg.qr(spectra.GRID)
KINDS = ("value", "first", "second")
VECTORS = ("polar", "safe_eigh", "safe_svd")
STEP = {1: np.finfo(float).eps ** (1 / 3), 2: np.finfo(float).eps ** 0.25}


def parted(name, framework, ours):
    """Return `polar`, or what belongs to the largest values, by our functions or by theirs."""
    xp = load(framework).xp
    if name == "polar" and ours:
        return linalg.polar
    eigh, svd = linalg.safe_eigh, linalg.safe_svd
    if not ours:
        eigh, svd = (partial(SPECS[name].naive, xp) for name in ("safe_eigh", "safe_svd"))
    counts = [4] * len(LARGEST) if name == "polar" else LARGEST
    order = -1 if name == "safe_eigh" else 1  # whose values rise
    columns = [[k < n for k in range(4)][::order] for n in counts]
    which = asarray(framework, np.array(columns, float)[:, None])

    def f(a):
        if name == "safe_eigh":
            _, vectors = eigh(a)
            return xp.matmul(vectors * which, xp.matrix_transpose(vectors))
        left, _, right = svd(a)
        return xp.matmul(left * which, right)

    return f


def given_to(name):
    """Return the matrices and the direction of a row."""
    a = np.stack(list(spectra.matrices().values()))
    return (
        (ROTATION @ a, spectra.WAY) if name in ("polar", "safe_svd") else (a, spectra.direction(0))
    )


@cache
def exact_parts(name):
    """Return what a row of vectors has in mpmath."""
    a, way = given_to(name)
    found = []
    for matrix, count in zip(a, [4] * len(LARGEST) if name == "polar" else LARGEST, strict=True):

        def f(m, count=count):
            if name == "safe_eigh":
                _, vectors = mp.eigsy(m)
                return vectors[:, 4 - count :] * vectors[:, 4 - count :].T
            left, _, right = mp.svd_r(m)
            return left[:, :count] * right[:count, :]

        found.append(spectra.along(f, matrix, way))
    return spectra.Exact(*(np.stack([getattr(x, k) for x in found]) for k in KINDS))


def derivatives_of(framework, op, name):
    """Return value, first and second derivative of the weighted sum of a function."""
    a, way = given_to(name)
    along = np.broadcast_to(way, a.shape)
    xp, mode = load(framework).xp, MODES[framework]
    weights = asarray(framework, spectra.direction(5)[None])
    found = derivatives_in(
        mode,
        framework,
        op,
        lambda out: xp.sum(out * weights, axis=(-2, -1)),
        *([asarray(framework, x)] for x in (a, along, along)),
        {(framework, mode): (LEFT_OUT, "not in the table")},
    )
    slopes = (np.sum(stacked(found[k])[0] * along, axis=(-2, -1)) for k in ("reverse", "fwd-rev"))
    return stacked(found["value"]), *slopes


def by_differences(f):
    """Return the same of a function of NumPy, by central differences of the best step."""
    way, weights, rows = spectra.direction(0), spectra.direction(5), []
    for matrix in spectra.matrices().values():

        def along(t, matrix=matrix):
            return np.sum(weights * np.real(f(matrix + t * way)))

        h, k = STEP[1], STEP[2]
        first = (along(h) - along(-h)) / (2 * h)
        rows.append((np.real(f(matrix)), first, (along(k) - 2 * along(0) + along(-k)) / k**2))
    return tuple(map(np.stack, zip(*rows, strict=True)))


def errors(found, exact):
    """Return the errors at each matrix: of the value, and of both derivatives."""
    weights = spectra.direction(5)
    columns = []
    for got, right in zip(found, (exact.value, exact.first, exact.second), strict=True):
        size = np.maximum(np.max(np.abs(right), axis=(-2, -1)), 1.0)
        if got.ndim == 1:
            error = np.abs(got - np.sum(weights * right, axis=(-2, -1)))
        else:
            error = np.max(np.abs(got - right), axis=(-2, -1))
        columns.append(np.where(np.isfinite(error), error / size, np.inf))
    return dict(zip(spectra.matrices(), np.stack(columns, 1).tolist(), strict=True))


def op_of(name, framework, *, ours):
    """Return a function of ours, or what people write."""
    if name in VECTORS:
        return parted(name, framework, ours)
    if ours:
        return getattr(linalg, name)
    return partial(SPECS[name].naive, load(framework).xp)


def exact_of(name):
    """Return the exact numbers of a function."""
    if name in VECTORS:
        return exact_parts(name)
    (row,) = SPECS[name].rows
    return spectra.exact(row.f[0])


def measure(framework, name, ours, theirs):
    """Measure a function and what people write."""
    if framework == "scipy":
        if peer := SCIPY.get(name):
            theirs[name] = errors(by_differences(peer), exact_of(name))
        return
    for found, mine in ((ours, True), (theirs, False)):
        op = op_of(name, framework, ours=mine)
        found[name] = errors(derivatives_of(framework, op, name), exact_of(name))
    print(framework, name, *(np.max(list(x[name].values()), 0) for x in (ours, theirs)))


def main():
    """Measure what is asked for."""
    parser = argparse.ArgumentParser()
    known, known_rows = [*MODES, "scipy"], [*SCIPY, *VECTORS]
    parser.add_argument("--framework", nargs="*", default=known, choices=known)
    parser.add_argument("--function", nargs="*", default=known_rows, choices=known_rows)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    data = {"versions": {}, "table": {}, "naive": {}}
    if given.out and given.out.exists():
        data = json.loads(given.out.read_text())
    if "jax" in given.framework:
        import jax

        jax.config.update("jax_enable_x64", True)  # noqa: FBT003  (its name and its value)
    for framework in given.framework:
        data["versions"][framework] = import_module(framework).__version__.split("+")[0]
        ours, theirs = {}, {}
        for name in given.function:
            measure(framework, name, ours, theirs)
        for kind, found in {"table": ours, "naive": theirs}.items():
            if found:
                data[kind].setdefault(framework, {"float64": {}})["float64"] |= found
    if given.out:
        records.write(given.out, data, 5)


if __name__ == "__main__":
    main()
