"""Gradients of JAX that a program takes by itself, explained when they are not finite."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp

from safeops._core.types import Array
from safeops.autodiff._explain.repairs import masked_by_others
from safeops.autodiff._explain.report import Report, advised, report_or_unknown
from safeops.autodiff._explain.watching import NotFiniteError, Watch, Watches
from safeops.autodiff._options import places_of
from safeops.autodiff.jax._explain.explanation import explained_call
from safeops.autodiff.jax._passes import is_float0
from safeops.autodiff.jax._recording import Record
from safeops.autodiff.jax._redirect import changed_everywhere

OPEN = Watches()


def watched(name: str, ordinary: Callable[..., Any]) -> Callable[..., Any]:
    """Return a transformation of JAX whose gradients are looked at."""

    def transform(
        fun: Callable[..., Any],
        argnums: Any = 0,
        has_aux: bool = False,  # noqa: FBT001, FBT002  (as in JAX)
        *others: Any,
        **options: Any,
    ) -> Callable[..., Any]:
        plain = ordinary(fun, argnums, has_aux, *others, **options)

        @wraps(plain)
        def gradient(*args: Any, **kwargs: Any) -> Any:
            if not OPEN.looking():
                return plain(*args, **kwargs)
            record = Record()

            @wraps(fun)
            def loss(*args: Any, **kwargs: Any) -> Any:
                out = record.recorded(fun, chosen(args, argnums))(*args, **kwargs)
                record.close(out[0] if has_aux and isinstance(out, tuple) else out)
                return out

            found = ordinary(loss, argnums, has_aux, *others, **options)(*args, **kwargs)
            slopes = found[1] if name == "value_and_grad" else found[0] if has_aux else found
            tell_contexts(name, record, chosen(args, argnums), slopes, sys._getframe(1))  # noqa: SLF001  (documented)
            return found

        return gradient

    return transform


def chosen(args: Sequence[Any], argnums: int | Sequence[int]) -> dict[int, Any]:
    """Return the arguments for which a gradient is taken, by their numbers."""
    return {i: args[i] for i in places_of(argnums, len(args))}


def tell_contexts(
    call: str, record: Record, args: dict[int, Any], slopes: Any, frame: FrameType
) -> None:
    """Tell the contexts of the gradient of a call, now or, if JAX traces, when the program runs."""
    words = masked_by_others(frame) or f"safeops.autodiff.jax.{call}(f) in place of jax.{call}(f)"
    leaves = jax.tree_util.tree_flatten_with_path(args)[0]
    arrays = [x for _, x in leaves]
    gradients = jax.tree.leaves(slopes)
    real = [i for i, g in enumerate(gradients) if not is_float0(g)]
    known = names_in_fit(frame)
    every = known if len(known) == len(leaves) else [name_of(x, len(args)) for x, _ in leaves]
    names = [every[i] for i in real]
    finite = all_finite([gradients[i] for i in real])
    values = (finite, arrays, record.sent())
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(values)):
        jax.debug.callback(partial(end, words, record, real, names), *values)
    else:
        note(words, record, real, names, *values)
        OPEN.report(OPEN.looking())


@jax.jit
def all_finite(gradients: list[Any]) -> list[Any]:
    """Return whether each of several gradients is finite."""
    return [jnp.isfinite(g).all() for g in gradients]


def names_in_fit(frame: FrameType) -> list[str]:
    """Return the paths of the variables of a model of Keras, if its own step takes a gradient."""
    model: Any = frame.f_locals.get("self")
    is_of_keras = str(frame.f_globals.get("__name__")).startswith("keras.")
    return [v.path for v in model.trainable_variables] if is_of_keras else []


def name_of(path: Any, count: int) -> str:
    """Return the path of a leaf, behind its argument if that is not the one."""
    inner = jax.tree_util.keystr(path[1:])
    return inner if inner and count == 1 else f"argument {path[0].key}{inner}"


def note(
    words: str,
    record: Record,
    real: Sequence[int],
    names: Sequence[str],
    finite: Sequence[Any],
    arrays: Sequence[Any],
    sent: Mapping[int, Any],
) -> bool:
    """Write a gradient down; return whether it is not finite, and a context looks."""
    bad = tuple(name for name, good in zip(names, finite, strict=True) if not good)
    is_alarm = OPEN.note(is_bad=bool(bad))
    if is_alarm:
        OPEN.add(partial(explained, words, record, real, arrays, sent), bad)
    return is_alarm


def end(*seen: Any) -> None:
    """End compiled code at a gradient that is not finite, to report outside of it."""
    if note(*seen):
        raise NotFiniteError


def explained(
    words: str,
    record: Record,
    real: Sequence[int],
    arrays: Sequence[Any],
    sent: Mapping[int, Any],
    watch: Watch,
) -> Report:
    """Return the report on a gradient, from the operations of the loss and its numbers."""

    def loss(*chosen: Array) -> Array:
        leaves = dict(enumerate(arrays)) | dict(zip(real, chosen, strict=True))
        value = record.run(list(leaves.values()), sent)
        return value.real if jnp.iscomplexobj(value) else value

    given = [arrays[i] for i in real]
    explain = partial(explained_call, loss, given, range(len(given)), batch=watch.batch)
    return advised(report_or_unknown("jax", explain), words)


@contextmanager
def watching(watch: Watch, changed: Any = changed_everywhere) -> Iterator[list[bool]]:
    """Context in which each gradient is looked at, in all threads or in this one."""
    with OPEN.watching(watch) as passes, changed(watched):
        try:
            yield passes
        finally:
            with suppress(jax.errors.JaxRuntimeError):  # that of `end`, whose gradient is noted
                jax.effects_barrier()


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
        Without compiled code `jax.vmap` and an outer gradient end with a `NotFiniteError`.

    Notes
    -----
    **Gradient.** None is changed. A gradient is seen if the program calls ``jax.grad(f)`` in the
    context, by these names of the module `jax`, as for `masked_grad`, but in any thread; `jax.vjp`,
    `jax.jacrev` and `jax.linearize` are not. A loss runs once, and the report comes from a record
    of its operations, so a loss may draw random numbers or branch on values. In compiled code a
    callback gets what the loss gets, in each step: such code cannot be exported, and `jax.vmap` of
    `lax.cond` shows gradients of both branches. When the context has ended, compiled code is free.

    **Source.** `jax.debug.callback`, and a trace that keeps each operation with its lines.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> with watch_grad(lambda report: print(report.findings[0].kind)):
    ...     slope = jax.grad(lambda x: jnp.where(x > 0, jnp.log(x), 0.0))(0.0)
    BLOCKED
    """
    with watching(Watch(on_report)) as passes:
        yield passes
