"""
What the safe operations cost: ``python benchmarks/ops.py [--quick] [--json FILE]``.

Prints a Markdown table with a row for each operation, framework, mode, size, share of bad entries
and pass. A row has the time of the safe operation divided by the time of the plain unsafe
operation, with quartiles; divided by the time of a double where written by hand; and divided by the
time of the fastest peer, with its name. All take turns in one process, on one thread, in float32.
The column A/A compares the plain operation with itself, and so shows the noise of the machine. Then
come, for PyTorch, the bytes that a backward pass keeps and the peak of memory, and last the bars of
`bars.py`.

`--framework`, `--operation`, `--mode` and `--size` select; `--out FILE` writes all tables.
`--device cuda` measures on an accelerator, by the time that passes until it has done its work, and
no memory; give one framework with it.
"""

import argparse
import json
import math
import warnings
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import timing  # first: it sets the number of threads
import bars
import numpy as np

import safeops as so

TINY = float(np.finfo(np.float32).smallest_normal)
LARGEST = math.log(np.finfo(np.float32).max)
SIZES = (10, 10**4, 10**6)
SHARES = (0.0, 0.01, 0.5)
MODES = {
    "numpy": ("eager",),
    "torch": ("eager", "compile"),
    "jax": ("eager", "jit"),
    "tensorflow": ("eager", "function", "xla"),
}


class Operation(NamedTuple):
    """The safe, the plain and the double-where version; the last two take the namespace first."""

    ours: object
    plain: object
    double: object
    points: object  # from normal numbers and where they are bad to arguments
    peers: object = {}
    constants: int = 0  # last arguments of which no gradient is taken


def double_div(xp, x, y):
    """Divide, 0 where y is 0."""
    ok = y != 0
    return xp.where(ok, x / xp.where(ok, y, 1.0), 0.0)


def double_log(xp, x):
    """Take the logarithm, 0 where x is not positive."""
    ok = x > 0
    return xp.where(ok, xp.log(xp.where(ok, x, 1.0)), 0.0)


def double_sqrt(xp, x):
    """Take the root, 0 where x is not positive."""
    ok = x > 0
    return xp.where(ok, xp.sqrt(xp.where(ok, x, 1.0)), 0.0)


def double_exp(xp, x):
    """Take the exponential, 3e38 where it overflows."""
    ok = x < LARGEST
    return xp.where(ok, xp.exp(xp.where(ok, x, 0.0)), 3e38)


def double_pow(xp, x, p):
    """Take the power, 0 where x is not positive."""
    ok = x > 0
    return xp.where(ok, xp.where(ok, x, 1.0) ** p, 0.0)


def double_xlogy(xp, x, y):
    """Multiply with a logarithm, 0 where x is 0."""
    ok = x != 0
    return xp.where(ok, x * xp.log(xp.where(ok, y, 1.0)), 0.0)


def double_norm(xp, x):
    """Take the root of the sum of squares, 0 where that is 0."""
    return double_sqrt(xp, xp.sum(x * x, -1))


def plain_softmax(xp, x, keep):
    """Take the softmax, NaN in a row of which nothing is kept."""
    return xp.softmax(xp.where(keep, x, -math.inf))


def double_softmax(xp, x, keep):
    """Take the softmax of the entries kept, 0 where there is none."""
    some = xp.any(keep, -1)
    x = xp.where(xp.logical_or(keep, xp.logical_not(some)), x, -math.inf)
    return xp.where(some, xp.softmax(xp.where(some, x, 0.0)), 0.0)


def double_nansum(xp, x):
    """Sum, 0 for NaN."""
    return xp.sum(xp.where(xp.isnan(x), 0.0, x), -1)


def double_nanmean(xp, x):
    """Take the mean over what is not NaN."""
    absent = xp.isnan(x)
    return xp.sum(xp.where(absent, 0.0, x), -1) / xp.sum(xp.where(absent, 0.0, 1.0 + 0.0 * x), -1)


def double_nanstd(xp, x):
    """Take the standard deviation of what is not NaN, without a gradient if that is 0."""
    there = xp.logical_not(xp.isnan(x))
    number = xp.sum(xp.where(there, 1.0 + 0.0 * x, 0.0), -1)[:, None]
    mean = xp.sum(xp.where(there, x, 0.0), -1)[:, None] / number
    away = xp.where(there, xp.where(there, x, 0.0) - mean, 0.0)
    return double_sqrt(xp, xp.sum(away * away, -1) / number[:, 0])


def double_nanmax(xp, x):
    """Take the largest of what is not NaN."""
    return xp.max(xp.where(xp.isnan(x), -math.inf, x), -1)


def with_bad(value, *, last=True):
    """Return the positive numbers, bad entries replaced, in the last argument or the first."""

    def points(numbers, bad):
        x, y = np.abs(numbers) + 0.1
        target = y if last else x
        target[bad] = value
        return x, y

    return points


def one(value):
    """Return one argument, positive numbers, bad entries replaced."""
    return lambda numbers, bad: with_bad(value)(numbers, bad)[1:]


def rows(value):
    """Return one argument in rows, the first of each row not bad."""

    def points(numbers, bad):
        x = in_rows(numbers[0])
        bad = in_rows(bad)
        bad[:, 0] = False
        x[bad] = value
        return (x,)

    return points


def in_rows(x):
    """Return rows of 100, or of 5."""
    return x.reshape(-1, 100 if x.size > 10 else 5)  # noqa: PLR2004


def zero_rows(numbers, bad):
    """Return rows, of which some are 0."""
    x = in_rows(numbers[0])
    x[in_rows(bad)[:, 0]] = 0.0
    return (x,)


def kept_rows(numbers, bad):
    """Return rows and a mask, which leaves out all of some rows."""
    bad = in_rows(bad)
    return in_rows(numbers[0]), ~(bad | (bad[:, :1] & bad[:, 1:2]))


def divide_where(x, y):
    """Divide in NumPy where y is not 0."""
    return np.divide(x, y, out=np.zeros_like(x), where=y != 0)


def apply_where(x, y):
    """Divide by the `apply_where` of array-api-extra, whose outer gradient is not protected."""
    import array_api_extra

    return array_api_extra.apply_where(y != 0, (x, y), lambda x, y: x / y, fill_value=0.0)


def torch_softmax(x, keep):
    """Take PyTorch's own safe softmax."""
    import torch

    return torch._safe_softmax(x.masked_fill(~keep, -math.inf), -1)  # noqa: SLF001


def torch_masked(x, *, name, **options):
    """Reduce by `torch.masked`."""
    import torch

    return getattr(torch.masked, name)(x, -1, mask=~x.isnan(), **options)


def named(path, **options):
    """Return a function of a library that is imported when it is called."""
    module, _, name = path.rpartition(".")
    return lambda *args: getattr(import_module(module), name)(*args, **options)


DIV_PEERS = {
    "numpy": {"np.divide(where=)": divide_where},
    "tensorflow": {"tf.math.divide_no_nan": named("tensorflow.math.divide_no_nan")},
}
for _name in ("numpy", "torch", "jax"):
    DIV_PEERS.setdefault(_name, {})["array_api_extra.apply_where"] = apply_where
OPERATIONS = {
    "safe_div": Operation(so.safe_div, lambda _, x, y: x / y, double_div, with_bad(0), DIV_PEERS),
    "safe_log": Operation(so.safe_log, lambda xp, x: xp.log(x), double_log, one(0)),
    "safe_sqrt": Operation(so.safe_sqrt, lambda xp, x: xp.sqrt(x), double_sqrt, one(0)),
    "safe_exp": Operation(so.safe_exp, lambda xp, x: xp.exp(x), double_exp, one(100)),
    "safe_pow": Operation(so.safe_pow, lambda _, x, p: x**p, double_pow, with_bad(0, last=False)),
    "xlogy": Operation(
        so.xlogy,
        lambda xp, x, y: x * xp.log(y),
        double_xlogy,
        lambda numbers, bad: [np.where(bad, 0, x) for x in with_bad(0)(numbers, bad)],
        {
            "numpy": {"scipy.special.xlogy": named("scipy.special.xlogy")},
            "torch": {"torch.special.xlogy": named("torch.special.xlogy")},
            "jax": {"jax.scipy.special.xlogy": named("jax.scipy.special.xlogy")},
            "tensorflow": {"tf.math.xlogy": named("tensorflow.math.xlogy")},
        },
    ),
    "safe_norm": Operation(
        partial(so.safe_norm, axis=-1),
        lambda xp, x: xp.sqrt(xp.sum(x * x, -1)),
        double_norm,
        zero_rows,
        {
            "torch": {"torch.linalg.vector_norm": named("torch.linalg.vector_norm", dim=-1)},
            "jax": {"optax.safe_norm": named("optax.safe_norm", min_norm=0.0, axis=-1)},
        },
    ),
    "safe_softmax": Operation(
        lambda x, keep: so.safe_softmax(x, where=keep),
        plain_softmax,
        double_softmax,
        kept_rows,
        {
            "torch": {"torch._safe_softmax": torch_softmax},
            "jax": {
                "jax.nn.softmax(where=)": lambda x, keep: named("jax.nn.softmax", where=keep)(x)
            },
        },
        constants=1,
    ),
    "nansum": Operation(
        partial(so.nansum, axis=-1),
        lambda xp, x: xp.sum(x, -1),
        double_nansum,
        rows(np.nan),
        {
            "numpy": {
                "np.nansum": partial(np.nansum, axis=-1),
                "bottleneck": named("bottleneck.nansum", axis=-1),
            },
            "torch": {
                "torch.nansum": named("torch.nansum", dim=-1),
                "torch.masked.sum": partial(torch_masked, name="sum"),
            },
            "jax": {"jnp.nansum": named("jax.numpy.nansum", axis=-1)},
        },
    ),
    "nanmean": Operation(
        partial(so.nanmean, axis=-1),
        lambda xp, x: xp.mean(x, -1),
        double_nanmean,
        rows(np.nan),
        {
            "numpy": {
                "np.nanmean": partial(np.nanmean, axis=-1),
                "bottleneck": named("bottleneck.nanmean", axis=-1),
            },
            "torch": {
                "torch.nanmean": named("torch.nanmean", dim=-1),
                "torch.masked.mean": partial(torch_masked, name="mean"),
            },
            "jax": {"jnp.nanmean": named("jax.numpy.nanmean", axis=-1)},
        },
    ),
    "nanstd": Operation(
        partial(so.nanstd, axis=-1),
        lambda xp, x: xp.std(x, -1),
        double_nanstd,
        rows(np.nan),
        {
            "numpy": {
                "np.nanstd": partial(np.nanstd, axis=-1),
                "bottleneck": named("bottleneck.nanstd", axis=-1),
            },
            "torch": {"torch.masked.std": partial(torch_masked, name="std", unbiased=False)},
            "jax": {"jnp.nanstd": named("jax.numpy.nanstd", axis=-1)},
        },
    ),
    "nanmax": Operation(
        partial(so.nanmax, axis=-1),
        lambda xp, x: xp.max(x, -1),
        double_nanmax,
        rows(np.nan),
        {
            "numpy": {
                "np.nanmax": partial(np.nanmax, axis=-1),
                "bottleneck": named("bottleneck.nanmax", axis=-1),
            },
            "torch": {"torch.masked.amax": partial(torch_masked, name="amax")},
            "jax": {"jnp.nanmax": named("jax.numpy.nanmax", axis=-1)},
        },
    ),
}


# The frameworks: a namespace for the plain operations, and a call with its gradient.


def numpy_softmax(x):
    """Take the softmax of rows."""
    parts = np.exp(x - np.max(x, -1, keepdims=True))
    return parts / np.sum(parts, -1, keepdims=True)


def keepdims_any(any_, **options):
    """Return a test whether anything in a row is true, axes kept."""
    return lambda x, axis: any_(x, axis, **options)


def in_numpy():
    """Return the namespace, what makes arrays, and the gradient of NumPy, which is none."""
    xp = SimpleNamespace(**vars(np))
    xp.softmax, xp.any = numpy_softmax, keepdims_any(np.any, keepdims=True)
    return xp, np.asarray, {"eager": lambda f: f}, None


def in_torch():
    """Return the same for PyTorch."""
    import torch

    torch.set_num_threads(1)
    xp = SimpleNamespace(**vars(torch))
    xp.softmax, xp.max = partial(torch.softmax, dim=-1), torch.amax
    xp.any, xp.std = keepdims_any(torch.any, keepdim=True), partial(torch.std, correction=0)

    def gradient(f, args, n):
        leaves = [x.requires_grad_() if i < n else x for i, x in enumerate(args)]
        seed = torch.ones_like(f(*leaves))
        return lambda: torch.autograd.grad(f(*leaves), leaves[:n], seed)

    def compiled(f):
        torch._dynamo.reset()  # noqa: SLF001  (or it stops at eight programs of one function)
        return torch.compile(f)

    return xp, torch.tensor, {"eager": lambda f: f, "compile": compiled}, gradient


def in_jax():
    """Return the same for JAX."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # noqa: FBT003  (JAX's)
    xp = SimpleNamespace(**{name: getattr(jnp, name) for name in dir(jnp)})
    xp.softmax, xp.any = jax.nn.softmax, keepdims_any(jnp.any, keepdims=True)

    def gradient(f, args, n):
        # Both are returned, or a compiler drops the value; a constant seed it would work in.
        def call(seed, *args):
            value, pull = jax.vjp(lambda *x: f(*x, *args[n:]), *args[:n])
            return value, pull(seed)

        call = jax.jit(call) if isinstance(f, type(jax.jit(call))) else call
        seed = jnp.ones_like(f(*args))
        return lambda: jax.block_until_ready(call(seed, *args))

    return xp, jnp.asarray, {"eager": lambda f: f, "jit": jax.jit}, gradient


def in_tensorflow():
    """Return the same for TensorFlow."""
    import tensorflow as tf

    names = {"sum": "reduce_sum", "max": "reduce_max", "mean": "reduce_mean"}
    names["std"] = "math.reduce_std"
    xp = SimpleNamespace(where=tf.where, exp=tf.exp, sqrt=tf.sqrt, log=tf.math.log)
    vars(xp).update({name: attrgetter(other)(tf) for name, other in names.items()})
    xp.isnan, xp.softmax, xp.logical_or = tf.math.is_nan, tf.nn.softmax, tf.logical_or
    xp.logical_not, xp.any = tf.logical_not, keepdims_any(tf.reduce_any, keepdims=True)

    def gradient(f, args, n):
        def call(seed, *args):
            with tf.GradientTape() as tape:
                tape.watch(args[:n])
                value = f(*args)
            return value, tape.gradient(value, args[:n], seed)

        around = getattr(f, "again", lambda f: f)(call)
        seed = tf.ones_like(f(*args))
        return lambda: around(seed, *args)

    def traced(**options):
        def trace(f):
            g = tf.function(f, **options)
            g.again = partial(tf.function, **options)
            return g

        return trace

    modes = {"eager": lambda f: f, "function": traced(), "xla": traced(jit_compile=True)}
    return xp, tf.constant, modes, gradient


def place(framework, device):
    """Make a framework put all arrays on a device, and the clock wait for it."""
    if framework == "torch":
        import torch

        torch.set_default_device(device)
        timing.on_device(getattr(torch, device).synchronize)
    elif framework == "jax":  # whose calls wait for their results
        import jax

        jax.config.update("jax_default_device", jax.devices(device)[0])
        timing.on_device(lambda: None)
    elif framework == "tensorflow":
        import tensorflow as tf

        kind = "GPU" if device == "cuda" else device.upper()
        if not tf.config.list_logical_devices(kind):
            msg = f"TensorFlow has no device {kind}"
            raise ValueError(msg)
        timing.on_device(tf.test.experimental.sync_devices)  # arrays are on the first by default
    else:
        msg = f"{framework} has no device {device}"
        raise ValueError(msg)


SET_UP = {"numpy": in_numpy, "torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}


class Case(NamedTuple):
    """A row of the table."""

    operation: str
    framework: str
    mode: str
    size: int
    bad: float
    gradient: bool


def cases(options):
    """Return the rows, without those that the options leave out."""
    sizes = options.size or ((10, 10**6) if options.quick else SIZES)
    shares = (0.01,) if options.quick else SHARES
    for framework in options.framework or [name for name in SET_UP if find_spec(name)]:
        for mode in options.mode or MODES[framework]:
            slow = mode in ("compile", "function") and not options.mode  # to compile
            if mode not in MODES[framework] or (options.quick and slow):
                continue
            one = mode == "compile"  # case of each: Inductor takes 10 s for a function
            for operation in options.operation or OPERATIONS:
                for size in sizes[-1:] if one else sizes:
                    for bad in (0.01,) if one else shares if size > 10 else shares[-1:]:  # noqa: PLR2004
                        for gradient in (False, True):
                            if framework != "numpy" or not gradient:
                                yield Case(operation, framework, mode, size, bad, gradient)


def arguments(case, asarray):
    """Return the arguments of a case."""
    random = np.random.default_rng(0)
    numbers = random.normal(size=(2, case.size)).astype(np.float32)
    bad = random.random(case.size) < case.bad
    points = OPERATIONS[case.operation].points(numbers, bad)
    return [asarray(x if x.dtype == bool else x.astype(np.float32)) for x in points]


def contenders(case, world):
    """Return the calls of a case: ours, plain, plain again, double where, peers."""
    xp, asarray, modes, gradient = world
    operation = OPERATIONS[case.operation]
    plain, double = partial(operation.plain, xp), partial(operation.double, xp)
    peers = operation.peers.get(case.framework, {})
    calls = []
    for f in (operation.ours, plain, double, *peers.values()):
        args = arguments(case, asarray)
        f = modes[case.mode](f)  # noqa: PLW2901  (the function in that mode)
        if case.gradient:
            calls.append(gradient(f, args, len(args) - operation.constants))
        elif case.framework == "jax":
            calls.append(partial(waiting, f, args))
        else:
            calls.append(partial(f, *args))
    return [*calls[:2], calls[1], *calls[2:]], list(peers)


def waiting(f, args):
    """Call a function of JAX and wait for it."""
    import jax

    return jax.block_until_ready(f(*args))


def measure(case, world, pairs):
    """Return the ratios of a case."""
    calls, peers = contenders(case, world)
    ours, plain, again, double, *others = timing.rounds(calls, pairs)
    best = min(range(len(others)), key=lambda i: np.median(others[i]), default=None)
    return {
        **case._asdict(),
        "plain": timing.ratio(ours, plain),
        "A/A": timing.ratio(again, plain),
        "double": timing.ratio(ours, double),
        "peer": None if best is None else (peers[best], timing.ratio(ours, others[best])),
    }


HEAD = """
| operation | framework | mode | size | bad | pass | over plain | quartiles | A/A | over double \
where | over best peer |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def line(row):
    """Return a row of the table."""
    peer = row["peer"] and f"{row['peer'][1].ratio:.2f} {row['peer'][0]}"
    cells = [
        *(row[name] for name in ("operation", "framework", "mode")),
        f"{row['size']:.0e}".replace("+0", ""),
        f"{row['bad']:.0%}",
        "both" if row["gradient"] else "forward",
        f"{row['plain'].ratio:.2f}",
        row["plain"],
        row["A/A"],
        f"{row['double'].ratio:.2f}",
        peer or "",
    ]
    return f"| {' | '.join(map(str, cells))} |"


# What PyTorch keeps in memory.


def saved_bytes(f, leaves):
    """Return the bytes that the backward pass keeps, each storage once."""
    import torch

    kept = {}

    def pack(x):
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        value = f(*leaves)
    return sum(kept.values()), value


def peak_bytes(f, leaves):
    """Return the largest sum of what was allocated in a forward and a backward pass."""
    import torch

    with torch.profiler.profile(profile_memory=True) as profile:
        value = f(*leaves)
        torch.autograd.grad(value, [x for x in leaves if x.requires_grad], torch.ones_like(value))
    events = profile.profiler.kineto_results.events()
    steps = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()) if e.nbytes()]
    return max(np.cumsum(steps), default=0)


def memory(operations):
    """Return the lines of the table of memory, in bytes an entry."""
    xp, asarray, _, _ = in_torch()
    yield "\n| operation | saved | plain | double where | peak | plain | double where |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name in operations:
        operation = OPERATIONS[name]
        ways = (operation.ours, partial(operation.plain, xp), partial(operation.double, xp))
        columns = []
        for f in ways:
            args = arguments(Case(name, "torch", "eager", 10**6, 0.01, gradient=True), asarray)
            for x in args[: len(args) - operation.constants]:
                x.requires_grad_()
            columns.append((saved_bytes(f, args)[0] / 1e6, peak_bytes(f, args) / 1e6))
        saved, peak = ([f"{x:.1f}" for x in column] for column in zip(*columns, strict=True))
        yield f"| {name} | {' | '.join(saved)} | {' | '.join(peak)} |"


def parsed():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases and pairs")
    parser.add_argument("--json", type=Path, help="a file for all ratios")
    parser.add_argument("--out", type=Path, help="a file for the table")
    parser.add_argument("--device", help="an accelerator, such as cuda; default: the processor")
    parser.add_argument("--framework", action="append", choices=list(SET_UP))
    parser.add_argument("--operation", action="append", choices=list(OPERATIONS))
    parser.add_argument("--mode", action="append")
    parser.add_argument("--size", action="append", type=int)
    return parser.parse_args()


def main():
    """Measure and print."""
    options = parsed()
    lines, found, worlds = [HEAD.strip()], [], {}
    print(lines[0])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # those of the unsafe operations
        for case in cases(options):
            if case.framework not in worlds:
                if options.device:
                    place(case.framework, options.device)
                worlds[case.framework] = SET_UP[case.framework]()
            found.append(measure(case, worlds[case.framework], 9 if options.quick else 21))
            lines.append(line(found[-1]))
            print(lines[-1], flush=True)
        if "torch" in worlds and not options.device:
            lines += memory(options.operation or OPERATIONS)
            print("\n".join(lines[-len(options.operation or OPERATIONS) - 2 :]))
    lines = [*bars.lines(found), "", *lines]
    print("\n".join(["", *lines[: lines.index("")]]))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
