"""Gradients of JAX that a program takes by itself, explained when they are not finite."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from safeops._typing import Array, Function
from safeops.autodiff._explain.report import Finding, Report, make_report
from safeops.autodiff.jax._explain.passes import explained_call
from safeops.autodiff.jax._redirect import replaced

LIMIT = 20.0  # of `explain`
PLAIN = {"grad": jax.grad, "value_and_grad": jax.value_and_grad}


class NotFiniteError(Exception):
    """A gradient inside of compiled code is not finite: this ends the program there."""


@dataclass
class Watch:
    """What has been seen of the gradients of a program."""

    on_report: Callable[[Report], None]
    passes: list[bool] = field(default_factory=list)
    found: list[Callable[[], Report]] = field(default_factory=list)
    resting: int = 0

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Look at nothing meanwhile: a program is traced once more, or explained."""
        self.resting += 1
        try:
            yield
        finally:
            self.resting -= 1

    def told(self) -> None:
        """Explain the first gradient that was not finite inside of compiled code."""
        with suppress(jax.errors.JaxRuntimeError):  # that of a callback, kept in `found`
            jax.effects_barrier()
        if self.found:
            explain, *_ = self.found
            self.found.clear()
            self.tell(explain)

    def note(
        self, program: ClosedJaxpr, names: list[str], act: Function, finite: Any, *values: Any
    ) -> None:
        """Look at one gradient; act on a function that explains it if it is not finite."""
        if self.resting:
            return
        bad = tuple(name for name, good in zip(names, finite, strict=True) if not good)
        self.passes.append(bool(bad))
        if bad:
            act(partial(explained, program, values, bad, len(names), len(self.passes) - 1))

    def tell(self, explain: Callable[[], Report]) -> None:
        """Report."""
        with self.rest():
            report = explained_if_possible(explain)
        self.on_report(report)

    def end(self, explain: Callable[[], Report]) -> None:
        """End compiled code, to report outside of it."""
        self.found.append(explain)
        raise NotFiniteError

    def transform(self, name: str) -> Callable[..., Any]:
        """Return a transformation of JAX whose gradients are looked at."""
        ordinary = PLAIN[name]

        @wraps(ordinary)
        def watched(*args: Any, **kwargs: Any) -> Callable[..., Any]:
            given = signature(ordinary).bind(*args, **kwargs)
            given.apply_defaults()
            plain = ordinary(*args, **kwargs)
            fun, has_aux, argnums = (given.arguments[k] for k in ("fun", "has_aux", "argnums"))

            @wraps(fun)
            def gradient(*args: Any, **kwargs: Any) -> Any:
                found = plain(*args, **kwargs)
                if self.resting:
                    return found
                slopes = found[1] if name == "value_and_grad" else found[0] if has_aux else found
                self.look(first(fun) if has_aux else fun, argnums, slopes, args, kwargs)
                return found

            return gradient

        return watched

    def look(self, loss: Callable[..., Any], argnums: Any, slopes: Any, args: Any, kw: Any) -> None:
        """Tell `note` of a gradient, now or, if JAX traces, when the program runs."""
        chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        chosen = tuple(i % len(args) for i in chosen)
        leaves, tree = jax.tree_util.tree_flatten_with_path((args, kw))
        mine = [path[0].idx == 0 and getattr(path[1], "idx", None) in chosen for path, _ in leaves]
        arrays = [x for (_, x), own in zip(leaves, mine, strict=True) if own]
        others = [x for (_, x), own in zip(leaves, mine, strict=True) if not own]

        def of_leaves(*arrays: Any) -> Any:
            own, rest = iter(arrays), iter(others)
            values = [next(own if is_own else rest) for is_own in mine]
            args, kw = jax.tree.unflatten(tree, values)
            return loss(*args, **kw)

        with self.rest():
            program = jax.make_jaxpr(of_leaves)(*arrays)
        finite = [jnp.all(jnp.isfinite(g)) if is_real(g) else True for g in jax.tree.leaves(slopes)]
        names = [name_of(path, chosen) for (path, _), own in zip(leaves, mine, strict=True) if own]
        values = (*arrays, *program.consts)
        is_traced = any(isinstance(x, jax.core.Tracer) for x in (*finite, *values))
        if is_traced:
            jax.debug.callback(partial(self.note, program, names, self.end), finite, *values)
        else:
            self.note(program, names, self.tell, finite, *values)


def first(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns the loss alone."""
    return lambda *args, **kwargs: f(*args, **kwargs)[0]


def is_real(x: Any) -> bool:
    """Whether an array has entries that can be NaN; a gradient for integers has none."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def name_of(path: Any, chosen: tuple[int, ...]) -> str:
    """Return the path of a leaf, behind its argument if that is not the one."""
    inner = jax.tree_util.keystr(path[2:])
    return inner if inner and len(chosen) == 1 else f"argument {path[1].idx}{inner}"


def explained(
    program: ClosedJaxpr, values: tuple[Any, ...], bad: tuple[str, ...], count: int, step: int
) -> Report:
    """Return the report on a gradient, from the program of the loss and its numbers."""
    arrays = [jnp.asarray(x) for x in values]
    # Operations of a call have the lines with which they were traced.
    call = jax.jit(jaxpr_as_fun(ClosedJaxpr(program.jaxpr, arrays[count:])))

    def loss(*arrays: Array) -> Array:
        (value,) = call(*arrays)
        return value

    report = explained_call(loss, tuple(arrays[:count]), tuple(range(count)), LIMIT, None)
    return replace(report, parameters=bad, step=step)


def explained_if_possible(explain: Callable[[], Report]) -> Report:
    """Explain a gradient, or report why its program does not run by itself."""
    try:
        return explain()
    except Exception as error:  # noqa: BLE001  (whatever a program raises outside of its place)
        finding = Finding("UNKNOWN", "the backward pass", reason="apart")
        return make_report("jax", [finding], "the gradient", [str(error)])


@contextmanager
def watch_grad(on_report: Callable[[Report], None], /) -> Iterator[list[bool]]:
    """
    Context in which each gradient is checked, and explained if it is not finite.

    Parameters
    ----------
    on_report : callable
        Called with the report on each gradient of `jax.grad` and `jax.value_and_grad` that has a
        NaN or inf; of a gradient inside of compiled code, when the context ends.

    Yields
    ------
    list
        For each gradient, whether it had a NaN or inf.

    Raises
    ------
    jax.errors.JaxRuntimeError
        In the context, if a gradient inside of compiled code is not finite: the program ends there.

    Notes
    -----
    **Gradient.** None is changed. A gradient is seen if the program calls ``jax.grad(f)`` in the
    context, by these names of the module `jax`, as for `masked_grad`; `jax.vjp`, `jax.jacrev` and
    `jax.linearize` are not. In compiled code a callback gets what the loss gets, in each step.
    The names are those of all threads.

    **Source.** `jax.debug.callback`; the program is that of `jax.make_jaxpr`, with its lines.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> with watch_grad(lambda report: print(report.findings[0].kind)):
    ...     slope = jax.grad(lambda x: jnp.where(x > 0, jnp.log(x), 0.0))(0.0)
    BLOCKED
    """
    watch = Watch(on_report)
    try:
        with replaced(**{name: watch.transform(name) for name in PLAIN}):
            yield watch.passes
    finally:
        watch.told()
