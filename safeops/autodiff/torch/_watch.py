"""Backward passes of PyTorch that a program takes by itself, explained if they are not finite."""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from os import PathLike
from typing import Any

import torch

from safeops._core.types import Array
from safeops.autodiff._explain.repairs import masked_by_others
from safeops.autodiff._explain.report import Report, advised
from safeops.autodiff.torch._diary import Diary
from safeops.autodiff.torch._explain.comparison import is_bad
from safeops.autodiff.torch._explain.explanation import explained_if_possible
from safeops.autodiff.torch._graph import entries_of, leaves_of, listed, nodes_of
from safeops.autodiff.torch._lines import RecordLines, in_a_transform, record_of
from safeops.autodiff.torch._ranks import rank
from safeops.autodiff.torch._redirect import ENTRIES
from safeops.autodiff.torch._sharded import local_of

PART = "this is backward pass {} of the step, and adds to the gradients of those before"


class Watch(RecordLines):
    """Explain each call of autograd whose gradients are not finite."""

    def __init__(
        self, on_report: Callable[[Report], None], diary: Callable[..., None] | None = None
    ) -> None:
        super().__init__()
        self.on_report = on_report
        self.diary = diary
        self.passes: list[bool] = []
        self.scaled = False  # whether a `GradScaler` made a loss whose gradient was not finite
        self.batch = 0  # rows of the batch, where they are known
        # The step, and its backward pass: one that adds to the gradients of those before.
        self.step, self.part = -1, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function of PyTorch."""
        if func not in ENTRIES:
            return super().__torch_function__(func, types, args, kwargs)
        bound = signature(func).bind(*args, **(kwargs or {}))
        if in_a_transform() or bound.arguments.get("is_grads_batched"):
            return func(*args, **(kwargs or {}))
        bound.arguments["retain_graph"] = True
        renamed = ENTRIES[func]
        given = {renamed.get(key, key): x for key, x in bound.arguments.items()}
        outputs = listed(given.get("tensors", given.get("outputs")))
        inputs = given.get("inputs")
        leaves = leaves_of(nodes_of(outputs)) if inputs is None else listed(inputs)
        self.count(adds=func is not torch.autograd.grad and any(map(has_gradient, leaves)))
        result = super().__torch_function__(func, types, bound.args, bound.kwargs)
        found = [x.grad for x in leaves] if result is None else result
        if self.diary is not None:
            self.diary(leaves, found)
        nonfinite = any(map(is_bad, found))
        if nonfinite:
            seeds = given.get("grad_tensors", given.get("grad_outputs"))
            before = unscaled(outputs)
            self.scaled |= any(x is not y for x, y in zip(before, outputs, strict=True))
            self.note_results(before)
            report = explained_if_possible(before, seeds, leaves, self.batch)
            nonfinite = not report.ok  # else it is from an earlier pass, or of the scale alone
            if nonfinite:
                self.on_report(self.placed(report, leaves, found))
        self.passes.append(nonfinite)
        return result

    def count(self, *, adds: bool) -> None:
        """Count a backward pass, which begins a step if it adds to no gradient."""
        begins = not adds or self.step < 0
        self.step, self.part = (self.step + 1, 0) if begins else (self.step, self.part + 1)

    def placed(self, report: Report, leaves: Sequence[Array], found: Sequence[Any]) -> Report:
        """Return a report with its step, and the names of the parameters that are not finite."""
        bad = [x for x, g in zip(leaves, found, strict=True) if is_bad(g)]
        notes = (*report.notes, *([PART.format(self.part + 1)] if self.part else []))
        if words := masked_by_others(sys._getframe(1)):  # noqa: SLF001  (documented)
            report = advised(report, words)
        where = replace(report, step=self.step, rank=rank())
        return replace(where, parameters=names_of(bad), notes=notes)


def has_gradient(leaf: Array) -> bool:
    """Whether a leaf has a gradient other than 0."""
    grad = leaf.grad if leaf.is_leaf else None  # PyTorch warns of others
    return grad is not None and bool(entries_of(local_of(grad)).any())


WRAPPERS = ("DataParallel", "DistributedDataParallel", "OptimizedModule")
OF_KERAS = "_torch_params."  # before the path of a variable, behind one or more modules


def names_of(leaves: Sequence[Array]) -> tuple[str, ...]:
    """Return the names of parameters, each as the outermost module of the user calls it."""
    wanted = {id(x): "" for x in leaves}
    every = (x for x in gc.get_objects() if issubclass(type(x), torch.nn.Module))
    modules = (x for x in every if type(x).__name__ not in WRAPPERS)
    for name, x in (pair for module in modules for pair in module.named_parameters()):
        if id(x) in wanted and wanted[id(x)].count(".") <= name.count("."):
            del wanted[id(x)]
            wanted[id(x)] = name  # behind the others, as in the module
    return tuple(name.rpartition(OF_KERAS)[2] for name in wanted.values() if name)


def unscaled(outputs: Sequence[Array]) -> list[Array]:
    """Return outputs as they were before a `GradScaler` multiplied them."""
    records = [None if y.grad_fn is None else record_of(y.grad_fn) for y in outputs]
    given = [None if r is None else r.before for r in records]
    return [y if x is None else x for x, y in zip(given, outputs, strict=True)]


@contextmanager
def watch_backward(
    on_report: Callable[[Report], None],
    /,
    *,
    record: str | PathLike[str] | None = None,
    parameters: Iterable[tuple[str, Array]] = (),
) -> Iterator[list[Any]]:
    """
    Context in which each backward pass is checked, and explained if it is not finite.

    Parameters
    ----------
    on_report : callable
        Called with the report on each backward pass that makes a gradient NaN or inf.
    record : path, optional
        A diary to which each backward pass adds a line for each gradient: the number of the pass,
        the name, the norm and whether all is finite. CSV if it ends so, else JSON lines. A file
        that is there is replaced; each process needs one of its own.
    parameters : iterable of pairs, optional
        Names and tensors for the diary, as of ``model.named_parameters()``. Default: all leaves,
        by their place in the pass.

    Yields
    ------
    list
        For each backward pass, whether it made a gradient NaN or inf.

    Notes
    -----
    **Gradient.** None is changed. Graphs are kept until nothing refers to them, so a second
    backward pass through a graph is no error. Compiled functions run eagerly. After ``backward()``
    the diary has the gradients that tensors then hold, after `torch.autograd.grad` its results.

    **Source.** `torch.overrides.TorchFunctionMode`; lines as by `record_lines`.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(1, requires_grad=True)
    >>> with watch_backward(lambda report: print(report.findings[0].kind)):
    ...     (x.sqrt() ** 2).sum().backward()
    GENUINE
    """
    diary = None if record is None else Diary(record, parameters)
    # A compiled function has no lines, and one fused backward pass.
    with torch.compiler.set_stance("force_eager"), Watch(on_report, diary) as mode:
        yield mode.passes
