"""
How exact values and slopes are: ``python benchmarks/accuracy.py [--out FILE]``.

For each function, framework and dtype it measures errors in units in the last place of the exact
result, over numbers of all exponents, and next to singular points and zeros: the error of safeops,
and the error of the plain function, which is the framework's own (on NumPy also SciPy's) or written
with its functions. JAX is compiled, PyTorch and TensorFlow run eagerly, as people use them.

The exact results come from `tests/specs`, in extended precision, and from
`accuracy_slices.py`; the tests compare both with mpmath. Fills, exact zeros and results next to
subnormal numbers have no units to count.

`--function`, `--framework` and `--dtype` select; the documentation is made from the `--out` file,
in which what is measured takes the place of the same rows.
"""

import argparse
import json
import math
import os
import sys
import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(HERE), str(TESTS), str(TESTS / "support")]

import accuracy_points  # noqa: E402  (after the path)
import accuracy_removable  # noqa: E402  (after the path)
import numpy as np  # noqa: E402  (after the path)
import records  # noqa: E402  (after the path)
from accuracy_slices import (  # noqa: E402  (after the path)
    CALLED,
    SHAPED,
    SLICES,
    along_last,
    random,
)
from plain import is_own, plain  # noqa: E402  (after the path)

import safeops as so  # noqa: E402  (after the path)
import specs  # noqa: E402  (after the path)
from exponents import FORMATS, ulps, wide  # noqa: E402  (after the path)
from frameworks import asarray, to_numpy  # noqa: E402  (after the path)
from specs import composites, gamma, losses, normal  # noqa: E402  (after the path)

DTYPES = {
    "numpy": ("float64", "float32"),
    "torch": tuple(reversed(FORMATS)),
    "jax": tuple(reversed(FORMATS)),
    "tensorflow": tuple(reversed(FORMATS)),
}
BINS = 32
LEAST = (
    16  # times the smallest normal number, below which JAX and TensorFlow flush steps to a result
)
PICTURED = "float32"
# Of each elementwise function: its points, and its formula.
OWN = {spec.name: spec.domain for family in (composites, gamma, normal) for spec in family.SPECS}
OWN |= {spec.name: accuracy_points.logits for spec in losses.SPECS}
USUAL = (accuracy_points.whole_line, accuracy_points.pairs)  # of one argument and of two
ELEMENTWISE = {
    spec.name: (OWN.get(spec.name, USUAL[len(spec.rows[0].points[0].args) - 1]), spec.formula)
    for spec in specs.SWEPT
}
ELEMENTWISE |= accuracy_removable.ROWS
NAMES = (*ELEMENTWISE, *SLICES)


class Exact(NamedTuple):
    """Arguments, the exact value and slopes, the sizes whose units count, and the cotangent."""

    args: tuple
    value: object
    slopes: tuple
    value_size: object
    slope_sizes: tuple
    cotangent: object
    axis: object  # of a picture


@cache
def exact(name, dtype):
    """Return the reference of a function."""
    with np.errstate(all="ignore"):
        return of_slices(name, dtype) if name in SLICES else elementwise(name, dtype)


def elementwise(name, dtype):
    """Return what is exact at points inside the domain."""
    form, (points, formula) = FORMATS[dtype], ELEMENTWISE[name]
    args = points(dtype)
    derivatives = formula(form, *map(wide, args))
    inside = np.any([np.nan_to_num(slope) != 0 for slope in derivatives.gradient], axis=0)
    for x in args:
        inside &= (np.abs(x) >= form.normal) | (x == 0)
    args = tuple(x[inside] for x in args)
    value = np.broadcast_to(derivatives.value, inside.shape)[inside]
    slopes = tuple(np.broadcast_to(g, inside.shape)[inside] for g in derivatives.gradient)
    ones = np.ones_like(args[0])
    axis = accuracy_points.axis_of(name)
    sizes = np.abs(value), tuple(map(np.abs, slopes))
    if name in SUMS:
        size, slope_sizes, _ = derivatives.sizes()
        found = (np.broadcast_to(x, inside.shape)[inside] for x in (size, *slope_sizes))
        least = LEAST * form.normal
        found = [
            np.where((np.abs(x) < least) & (x != 0), 0, size)
            for x, size in zip((value, *slopes), found, strict=True)
        ]
        sizes = found[0], tuple(found[1:])
    return Exact(args, value, slopes, *sizes, ones, axis(*args))


def of_slices(name, dtype):
    """Return what is exact of slices; the units are those of the largest entry of a result."""
    points, formula = SLICES[name]
    args = points(dtype)
    x = args[0]
    shape = x.shape if name in SHAPED else x.shape[:-1]
    cotangent = random(10).integers(1, 9, shape) * 0.25 if name in SHAPED else np.ones(shape)
    value, slopes, terms, sizes, size = formula(*map(wide, args), wide(cotangent))
    if size is None:
        size = np.abs(value).max(-1, keepdims=True) if name in SHAPED else np.abs(value)
    if terms is not None:
        largest = terms.max(-1, keepdims=True)
        size = np.maximum(size, largest if name in SHAPED else largest[:, 0])
    sizes = sizes or tuple(np.abs(slope).max(-1, keepdims=True) for slope in slopes)
    axis = np.nanmax(np.abs(x.reshape(len(x), -1)), -1)
    return Exact(args, value, slopes, size, sizes, cotangent, axis)


# Their zeros are those of a sum, of which the largest term has the units.
SUMS = ("safe_lgamma", "safe_digamma", "safe_binary_cross_entropy", "safe_focal_loss")


def in_numpy(f, args, _):
    """Return the value."""
    return f(*args), ()


def in_torch(f, args, cotangent):
    """Return the value, and the slopes of its product with the cotangent."""
    import torch

    args = [x.requires_grad_() for x in args]
    value = f(*args)
    return value, torch.autograd.grad(value, args, cotangent, materialize_grads=True)


def in_jax(f, args, cotangent):
    """Return these, compiled."""
    import jax

    @jax.jit
    def both(args, cotangent):
        value, back = jax.vjp(f, *args)
        return value, back(cotangent)

    return both(args, cotangent)


def in_tensorflow(f, args, cotangent):
    """Return these."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(args)
        value = f(*args)
    return value, tape.gradient(value, args, output_gradients=cotangent)


RUN = {"numpy": in_numpy, "torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}


def ours(name):
    """Return our function, of slices along the last axis."""
    f = getattr(so, name)
    return CALLED.get(name, along_last)(f) if name in SLICES else f


def errors(f, framework, dtype, reference):
    """Return the errors of the value and of all slopes, NaN where there are no units to count."""
    arrays = [asarray(framework, x, dtype) for x in reference.args]
    # The first argument of an incomplete gamma function has no slope in PyTorch.
    fixed = arrays[: len(arrays) - len(reference.slopes)]
    moving, count = arrays[len(fixed) :], len(arrays[0])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        value, slopes = RUN[framework](
            lambda *args: f(*fixed, *args), moving, asarray(framework, reference.cotangent, dtype)
        )
        found = {"value": of(value, reference.value, reference.value_size, dtype)}
        if slopes:
            known = is_number(reference.value, FORMATS[dtype])
            columns = zip(slopes, reference.slopes, reference.slope_sizes, strict=True)
            each = [of(got, aim, size, dtype, known) for got, aim, size in columns]
            found["slope"] = np.concatenate([error.reshape(count, -1) for error in each], axis=1)
    return found


def is_number(value, form):
    """Whether values are numbers of the dtype: elsewhere nothing is said about slopes."""
    size = np.abs(value)
    return (size <= form.max) & ((size >= form.normal) | (size == 0))


def of(got, aim, size, dtype, known=None):
    """Return the errors of one array, where the entries or the slices of the value are known."""
    form = FORMATS[dtype]
    size = np.broadcast_to(size, aim.shape)
    counted = (size >= LEAST * form.normal) & (size <= form.max * (1 - 4 * form.eps))
    if known is not None:
        if known.shape != aim.shape:
            known = known.reshape(len(aim), -1).all(-1)
        counted = counted & known.reshape(known.shape + (1,) * (aim.ndim - known.ndim))
    got = np.broadcast_to(to_numpy(got).astype(float), aim.shape)
    error = np.where(np.isfinite(got), ulps(got, aim, size, dtype, lost=0), math.inf)
    return np.where(counted, error, math.nan)


def summary(error):
    """Return how many errors there are, the median, the 99th percentile and the worst."""
    known = error[~np.isnan(error)]
    if not known.size:
        return [0, 0, 0, 0]
    ranked = np.sort(known)
    middle, most = (ranked[math.ceil(share * known.size) - 1] for share in (0.5, 0.99))
    return [int(known.size), *(rounded(float(x)) for x in (middle, most, ranked[-1]))]


def rounded(x):
    """Return a number of two digits, and None for what is infinite."""
    return None if math.isinf(x) else float(f"{x:.2g}")


def curve(error, axis):
    """Return the ends of the axis in powers of 2, and the worst error in each part, -1 for none."""
    power = np.log2(np.maximum(axis, axis[axis > 0].min()))  # a 0 is beside the least number
    low, high = np.floor(power.min()), np.ceil(power.max())
    place = np.minimum(((power - low) / max(high - low, 1) * BINS).astype(int), BINS - 1)
    worst = np.fmax.reduce(error.reshape(len(axis), -1), axis=1)  # of all slopes of a point
    parts = (worst[(place == i) & ~np.isnan(worst)] for i in range(BINS))
    return [low, high, *(rounded(float(part.max())) if part.size else -1 for part in parts)]


def measured(name, framework, dtype):
    """Return errors of our function and of the plain one, and their curves."""
    reference, row = exact(name, dtype), {}
    other = plain(framework, name)
    for who, f in (("ours", ours(name)), ("plain", other)):
        if f is None:
            continue
        try:
            found = errors(f, framework, dtype, reference)
        except (TypeError, ValueError, RuntimeError, NotImplementedError, LookupError) as error:
            if who == "ours" or "dtype" not in f"{type(error).__name__} {error}":
                print(f"{framework} {dtype} {name}: {who}: {error!s:.200}", file=sys.stderr)
            if who == "ours":
                raise
            continue
        for kind, error in found.items():
            row.setdefault(kind, {})[who] = summary(error)
            if dtype == PICTURED and (kind == "slope" or framework == "numpy"):
                row.setdefault(f"{kind} curve", {})[who] = curve(error, reference.axis)
    return row | {"own": is_own(framework, name)}


def main():
    """Measure, print the worst, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--framework", nargs="*", default=list(DTYPES))
    parser.add_argument("--function", nargs="*", default=list(NAMES))
    parser.add_argument("--dtype", nargs="*", default=list(FORMATS))
    options = parser.parse_args()
    if "jax" in options.framework:
        import jax

        jax.config.update("jax_enable_x64", True)  # noqa: FBT003  (its own signature)
    table = {}
    for name in options.function:
        for framework in options.framework:
            for dtype in DTYPES[framework]:
                if dtype not in options.dtype:
                    continue
                row = measured(name, framework, dtype)
                table.setdefault(framework, {}).setdefault(dtype, {})[name] = row
                report(name, framework, dtype, row)
        exact.cache_clear()
    if options.out:
        packages = ("numpy", "scipy", "torch", "jax", "tensorflow-cpu")
        versions = {package: version(package) for package in packages}
        rows = beside_others(options.out, versions, table)
        records.write(options.out, {"versions": versions, "table": rows}, 4)


def beside_others(file, versions, table):
    """Return new rows, and those of a file that are not measured again, of the same versions."""
    old = json.loads(file.read_text()) if file.exists() else {"versions": {}, "table": {}}
    found, kept = {}, []
    for framework, dtypes in DTYPES.items():
        for dtype in dtypes:
            new, known = (t.get(framework, {}).get(dtype, {}) for t in (table, old["table"]))
            rows = {name: row for name, row in {**known, **new}.items() if name in NAMES}
            found.setdefault(framework, {})[dtype] = rows
            kept += rows.keys() - new.keys()
    if kept and old["versions"] != versions:
        msg = f"{file} is of other versions, {old['versions']}: measure all functions again"
        raise SystemExit(msg)
    return found


def report(name, framework, dtype, row):
    """Print a line for each of value and slope."""
    for kind in ("value", "slope"):
        for who, numbers in row.get(kind, {}).items():
            print(f"{name:24}{framework:12}{dtype:10}{kind:7}{who:7}", *numbers, flush=True)


if __name__ == "__main__":
    main()
