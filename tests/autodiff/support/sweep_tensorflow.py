"""
TensorFlow's differentiable operations, each as a program on a few numbers, and what masks do there.

A program is run with a part of its results selected. *Healthy*: the masked gradient is the ordinary
one. *Planted*: NaN stands in what the selected results do not read, and the gradient is that of the
healthy program. *Used*: a singularity stands in front of each entry, and a gradient that is finite
there belongs to an entry that moves nothing. *Hidden*: where NaN in an entry makes the selected
results NaN, and the ordinary gradient, the masked one is not finite throughout. Behind each rule a
value is 0 where it is not active.
"""

import sys
from typing import NamedTuple

import ml_dtypes
import numpy as np
import tensorflow as tf

from programs_tensorflow import PROGRAMS
from safeops.autodiff import tensorflow as masked
from safeops.autodiff.tensorflow import _evaluator as evaluator
from safeops.autodiff.tensorflow import _rules as tables

# How a program is run.


@tf.custom_gradient
def spike(t):
    """Return an argument, whose slope counts as infinite: 0 times that is NaN."""
    return tf.identity(t), lambda g: g * tf.cast(np.inf, g.dtype)


def checked(rule):
    """Return a rule behind which a value must be 0 where it is not active."""

    def run(op, ins, frame):
        outs = rule(op, ins, frame)
        for x in outs:
            if (
                isinstance(x, evaluator.Pair)
                and x.active is not True
                and x.value.dtype != tf.variant
            ):
                mask = evaluator.spread(x.active, x.value)
                is_zero = tf.equal(x.value, tf.zeros((), x.value.dtype))
                tf.debugging.Assert(tf.reduce_all(mask | is_zero), [f"behind {op.type}"])
        return outs

    return run


def checked_rules(rules):
    """Return rules, each checked."""
    return {name: checked(rule) for name, rule in rules.items()}


class Runs:
    """A program as functions of its point and of what is selected of its results."""

    def __init__(self, given, dtype="float64"):
        """Trace the ordinary and the masked gradient."""
        self.given, self.dtype = given, dtype
        x = tf.cast(given.x, dtype)
        self.f = tf.function(given.f, autograph=False)
        self.x, self.out = x, self.f(x)
        kinds = [tf.TensorSpec(v.shape, v.dtype) for v in (x, x, x, self.out)]
        where = tf.TensorSpec(self.out.shape, tf.bool)
        trace = {"autograph": False, "input_signature": [*kinds, where]}
        self.ordinary = tf.function(self.plain, **trace)
        self.masked = tf.function(self.ours, **trace)

    def value(self, x):
        """Return the result of a program."""
        return self.f(tf.cast(x, self.dtype))

    def loss(self, args):
        """Return the selected results, weighted and summed."""
        x, w, t, weights, where = args
        out = self.given.f(x * w + spike(t))
        return tf.reduce_sum(tf.where(where, out * weights, tf.zeros((), out.dtype)))

    def plain(self, *args):
        """Return the ordinary gradient by a factor of the point."""
        with tf.GradientTape() as tape:
            tape.watch(args[1])
            loss = self.loss(args)
        return tf.convert_to_tensor(tape.gradient(loss, args[1], unconnected_gradients="zero"))

    def ours(self, *args):
        """Return masked gradients by a factor of the point and by the spike, with its mask."""
        with masked.GradientTape(persistent=True) as tape:
            tape.watch(args[1:3])
            loss = self.loss(args)
        how = {"unconnected_gradients": "zero", "return_mask": True, "on_unknown": UNKNOWN}
        return tape.gradient(loss, args[1:3], **how)

    def at(self, run, x, weights, where):
        """Run one of the two at a point."""
        one = tf.ones_like(self.x)
        found = run(tf.cast(x, self.dtype), one, tf.zeros_like(one), weights, where)
        return tf.nest.map_structure(
            lambda v: v.numpy().astype(np.float64) if v.dtype != tf.bool else v.numpy(), found
        )


def selections(shape):
    """Return what may be selected of results: some entries, or the first of all groups."""
    some = np.random.default_rng(3).random(shape) < 0.5
    first = np.zeros(shape, bool)
    first[:1] = True
    last = np.zeros(shape, bool)
    last[..., -1:] = True
    return [some, first, last]


UNKNOWN = "ignore"
FAR = (0.37, 50.0, -50.0)


EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def factors_near(dtype):
    """Return factors that are almost 1 in a precision."""
    step = EPSILON[dtype] ** 0.5
    return 1 + step, 1 - step


def changes(runs, factors):
    """Return which entries of the point, along the first axis, change which results."""
    x, before = runs.x.numpy().astype(np.float64), runs.out.numpy()
    found = np.zeros((x.size, *before.shape), bool)
    for i in range(x.size):
        for factor in factors:
            point = x.copy()
            point.flat[i] *= factor
            found[i] |= runs.value(point).numpy() != before
    return found


def moved(found, where, shape):
    """Return which entries of the point change selected results."""
    return found[:, where].any(axis=1).reshape(shape)


def hidden_in(runs, where, weights):
    """Return the first two entries whose NaN the results have, and the masked gradient has not."""
    found = []
    for i in range(2):
        point = runs.x.numpy().astype(np.float64)
        point.flat[i] = np.nan
        try:
            if not np.isnan(runs.value(point).numpy()[where]).any():
                continue
            ordinary = runs.at(runs.ordinary, point, weights, where)
            (ours, _), _ = runs.at(runs.masked, point, weights, where)
        except tf.errors.InvalidArgumentError:  # of a matrix of NaN
            continue
        if np.isfinite(ours).all() and not np.isfinite(ordinary).all():
            found.append(i)
    return found


class Verdict(NamedTuple):
    """What came out of one program: counts of runs, and what is wrong."""

    right: int = 0
    stays: int = 0
    skipped: int = 0
    wrong: tuple[str, ...] = ()


def planted_in(runs, where, weights, used):
    """
    Return the point with NaN, or tiny numbers, in what the selected results do not read.

    None if they read all, or TensorFlow itself fails, as it does for a matrix of NaN.
    """
    x = runs.x.numpy().astype(np.float64)
    tiny = float(ml_dtypes.finfo(runs.x.dtype.as_numpy_dtype).tiny)  # NumPy has none of bfloat16
    for bad in (np.nan, x * tiny**0.7):
        point = np.where(used, x, bad)
        try:
            same = runs.value(point).numpy()[where]
            runs.at(runs.ordinary, point, weights, where)
        except tf.errors.InvalidArgumentError:
            continue
        if not used.all() and np.array_equal(same, runs.out.numpy()[where]):
            return point
    return None


def verdict(name, dtype="float64", rtol=1e-6):
    """Run a program with several selections, and compare."""
    runs = Runs(PROGRAMS[name], dtype)
    out = runs.out.numpy().astype(np.float64)
    weights = tf.cast(1 + np.arange(out.size).reshape(out.shape) % 3, runs.out.dtype)
    # Both ways: a little more makes another entry the largest, and no less does.
    near = np.logical_and(*(changes(runs, (factor,)) for factor in factors_near(dtype)))
    far = changes(runs, FAR)
    right = stays = skipped = 0
    wrong = []
    for which, where in enumerate(selections(out.shape)):
        clean = runs.at(runs.ordinary, runs.x, weights, where)
        (ours, by_spike), _ = runs.at(runs.masked, runs.x, weights, where)
        if not np.isfinite(clean).all():
            skipped += 1
            continue
        if not np.allclose(ours, clean, rtol=rtol, atol=rtol):
            wrong.append(f"{which}: healthy {ours} and not {clean}")
        moving = moved(near, where, clean.shape)
        if (np.isfinite(by_spike) & moving).any():
            wrong.append(f"{which}: used {by_spike}, moved {moving}")
        if hidden := hidden_in(runs, where, weights):
            wrong.append(f"{which}: hidden NaN at {hidden}")
        # Where only one triangle of a matrix is read, its gradient is of both all the same.
        planted = planted_in(runs, where, weights, moved(far, where, clean.shape) | (clean != 0))
        if planted is None:
            skipped += 1
            continue
        (ours, _), _ = runs.at(runs.masked, planted, weights, where)
        if np.isnan(ours).any():
            stays += 1
        elif np.allclose(ours, clean, rtol=rtol, atol=rtol):
            right += 1
        else:
            wrong.append(f"{which}: planted {ours} and not {clean}")
    return Verdict(right, stays, skipped, tuple(wrong))


PRECISION = {"float64": 1e-6, "float32": 1e-3, "float16": 0.03, "bfloat16": 0.2}


def verdict_or_none(name, dtype):
    """Run a program in a precision; None if TensorFlow has no kernel for it."""
    try:
        runs = Runs(PROGRAMS[name], dtype)
        runs.at(runs.ordinary, runs.x, tf.ones_like(runs.out), np.ones(runs.out.shape, bool))
    except (TypeError, ValueError, tf.errors.OpError):
        return None
    return verdict(name, dtype, PRECISION[dtype])


def main():
    """Print how each program fares."""
    tables.RULES.update(checked_rules(tables.RULES))
    dtypes = sys.argv[1:] or ["float64"]
    for dtype in dtypes:
        counts = {"right": 0, "stays": 0, "skipped": 0, "wrong": 0, "no kernel": 0}
        for name in PROGRAMS:
            found = verdict_or_none(name, dtype)
            if found is None:
                counts["no kernel"] += 1
                continue
            for key in ("right", "stays", "skipped"):
                counts[key] += getattr(found, key)
            counts["wrong"] += len(found.wrong)
            if found.stays or found.wrong:
                sys.stdout.write(f"{dtype} {name} {found}\n")
        sys.stdout.write(f"{dtype} {counts}\n")


if __name__ == "__main__":
    main()
