"""What `explain` looks into on JAX, for how long, and what it calls: loops, callbacks, repairs."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = [pytest.mark.only("jax"), pytest.mark.usefixtures("mixed_dtypes")]
jax = pytest.importorskip("jax", reason="JAX is not selected, and this file is about it alone")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.experimental import io_callback, sparse  # noqa: E402

from safeops import autodiff  # noqa: E402
from safeops.autodiff import jax as masked  # noqa: E402
from safeops.autodiff.jax._explain import compiled_loops, explanation, forward  # noqa: E402

X = np.array([0.0, 2.0, 4.0])


def line_of(f, text):
    """Return the number of the line of a function that has a text."""
    lines, start = inspect.getsourcelines(f)
    return max(start, 1) + next(i for i, line in enumerate(lines) if text in line)


@pytest.fixture
def stepped(monkeypatch):
    """Return a list that gets the name of each loop that is run step by step."""
    found = []
    for name in ("scan", "while_loop"):
        method = getattr(forward.Watch, name)

        def noted(self, *args, name=name, method=method):
            found.append(name)
            return method(self, *args)

        monkeypatch.setattr(forward.Watch, name, noted)
    return found


def healthy_scan(x):
    """Have a NaN beside a long scan in which all is finite."""
    y = lax.scan(lambda c, _: (0.99 * c + 0.01 * jnp.sin(x), None), x, length=100)[0]
    return jnp.where(x > 0, y * jnp.log(x), 0.0).sum()


def healthy_while(x):
    """Have a NaN beside a loop of unknown length."""
    fixed = lax.stop_gradient(x)
    _, y = lax.while_loop(lambda s: s[0] < 60, lambda s: (s[0] + 1, 0.99 * s[1]), (0, fixed))
    return jnp.where(x > 0, y * jnp.log(x), 0.0).sum()


def nested(x):
    """Have a NaN beside a scan in a scan, with a branch and a call."""
    call = jax.jit(lambda c: lax.cond(c.sum() > 0, jnp.sin, jnp.cos, c))
    inner = lambda c, _: (call(c), None)  # noqa: E731
    outer = lambda c, _: (lax.scan(inner, c, length=8)[0] + x, None)  # noqa: E731
    y = lax.scan(outer, x, length=8)[0]
    return jnp.where(x > 0, y * jnp.log(x), 0.0).sum()


def selecting(x):
    """Have a healthy loop drop what an earlier line has spoilt."""
    root = jnp.sqrt(x)
    return lax.scan(
        lambda c, i: (c + root[i % 2 + 1], None),  # dropped
        0.0,
        jnp.arange(80),
    )[0]


def sick(x):
    """Make the NaN in the loop."""

    def step(c, _):
        y = jnp.log(x)  # made
        return c + 0.01 * jnp.where(x > 0, y, 0.0), None

    return lax.scan(step, x, jnp.arange(40))[0].sum()


def used(x):
    """Have an infinite slope in the loop, which is used."""
    return lax.scan(lambda c, i: (c + jnp.sqrt(x) * i, None), x, jnp.arange(40.0))[0].sum()


LONG = [healthy_scan, healthy_while, nested, selecting, sick]


def told(report):
    """Return what a report says of each finding."""
    return {
        (f.kind, f.operation, f.where.line, f.selection, f.selected_at and f.selected_at.line)
        for f in report.findings
    }


@pytest.mark.parametrize("f", LONG, ids=lambda f: f.__name__)
def test_loops_run_whole_say_what_their_steps_say(f, monkeypatch):
    """The findings are the same as if each loop were run step by step."""
    x = jnp.asarray(X)
    report = masked.explain(f, x)
    monkeypatch.setattr(compiled_loops, "FEW", 10**9)
    monkeypatch.setattr(compiled_loops.LoopBudget, "is_whole", lambda *_: False)

    assert report.findings
    assert told(report) == told(masked.explain(f, x, limit=1e9))


@pytest.mark.parametrize("f", [healthy_scan, healthy_while, nested], ids=lambda f: f.__name__)
def test_healthy_loops_are_not_run_step_by_step(f, stepped):
    """A loop in which all is finite is compiled, forwards and backwards."""
    assert [finding.operation for finding in masked.explain(f, jnp.asarray(X)).findings] == ["log"]
    assert stepped == []


def test_what_a_loop_left_out_is_asked_for(stepped):
    """A healthy loop is run step by step if it dropped what a finding is about: for its line."""
    (found,) = masked.explain(selecting, jnp.asarray(X)).findings

    assert found.selected_at.line == line_of(selecting, "# dropped")
    assert stepped == ["scan"]


def test_a_loop_is_cut_off():
    """When time is up the report says so, and what to do; what is used there is not GENUINE."""
    report = masked.explain(used, jnp.asarray(X), limit=0.0)

    (found,) = report.findings
    line = line_of(used, "lax.scan")
    assert (found.kind, found.reason, found.where.line) == ("UNKNOWN", "loop", line)
    assert "were not looked at, for want of time" in str(report)
    assert f"_loops.py:{line}, which counts as one operation" in str(report)
    assert "make the loop shorter, or pass a larger limit" in str(report)
    assert [f.kind for f in masked.explain(used, jnp.asarray(X)).findings] == ["GENUINE"]


def test_a_gradient_that_is_compiled_already_leaves_time(monkeypatch):
    """A program is not cut off because its gradient took a millisecond."""
    given = []

    def looking(seconds, progress):
        given.append(seconds)
        return compiled_loops.LoopBudget(seconds, progress)

    monkeypatch.setattr(explanation, "LoopBudget", looking)
    monkeypatch.setattr(explanation, "time", SimpleNamespace(monotonic=lambda: 0.0))

    masked.explain(sick, jnp.asarray(X))

    assert given == [20.0]


def test_what_is_blocked_is_so_without_its_steps():
    """A gradient that is finite when masked is BLOCKED, whichever step it was."""
    report = masked.explain(sick, jnp.asarray(X), limit=0.0)

    assert {finding.kind for finding in report.findings} == {"BLOCKED"}
    assert report.notes


def test_progress(monkeypatch):
    """A function that is given is told of the steps of a loop."""
    monkeypatch.setattr(compiled_loops, "SECOND", 0.0)
    said = []

    masked.explain(sick, jnp.asarray(X), progress=said.append)

    assert any("of 40 of the loop at test_explain_jax_loops.py:" in text for text in said)


# Callbacks.


def test_callbacks_are_called_once():
    """`explain` runs the operations of a program again, but not the callbacks of the user."""
    calls = []

    def tapped(name):
        def tap(x):
            calls.append(name)
            return np.asarray(x) * 2

        return tap

    def step(c, r):
        return c + r * io_callback(tapped("io"), like(r), lax.stop_gradient(r), ordered=True), None

    def like(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype)

    @jax.jit
    def compiled(x):
        jax.debug.callback(tapped("debug in jit"), x)
        return jax.pure_callback(tapped("pure in jit"), like(x), lax.stop_gradient(x))

    def f(x):
        jax.debug.callback(tapped("debug"), x)
        y = compiled(x) + jax.pure_callback(tapped("pure"), like(x), lax.stop_gradient(x))
        return jnp.where(x > 0, y * jnp.log(x), 0.0).sum() + lax.scan(step, 0.0, x)[0]

    report = masked.explain(f, jnp.asarray(X))
    jax.effects_barrier()

    assert [finding.operation for finding in report.findings] == ["log"]
    assert sorted(calls) == ["debug", "debug in jit", *["io"] * 3, "pure", "pure in jit"]


def test_an_explanation_compiles_little():
    """An operation of four equal layers is compiled once, not once for each place that runs it."""
    compiled = []
    weights = [0.1 * i * jnp.eye(7) for i in range(1, 5)]

    def layer(x, w):
        h = jnp.tanh(x @ w)
        return x + h * jax.nn.softmax(h, -1)

    def loss(weights, x):
        for w in weights:
            x = layer(x, w)
        y = jnp.sqrt(x)
        return jnp.where(x > 0, y, 0.0).sum()

    def note(event, _, **__):
        compiled.extend([event] * ("backend_compile" in event))

    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(note)  # 0.8 cannot take it back
    report = masked.explain(loss, weights, jnp.zeros((5, 7)))

    assert report.findings[0].kind == "BLOCKED"
    assert len(compiled) < 110  # 88 to 90 by the version of JAX; 152 when each pass had a mesh


def test_the_function_runs_once():
    """What a loss draws is what is explained: its operations run again, and not the loss."""
    batches = [X, X[1:], X[2:]]
    names = {"jnp": jnp, "rows": iter(batches)}
    text = "def f(x):\n    y = x * next(rows)\n    return jnp.where(y > 0, jnp.log(y), 0.0).sum()"
    exec(text, names)  # without source there is no edit to try

    (finding,) = masked.explain(names["f"], jnp.asarray(1.0)).findings

    assert (finding.kind, finding.operation, finding.entries) == ("BLOCKED", "log", 1)
    assert [len(batch) for batch in names["rows"]] == [2, 1]


# What it cannot see into.


def test_an_operation_that_drops_entries_itself():
    """A sparse product leaves out what is padding, and has no rule: never GENUINE."""
    indices = jnp.asarray([[0, 0], [1, 1], [9, 9]])

    def f(x):
        matrix = sparse.BCOO((x * jnp.asarray([1.0, 1.2, jnp.nan]), indices), shape=(3, 3))
        return jnp.sum(matrix @ jnp.ones(3))

    report = masked.explain(f, jnp.ones(3))

    assert jnp.isfinite(f(jnp.ones(3)))
    assert [(x.kind, x.where.line) for x in report.findings] == [("UNKNOWN", line_of(f, "@"))]


# Repairs.


def quotient(x):
    """Have two causes on one line, of which one follows the other."""
    y = jnp.log(x) / x
    return jnp.where(x > 0, y, 0.0).sum()


def test_two_causes_on_one_line():
    """Both are in one report, and in one edit."""
    report = masked.explain(quotient, jnp.asarray(X))

    assert {finding.operation for finding in report.findings} == {"log", "div"}
    edits = {finding.repair.edit.new.strip() for finding in report.findings}
    assert edits == {"y = safe_div(safe_log(x), x)"}


COMPOSITES = {
    "norm": (lambda x: jnp.linalg.norm(x - x[::-1]), "safe_norm(x - x[::-1])"),
    "norms": (
        lambda x: jnp.linalg.norm(x[:, None] - 4.0, axis=-1)[:2].sum(),
        "safe_norm(x[:, None] - 4.0, axis=-1)[:2].sum()",
    ),
    "softmax": (
        lambda x: jax.nn.softmax(jnp.stack([x, x - jnp.inf]))[0, 0],
        "safe_softmax(jnp.stack([x, x - jnp.inf]))[0, 0]",
    ),
}


def distance(x):
    """Have what a library's function computes decide what is dropped."""
    d = jnp.linalg.norm(x[:, None] - x[0], axis=-1)
    return jnp.where(d > 0, 2 * d, 0.0).sum()


def test_a_composite_whose_value_decides_gets_an_edit():
    """Its value is finite, so that the safe one selects as before."""
    (found,) = masked.explain(distance, jnp.asarray(X)).findings

    assert (found.kind, found.operation, found.value) == ("BLOCKED", "norm", "finite")
    assert found.repair.edit.new.strip() == "d = safe_norm(x[:, None] - x[0], axis=-1)"


@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_of_the_framework_get_an_edit(name):
    """A function of JAX that is made of several operations is replaced as a whole."""
    f, edit = COMPOSITES[name]
    x = jnp.asarray([2.0, 4.0, 2.0]) if name != "norms" else jnp.asarray(X)

    report = masked.explain(f, x)

    assert any(edit in f.repair.edit.new for f in report.findings if f.repair.edit is not None)


def test_arguments_of_the_neutral_one():
    """Python floats, dicts and lists are arguments there as here."""
    tree = {"x": jnp.asarray([0.0, 2.0]), "scale": [2.0]}
    f = lambda a, t: jnp.where(t["x"] > 0, a * t["scale"][0] * jnp.log(t["x"]), 0.0).sum()  # noqa: E731

    report = autodiff.explain(f, 2.0, tree, argnums=(0, 1))

    assert [finding.operation for finding in report.findings] == ["log"]
    assert float(autodiff.grad(f, 1)(2.0, tree)["x"][1]) == 2.0


TABLE = np.array([[1.0, 0.5, np.nan], [2.0, 1.0, np.nan]])


def two_carries(c, y, a):
    """Step with two carries, of which the loss reads the second."""
    return (a * c[0] + y, c[1] + c[0]), None


def carried_by_scan(a):
    """Scan."""
    return lax.scan(lambda c, y: two_carries(c, y, a), (jnp.zeros(3), jnp.zeros(3)), TABLE)[0][1]


def carried_by_fori(a):
    """Repeat a number of times."""
    table = jnp.asarray(TABLE)
    start = jnp.zeros(3), jnp.zeros(3)
    return lax.fori_loop(0, 2, lambda i, c: two_carries(c, table[i], a)[0], start)[1]


def carried_and_stacked(a):
    """Stack what the loss reads, and leave the last carry."""
    return lax.scan(lambda c, y: (a * c + y, c), jnp.zeros(3), TABLE)[1].sum(0)


@pytest.mark.parametrize("f", [carried_by_scan, carried_by_fori, carried_and_stacked])
def test_a_carry_that_nothing_reads(f):
    """The zero cotangent of a carry that nothing reads is absent, as in the masked gradient."""
    report = autodiff.explain(lambda a: f(a)[:2].sum(), jnp.asarray(0.9))

    assert np.isfinite(masked.grad(lambda a: f(a)[:2].sum())(jnp.asarray(0.9)))
    (finding,) = report.findings
    assert (finding.kind, finding.operation) == ("BLOCKED", "mul")
    assert finding.selection in ("slice", "scan")


def idle(x):
    """Have a carry with an infinite slope that nothing ever reads, beside a NaN."""

    def step(c, _):
        kept = c[1] + jnp.where(x > 0, jnp.log(x), 0.0)
        return (c[0] + jnp.sqrt(x), kept), None

    return lax.scan(step, (x, x), None, length=2)[0][1].sum()


def test_a_carry_that_has_no_cotangent():
    """JAX leaves a carry out of the backward pass that no result depends on: no finding."""
    (finding,) = masked.explain(idle, jnp.asarray(X)).findings

    assert finding.operation == "log"
