"""Ratios of run times: functions that take turns in one process, on one thread."""

import os
import random
import time
from statistics import median, quantiles
from typing import NamedTuple

# Before the libraries, which read these when they are imported. One core, since XLA has threads of
# its own, whose time the clock of the process knows to 4 ms only while they run beside.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
for _library in ("OPENBLAS_NUM", "OMP_NUM", "MKL_NUM", "TF_NUM_INTRAOP", "TF_NUM_INTEROP"):
    os.environ[f"{_library}_THREADS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

WORTH = 2e-4  # seconds that one timing takes at least, by repetition


class Clock:
    """What tells the time, and waits for a device that works beside the processor."""

    now = staticmethod(time.process_time)  # of the processor: others may be at work on the machine
    wait = staticmethod(lambda: None)


class Ratio(NamedTuple):
    """The median of the ratios of pairs, and the quartiles."""

    ratio: float
    low: float
    high: float

    def __str__(self):
        """Return the spread."""
        return f"{self.low:.2f} to {self.high:.2f}"


def seconds(f, repeats=1):
    """Return the time of one call."""
    Clock.wait()
    start = Clock.now()
    for _ in range(repeats):
        f()
    Clock.wait()
    return (Clock.now() - start) / repeats


def on_device(wait):
    """Measure the time that passes until a device has done its work: it has no other clock."""
    Clock.now, Clock.wait = staticmethod(time.perf_counter), staticmethod(wait)


def rounds(functions, pairs):
    """Return the times of functions that take turns, a column each; the order changes by chance."""
    first = max(min(seconds(f) for _ in range(2)) for f in functions)
    repeats = max(1, int(WORTH / first))
    order, columns = list(range(len(functions))), [[] for _ in functions]
    shuffle = random.Random(0).shuffle  # noqa: S311  (no secret)
    for _ in range(pairs):
        shuffle(order)  # what ran before has filled the caches
        for i in order:
            columns[i].append(seconds(functions[i], repeats))
    return columns


def ratio(times, others):
    """Return the ratio of two columns."""
    ratios = [ours / theirs for ours, theirs in zip(times, others, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return Ratio(median(ratios), low, high)


def compare(ours, theirs, pairs):
    """Return the ratio of two functions, and that of the second to itself: the control, A/A."""
    first, second, again = rounds((ours, theirs, theirs), pairs)
    return ratio(first, second), ratio(again, second)
