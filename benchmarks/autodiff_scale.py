"""
What masked autodiff costs on a transformer: ``python benchmarks/autodiff_scale.py [WAY] [SIZE]``.

Layers with norms first and eight heads, a batch of eight sequences of which the last is NaN, and a
loss on the other seven. For each way (torch, torch-eager, jax, tensorflow, tensorflow-xla) and size
(small, large, and causal, which is large with a causal mask; all if none is given): CPU time to
trace and compile, which is that of the first step without that of a later one, and of a step (the
median of pairs that take turns in one process, with quartiles; A/A is the plain step over itself),
and the peak memory of a process of its own above what it had before the first step, each over the
plain one. For `torch` also how many operations a layer adds to the forward and to the backward
graph. `--nodes` counts operations alone, which no other work on the machine disturbs; `--compile`
takes no time but that of the first two steps.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import timing  # first: it sets the number of threads
import numpy as np

os.environ |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

BATCH, USED, HEADS = 8, 7, 8
SIZES = {"small": (4, 256, 32), "large": (4, 512, 512)}  # layers, width, length
SIZES["causal"] = SIZES["large"]
WAYS = ("torch", "torch-eager", "jax", "tensorflow", "tensorflow-xla")
PAIRS = {"small": 20, "large": 3, "causal": 3}


def layer(m, w, x):
    """Run a layer."""
    query, key, value = (
        m.transpose(m.reshape(m.norm(x) @ a, (*x.shape[:2], HEADS, -1)), (0, 2, 1, 3))
        for a in w[:3]
    )
    scores = query @ m.transpose(key, (0, 1, 3, 2)) * (HEADS / x.shape[-1]) ** 0.5
    out = m.transpose(m.softmax(m.seen(scores)) @ value, (0, 2, 1, 3))
    x = x + m.reshape(out, tuple(x.shape)) @ w[3]
    return x + m.gelu(m.norm(x) @ w[4]) @ w[5]


def data(size, layers):
    """Return the weights of layers, and a batch."""
    _, width, length = SIZES[size]
    numbers = np.random.default_rng(0)
    shapes = [*[(width, width)] * 4, (width, 4 * width), (4 * width, width)]
    weights = [
        [numbers.normal(size=s).astype(np.float32) / s[0] ** 0.5 for s in shapes]
        for _ in range(layers)
    ]
    x = numbers.normal(size=(BATCH, length, width)).astype(np.float32)
    x[USED:] = np.nan
    return weights, x


def loss_of(m, mean):
    """Return the loss as a function of weights and a batch."""

    def loss(weights, x):
        for w in weights:
            x = layer(m, w, x)
        return mean(x[:USED] * x[:USED])

    return loss


def torch_steps(size, layers, *, compiled=True):
    """Return the plain and the masked step of PyTorch."""
    import torch

    from safeops.autodiff import torch as masked

    torch.set_num_threads(1)
    later = torch.ones(SIZES[size][-1:] * 2, dtype=torch.bool).triu(1)
    m = SimpleNamespace(
        seen=lambda x: x.masked_fill(later, -1e9) if size == "causal" else x,
        reshape=torch.reshape,
        transpose=torch.permute,
        softmax=lambda x: x.softmax(-1),
        gelu=torch.nn.functional.gelu,
        norm=lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    )
    weights, x = data(size, layers)
    weights = [[torch.tensor(a, requires_grad=True) for a in w] for w in weights]
    leaves, x = [a for w in weights for a in w], torch.tensor(x)
    loss = loss_of(m, torch.mean)

    def step(f, backward):
        def run():
            for leaf in leaves:
                leaf.grad = None
            backward(f(weights, x))

        return run

    ordinary = torch.Tensor.backward
    if not compiled:
        return step(loss, ordinary), step(loss, masked.backward)
    ours = masked.compile(loss, on_unknown="error", backend=torch_steps.backend)
    plain = torch.compile(loss, fullgraph=True, backend=torch_steps.backend)
    return step(plain, ordinary), step(ours, ordinary)


torch_steps.backend = "inductor"


def jax_steps(size, layers):
    """Return the plain and the masked step of JAX."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff import jax as masked

    def seen(x):
        return jnp.where(jnp.tri(x.shape[-1], dtype=bool), x, -1e9) if size == "causal" else x

    m = SimpleNamespace(
        seen=seen,
        reshape=jnp.reshape,
        transpose=jnp.transpose,
        softmax=jax.nn.softmax,
        gelu=lambda x: jax.nn.gelu(x, approximate=False),
        norm=lambda x: jax.nn.standardize(x, epsilon=1e-5),
    )
    args = jax.tree.map(jnp.asarray, data(size, layers))
    grads = [jax.jit(grad(loss_of(m, jnp.mean))) for grad in (jax.grad, masked.grad)]
    return [lambda g=g: jax.block_until_ready(g(*args)) for g in grads]


def tensorflow_steps(size, layers, *, xla=False):
    """Return the plain and the masked step of TensorFlow."""
    import tensorflow as tf

    from safeops.autodiff import tensorflow as masked

    def norm(x):
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5)

    def seen(x):
        places = tf.range(x.shape[-1])
        return tf.where(places[:, None] >= places, x, -1e9) if size == "causal" else x

    m = SimpleNamespace(
        seen=seen,
        reshape=tf.reshape,
        transpose=tf.transpose,
        softmax=tf.nn.softmax,
        gelu=tf.nn.gelu,
        norm=norm,
    )
    weights, x = data(size, layers)
    flat, x = [tf.constant(a) for w in weights for a in w], tf.constant(x)
    loss = loss_of(m, tf.reduce_mean)

    def step(kind):
        @tf.function(jit_compile=xla)
        def gradient(flat):
            with kind() as tape:
                tape.watch(flat)
                value = loss([flat[i : i + 6] for i in range(0, len(flat), 6)], x)
            return tape.gradient(value, flat)

        return lambda: [g.numpy() for g in gradient(flat)]

    return [step(kind) for kind in (tf.GradientTape, masked.GradientTape)]


def steps(way, size, layers=None):
    """Return the plain and the masked step."""
    layers = layers or SIZES[size][0]
    name, _, option = way.partition("-")
    if name == "torch":
        return torch_steps(size, layers, compiled=option != "eager")
    return (
        jax_steps(size, layers)
        if name == "jax"
        else tensorflow_steps(size, layers, xla=bool(option))
    )


def cpu_time(run):
    """Return the CPU time of a call, with that of the compilers that it starts."""
    start = sum(os.times()[:4])
    run()
    return sum(os.times()[:4]) - start


def print_peak(way, size, which):
    """Print by how many bytes steps raise the peak memory of this process."""
    run = steps(way, size)[which]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        run()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def peak(way, size, which):
    """Return what a process of its own prints there."""
    command = [sys.executable, Path(__file__), "--peak", way, size, str(which)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  (own file)
    return int(done.stdout.split()[-1])


def nodes(size="small"):
    """Return how many operations a layer adds to the graphs of PyTorch, plain and masked."""
    import torch
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.registry import register_backend
    from torch._inductor.decomposition import select_decomp_table

    found = []

    def counted(graph, _):
        found.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return make_boxed_func(graph.forward)

    def aot_counting(graph, inputs, **_):
        options = {"fw_compiler": counted, "bw_compiler": counted}
        options |= {"decompositions": select_decomp_table()}
        options |= {"partition_fn": min_cut_rematerialization_partition}
        return aot_autograd(**options)(graph, inputs)

    register_backend(aot_counting, name="aot_counting")
    torch_steps.backend = "aot_counting"
    added = []
    for which in range(2):
        sizes = []
        for layers in (1, 2):
            found.clear()
            torch.compiler.reset()
            torch_steps(size, layers)[which]()
            sizes.append(tuple(found))
        added.append(tuple(b - a for a, b in zip(*sizes, strict=True)))
    torch_steps.backend = "inductor"
    torch.compiler.reset()
    return added


def print_costs(ways, sizes, *, alone):
    """Print what a step costs, beside the plain one; compiling alone, or all of it."""
    print("| way | size | compiling | step | quartiles | A/A | quartiles | peak memory |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for way in ways:
        for size in sizes:
            both = steps(way, size)
            first = [cpu_time(run) for run in both]
            if alone:
                columns = [[cpu_time(run)] for run in both]
                cells = []
            else:
                columns = timing.rounds([*both, both[0]], PAIRS[size])
                ours, same = (timing.ratio(columns[i], columns[0]) for i in (1, 2))
                peaks = [peak(way, size, which) for which in range(2)]
                more = f"{peaks[1] / peaks[0]:.2f}" if peaks[0] else ""
                cells = [f"{ours.ratio:.2f}", ours, f"{same.ratio:.2f}", same, more]
            plain, masked = (a - median(b) for a, b in zip(first, columns, strict=False))
            cells = [way, size, f"{masked / plain:.2f}", *cells]
            print("|", " | ".join(map(str, cells)), "|", flush=True)
            print(f"compiling: {plain:.2f} s and {masked:.2f} s", file=sys.stderr)


def main(words):
    """Print the tables that are asked for."""
    if words[:1] == ["--peak"]:
        print_peak(words[1], words[2], int(words[3]))
        return
    ways = [x for x in words if x in WAYS] or WAYS
    if "torch" in ways:
        plain, ours = nodes()
        print(f"operations that a layer adds, forward and backward: plain {plain}, masked {ours}")
    if "--nodes" not in words:
        sizes = [x for x in words if x in SIZES] or SIZES
        print_costs(ways, sizes, alone="--compile" in words)


if __name__ == "__main__":
    main(sys.argv[1:])
