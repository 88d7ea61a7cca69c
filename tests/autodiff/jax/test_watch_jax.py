"""Gradients of JAX that a program takes by itself: `watch_grad`, and the command `explain`."""

import json
import subprocess
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import safeops

pytestmark = pytest.mark.only("jax")

HOUSE = Path(safeops.__file__).parents[1]
NOT_FINITE = 3  # the exit code

# A step as people write it: compiled, with a loss that closes over the batch. Its weights are sound
# until the third batch, which has an empty row.
SCRIPT = """
import sys
import jax
import jax.numpy as jnp

def lengths(params, rows):
    h = jnp.tanh(rows @ params["w"])
    return jnp.sqrt(jnp.sum(h * h, axis=-1))

@jax.jit
def step(params, rows):
    loss = lambda p: jnp.mean(lengths(p, rows))
    value, slope = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, slope), value

params = {"w": jnp.ones((3, 2)), "unused": jnp.zeros(2)}
try:
    for i in range(4):
        rows = jnp.ones((4, 3)).at[1].set(float(sys.argv[1]) if i == 2 else 1.0)
        params, value = step(params, rows)
        print("step", i, bool(jnp.isfinite(value)))
except Exception:
    print("caught")
"""


def run_command(folder, script, *args):
    """Run the command on a script."""
    (folder / "script.py").write_text(script)
    code = f"import sys; sys.path.insert(0, {str(HOUSE)!r}); from safeops.__main__ import main"
    command = [sys.executable, "-c", f"{code}; sys.exit(main(sys.argv[1:]))", "explain", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_compiled_step_that_makes_nan(tmp_path):
    """The report has the line in the loss, the step and the parameter."""
    done = run_command(tmp_path, SCRIPT, "--format", "json", "script.py", "0")
    (report,) = json.loads(done.stdout)
    (finding,) = report["findings"]

    assert done.returncode == NOT_FINITE, done.stderr
    assert (report["step"], report["parameters"]) == (2, ["['w']"])
    assert (finding["kind"], finding["operation"]) == ("GENUINE", "sqrt")
    assert (finding["where"]["path"], finding["where"]["line"]) == ("script.py", 8)
    assert "NotFiniteError" not in done.stderr
    assert "step 3" not in done.stderr


def test_a_compiled_step_that_makes_none(tmp_path):
    """The script is as without the command, and told how many gradients were looked at."""
    done = run_command(tmp_path, SCRIPT, "script.py", "1")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"step {i} True" for i in range(4)]
    assert "all gradients were finite: 4 backward passes looked at" in done.stderr


GUARDED = """
import jax.numpy as jnp
from safeops.integrations.jax import value_and_grad

value_and_grad(lambda x: jnp.where(x > 0, jnp.log(x), 0.0).sum())(jnp.asarray([0.0, 1.0]))
"""


def test_a_guard_has_the_same_report(tmp_path):
    """A script that a guard ends is reported as one that the command ends."""
    done = run_command(tmp_path, GUARDED, "script.py")

    assert done.returncode == NOT_FINITE, done.stderr
    assert done.stdout.startswith("BLOCKED  the derivative of log is inf at 1 of 2 entries")


def in_loop(jax, jnp):
    """Take a gradient in each step of a loop of JAX, on a carry of the loop."""

    def step(x, scale):
        slope = jax.grad(lambda x: jnp.sqrt(x) * scale)(x)
        return x - 0.0 * x + jnp.where(jnp.isfinite(slope), 0.0, slope), slope

    return jax.lax.scan(step, 4.0, jnp.asarray([1.0, jnp.inf]))[1].sum()


def in_batch(jax, jnp):
    """Take a gradient of each entry, with more than the loss, and with names."""
    f = jax.value_and_grad(lambda x, *, scale: (jnp.sqrt(x) * scale, x), has_aux=True)
    return jax.jit(jax.vmap(lambda x: f(x, scale=2.0)))(jnp.asarray([1.0, 0.0]))[1].sum()


def of_gradient(jax, jnp):
    """Take the gradient of a gradient, of which the outer one is not finite."""
    return jax.grad(jax.grad(lambda y: y**1.5))(jnp.asarray(0.0))


def of_two(jax, jnp):
    """Take gradients for two arguments, one of them an argument from the end."""
    f = jax.grad(lambda a, _, b: jnp.sum(a) + jnp.sum(jnp.log(b)), argnums=(0, -1))
    return f(jnp.ones(2), None, jnp.zeros(1))[1]


PROGRAMS = {
    in_loop: ("argument 0", "mul"),
    in_batch: ("argument 0", "sqrt"),
    of_gradient: ("argument 0", "pow"),
    of_two: ("argument 2", "log"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_in_other_transformations(program):
    """A gradient in a loop, a batch or a gradient is seen, with its argument and operation."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff.jax import watch_grad

    reports = []
    plain = jax.grad
    try:
        with watch_grad(reports.append) as passes:
            found = program(jax, jnp)
            found.block_until_ready()
    except jax.errors.JaxRuntimeError:
        assert program in (in_loop, in_batch)

    (report,) = reports
    assert (sum(passes), passes[-1]) == (1, True)
    assert report.parameters == (PROGRAMS[program][0],)
    assert {finding.operation for finding in report.findings} == {PROGRAMS[program][1]}
    assert jax.grad is plain


def branch(jax, jnp):
    """Branch on a value of the loss, also inside of another gradient and of `vmap`."""
    one = jnp.asarray(1.0)

    def cube(x):
        return x**3 if x > 0 else x

    first, second = jax.grad(cube)(2.0), jax.grad(jax.grad(cube))(2.0)
    mapped = jax.vmap(jax.grad(lambda x: x**2 if one * 2 > 0 else x))(jnp.arange(3.0))
    return first, second, mapped


def draw(jax, jnp):
    """Take the next of something in the loss: a batch, a number of NumPy, a key."""
    batches, numbers, key = iter(range(1, 4)), np.random.default_rng(0), jax.random.key(0)

    def loss(x):
        nonlocal key
        key, mine = jax.random.split(key)
        return jnp.sum(x * next(batches) * numbers.normal() * jax.random.normal(mine, (3,)))

    return [jax.grad(loss)(jnp.ones(3)) for _ in range(3)]


def split_in_compiled(jax, jnp):
    """Split a key in a loss that is compiled, and return what is left of it."""

    @jax.jit
    def step(x, key):
        def loss(x):
            nonlocal key
            key, mine = jax.random.split(key)
            return jnp.sum(x * jax.random.normal(mine, (3,)))

        return jax.grad(loss)(x), jax.random.key_data(key)

    return step(jnp.ones(3), jax.random.key(0))


def count(jax, jnp):
    """Count how often the loss runs."""
    runs = []

    def loss(x):
        runs.append(x.shape)
        return jnp.sum(x)

    jax.grad(loss)(jnp.ones(2))
    jax.jit(jax.value_and_grad(loss))(jnp.ones(2))
    return len(runs)


def options(jax, _):
    """Take gradients of complex numbers, beside integers, and for a number of NumPy."""
    squared = jax.grad(lambda z: z * z, holomorphic=True)(1 + 2j)
    beside = jax.grad(lambda p: p["x"] * p["n"], allow_int=True)({"x": 2.0, "n": 3})["x"]
    return squared, beside, jax.grad(lambda a, b: a * b, argnums=np.int64(1))(2.0, 3.0)


@pytest.mark.parametrize("program", [branch, draw, split_in_compiled, count, options])
def test_a_program_that_is_right_stays_right(program):
    """A loss runs once, as it does without the context, whatever it does on the way."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff.jax import watch_grad

    plain, reports = program(jax, jnp), []
    with watch_grad(reports.append):
        found = program(jax, jnp)

    same = jax.tree.map(np.array_equal, plain, found)
    assert jax.tree.all(same), (plain, found)
    assert reports == []


def test_a_report_is_on_the_pass_that_failed():
    """A loss that takes the next batch is explained for the batch that it had, and takes one."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff.jax import watch_grad

    batches, reports = iter([1.0, 0.0, 2.0, 3.0]), []
    with watch_grad(reports.append):
        for _ in range(3):
            jax.grad(lambda x: jnp.sqrt(x * next(batches)))(1.0)

    (report,) = reports
    assert (report.step, report.findings[0].operation) == (1, "sqrt")
    assert next(batches) == 3.0


def with_rules(jax, jnp):
    """Compile functions with derivative rules of their own, and a random key."""

    @jax.custom_vjp
    def twice(x):
        return 2 * x

    twice.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))

    @jax.jit
    def step(x, key):
        def loss(x):
            kept = jax.random.bernoulli(key, 1.0, x.shape)
            h = jax.nn.silu(twice(jnp.where(kept, x, 1.0)))
            return jax.nn.logsumexp(jnp.sqrt(h))

        return jax.grad(loss)(x)

    return step(jnp.asarray([0.0, 1.0]), jax.random.key(0))


def in_shards(jax, jnp):
    """Compile a loss with a sharded function."""
    from jax.sharding import PartitionSpec as Axes

    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("i",))
    same = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=Axes("i"), out_specs=Axes("i"))
    return jax.jit(jax.grad(lambda x: jnp.sqrt(same(x)).sum()))(jnp.zeros(2))


def in_library(jax, jnp):
    """Take a root in a function of optax."""
    optax = pytest.importorskip("optax", reason="optax is not installed")

    return jax.jit(jax.grad(lambda x: optax.tree.norm({"x": x})))(jnp.zeros(2))


SEEN = {with_rules: "sqrt", in_shards: "sqrt", in_library: ""}


@pytest.mark.parametrize("program", SEEN)
def test_lines_in_a_record(program):
    """The line of the user's function is that in which the operation ran."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff.jax import watch_grad

    reports = []
    with pytest.raises(jax.errors.JaxRuntimeError), watch_grad(reports.append):
        program(jax, jnp).block_until_ready()

    (finding,) = reports[0].findings
    assert (finding.kind, finding.where.file) == ("GENUINE", __file__)
    assert SEEN[program] in finding.where.source
    assert reports[0].parameters == ("argument 0",)


def test_compiled_code_outlives_a_context():
    """It runs on without the context, and another context sees its gradients."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff.jax import watch_grad

    reports = []
    with watch_grad(reports.append):
        step = jax.jit(jax.grad(jnp.sqrt))
        step(1.0)
    outside = float(step(0.0))
    with pytest.raises(jax.errors.JaxRuntimeError), watch_grad(reports.append) as passes:
        step(0.0).block_until_ready()

    assert outside == float("inf")
    assert passes == [True]
    assert len(reports) == 1


def test_contexts_that_meet():
    """Masked gradients stay masked, and the context that ends first takes nothing along."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff.jax import masked_grad, watch_grad

    def slope():
        return float(jax.grad(lambda x: jnp.where(x > 0, jnp.log(x), 0.0))(0.0))

    plain, reports = jax.grad, []
    with masked_grad(), watch_grad(reports.append) as outer, watch_grad(reports.append) as inner:
        within = slope()
    first, second = masked_grad(), watch_grad(reports.append)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    left = slope()
    second.__exit__(None, None, None)

    assert (within, outer, inner) == (0.0, [False], [False])
    assert np.isnan(left)
    assert [report.findings[0].kind for report in reports] == ["BLOCKED"]
    assert jax.grad is plain


def test_gradients_of_other_threads():
    """They are watched, but not masked."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff.jax import masked_grad, watch_grad

    slopes, reports = [], []

    def take():
        slopes.append(float(jax.grad(lambda x: jnp.where(x > 0, jnp.log(x), 0.0))(0.0)))

    for context in (masked_grad(), watch_grad(reports.append)):
        with context:
            thread = Thread(target=take)
            thread.start()
            thread.join()

    assert np.isnan(slopes).all()
    assert len(reports) == 1


def test_a_gradient_of_a_collective(tmp_path):
    """A loss that sums over a named axis does not run outside of it: a report says so."""
    script = """
import jax, jax.numpy as jnp
f = jax.grad(lambda x: jax.lax.psum(jnp.sqrt(x), "i"))
print(jax.vmap(f, axis_name="i")(jnp.asarray([0.0, 4.0])))
"""
    done = run_command(tmp_path, script, "script.py")

    assert done.returncode == NOT_FINITE, done.stderr
    assert done.stdout.startswith("UNKNOWN  the backward pass made a gradient that is not finite")
    assert "unbound axis name" in done.stdout


@pytest.mark.parametrize("name", ["grad", "value_and_grad"])
def test_the_advice_has_the_call_of_the_program(name):
    """The masked gradient is advised by the name by which the program takes the ordinary one."""
    import jax
    import jax.numpy as jnp

    from safeops.autodiff.jax import watch_grad

    reports = []

    with watch_grad(reports.append):
        getattr(jax, name)(lambda x: jnp.where(x > 0, jnp.log(x), 0.0))(0.0)

    assert f"safeops.autodiff.jax.{name}(f) in place of jax.{name}(f)" in str(reports[0])
