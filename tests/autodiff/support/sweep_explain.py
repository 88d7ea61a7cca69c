# ruff: noqa: T201  (it prints a table)
"""
Programs of one selection and one singular operation, and what `explain` says of their gradients.

Run as a script it prints, for one framework, how many reports are clean though the gradient is not
finite, leave out a name or a line, or are wrong; `--show` prints each of these programs.
"""

import argparse
import linecache
import re
import sys
import warnings
from collections import Counter
from importlib import import_module
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "support"))

from frameworks import asarray, to_numpy
from safeops.autodiff import explain

FRAMEWORKS = ("torch", "jax", "tensorflow")
# Selections that make a 0 before the operation, for PyTorch, JAX and TensorFlow.
BEFORE = {
    "relu": ("torch.relu(x)", "jax.nn.relu(x)", "tf.nn.relu(x)"),
    "relu6": ("F.relu6(x)", "jax.nn.relu6(x)", "tf.nn.relu6(x)"),
    "maximum": (
        "torch.maximum(x, torch.zeros(2, 2))",
        "jnp.maximum(x, 0.0)",
        "tf.maximum(x, 0.0)",
    ),
    "minimum": (
        "-torch.minimum(-x, torch.zeros(2, 2))",
        "-jnp.minimum(-x, 0.0)",
        "-tf.minimum(-x, 0.0)",
    ),
    "clip": (
        "torch.clamp(x, 0.0, 9.0)",
        "jnp.clip(x, 0.0, 9.0)",
        "tf.clip_by_value(x, 0.0, 9.0)",
    ),
    "where": (
        "torch.where(x > 0, x, torch.zeros(2, 2))",
        "jnp.where(x > 0, x, 0.0)",
        "tf.where(x > 0, x, 0.0)",
    ),
    "max": (
        "torch.amax(torch.stack([x + 1, x]), 0) - 1",
        "jnp.max(jnp.stack([x + 1, x]), 0) - 1",
        "tf.reduce_max(tf.stack([x + 1, x]), 0) - 1",
    ),
    "cummax": (
        "torch.cummax(x, 0).values",
        "jax.lax.cummax(x, axis=0)",
        "tf.sort(x, axis=0)",
    ),
}
BEHIND = {
    "where": (
        "torch.where(x > 0, y, torch.zeros(2, 2))",
        "jnp.where(x > 0, y, 0.0)",
        "tf.where(x > 0, y, 0.0)",
    ),
    "index": ("y[1]", "y[1]", "y[1]"),
    "slice": ("y[1:]", "y[1:]", "y[1:]"),
    "take": (
        "torch.index_select(y, 0, torch.tensor([1]))",
        "jnp.take(y, jnp.asarray([1]), axis=0)",
        "tf.gather(y, [1])",
    ),
    "maximum": (
        "torch.maximum(y, torch.full_like(y, 0.1))",
        "jnp.maximum(y, 0.1)",
        "tf.maximum(y, 0.1)",
    ),
    "clip": (
        "torch.clamp(y, 0.1, 9.0)",
        "jnp.clip(y, 0.1, 9.0)",
        "tf.clip_by_value(y, 0.1, 9.0)",
    ),
    "relu": ("torch.relu(y - 0.1)", "jax.nn.relu(y - 0.1)", "tf.nn.relu(y - 0.1)"),
    "max": ("torch.amax(y, 0)", "jnp.max(y, axis=0)", "tf.reduce_max(y, 0)"),
}
# Operations whose slope is infinite or NaN at 0; of the last three the value is so too.
SINGULAR = {
    "sqrt": ("torch.sqrt(x)", "jnp.sqrt(x)", "tf.sqrt(x)"),
    "pow": ("x ** 0.5", "x ** 0.5", "x ** 0.5"),
    "hypot": ("torch.hypot(x, 0 * x)", "jnp.hypot(x, 0 * x)", "tf.sqrt(x * x + 0 * x)"),
    "norm": (
        "torch.linalg.vector_norm(torch.stack([x, x]), dim=0)",
        "jnp.linalg.norm(jnp.stack([x, x]), axis=0)",
        "tf.norm(tf.stack([x, x]), axis=0)",
    ),
    "acos": ("torch.acos(1 - x / 9)", "jnp.arccos(1 - x / 9)", "tf.acos(1 - x / 9)"),
    "acosh": ("torch.acosh(1 + x)", "jnp.arccosh(1 + x)", "tf.acosh(1 + x)"),
    "log": ("torch.log(x)", "jnp.log(x)", "tf.math.log(x)"),
    "div": ("x / x", "x / x", "x / x"),
    "rsqrt": ("torch.rsqrt(x)", "jax.lax.rsqrt(x)", "tf.math.rsqrt(x)"),
}
PLACES, MODES = ("before", "behind"), ("eager", "compiled", "loop")
POINTS = {
    "before": [[-1.0, -2.0], [3.0, 1.0]],
    "behind": [[0.0, 0.0], [3.0, 1.0]],
}
IMPORTS = {
    "torch": "import torch\nimport torch.nn.functional as F\n",
    "jax": "import jax\nimport jax.numpy as jnp\n",
    "tensorflow": "import tensorflow as tf\n",
}
SUM = {"torch": "torch.sum", "jax": "jnp.sum", "tensorflow": "tf.reduce_sum"}
# How a program is run: a loop runs it twice, on its argument and on a larger one.
RUN = {
    ("torch", "eager"): "program = one\n",
    ("jax", "eager"): "program = one\n",
    ("tensorflow", "eager"): "program = one\n",
    ("torch", "compiled"): "program = torch.compile(one, backend='aot_eager')\n",
    ("jax", "compiled"): "program = jax.jit(one)\n",
    ("tensorflow", "compiled"): "program = tf.function(one)\n",
    ("torch", "loop"): """
def program(x):
    total = 0.0
    for row in (x, 2 * x):
        total = total + one(row)
    return total
""",
    ("jax", "loop"): """
def program(x):
    step = lambda total, row: (total + one(row), None)
    return jax.lax.scan(step, 0.0, jnp.stack([x, 2 * x]))[0]
""",
    ("tensorflow", "loop"): """
def program(x):
    step = lambda i, total: (i + 1, total + one(x * tf.cast(i + 1, x.dtype)))
    return tf.while_loop(lambda i, total: i < 2, step, (0, 0.0))[1]
""",
}
NUMBERS = count()


class Program(NamedTuple):
    """A program, its name, its point, the numbers of its marked lines, and its file."""

    name: str
    f: Any
    point: Any
    made: int
    dropped: int
    file: str


def program_of(framework, operation, place, selection, mode):
    """Return the program of an operation and a selection before or behind it."""
    column = FRAMEWORKS.index(framework)
    singular = SINGULAR[operation][column]
    if place == "before":
        lines = [f"y = {BEFORE[selection][column]}  # dropped"]
        lines += [f"z = {in_y(singular)}  # made"]
    else:
        lines = [f"y = {singular}  # made", f"z = {BEHIND[selection][column]}  # dropped"]
    body = "\n    ".join(["def one(x):", *lines, f"return {SUM[framework]}(z)"])
    text = f"{IMPORTS[framework]}{body}\n{RUN[framework, mode]}"
    every = text.splitlines(keepends=True)
    made, dropped = (
        next(i for i, line in enumerate(every, 1) if line.endswith(mark))
        for mark in ("# made\n", "# dropped\n")
    )
    file, names = f"program_{next(NUMBERS)}.py", {}
    linecache.cache[file] = (len(text), None, every, file)
    exec(compile(text, file, "exec"), names)
    name = f"{framework} {mode}: {operation}, {selection} {place}"
    return Program(name, names["program"], POINTS[place], made, dropped, file)


def in_y(text):
    """Return an expression of x as one of y."""
    return re.sub(r"\bx\b", "y", text)


def programs_of(framework):
    """Yield the programs of a framework."""
    for operation, place, mode in product(SINGULAR, PLACES, MODES):
        for selection in BEFORE if place == "before" else BEHIND:
            yield program_of(framework, operation, place, selection, mode)


def gradients_of(framework, f, x):
    """Return value, ordinary gradient and masked gradient."""
    module = import_module(f"safeops.autodiff.{framework}")
    if framework == "torch":
        import torch

        x = x.requires_grad_()
        with torch.compiler.set_stance("force_eager"):
            value = f(x)
        (plain,) = torch.autograd.grad(value, x, retain_graph=True)
        return value.detach(), plain, module.grad(value, x)[0]
    if framework == "jax":
        import jax

        return *jax.value_and_grad(f)(x), module.grad(f)(x)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        value = f(x)
    return value, tape.gradient(value, x), module.grad(f)(x)


def faults_of(framework, program):
    """Return what is wrong with the report on a program, in words."""
    given = gradients_of(framework, program.f, asarray(framework, program.point, "float32"))
    value, ordinary, masked = (~np.isfinite(to_numpy(x)) for x in given)
    findings = explain(program.f, asarray(framework, program.point, "float32")).findings
    if not findings:
        return {"clean"} if value or ordinary.any() else set()
    faults = {fault for f in findings if (fault := fault_of(f, program))}
    kinds = {f.kind for f in findings}
    if program.made not in [f.where.line for f in findings if f.where]:
        faults.add("not the operation")
    if (ordinary & ~masked).any() and "BLOCKED" not in kinds:
        faults.add("no BLOCKED")
    if masked.any() and kinds.isdisjoint({"GENUINE", "FORWARD"}):
        faults.add("no GENUINE")
    if "GENUINE" in kinds and not masked.any():
        faults.add("false GENUINE")
    # A kernel of TensorFlow may hide what XLA shows; of `max` the largest and the others are the
    # same entry of the argument.
    hidden = framework == "tensorflow" or "max before" in program.name
    if "BLOCKED" in kinds and not (ordinary & ~masked).any() and not hidden:
        faults.add("false BLOCKED")
    if ("FORWARD" in kinds) != bool(value):
        faults.add("false FORWARD")
    return faults


def fault_of(finding, program):
    """Return what is wrong with one finding, or None."""
    if finding.kind == "UNKNOWN" or not finding.operation or finding.where is None:
        return "nameless"
    if finding.where.line not in (program.made, program.dropped):
        return "wrong line"
    if finding.kind != "BLOCKED":
        return None
    if not finding.selection or finding.selected_at is None:
        return "no selection"
    return None if finding.selected_at.line == program.dropped else "wrong selection"


def main():
    """Print the faults of the programs of one framework."""
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = Counter()
    for program in programs_of(options.framework):
        faults = faults_of(options.framework, program)
        found.update(faults or ["right"])
        found["programs"] += 1
        if faults:
            print(program.name, sorted(faults), flush=True)
        if faults and options.show:
            print("".join(linecache.getlines(program.file)))
            print(explain(program.f, asarray(options.framework, program.point, "float32")))
    print(options.framework, dict(found))


if __name__ == "__main__":
    main()
