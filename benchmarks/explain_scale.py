"""
What an explanation costs on a transformer: ``python benchmarks/explain_scale.py [WAY ...]``.

Six layers of width 512 with norms first and eight heads, 19 million parameters, a batch of eight
sequences of length 128. For each way (torch, torch-guard, jax, jax-guard) and each fault: the CPU
time of the first explanation in a process, tracing and compiling included, over the median of
ordinary steps in that process (of JAX compiled ones), and the peak memory of the process over that
of one which only steps. `--small` has two layers and a batch of four.
"""

import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import timing  # first: it sets the number of threads
import numpy as np
from autodiff_scale import layer

from safeops.integrations import NonFiniteGradientError

WIDTH, LENGTH = 512, 128
WAYS = ("torch", "torch-guard", "jax", "jax-guard")
STEPS = 5


def root(m, x):
    """Take a root whose slope is infinite, and not used."""
    return m.where(m.rows(x) < 0, m.sqrt(x - m.stop(x)), x)


def rows(m, weights, x):
    """Leave out the last sequence, which is NaN."""
    x = m.where(m.rows(x) == len(x) - 1, np.nan, x)
    return through(m, weights, x)[:-1]


def through(m, weights, x):
    """Run the layers."""
    for w in weights[1:]:
        x = layer(m, w, x)
    return x


def first(m, weights, x):
    """Have a root before the layers."""
    return through(m, weights, root(m, x * weights[0][0]))


def last(m, weights, x):
    """Have a root behind the layers."""
    return root(m, through(m, weights, x * weights[0][0]))


def empty(m, weights, x):
    """Have a row of a softmax without an entry, half way."""
    middle = len(weights) // 2
    x = through(m, weights[:middle], x)
    scores = m.where(m.rows(x) == 0, -np.inf, x @ m.transpose(x, (0, 2, 1)))
    return through(m, weights[middle - 1 :], m.softmax(scores) @ x)


def used(m, weights, x):
    """Have a root behind the layers that is used."""
    x = through(m, weights, x * weights[0][0])
    return m.sqrt(x - m.stop(x))


FAULTS = {f.__name__: f for f in (rows, first, last, empty, used)}


def data(size):
    """Return the weights of layers, and a batch."""
    layers, batch = (2, 4) if size == "small" else (6, 8)
    numbers = np.random.default_rng(0)
    shapes = [*[(WIDTH, WIDTH)] * 4, (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    weights = [
        [numbers.normal(size=s).astype(np.float32) / s[0] ** 0.5 for s in shapes]
        for _ in range(layers)
    ]
    scale = [np.ones(WIDTH, np.float32)]
    return [scale, *weights], numbers.normal(size=(batch, LENGTH, WIDTH)).astype(np.float32)


def of_torch(way, size, fault):
    """Return an ordinary step of PyTorch, and one that is explained."""
    import torch

    from safeops.autodiff.torch import explain_backward, record_lines
    from safeops.integrations import guard

    torch.set_num_threads(1)
    m = SimpleNamespace(
        reshape=torch.reshape,
        transpose=torch.permute,
        softmax=lambda x: x.softmax(-1),
        gelu=torch.nn.functional.gelu,
        norm=lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        where=torch.where,
        sqrt=torch.sqrt,
        stop=torch.detach,
        seen=lambda scores: scores,
        rows=lambda x: torch.arange(len(x))[:, None, None],
    )
    numbers, x = data(size)
    weights = [[torch.nn.Parameter(torch.tensor(a)) for a in w] for w in numbers]
    model = torch.nn.Module()
    model.weights = torch.nn.ParameterList(a for w in weights for a in w)

    def step(x):
        FAULTS[fault](m, weights, x).square().mean().backward()

    def run(step):
        model.zero_grad()
        return step(torch.tensor(x))

    def explain():
        with record_lines():
            value = FAULTS[fault](m, weights, torch.tensor(x)).square().mean()
        return explain_backward(value)

    guarded = partial(run, guard(model)(step))
    return partial(run, step), reported(guarded) if way.endswith("guard") else explain


def of_jax(way, size, fault):
    """Return an ordinary step of JAX, and one that is explained."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff.jax import explain
    from safeops.integrations.jax import value_and_grad

    m = SimpleNamespace(
        reshape=jnp.reshape,
        transpose=jnp.transpose,
        softmax=jax.nn.softmax,
        gelu=partial(jax.nn.gelu, approximate=False),
        norm=lambda x: jax.nn.standardize(x, epsilon=1e-5),
        where=jnp.where,
        sqrt=jnp.sqrt,
        stop=jax.lax.stop_gradient,
        seen=lambda scores: scores,
        rows=lambda x: jnp.arange(len(x))[:, None, None],
    )
    weights, x = jax.tree.map(jnp.asarray, data(size))

    def loss(weights, x):
        return jnp.square(FAULTS[fault](m, weights, x)).mean()

    plain = jax.jit(jax.value_and_grad(loss))
    guarded = partial(value_and_grad(loss), weights, x)
    return (
        lambda: jax.block_until_ready(plain(weights, x)),
        reported(guarded) if way.endswith("guard") else partial(explain, loss, weights, x),
    )


def reported(run):
    """Return a guarded step as a function that returns its report."""

    def report():
        try:
            run()
        except NonFiniteGradientError as error:
            return error.report

    return report


def print_costs(way, size, fault, which):
    """Print CPU times and the peak memory of this process."""
    step, explain = (of_torch if way.startswith("torch") else of_jax)(way, size, fault)
    step()
    plain = median(timing.seconds(step) for _ in range(STEPS))
    reports = []
    ours = timing.seconds(lambda: reports.append(explain())) if which == "explained" else plain
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if reports and "--report" in sys.argv:
        print(reports[0], file=sys.stderr)
    print(plain, ours, peak * 1024)


def costs(*words):
    """Return what a process of its own prints there."""
    command = [sys.executable, Path(__file__), "--costs", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603  (own file)
    return map(float, done.stdout.split()[-3:])


def main(words):
    """Print the table."""
    if words[:1] == ["--costs"]:
        print_costs(*words[1:5])
        return
    size = "small" if "--small" in words else "large"
    more = ["--report"] if "--report" in words else []
    print("| way | fault | steps | a step | memory | GB | plain |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for way in [x for x in words if x in WAYS] or WAYS:
        for fault in [x for x in words if x in FAULTS] or FAULTS:
            *_, base = costs(way, size, fault, "plain", *more)
            plain, ours, peak = costs(way, size, fault, "explained", *more)
            cells = f"{ours / plain:.1f} | {plain:.2f} s | {peak / base:.2f}"
            print(
                f"| {way} | {fault} | {cells} | {peak / 1e9:.2f} | {base / 1e9:.2f} |", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
