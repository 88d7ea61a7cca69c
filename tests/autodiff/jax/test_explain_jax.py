"""What `explain` says of JAX programs: the reported ones, control flow, and custom rules."""

import numpy as np
import pytest

pytestmark = [pytest.mark.only("jax"), pytest.mark.usefixtures("mixed_dtypes")]
jax = pytest.importorskip("jax", reason="JAX is not selected, and this file is about it alone")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import reported_jax as reported  # noqa: E402
import tape  # noqa: E402
from assertions import assert_examples_run  # noqa: E402
from expected import kinds_expected, line_of  # noqa: E402
from safeops.autodiff import jax as masked  # noqa: E402

PROGRAMS_RUN = reported.PROGRAMS_RUN // 25


def summary(report):
    """Return kind, operation, line, entries, selection and its line of each finding."""
    return [
        (
            finding.kind,
            finding.operation,
            finding.where.line if finding.where else None,
            finding.entries,
            finding.selection,
            finding.selected_at.line if finding.selected_at else None,
        )
        for finding in report.findings
    ]


# The programs that people reported. Each is a lambda on one line.

# Kind, operation, what it is there, entries, selection.
REPORTED = {
    "arctan2 of the origin": ("BLOCKED", "atan2", "nan", 1, "where"),
    "entry of a stack": ("BLOCKED", "div", "-inf", 1, "index"),
    "division, then a mask": ("BLOCKED", "div", "inf", 1, "index"),
    "nansum of a product": ("BLOCKED", "mul", "nan", 1, "nansum"),
    "clipped exponential": ("BLOCKED", "exp", "inf", 1, "clip"),
    "largest logarithm": ("BLOCKED", "log", "inf", 1, "max"),
    "smallest inverse": ("BLOCKED", "div", "-inf", 1, "min"),
    "tie": ("BLOCKED", "log", "inf", 1, "max"),
    "running maximum": ("BLOCKED", "sqrt", "inf", 1, "index"),
    "set to zero": ("BLOCKED", "sqrt", "inf", 1, "assignment"),
    "branch of cond": None,
    "cond of a value that one branch uses": ("BLOCKED", "log", "inf", 1, "cond"),
    "mapped cond": None,
    "largest of a pool": ("BLOCKED", "sqrt", "inf", 2, "max"),
    "flipped and joined": ("BLOCKED", "sqrt", "inf", 1, "slice"),
    "median": ("BLOCKED", "sqrt", "inf", 1, "median"),
    "fori loop": ("BLOCKED", "sqrt", "inf", 2, "index"),  # once in each of two passes
    "dynamic slice": ("BLOCKED", "sqrt", "inf", 1, "slice"),
    "complex": ("BLOCKED", "div", "nan", 1, "where"),
    "square of a root": ("GENUINE", "sqrt", "inf", 1, ""),
    "root at the edge": ("GENUINE", "sqrt", "inf", 1, ""),
    "quotient of zeros": ("FORWARD", "div", "nan", 1, ""),
    "zero times a logarithm": ("FORWARD", "log", "-inf", 1, ""),
    "product with a mask": ("GENUINE", "sqrt", "inf", 1, ""),
    "maximum with a NaN": ("FORWARD", "mul", "nan", 1, ""),
}


def rightly_found(name):
    """Return whether the kind of a finding, and its lines, are those that are known."""
    f, x, _ = (reported.PROGRAMS | reported.UNDEFINED)[name]
    report = masked.explain(f, jnp.asarray(x))
    if REPORTED[name] is None:
        return report.ok, report.ok
    kind, operation, what, entries, selection = REPORTED[name]
    line = f.__code__.co_firstlineno
    (found,) = report.findings
    of_selection = found.selected_at.line if found.selected_at else None
    said = (found.kind, found.operation, found.what, found.entries, found.selection)
    lines = (found.where.line, of_selection)
    return said == (kind, operation, what, entries, selection), lines == (
        line,
        line if selection else None,
    )


@pytest.mark.parametrize("name", REPORTED)
def test_reported_programs(name):
    """Each has one finding, of the right kind, at its line, dropped at its line."""
    assert rightly_found(name) == (True, True)


def test_all_of_them_are_there():
    """No reported program is left out, but the one that is a function of JAX itself."""
    assert set(REPORTED) == {*reported.PROGRAMS, *reported.UNDEFINED} - {"norm"}


def test_a_function_of_jax_itself_stands_at_the_call_of_explain():
    """Without a line of the user's in it, the line that calls counts, and the library's name."""
    report = masked.explain(jnp.linalg.norm, jnp.zeros(2))

    here = line_of(test_a_function_of_jax_itself_stands_at_the_call_of_explain, "explain(jnp")
    assert summary(report) == [("GENUINE", "norm", here, 1, "", None)]


# Operation, a text in its line, and of a NaN row that nothing uses how many entries are met.
NAN_ROWS = {
    "matmul": ("matmul", '"matmul": lambda', 6),
    "einsum": ("matmul", '"einsum": lambda', 6),
    "mlp": ("matmul", '"mlp": lambda', 6),
    "layer norm": ("mul", "* weights[0]", 6),
    "softmax": ("matmul", '"softmax": lambda', 6),
    "scan": ("matmul", "jnp.tanh(state @ weights", 3),
    "checkpointed scan": ("matmul", "jnp.tanh(state @ weights", 3),
    "convolution": ("convolution", "conv_general_dilated", 6),
    "mapped": ("matmul", '"mapped": lambda', 6),
    "jitted": ("matmul", '"jitted": jax.jit', 6),
    "cumulative sum": ("matmul", '"cumulative sum": lambda', 6),
    "segment sum": ("matmul", '"segment sum": lambda', 6),
    "gather with repeats": ("matmul", '"gather with repeats": lambda', 6),
    "sort": ("matmul", '"sort": lambda', 6),
    "maximum of rows": ("matmul", '"maximum of rows": lambda', 6),
    "padded": ("matmul", '"padded": lambda', 6),
    "set to zero": ("matmul", '"set to zero": lambda', 6),
    "mean over a mask": ("matmul", '"mean over a mask": lambda', 6),
}
# Those that drop the rows themselves; the others leave it to the slice of the loss.
DROPS = {"gather with repeats": "index", "set to zero": "assignment", "mean over a mask": "where"}


@pytest.mark.parametrize("name", NAN_ROWS)
def test_rows_that_nothing_uses(name):
    """The first operation that is given the NaN is named, and not what follows from it."""
    operation, text, entries = NAN_ROWS[name]
    made = line_of(reported, text)
    dropped = made if name in DROPS else line_of(reported, "return jnp.sum(out[:2]")

    report = masked.explain(
        reported.first_rows(reported.NAN_ROWS[name]), reported.WEIGHTS, reported.BAD_ROWS
    )

    selection = DROPS.get(name, "slice")
    assert summary(report) == [("BLOCKED", operation, made, entries, selection, dropped)]
    assert report.findings[0].nan_operand


def test_attention_has_two_products_to_repair():
    """Rows that enter by two lines are found on both."""
    report = masked.explain(
        reported.first_rows(reported.attention), reported.WEIGHTS, reported.BAD_ROWS
    )

    lines = {line_of(reported.attention, text) for text in ("scores =", "values =")}
    assert {finding.where.line for finding in report.findings} == lines
    assert {finding.kind for finding in report.findings} == {"BLOCKED"}


def test_random_programs():
    """A report has the kinds that ordinary and masked gradient ask for, and a line for each."""
    found = []
    for seed in range(PROGRAMS_RUN):
        program, point = tape.drawn(seed)
        f, x = reported.on_jax(program), jnp.asarray(point)

        three = map(np.asarray, (f(x), jax.grad(f)(x), masked.grad(f, exact=True)(x)))
        wanted, report = kinds_expected(*three), masked.explain(f, x)

        kinds = {finding.kind for finding in report.findings}
        found.append(kinds)
        assert wanted <= kinds, f"seed {seed}: {program}"
        assert wanted or report.ok, f"seed {seed}: {program}"
        assert wanted != {"BLOCKED"} or kinds == wanted, f"seed {seed}: {program}"
        assert all(f.where or f.operation == "input" for f in report.findings)
        assert all(f.selected_at for f in report.findings if f.kind == "BLOCKED")
    assert {"BLOCKED"} in found
    assert set() in found


# Where programs keep their lines: the marks say what is to be found where.


@jax.jit
def jitted(x):
    """Take the logarithm."""
    return jnp.log(x)  # made


def call(x):
    """Call a compiled function."""
    y = jitted(x)
    return jnp.where(x > 0, y, 0.0).sum()  # dropped


def scanned(x):
    """Run steps over entries."""

    def step(total, r):
        y = jnp.log(r)  # made
        return total + jnp.where(r > 0, y, 0.0), None  # dropped

    return lax.scan(step, 0.0, x)[0]


def mapped(x):
    """Map over entries."""

    def one(r):
        y = jnp.log(r)  # made
        return jnp.where(r > 0, y, 0.0)  # dropped

    return jax.vmap(one)(x).sum()


def branched(x):
    """Take a branch."""

    def taken(x):
        y = jnp.log(x)  # made
        return y[1]  # dropped

    return lax.cond(x[1] > 1, taken, jnp.sum, x)


def by_value(x):
    """Branch on a value."""
    if x[1] > 1:
        return call_of_value(x)
    return x.sum()


def call_of_value(x):
    """Be called."""
    y = jnp.log(x)  # made
    return y[1]  # dropped


def repeated(x):
    """Repeat a step whose count is known."""

    def step(i, total):
        y = jnp.log(x)  # made
        return total + y[i + 1]  # dropped

    return lax.fori_loop(0, 1, step, 0.0)


@jax.checkpoint
def remembered(x):
    """Compute anew in the backward pass."""
    y = jnp.log(x)  # made
    return jnp.where(x > 0, y, 0.0)  # dropped


def rematerialised(x):
    """Sum what is computed anew."""
    return remembered(x).sum()


def chosen(x):
    """Choose the larger, which is not the logarithm."""
    y = jnp.log(x)  # made
    return jnp.maximum(y, -1.0).sum()  # dropped


def chosen_before(x):
    """Have the loser of a maximum meet NaN, as ordinary autodiff multiplies it with 0."""
    larger = jnp.maximum(x - 1, 0.0)
    y = jnp.log(larger)  # made
    return jnp.where(larger > 0, y, 0.0).sum()  # dropped


@jax.custom_vjp
def log_of_its_own(x):
    """Have a rule of its own."""
    return jnp.log(x)


log_of_its_own.defvjp(lambda x: (jnp.log(x), x), lambda x, g: (g / x,))


def ruled(x):
    """Call a function with a rule of its own."""
    y = log_of_its_own(x)  # made
    return y[1]  # dropped


WITH_LINES = [
    (call, call),
    (scanned, scanned),
    (mapped, mapped),
    (branched, branched),
    (by_value, call_of_value),
    (repeated, repeated),
    (rematerialised, remembered),
    (chosen, chosen),
    (chosen_before, chosen_before),
    (ruled, ruled),
]


@pytest.mark.parametrize(("f", "marked"), WITH_LINES, ids=lambda f: f.__name__)
def test_lines_in_control_flow(f, marked):
    """The line in the body is found, and that of the selection."""
    x = jnp.asarray([0.0, 4.0])
    made = line_of(jitted.__wrapped__ if marked is call else marked, "# made")
    assert not np.isfinite(jax.grad(f)(x)).all()

    for transformed in (f, jax.jit(f)) if f is not by_value else (f,):
        report = masked.explain(transformed, x)

        (finding,) = report.findings
        assert (finding.kind, finding.entries) == ("BLOCKED", 1)
        assert (finding.where.line, finding.selected_at.line) == (
            made,
            line_of(marked, "# dropped"),
        )


def test_a_body_that_was_traced_for_another_call_keeps_the_line_of_this_one():
    """JAX traces `jnp.where` once; the line is that of the call that is explained."""
    jnp.where(jnp.ones(2) > 0, jnp.ones(2), 0.0)
    report = masked.explain(call, jnp.asarray([0.0, 4.0]))

    assert report.findings[0].selected_at.line == line_of(call, "# dropped")


# What else it says.


def test_nothing_is_done_twice_that_is_not_needed():
    """A function whose gradient is finite runs once."""
    runs = []

    def f(x):
        runs.append(x)
        return (x**2).sum()

    assert masked.explain(f, jnp.ones(2)).ok
    assert len(runs) == 1


def test_gradients_are_as_before():
    """After an explanation the gradient has the same bits."""
    x = jnp.asarray([0.0, 4.0])
    before = np.asarray(jax.grad(call)(x))
    masked.explain(call, x)

    np.testing.assert_array_equal(jax.grad(call)(x), before)


def test_unknown_operations():
    """One without a rule is named, and what is below it is not judged."""

    @jax.custom_vjp
    def largest(x):
        return x

    largest.defvjp(lambda x: (x, None), lambda _, g: (lax.top_k(g, 2)[0],))

    def f(x):
        return largest(jnp.sqrt(x))[1]

    report = masked.explain(f, jnp.asarray([0.0, 4.0]))

    line = line_of(f, "largest")
    assert [(f.kind, f.where.line) for f in report.findings] == [("UNKNOWN", line)]


def over_shards(f, out=()):
    """Return a function of the parts of an array."""
    from jax.sharding import AxisType, PartitionSpec

    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec(*out))


def total_of_logs(x):
    """Have a collective, and a library function that is compiled."""
    logs = jnp.log(x)
    rows = jnp.linalg.norm(jnp.where(x > 0, logs, 1.0))
    return lax.psum(rows, "i") - lax.pmean(0.5, "i")


def log_in_a_scan(x):
    """Sum in a loop."""

    def step(total, v):
        return total + jnp.where(v > 0, jnp.log(v), 0.0), v

    return lax.scan(step, 0 * x[0], x)[0][None]


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f])
@pytest.mark.parametrize(
    ("local", "out", "marks"),
    [
        (total_of_logs, (), ("jnp.log(x)", "jnp.where")),
        (log_in_a_scan, ("i",), ("lax.scan", "lax.scan")),
    ],
)
def test_sharded(wrap, local, out, marks):
    """The line is that in the body; in a loop there, it is that of the loop."""
    f = wrap(over_shards(local, out))

    (found,) = masked.explain(lambda x: f(x).sum() * 2, jnp.asarray([0.0, 4.0])).findings

    assert (found.kind, found.operation, found.selection) == ("BLOCKED", "log", "where")
    assert found.entries == 1
    assert found.where.line == line_of(local, marks[0])
    assert found.selected_at.line == line_of(local, marks[1])


def test_sharded_as_a_whole():
    """A compiled body that branches runs whole: its line is that of the call, from JAX 0.9 on."""

    def local(x):
        logs = jnp.where(x > 0, jnp.log(x), 0.0)
        return lax.psum(lax.cond(x[1] > 0, jnp.sum, lambda y: jnp.sum(2.0 * y), logs), "i")

    f = jax.jit(over_shards(local))

    (found,) = masked.explain(lambda x: f(x) * 2, jnp.asarray([0.0, 4.0])).findings

    operation, place = "shard_map", line_of(test_sharded_as_a_whole, "f(x) * 2")
    if jax.__version__.startswith("0.8."):  # whose maps branch
        operation, place = "log", line_of(local, "jnp.log")
    assert (found.kind, found.operation, found.entries) == ("BLOCKED", operation, 1)
    assert found.where.line == place


def test_no_report_is_clean_by_mistake(monkeypatch):
    """What is there and was not found is said to be there."""
    monkeypatch.setattr("safeops.autodiff._explain.evidence.Evidence.findings", lambda *_: [])

    kinds = {
        f: {finding.kind for finding in masked.explain(f, jnp.asarray(0.0)).findings}
        for f in (lambda x: jnp.stack([x, 1 / x])[0], jnp.sqrt, lambda x: x / x)
    }

    assert list(kinds.values()) == [{"BLOCKED"}, {"UNKNOWN"}, {"FORWARD", "UNKNOWN"}]


def test_overflow_of_a_gradient():
    """A gradient that overflows without an infinite slope is undefined, too."""

    def f(x):
        y = x * 1e200
        return jnp.sum(y * 1e200)

    report = masked.explain(f, jnp.asarray([1e-300]))

    assert [(f.kind, f.where.line) for f in report.findings] == [("GENUINE", line_of(f, "y = x"))]


def test_several_arguments_and_trees():
    """Any of the arguments can be asked for, as trees."""

    def f(a, tree):
        return jnp.where(tree["x"] > 0, a * jnp.log(tree["x"]), 0.0).sum()

    tree = {"x": jnp.asarray([0.0, 2.0])}
    of_both = masked.explain(f, 2.0, tree, argnums=(0, 1))
    of_first = masked.explain(f, 2.0, tree)

    # Without the slope of the logarithm the product with -inf is left; it follows from the former.
    assert [finding.operation for finding in of_both.findings] == ["log"]
    assert [finding.operation for finding in of_first.findings] == ["mul"]


def test_traced_arguments_are_refused():
    """In a function that JAX traces there are no values to look at."""
    with pytest.raises(TypeError, match="call explain outside of jit"):
        jax.jit(lambda x: masked.explain(jnp.sum, x).ok)(jnp.ones(2))
    with pytest.raises(TypeError, match="scalar value"):
        masked.explain(lambda x: x, jnp.ones(2))


@pytest.mark.usefixtures("users_defaults")
def test_the_example_runs():
    """The example of the docstring prints what it says."""
    assert_examples_run(masked.explain, vars(masked))


# What the code relies on beside the public API.


def test_equations_say_where_they_were_made():
    """Their tracebacks have code and lines, and their bodies say whose function they are of."""
    closed = jax.make_jaxpr(jitted)(1.0)
    body = closed.eqns[0].params["jaxpr"].jaxpr
    traceback = body.eqns[0].source_info.traceback

    codes, offsets = traceback.raw_frames()
    assert len(codes) == len(offsets) == len(traceback.frames)
    assert jitted.__wrapped__.__code__ in codes
    assert body.debug_info.func_filename == __file__
    assert body.debug_info.func_lineno == jitted.__wrapped__.__code__.co_firstlineno


def test_scopes_reach_the_backward_pass():
    """A name scope of the forward pass stands on the equations of its derivative."""

    def f(x):
        with jax.named_scope("mark"):
            return jnp.sin(x)

    closed = jax.make_jaxpr(jax.vjp(f, 1.0)[1])(1.0)

    assert "mark" in str(closed.eqns[0].source_info.name_stack)


def of_norm(x):
    """The length of a row of zeros."""
    return jnp.linalg.norm(x - x, axis=-1)


def of_softmax(x):
    """The shares of a row of -inf."""
    return jax.nn.softmax(x, axis=-1)[:, 0]


def of_log_softmax(x):
    """The logarithms of these."""
    return jax.nn.log_softmax(x, axis=-1)[:, 0]


def of_logsumexp(x):
    """The logarithm of a sum of nothing."""
    return jax.scipy.special.logsumexp(x, axis=-1)


@pytest.mark.parametrize(
    ("f", "new"),
    [
        (of_norm, "return safe_norm(x - x, axis=-1)"),
        (of_softmax, "return safe_softmax(x, axis=-1)[:, 0]"),
        (of_log_softmax, "return safe_log_softmax(x, axis=-1)[:, 0]"),
        (of_logsumexp, "return safe_logsumexp(x, axis=-1)"),
    ],
)
def test_what_jax_runs_as_several_operations_gets_its_edit(f, new):
    """The call in the program is replaced, not one of the operations that JAX makes of it."""
    fill = 0.0 if f is of_norm else -np.inf
    x = jnp.array([[fill, fill, fill], [1.0, 2.0, 4.0]])

    report = masked.explain(lambda x: jnp.sum(f(x)[1:]), x)

    (edit,) = {finding.repair.edit for finding in report.findings}
    assert edit.new.strip() == new
