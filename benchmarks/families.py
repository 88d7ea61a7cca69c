"""
What the families cost beside what a user would pick: ``python benchmarks/families.py``.

Prints a Markdown table: for each function, framework and mode the processor time of the forward
and the backward pass of safeops over that of the framework's own function, at a small and a large
size, with plain arguments and with 1 % of bad ones, and the control A/A. All take turns in one
process, on one thread, in float32. `--framework`, `--mode`, `--function` and `--size` select;
`--json FILE` writes the numbers.
"""

import argparse
import json
import math
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import timing  # first: it sets the number of threads
import numpy as np
import ops
from plain import plain

import safeops as so

SMALL, LARGE = "small", "large"
HUGE = 1e30


class Family(NamedTuple):
    """A function, its arguments, and what a user would pick in each framework."""

    ours: object
    arguments: object  # from a generator of random numbers and a size to arrays
    picks: dict  # by framework; one that is missing has the pick of `plain.py`
    spoil: object = None  # makes some arguments bad
    constants: int = 0  # last arguments of which no gradient is taken


def rows(small, large):
    """Return normal numbers of two shapes."""
    return lambda rng, size: [rng.normal(size=small if size == SMALL else large)]


def numbers(low, high, count=1, large=10**6):
    """Return numbers between two, for each of the arguments."""
    return lambda rng, size: list(rng.uniform(low, high, (count, 10 if size == SMALL else large)))


def classes(rng, size):
    """Return logits and classes."""
    n, m = (10, 5) if size == SMALL else (4096, 1000)
    return [rng.normal(size=(n, m)), rng.integers(0, m, n)]


def probabilities(rng, size):
    """Return logits and probabilities."""
    n, m = (2, 5) if size == SMALL else (4096, 1000)
    return [rng.normal(size=(n, m)), rng.dirichlet(np.ones(m), n)]


def distributions(rng, size):
    """Return two probabilities."""
    n, m = (2, 5) if size == SMALL else (1000, 1000)
    return list(rng.dirichlet(np.ones(m), (2, n)))


def labelled(rng, size):
    """Return logits and labels of two classes."""
    n = 10 if size == SMALL else 10**6
    return [4.0 * rng.normal(size=n), rng.integers(0, 2, n).astype(float)]


def points(rng, size):
    """Return points of 16 coordinates."""
    return list(rng.normal(size=(2, 5 if size == SMALL else 1000, 16)))


def parts(rng, size):
    """Return entries and the segment of each."""
    n, m = (10, 3) if size == SMALL else (200_000, 5000)
    return [rng.normal(size=(n, 16)), rng.integers(0, m, n)]


def heads(rng, size):
    """Return queries, keys and values."""
    return list(rng.normal(size=(3, 1, 2, 4, 8) if size == SMALL else (3, 4, 8, 512, 64)))


def pairs(rng, size):
    """Return two rows of vectors."""
    return list(rng.normal(size=(2, *((2, 5) if size == SMALL else (10_000, 100)))))


def with_value(value, place=0):
    """Return what puts a value at 1 % of the entries of an argument."""

    def spoil(rng, args):
        x = args[place]
        x[rng.random(x.shape) < 0.01] = value  # noqa: PLR2004  (1 %)
        x.flat[-1] = value
        return args

    return spoil


def without_class(rng, args):
    """Let 1 % of the slices have no label."""
    args[1][rng.random(args[1].shape) < 0.01] = -1  # noqa: PLR2004  (1 %)
    args[1][-1] = -1
    return args


def coincident(rng, args):
    """Let each point of the second argument be one of the first."""
    del rng
    args[1] = args[0].copy()
    return args


def in_segments(name):
    """Return a function of segments as ours, for the number of segments of its entries."""
    from safeops import segments

    f = getattr(segments, name)
    return lambda x, ids: f(x, ids, 3 if x.shape[0] == 10 else 5000)  # noqa: PLR2004


def torch_segments(kind):
    """Return the reduction of PyTorch."""

    def reduce(x, ids):
        import torch

        out = x.new_zeros((3 if x.shape[0] == 10 else 5000, x.shape[1]))  # noqa: PLR2004
        if kind == "sum":
            return out.index_add(0, ids, x)
        where = ids[:, None].expand(x.shape)
        return torch.scatter_reduce(out, 0, where, x, kind, include_self=False)

    return reduce


def jax_segments(kind):
    """Return the reduction of JAX."""

    def reduce(x, ids):
        import jax
        import jax.numpy as jnp

        number = 3 if x.shape[0] == 10 else 5000  # noqa: PLR2004
        if kind != "mean":
            return getattr(jax.ops, f"segment_{kind}")(x, ids, number)
        total = jax.ops.segment_sum(x, ids, number)
        return total / jnp.maximum(jax.ops.segment_sum(jnp.ones_like(x), ids, number), 1)

    return reduce


def tf_segments(kind):
    """Return the reduction of TensorFlow."""

    def reduce(x, ids):
        import tensorflow as tf

        number = 3 if x.shape[0] == 10 else 5000  # noqa: PLR2004
        return getattr(tf.math, f"unsorted_segment_{kind}")(x, ids, number)

    return reduce


def segment_picks(name, of_torch):
    """Return the reductions of the frameworks."""
    return {
        "torch": torch_segments(of_torch),
        "jax": jax_segments(name),
        "tensorflow": tf_segments(name),
    }


def softmax_of_segments(x, ids):
    """Take the softmax of segments as one writes it with PyTorch's scatters."""
    import torch

    n = 3 if x.shape[0] == 10 else 5000  # noqa: PLR2004
    where = ids[:, None].expand(x.shape)
    peak = torch.scatter_reduce(x.new_zeros((n, 16)), 0, where, x, "amax", include_self=False)
    e = torch.exp(x - peak.detach()[ids])
    return e / x.new_zeros((n, 16)).index_add(0, ids, e)[ids]


def of(path, **options):
    """Return a function of a library."""
    return ops.named(path, **options)


def torch_cross_entropy(x, y):
    """Take the cross entropy of classes, those that are negative left out."""
    import torch

    return torch.nn.functional.cross_entropy(x, y, reduction="none", ignore_index=-1)


def optax_cross_entropy(x, y):
    """Take the cross entropy of classes as optax does."""
    import jax
    import jax.numpy as jnp

    chosen = jnp.take_along_axis(x, y[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(x, axis=-1) - chosen


def tf_cross_entropy(x, y):
    """Take the cross entropy of classes as TensorFlow does, 0 for negative ones."""
    import tensorflow as tf

    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(y, 0), x)
    return tf.where(y < 0, 0.0, loss)


def torch_nll(x, y):
    """Take the entries of classes."""
    import torch

    return torch.nn.functional.nll_loss(x, y, reduction="none", ignore_index=-1)


def torch_attention(mask):
    """Return PyTorch's attention."""

    def attend(q, k, v):
        import torch

        keep = (torch.arange(k.shape[-2]) < k.shape[-2] - 1)[None] if mask else None
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)

    return attend


def jax_attention(mask):
    """Return attention as one writes it with JAX's softmax."""

    def attend(q, k, v):
        import jax
        import jax.numpy as jnp

        s = q @ jnp.matrix_transpose(k) / math.sqrt(q.shape[-1])
        s = jnp.where(jnp.arange(k.shape[-2]) < k.shape[-2] - 1, s, -jnp.inf) if mask else s
        return jax.nn.softmax(s, axis=-1) @ v

    return attend


def masked_attention(q, k, v):
    """Take ours with the last key left out."""
    from safeops._dispatch import backend_of

    keep = backend_of(k).positions(k, -2) < k.shape[-2] - 1
    return so.safe_attention(q, k, v, where=keep[..., 0][..., None, :])


LOGITS = rows((2, 5), (4096, 1000))
FAMILIES = {
    "safe_cross_entropy": Family(
        so.safe_cross_entropy,
        classes,
        {
            "torch": torch_cross_entropy,
            "jax": optax_cross_entropy,
            "tensorflow": tf_cross_entropy,
        },
        without_class,
        1,
    ),
    "safe_cross_entropy, probabilities": Family(
        so.safe_cross_entropy, probabilities, {}, with_value(-math.inf), 1
    ),
    "safe_binary_cross_entropy": Family(
        so.safe_binary_cross_entropy,
        labelled,
        {"jax": of("optax.sigmoid_binary_cross_entropy")},
        with_value(math.inf),
        1,
    ),
    "safe_binary_cross_entropy, masked": Family(
        lambda x, y: so.safe_binary_cross_entropy(x, y, where=y >= 0),
        labelled,
        {"jax": of("optax.sigmoid_binary_cross_entropy")},
        with_value(-1.0, 1),
        1,
    ),
    "safe_focal_loss": Family(so.safe_focal_loss, labelled, {}, with_value(math.inf), 1),
    "safe_nll": Family(
        so.safe_nll,
        classes,
        {
            "torch": torch_nll,
            "jax": lambda x, y: -of("jax.numpy.take_along_axis", axis=1)(x, y[:, None])[:, 0],
            "tensorflow": lambda x, y: -of("tensorflow.gather", batch_dims=1)(x, abs(y)),
        },
        without_class,
        1,
    ),
    "safe_kl_divergence": Family(
        so.safe_kl_divergence,
        lambda rng, size: list(
            rng.dirichlet(np.ones(5 if size == SMALL else 1000), (2, 2 if size == SMALL else 1000))
        ),
        {},
        with_value(0.0),
    ),
    "safe_softmax": Family(so.safe_softmax, LOGITS, {}, with_value(-math.inf)),
    "safe_log_softmax": Family(so.safe_log_softmax, LOGITS, {}, with_value(-math.inf)),
    "safe_logsumexp": Family(
        partial(so.safe_logsumexp, axis=-1), LOGITS, {}, with_value(-math.inf)
    ),
    "safe_logmeanexp": Family(
        partial(so.safe_logmeanexp, axis=-1), LOGITS, {}, with_value(-math.inf)
    ),
    "safe_logcumsumexp": Family(
        partial(so.safe_logcumsumexp, axis=-1), rows((2, 5), (1000, 100)), {}, with_value(-math.inf)
    ),
    "safe_attention": Family(
        so.safe_attention,
        heads,
        {"torch": torch_attention(mask=False), "jax": jax_attention(mask=False)},
    ),
    "safe_attention, masked": Family(
        masked_attention,
        heads,
        {"torch": torch_attention(mask=True), "jax": jax_attention(mask=True)},
    ),
    "safe_cdist": Family(
        so.safe_cdist,
        points,
        {
            "torch": of("torch.cdist", compute_mode="donot_use_mm_for_euclid_dist"),
            "jax": lambda x, y: of("jax.numpy.linalg.norm", axis=-1)(x[:, None] - y),
            "tensorflow": lambda x, y: of("tensorflow.norm", axis=-1)(x[:, None] - y),
        },
        coincident,
    ),
    "safe_normalize": Family(so.safe_normalize, rows((2, 5), (10_000, 100)), {}, with_value(0.0)),
    "safe_cosine_similarity": Family(so.safe_cosine_similarity, pairs, {}, with_value(0.0)),
    "safe_correlation": Family(so.safe_correlation, pairs, {}, with_value(0.0)),
    "safe_distance": Family(so.safe_distance, pairs, {}, with_value(0.0)),
    "safe_lgamma": Family(so.safe_lgamma, numbers(0.1, 30), {}, with_value(0.0)),
    "safe_digamma": Family(so.safe_digamma, numbers(0.1, 30), {}, with_value(0.0)),
    "log_ndtr": Family(so.log_ndtr, numbers(-8, 8), {}, with_value(-1e4)),
    "safe_ndtri": Family(so.safe_ndtri, numbers(0.001, 0.999), {}, with_value(0.0)),
    "safe_erfinv": Family(so.safe_erfinv, numbers(-0.999, 0.999), {}, with_value(1.0)),
    "safe_logaddexp": Family(so.safe_logaddexp, numbers(-5, 5, 2), {}, with_value(-math.inf)),
    "safe_logit": Family(so.safe_logit, numbers(0.01, 0.99), {}, with_value(1.0)),
    "safe_hypot": Family(so.safe_hypot, numbers(-5, 5, 2), {}, with_value(0.0)),
    "safe_atan2": Family(so.safe_atan2, numbers(-5, 5, 2), {}, with_value(0.0)),
    "safe_expm1": Family(so.safe_expm1, numbers(-5, 5), {}, with_value(100.0)),
    "safe_log1p": Family(so.safe_log1p, numbers(-0.5, 5), {}, with_value(-1.0)),
    "xlogy": Family(so.xlogy, numbers(0.1, 5, 2), {}, with_value(0.0)),
    "nanmedian": Family(
        partial(so.nanmedian, axis=-1),
        rows((2, 5), (1000, 1000)),
        {"torch": lambda x: of("torch.nanmedian", dim=-1)(x).values},
        with_value(math.nan),
    ),
    "nanquantile": Family(
        lambda x: so.nanquantile(x, 0.3125, axis=-1),
        rows((2, 5), (1000, 1000)),
        {},
        with_value(math.nan),
    ),
    "segment_sum": Family(
        in_segments("segment_sum"),
        parts,
        {
            "torch": torch_segments("sum"),
            "jax": jax_segments("sum"),
            "tensorflow": tf_segments("sum"),
        },
        constants=1,
    ),
    "segment_mean": Family(
        in_segments("segment_mean"),
        parts,
        {
            "torch": torch_segments("mean"),
            "jax": jax_segments("mean"),
            "tensorflow": tf_segments("mean"),
        },
        constants=1,
    ),
    "segment_max": Family(
        in_segments("segment_max"),
        parts,
        {
            "torch": torch_segments("amax"),
            "jax": jax_segments("max"),
            "tensorflow": tf_segments("max"),
        },
        constants=1,
    ),
    "segment_softmax": Family(
        in_segments("segment_softmax"), parts, {"torch": softmax_of_segments}, constants=1
    ),
}

# Functions of numbers, by the ranges of their arguments and the value that is bad in the last.
NUMBERS = {
    "boxcox": ((0.1, 5), (0.1, 2), 0.0),
    "entr": ((0.1, 5), 0.0),
    "exprel": ((-5, 5), 0.0),
    "inv_boxcox": ((0.1, 5), (0.1, 2), 0.0),
    "log1mexp": ((0.1, 5), 0.0),
    "log_cosh": ((-5, 5), 1000.0),
    "log_expm1": ((0.1, 5), 0.0),
    "log_sech2": ((-5, 5), 1000.0),
    "log_sinhc": ((-5, 5), 0.0),
    "logarithmic_mean": ((0.1, 5), (5, 9), 0.0),
    "rel_entr": ((0.1, 5), (0.1, 5), 0.0),
    "safe_acos": ((-0.9, 0.9), 1.0),
    "safe_acosh": ((1.1, 5), 1.0),
    "safe_asin": ((-0.9, 0.9), 1.0),
    "safe_atanh": ((-0.9, 0.9), 1.0),
    "safe_log2": ((0.1, 5), 0.0),
    "safe_log10": ((0.1, 5), 0.0),
    "safe_logsubexp": ((2, 5), (-1, 1), 9.0),
    "safe_mul": ((-5, 5), (-5, 5), math.inf),
    "safe_reciprocal": ((0.1, 5), 0.0),
    "safe_rsqrt": ((0.1, 5), 0.0),
    "sinc": ((-5, 5), 0.0),
    "sinhc": ((-5, 5), 0.0),
    "xdivy": ((0.1, 5), (0.1, 5), 0.0),
    "xlog1py": ((0.1, 5), (0.1, 5), -1.0),
}


def in_ranges(*ranges):
    """Return numbers of these ranges."""

    def arguments(rng, size):
        count = 10 if size == SMALL else 10**6
        return [rng.uniform(low, high, count) for low, high in ranges]

    return arguments


for _name, (*_ranges, _bad) in NUMBERS.items():
    FAMILIES[_name] = Family(
        getattr(so, _name), in_ranges(*_ranges), {}, with_value(_bad, len(_ranges) - 1)
    )

SLICES = dict.fromkeys(("nanprod", "nanvar", "nanmin", "nancumsum", "nancumprod"), math.nan) | {
    f"safe_{name}": 0.0 for name in ("sum", "prod", "mean", "var", "std", "max", "min")
}
for _name, _bad in SLICES.items():
    FAMILIES[_name] = Family(
        partial(getattr(so, _name), axis=-1), rows((2, 5), (1000, 1000)), {}, with_value(_bad)
    )
for _name in ("safe_rms", "safe_standardize", "squared_norm"):
    FAMILIES[_name] = Family(
        partial(getattr(so, _name), axis=-1), rows((2, 5), (1000, 1000)), {}, with_value(0.0)
    )


def positive(rng, size):
    """Return positive definite matrices."""
    n, m = (2, 3) if size == SMALL else (256, 16)
    x = rng.normal(size=(n, m, m))
    return [x @ np.swapaxes(x, -1, -2) / m + np.eye(m)]


def of_matrices(ours, theirs, part=None):
    """Return a row of a function of matrices, or of a part of its result."""
    from safeops import linalg

    def chosen(f):
        return f if part is None else lambda x: f(x)[part]

    paths = {"torch": "torch.linalg", "jax": "jax.numpy.linalg", "tensorflow": "tensorflow.linalg"}
    own = {k: chosen(of(f"{path}.{theirs}")) for k, path in paths.items()}
    return Family(chosen(getattr(linalg, ours)), positive, own)


FAMILIES |= {
    "safe_cholesky": of_matrices("safe_cholesky", "cholesky"),
    "safe_det": of_matrices("safe_det", "det"),
    "safe_slogdet": of_matrices("safe_slogdet", "slogdet", 1),
    "safe_eigh": of_matrices("safe_eigh", "eigh", 0),
    "safe_eigvalsh": of_matrices("safe_eigvalsh", "eigvalsh"),
}


class Case(NamedTuple):
    """A row of the table."""

    function: str
    framework: str
    mode: str
    size: str
    bad: bool


MODES = {"torch": ("eager", "compile"), "jax": ("jit",), "tensorflow": ("function", "xla")}


def cases(options):
    """Return the rows, without those that the options leave out."""
    for framework in options.framework or [name for name in MODES if find_spec(name)]:
        for name in options.function or FAMILIES:
            family = FAMILIES[name]
            pick = family.picks.get(framework) or plain(framework, name.partition(",")[0])
            if pick is None:
                continue
            for mode in options.mode or MODES[framework]:
                for size in options.size or (SMALL, LARGE):
                    for bad in (False, True) if family.spoil and size == LARGE else (False,):
                        yield Case(name, framework, mode, size, bad), pick


def guarded(where, pick, count):
    """Return a pick with one comparison and one select of each argument: no safe form has less."""

    def f(*args):
        kept = [where(x < HUGE, x, 0.5) for x in args[:count]]
        return pick(*kept, *args[count:])

    return f


def measure(case, pick, world, number, *, guard=False):
    """Return the ratio of ours to the pick, and that of the pick to itself."""
    xp, asarray, modes, gradient = world
    family = FAMILIES[case.function]
    rng = np.random.default_rng(0)
    args = family.arguments(rng, case.size)
    if case.bad:
        args = family.spoil(rng, args)
    count = len(args) - family.constants
    ours = guarded(xp.where, pick, count) if guard else family.ours
    calls = []
    for f in (ours, pick, pick):
        given = [
            asarray(x if x.dtype.kind in "iu" else x.astype(np.float32))
            for x in map(np.asarray, args)
        ]
        calls.append(gradient(modes[case.mode](f), given, count))
    ours, theirs, again = timing.rounds(calls, number)
    return timing.ratio(ours, theirs), timing.ratio(again, theirs)


def table(rows):
    """Return the lines of a table of a function each: plain arguments, in brackets bad ones."""
    columns = list(dict.fromkeys((row["framework"], row["mode"]) for row in rows))
    cells = {}
    for row in rows:
        if row["size"] == LARGE:
            place = cells.setdefault(row["function"], {}).setdefault(
                (row["framework"], row["mode"]), ["", ""]
            )
            place[row["bad"]] = f"{row['ratio'][0]:.2g}"
    yield "| function | " + " | ".join(f"{a}, {b}" for a, b in columns) + " |"
    yield "| --- |" + " --- |" * len(columns)
    for name, found in sorted(cells.items()):
        texts = [found.get(column, ["", ""]) for column in columns]
        shown = [f"{x} ({y})" if y else x for x, y in texts]
        yield f"| {name} | {' | '.join(shown)} |"


def parsed():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    choices = {"framework": list(MODES), "mode": None, "function": list(FAMILIES)}
    for name, known in (choices | {"size": [SMALL, LARGE]}).items():
        parser.add_argument(f"--{name}", action="append", choices=known)
    parser.add_argument("--guard", action="store_true", help="one select, in place of ours")
    parser.add_argument("--json", type=Path, help="a file for all ratios")
    parser.add_argument("--pairs", type=int, default=9, help="of timings; default: 9")
    parser.add_argument("--table", type=Path, nargs="+", help="files of --json, to one table")
    return parser.parse_args()


def main():
    """Measure and print."""
    options = parsed()
    if options.table:
        rows = [row for file in options.table for row in json.loads(file.read_text())]
        print("\n".join(table(rows)))
        return
    print("| function | framework | mode | size | arguments | ratio | quartiles | A/A |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    worlds, found = {}, []
    for case, pick in cases(options):
        if case.framework not in worlds:
            worlds[case.framework] = ops.SET_UP[case.framework]()
        try:
            world = worlds[case.framework]
            ratio, control = measure(case, pick, world, options.pairs, guard=options.guard)
        except (LookupError, NotImplementedError) as error:  # a pick without a gradient
            print(f"| {case.function} | {case.framework} | {case.mode} | {error} |".splitlines()[0])
            continue
        found.append({**case._asdict(), "ratio": ratio, "A/A": control})
        kind = "1 % bad" if case.bad else "plain"
        cells = [*case[:4], kind, f"{ratio.ratio:.2f}", str(ratio), f"{control.ratio:.2f}"]
        print("|", " | ".join(cells), "|", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
