"""
What it costs to recognise the framework of two arguments: ``python benchmarks/recognition.py``.

Prints, for each installed framework, the time of ``backend_of(x, y)`` beside that of
`array_api_compat.array_namespace`, the median of 200 pairs run one after the other, and their
ratio. Exit code 1 if a time is above 300 ns, the bar.
"""

import sys
from functools import partial
from importlib.util import find_spec
from statistics import median

import timing  # first: it sets the number of threads
import numpy as np
from array_api_compat import array_namespace

from safeops._backends import FRAMEWORKS, load
from safeops._dispatch import backend_of

BAR = 300.0  # ns
PAIRS = 200


def pair_of(framework):
    """Return two arrays of a framework."""
    x = np.ones(3, dtype=np.float32)
    if framework == "numpy":
        return x, x
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.constant(x), tf.constant(x)
    xp = load(framework).xp
    return xp.asarray(x), xp.asarray(x)


def peer(x, y):
    """Return the namespace by array-api-compat, which does not know TensorFlow."""
    try:
        return array_namespace(x, y)
    except TypeError:
        return None


def main():
    """Print the table."""
    worst = 0.0
    print("| framework | `backend_of(x, y)`, ns | `array_namespace(x, y)`, ns | ratio |")
    print("| --- | --- | --- | --- |")
    for framework in FRAMEWORKS:
        if find_spec(framework) is None:
            continue
        x, y = pair_of(framework)
        both = partial(backend_of, x, y), partial(peer, x, y)
        ours, theirs = (median(times) * 1e9 for times in timing.rounds(both, PAIRS))
        known = peer(x, y) is not None
        rest = f"{theirs:.0f} | {ours / theirs:.2f}" if known else "TypeError | "
        print(f"| {framework} | {ours:.0f} | {rest} |")
        worst = max(worst, ours)
    return int(worst > BAR)


if __name__ == "__main__":
    sys.exit(main())
