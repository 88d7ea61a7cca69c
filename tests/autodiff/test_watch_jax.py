"""Gradients of JAX that a program takes by itself: `watch_grad`, and the command `explain`."""

import json
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.second
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
