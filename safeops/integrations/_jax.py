"""Gradients of JAX that are explained when they are not finite."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from safeops._core.types import Array
from safeops.autodiff._explain.report import Report, report_or_unknown, unknown_report, words_of
from safeops.autodiff._explain.watching import Watch
from safeops.autodiff._options import is_one, places_of
from safeops.autodiff.jax import masked_grad, value_and_grad
from safeops.autodiff.jax._explain.explanation import explained_call
from safeops.autodiff.jax._redirect import changed_here
from safeops.autodiff.jax._watch import watching
from safeops.integrations._policy import NAN_IS_USED, NOT_CURED, BadStep, handle_bad_step, replaced

TRACED = (
    "expected arrays, got traced ones, which have no values; call the guarded function outside of "
    "jit, vmap, grad and shard_map, which may stand inside of it"
)


@jax.jit
def finite_sums(arrays: Sequence[Array]) -> Array:
    return jnp.stack([jnp.isfinite(x.sum()) for x in arrays])


@jax.jit
def finite_entries(arrays: Sequence[Array]) -> Array:
    return jnp.stack([jnp.isfinite(x).all() for x in arrays])


def which_are_finite(arrays: Sequence[Array]) -> Any:
    """Return which arrays are finite: by a sum of each, and by their entries if a sum is not."""
    if not arrays:
        return np.ones(0, bool)
    found = np.asarray(finite_sums(arrays))
    return found if found.all() else np.asarray(finite_entries(arrays))


def batch_of(data: Any) -> int:
    """Return the number of rows of a batch, as its first array has it; 0 if there is none."""
    shapes = (np.shape(x) for x in jax.tree.leaves(data) if not is_key(x))
    return next((shape[0] for shape in shapes if shape), 0)


def is_key(x: Any) -> bool:
    """Whether an array is a key of random numbers, or has the form of one."""
    dtype = jnp.result_type(x)
    is_plain = dtype == jnp.uint32 and np.shape(x) == (2,)
    return is_plain or bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def without(args: Sequence[Any], argnums: int | Sequence[int]) -> list[Any]:
    """Return the arguments that are not differentiated with respect to."""
    numbers = places_of(argnums, len(args))
    return [x for i, x in enumerate(args) if i not in numbers]


def all_finite(gradients: Any) -> bool:
    return bool(which_are_finite(jax.tree.leaves(gradients)).all())


def bad_names(gradients: Any, argnums: int | Sequence[int], count: int) -> tuple[str, ...]:
    """Return the paths of the gradients that are not finite, behind the argument if not the one."""
    found, places = [], places_of(argnums, count)
    for path, g in jax.tree_util.tree_flatten_with_path(gradients)[0]:
        if not jnp.isfinite(g).all():
            one = is_one(argnums)
            number = places[0 if one else path[0].idx]
            inner = path if one else path[1:]
            found.append(
                ("" if inner and one else f"argument {number}") + jax.tree_util.keystr(inner)
            )
    return tuple(found)


def guarded(
    f: Callable[..., Any],
    argnums: int | Sequence[int],
    *,
    has_aux: bool,
    on_nan: str,
    tell: Callable[[Report], None],
) -> Callable[..., Any]:
    """Return the compiled value and gradient of a function, explained if it is not finite."""
    ordinary = jax.jit(jax.value_and_grad(f, argnums, has_aux=has_aux))
    masked = jax.jit(value_and_grad(f, argnums, has_aux=has_aux))
    value = (lambda *args, **kwargs: f(*args, **kwargs)[0]) if has_aux else f
    steps = 0

    @wraps(f)
    def both(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        found = ordinary(*args, **kwargs)
        if any(isinstance(g, jax.core.Tracer) for g in jax.tree.leaves(found)):
            raise TypeError(TRACED)
        step, steps = steps, steps + 1
        if all_finite(found[1]):
            return found

        def explain() -> Report:
            batch = batch_of((without(args, argnums), kwargs))
            given = partial(value, **kwargs), args, argnums
            names = bad_names(found[1], argnums, len(args))
            again = partial(explained_call, *given, batch=batch, trial=True)
            return replace(report_or_unknown("jax", again), parameters=names, step=step)

        def run_masked() -> tuple[Any, str]:
            found = masked(*args, **kwargs)
            return found, fault_of(found[1], found[0][0] if has_aux else found[0])

        return handle_bad_step(BadStep(explain, run_masked), on_nan, tell)

    return both


def fault_of(gradients: Any, loss: Any) -> str:
    """Return why a masked step is no cure: its gradient is not finite, or its loss is NaN."""
    if not all_finite(gradients):
        return NOT_CURED
    return NAN_IS_USED if jnp.isnan(loss) else ""


# Steps of Keras's `fit` on JAX that are explained when their gradients are not finite.
#
# The step is the compiled one of the model, which returns a new state. A gradient that is not
# finite shows in the new weights, or in the new state of the optimizer; only then the step runs
# again, and tells which gradients are not finite.


ONE = Lock()  # a watch is told of the gradients that any thread has watched
KINDS = ("trainable", "non_trainable", "optimizer", "metrics")


class KerasGuard:
    """The guard of a model while `fit` runs."""

    def __init__(self, model: Any, on_nan: str, tell: Callable[[Report], None]) -> None:
        self.model, self.on_nan, self.tell, self.steps = model, on_nan, tell, 0
        self.usual: Any = True  # which arrays of the state were finite after the last step
        self.programs: dict[str, Callable[..., Any]] = {}
        self.plain, model.train_function = model.train_function, self.step

    def release(self) -> None:
        """Let the model be as it was."""
        self.model.train_function = self.plain

    def run(self, name: str, step: Callable[..., Any], state: Any, data: Any) -> Any:
        """Run a step that is compiled as Keras does it, but that keeps the state it is given."""
        # The last thing that a step returns is the new state.
        if name not in self.programs:
            self.programs[name] = self.compiled(step, state)
        return self.programs[name](state, data)

    def compiled(self, step: Callable[..., Any], state: Any) -> Callable[..., Any]:
        def own(state: Any, data: Any) -> Any:  # JAX knows by the function what it has traced
            return step(state, data)

        if self.model.run_eagerly or not self.model.jit_compile:
            return own
        places = jax.tree.map(lambda x: x.sharding, state)
        if all(len(x.device_set) == 1 for x in jax.tree.leaves(places)):
            return jax.jit(own)
        return jax.jit(own, out_shardings=(None, places))

    def step(self, state: Any, iterator: Any) -> Any:
        """Run the next step, and once more if its gradients are not finite."""
        data = next(iterator)
        logs, after = self.run("plain", self.model.train_step, state, data)
        self.steps += 1
        finite = self.finite_in(after)
        if not self.is_alarm(after, finite) or not (names := self.bad_names(state, data)):
            self.usual = finite
            return logs, after
        bad = BadStep(
            explain=partial(self.explained, state, data, names),
            run_masked=partial(self.run_masked, state, data),
            skip=lambda: (self.logs_of(state), state),
            release=partial(self.release_in, state),
        )
        return handle_bad_step(bad, self.on_nan, self.tell)

    def run_masked(self, state: Any, data: Any) -> tuple[Any, str]:
        """Run a step with masked gradients; return also why it is no cure."""
        with masked_grad():  # which counts when the step is traced
            (flags, logs), after = self.run("masked", self.noted, state, data)
        return (logs, with_finite(state, after)), "" if all(flags) else NOT_CURED

    def release_in(self, state: Any) -> None:
        """Let the model be as it was, in a state that `fit` puts into it, after an error too."""
        held = {f"{kind}_variables": part for kind, part in zip(KINDS, state, strict=True)}
        self.model._jax_state = held  # noqa: SLF001  (Keras has no other door to its own state)
        self.release()

    def finite_in(self, state: Any) -> Any:
        """Return which weights, and which numbers of the optimizer, are finite."""
        trainable, _, optimizer, _ = state
        return which_are_finite([*inexact(trainable), *inexact(optimizer)])

    def is_alarm(self, state: Any, finite: Any) -> bool:
        """Whether to look at the gradients: in a weight that is NaN already no NaN shows."""
        weights = finite[: len(inexact(state[0]))]
        return not weights.all() or bool((self.usual & ~finite).any())

    def noted(self, state: Any, data: Any) -> Any:
        """Return which gradients are finite, and what the step returns."""
        found: list[Any] = []
        optimizer, variables = self.model.optimizer, self.model.trainable_variables
        apply = optimizer.stateless_apply

        def note(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
            found.append([jnp.isfinite(0.0 if g is None else g).all() for g in grads])
            return apply(optimizer_variables, grads, trainable_variables)

        with replaced(optimizer, "stateless_apply", note):
            logs, after = self.model.train_step(state, data)
        if [len(x) for x in found] != [len(variables)]:  # a step of one's own: by its weights
            found = [[jnp.isfinite(x).all() for x in after[0]]]
        return (found[0], logs), after

    def bad_names(self, state: Any, data: Any) -> tuple[str, ...]:
        """Return the names of the variables whose gradient is not finite."""
        (flags, _), _ = self.run("noted", self.noted, state, data)
        pairs = zip(self.model.trainable_variables, flags, strict=True)
        return tuple(v.path for v, finite in pairs if not finite)

    def explained(self, state: Any, data: Any, names: tuple[str, ...]) -> Report:
        """Return the report on a step."""
        reports: list[Report] = []
        unknown = unknown_report("jax", "the step", "again")
        try:
            for compiles in (nullcontext, jax.disable_jit):  # a step may have traced a part before
                watch = Watch(reports.append, batch=batch_of(data))
                if not reports:
                    with ONE, watching(watch, changed_here), compiles():
                        self.model.train_step(state, data)
        except Exception as error:  # noqa: BLE001  (whatever a program raises that is not compiled)
            unknown = unknown_report("jax", "the step", "apart", words_of(error))
        report = reports[0] if reports else unknown
        return replace(report, parameters=names, step=self.steps - 1)

    def logs_of(self, state: Any) -> Any:
        for variable, value in zip(self.model.metrics_variables, state[-1], strict=True):
            variable.assign(value)  # `fit` has taken the numbers of its variables away
        return self.model.get_metrics_result()


def with_finite(before: Any, after: Any) -> Any:
    """Return a state in which averages that have become not finite are those before."""
    trainable, others, *rest = after
    pairs = zip(before[1], others, strict=True)
    return trainable, [x if is_bad(y) and not is_bad(x) else y for x, y in pairs], *rest


def is_bad(x: Any) -> bool:
    return bool(inexact([x])) and not jnp.isfinite(x).all()


def inexact(arrays: Any) -> list[Any]:
    """Return the arrays that can hold a NaN."""
    return [x for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact)]
