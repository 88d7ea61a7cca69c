"""
Masked autodiff for PyTorch: `loss.backward()` in which what was never used is absent.

The program and the autograd engine are PyTorch's own. While the engine runs, a dispatch mode sees
the operations of the derivative formulas and evaluates them over pairs of a value and what of it is
active. Hooks, views, in-place writes, accumulation and checkpoints stay the engine's business.

What stays as it is:

- An operation without a rule runs on values in which absent entries are zeros, all of its result
  counts as active, and `on_unknown` decides what is said. It hides nothing. Among them: the LSTM of
  mkldnn (float32 on a CPU; what runs under ``torch.backends.mkldnn.flags(enabled=False)`` has
  rules), attention kernels of GPUs, sparse gradients, nested tensors, custom operators, and those
  below. A product with a sparse matrix has a rule.
- In place on a view (`y[:2].floor_()`) PyTorch hides which formula runs: it is read off the C++
  stack, in 2 ms, if the formula writes zeros or selects. Where the stack has no names its zeros are
  numbers.
- A factorisation or a solution of equations is dense within a matrix, and an FFT along its axes.
- A zero that a hook or an `autograd.Function` writes is a number, also one that it puts around a
  cotangent (`zeros`, `cat`, `pad`). A function there that is 0 at 0 (`clamp`, `sign`, a norm) keeps
  absent entries absent; one that is not (``1 - g``) makes numbers of them.
- What a gradient made with ``create_graph=True`` left out is absent in later programs, in its
  ``detach()`` too.
- `as_strided_scatter` has PyTorch's slope, which is that of other entries (2.13), and a warning. In
  `embedding_bag` with ``scale_grad_by_freq`` PyTorch's kernel divides by a wrong count on a CPU:
  the slope is PyTorch's where all bags are used, and the right one where one is left out.
- What `torch.compile` compiled is one fused kernel, and raises a RuntimeError: run it in
  ``torch.compiler.set_stance("force_eager")``. A compiled caller breaks its graph here.
- What TorchScript has compiled (from its second run on) is a graph in which a selection is a
  product. If a NaN comes out of it `on_unknown` decides what is said: run the program in
  ``torch.jit.optimized_execution(False)``, where its operations are those of eager mode.
- `torch.func.grad`, `vmap` and `jvp` have an engine of their own: a RuntimeError names
  `value_and_grad`.
- A kernel that writes into a cotangent without PyTorch's dispatcher (NumPy, Triton) is not seen: a
  custom function has to write into a new tensor, as PyTorch demands of it anyway.

The operations without a rule in the backward passes of PyTorch's own test database (2.13, on a
CPU, in float64), by class:

- sparse tensors: _sparse_mm_reduce_impl_backward, sparse_mask
- a slope of other entries: as_strided_scatter

A test keeps the list current.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from safeops._typing import Array
from safeops.autodiff._explain.report import Finding, Report, make_report
from safeops.autodiff._options import UnknownOperationWarning, check_options
from safeops.autodiff.torch._evaluator import Masking
from safeops.autodiff.torch._explain.lines import RecordLines, in_a_transform, not_finite
from safeops.autodiff.torch._explain.report import report_of
from safeops.autodiff.torch._explain.watch import Graph
from safeops.autodiff.torch._masks import spread
from safeops.autodiff.torch._nodes import is_custom
from safeops.autodiff.torch._opaque import scripts_told
from safeops.autodiff.torch._ranks import (
    in_a_stage,
    in_group,
    mask_here,
    noted_here,
    require_gradients,
    require_kept_gradients,
    require_one_rank,
    tell_of_stage,
    union_over,
)
from safeops.autodiff.torch._sharded import is_sharded, local_of, whole_of
from safeops.autodiff.torch._tags import Tags, is_number, leaf_of, name_of

__all__ = [
    "UnknownOperationWarning",
    "backward",
    "explain",
    "explain_backward",
    "grad",
    "gradient_mask",
    "masked_backward",
    "record_lines",
    "value_and_grad",
    "watch_backward",
]

REASON = "the dispatch mode of safeops.autodiff.torch sees eager operations only"

# What of earlier gradients is active, for accumulation and for second derivatives. It holds its
# storages weakly.
FORMER = Tags()


@torch.compiler.disable(reason=REASON)
def backward(
    tensors: Any,
    grad_tensors: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
    return_mask: bool = False,
    lazy: bool = False,
    on_unknown: str = "warn",
) -> Any:
    """
    `torch.autograd.backward`, in which an entry that nothing selected is absent, and not 0.

    Parameters
    ----------
    tensors : tensor or sequence of tensors
        What to differentiate, such as a loss.
    grad_tensors : tensor or sequence of tensors, optional
        Cotangents in the shapes of `tensors`. Default: 1, for scalars.
    retain_graph : bool, optional
        Whether the graph is kept. Default: the value of `create_graph`.
    create_graph : bool, default: False
        Whether the gradients can be differentiated; do that with this module too.
    inputs : tensor or sequence of tensors, optional
        Leaves to accumulate into. Default: all that the graph reaches.
    return_mask : bool, default: False
        Whether to return, for each leaf, where its gradient is active.
    lazy : bool, default: False
        Whether to take the ordinary gradient, and the masked one only if that is not finite. Hooks
        then run twice. Refused where several processes share a gradient: they could part.
    on_unknown : {"warn", "error", "ignore"}, default: "warn"
        What to do about an operation without a rule that meets absent entries. It runs as it is,
        which hides nothing.

    Returns
    -------
    None or dict of tensors
        With `return_mask` a mask for each leaf, as by `gradient_mask`.

    Raises
    ------
    ValueError
        If `on_unknown` is none of the three, or `lazy` and `return_mask` are both given.
    RuntimeError
        Inside a transform of `torch.func`, or for the result of a compiled function. With `lazy`
        in a process group of several ranks, with parameters of FSDP2, or if a hook takes a gradient
        away.

    Notes
    -----
    **Gradient.** That of a scalar tape, which visits only what the output reaches. Where that of
    `torch.autograd.backward` is finite, the two are equal.

    **Source.** PyTorch issue 4132, and 31829: "we have no way to differentiate a 0 that comes from
    unused from a 0 that comes from it is numerically 0".

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> backward(torch.where(x > 0, x.sqrt(), 0.0).sum())
    >>> x.grad
    tensor([0.0000, 0.2500])
    """
    check_options(on_unknown, lazy=lazy, return_mask=return_mask)
    outputs = _listed(tensors)
    nodes = _nodes(outputs)
    _check_graph(nodes)
    cotangents = _cotangents(outputs, grad_tensors)
    leaves = _leaves_of(nodes) if inputs is None else _listed(inputs)
    keep = create_graph if retain_graph is None else retain_graph

    def run(*, keep: bool) -> None:
        torch.autograd.backward(
            outputs,
            cotangents,
            retain_graph=keep,
            create_graph=create_graph,
            inputs=None if inputs is None else leaves,
        )

    if lazy and _accumulates_finite(lambda: run(keep=True), nodes, leaves):
        return None
    with _masking(nodes, cotangents, on_unknown, create_graph=create_graph) as mode:
        run(keep=keep)
    for leaf in leaves:
        if leaf.grad is not None:
            FORMER.keep_gradient(mode.tags, local_of(leaf.grad), has_graph=create_graph)
    return _masks(leaves) if return_mask else None


def _masks(leaves: Sequence[Array]) -> dict[Array, Array]:
    """Return where the gradient of each leaf is active."""
    require_kept_gradients(leaves)
    return {leaf: gradient_mask(leaf) for leaf in leaves}


def gradient_mask(x: Array, /, *, group: Any = None) -> Array:
    """
    Where the gradient of a leaf is active: a 0 that is not active was never used.

    Parameters
    ----------
    x : tensor
        A leaf, after `backward`, or after `masked_backward`.
    group : process group, optional
        Over whose ranks to unite what each has reached, such as `torch.distributed.group.WORLD`.
        Then all of them have to call this. Default: what this rank has reached, also where its
        gradient has been reduced over ranks, as by DDP.

    Returns
    -------
    tensor of bool
        In the shape of `x`. After several calls that accumulate: what one of them reached. Of a
        DTensor a DTensor, which is that of all ranks.

    Raises
    ------
    ValueError
        If an ordinary backward pass has made the gradient, or FSDP2 has made one of it.

    Notes
    -----
    **Gradient.** Without one, nothing is active.

    **Source.** The masks of `torch.masked.MaskedTensor`.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
    >>> backward(0.0 * x[1])
    >>> x.grad, gradient_mask(x)
    (tensor([0., 0.]), tensor([False,  True]))
    """
    mask = _mask_here(x)
    if group is not None and not is_sharded(x):
        mask = union_over(group, mask, x)
    if mask is None:
        msg = (
            "expected a tensor whose .grad a masked backward has made, got one without a mask, as "
            "of an ordinary backward, or of FSDP2, which makes another gradient of it"
        )
        raise ValueError(msg)
    return mask


def _mask_here(x: Array) -> Array | None:
    """Return where this rank has reached a leaf; None if that is not known."""
    if x.grad is None:
        return torch.zeros_like(x, dtype=torch.bool)
    gradient = local_of(x.grad)
    entry = FORMER.find(gradient)
    if entry is None:
        return None
    if in_group() and not is_sharded(x):  # DDP has reduced the gradient since
        return mask_here(x)
    mask = spread(FORMER.of_entry(replace(entry, former=True), gradient), gradient).clone()
    return whole_of(mask, x.grad)


@torch.compiler.disable(reason=REASON)
def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
    return_mask: bool = False,
    lazy: bool = False,
    on_unknown: str = "warn",
) -> Any:
    """
    `torch.autograd.grad`, in which an entry that nothing selected is absent, and not 0.

    Parameters
    ----------
    outputs : tensor or sequence of tensors
        What to differentiate.
    inputs : tensor or sequence of tensors
        With respect to what.
    grad_outputs : tensor or sequence of tensors, optional
        Cotangents in the shapes of `outputs`. Default: 1, for scalars.
    retain_graph, create_graph : bool, optional
        As for `backward`.
    allow_unused : bool, optional
        Whether an input may be unused; its gradient is None. Default: the value of
        `materialize_grads`.
    materialize_grads : bool, default: False
        Whether the gradient of an unused input is zeros.
    return_mask : bool, default: False
        Whether to return the masks too.
    lazy : bool, default: False
        As for `backward`.
    on_unknown : {"warn", "error", "ignore"}, default: "warn"
        As for `backward`.

    Returns
    -------
    tuple of tensors
        The gradients; with `return_mask` a pair of the gradients and of where each is active.

    Raises
    ------
    ValueError, RuntimeError
        As for `backward`.

    Notes
    -----
    **Gradient.** As for `backward`. For second derivatives use ``create_graph=True`` and this
    function again: `torch.autograd.grad` of a masked gradient has absent entries as zeros.

    **Source.** `torch.autograd.grad`.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> grad(x.sqrt()[1], x, return_mask=True)
    ((tensor([0.0000, 0.2500]),), (tensor([False,  True]),))
    """
    check_options(on_unknown, lazy=lazy, return_mask=return_mask)
    ys, xs = _listed(outputs), _listed(inputs)
    nodes = _nodes(ys)
    _check_graph(nodes)
    cotangents = _cotangents(ys, grad_outputs)
    keep = create_graph if retain_graph is None else retain_graph

    def run(*, keep: bool) -> Any:
        return torch.autograd.grad(
            ys,
            xs,
            cotangents,
            retain_graph=keep,
            create_graph=create_graph,
            allow_unused=allow_unused,
            materialize_grads=materialize_grads,
        )

    if lazy:
        require_one_rank(nodes)
        if _all_finite(found := run(keep=True)):
            return found
    with _masking(nodes, cotangents, on_unknown, create_graph=create_graph) as mode:
        found = run(keep=keep)
    if not return_mask:
        return found
    return found, tuple(_mask(mode, x, g) for x, g in zip(xs, found, strict=True))


@contextmanager
def masked_backward(*, on_unknown: str = "warn") -> Iterator[None]:
    """
    Context in which ``loss.backward()`` is masked, for code that cannot be changed.

    Parameters
    ----------
    on_unknown : {"warn", "error", "ignore"}, default: "warn"
        As for `backward`.

    Yields
    ------
    None

    Notes
    -----
    **Gradient.** As for `backward`; `torch.autograd.backward` and `torch.autograd.grad` are masked
    too, in this thread.

    **Source.** `torch.overrides.TorchFunctionMode`.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> loss = torch.where(x > 0, x.sqrt(), 0.0).sum()
    >>> with masked_backward():
    ...     loss.backward()
    >>> x.grad
    tensor([0.0000, 0.2500])
    """
    check_options(on_unknown)
    with _Redirect(on_unknown):
        yield


@contextmanager
def watch_backward(on_report: Callable[[Report], None], /) -> Iterator[list[Any]]:
    """
    Context in which each backward pass is looked at, and explained if it is not finite.

    Parameters
    ----------
    on_report : callable
        Called with the report on each backward pass that makes a gradient NaN or inf.

    Yields
    ------
    list
        Whether it did, for each backward pass.

    Notes
    -----
    **Gradient.** None is changed. Graphs are kept until they are garbage, so that a second backward
    pass through one is no error. Compiled functions run eagerly.

    **Source.** `torch.overrides.TorchFunctionMode`; lines as by `record_lines`.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(1, requires_grad=True)
    >>> with watch_backward(lambda report: print(report.findings[0].kind)):
    ...     (x.sqrt() ** 2).sum().backward()
    GENUINE
    """
    # What is compiled has no lines, and one fused backward pass.
    with torch.compiler.set_stance("force_eager"), _Watch(on_report) as mode:
        yield mode.passes


class _Watch(RecordLines):
    """Explain what the entries of autograd do that is not finite."""

    def __init__(self, on_report: Callable[[Report], None]) -> None:
        super().__init__()
        self.on_report = on_report
        self.passes: list[bool] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function of PyTorch."""
        if func not in REDIRECTED:
            return super().__torch_function__(func, types, args, kwargs)
        bound = signature(func).bind(*args, **(kwargs or {}))
        if in_a_transform() or bound.arguments.get("is_grads_batched"):
            return func(*args, **(kwargs or {}))
        bound.arguments["retain_graph"] = True
        result = super().__torch_function__(func, types, bound.args, bound.kwargs)
        renamed = REDIRECTED[func][1]
        given = {renamed.get(key, key): x for key, x in bound.arguments.items()}
        outputs = _listed(given.get("tensors", given.get("outputs")))
        inputs = given.get("inputs")
        leaves = _leaves_of(_nodes(outputs)) if inputs is None else _listed(inputs)
        found = [x.grad for x in leaves] if result is None else result
        spoilt = any(g is not None and not_finite(g) is not None for g in found)
        if spoilt:
            seeds = given.get("grad_tensors", given.get("grad_outputs"))
            report = _explained_if_possible(outputs, seeds, leaves)
            spoilt = not report.ok  # else an earlier pass had accumulated it
            if spoilt:
                self.on_report(report)
        self.passes.append(spoilt)
        return result


class _Redirect(TorchFunctionMode):
    """Send the entries of autograd to the functions of this module."""

    def __init__(self, on_unknown: str) -> None:
        super().__init__()
        self.on_unknown = on_unknown
        self.told = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function of PyTorch."""
        del types
        if func not in REDIRECTED:
            return func(*args, **(kwargs or {}))
        if not self.told and in_a_stage():
            self.told = True
            tell_of_stage(self.on_unknown)
        ours, renamed = REDIRECTED[func]
        given = signature(func).bind(*args, **(kwargs or {})).arguments
        if given.pop("is_grads_batched", False):
            msg = "expected one gradient at a time, got is_grads_batched=True; loop over outputs"
            raise NotImplementedError(msg)
        options = {renamed.get(key, key): x for key, x in given.items() if key not in IGNORED}
        return ours(**options, on_unknown=self.on_unknown)


REDIRECTED = {
    torch.Tensor.backward: (backward, {"self": "tensors", "gradient": "grad_tensors"}),
    torch.autograd.backward: (backward, {}),
    torch.autograd.grad: (grad, {}),
}
IGNORED = ("grad_variables", "only_inputs")  # PyTorch ignores them too


def value_and_grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    create_graph: bool = False,
    return_mask: bool = False,
    lazy: bool = False,
    on_unknown: str = "warn",
) -> Callable[..., Any]:
    """
    Function that returns the value and the masked gradient of a function of tensors.

    Parameters
    ----------
    f : callable
        Function of tensors, or of tuples, lists and dicts of them, to a scalar.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    has_aux : bool, default: False
        Whether `f` returns a pair of the value and something else.
    create_graph : bool, default: False
        Whether the result can be differentiated, by this module.
    return_mask, lazy, on_unknown
        As for `backward`.

    Returns
    -------
    callable
        Function of the arguments of `f` to ``(value, gradient)``, ``((value, aux), gradient)`` with
        `has_aux`; the gradient is ``(gradient, mask)`` with `return_mask`. Gradient and mask have
        the structure of the argument, a tuple of them if `argnums` is a sequence.

    Raises
    ------
    TypeError
        If an argument to differentiate with respect to holds anything but real or complex tensors.
    ValueError, RuntimeError
        As for `backward`.

    Notes
    -----
    **Gradient.** As for `backward`. An input that `f` does not use has zeros, none of them active.

    **Source.** `torch.func.grad_and_value`, in the order of `jax.value_and_grad`.

    Examples
    --------
    >>> import torch
    >>> f = value_and_grad(lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum())
    >>> f(torch.tensor([0.0, 4.0]))
    (tensor(2.), tensor([0.0000, 0.2500]))
    """
    one = isinstance(argnums, int)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _check_graph([])
        every = list(args)
        given, structure = tree_flatten([args[i] for i in numbers])
        inputs = [_input(x, create_graph=create_graph) for x in given]
        for i, x in zip(numbers, tree_unflatten(inputs, structure), strict=True):
            every[i] = x
        with torch.enable_grad():
            value = f(*every, **kwargs)
        value, aux = value if has_aux else (value, None)
        gradients, masks = _gradients_of(
            value, inputs, create_graph=create_graph, lazy=lazy, on_unknown=on_unknown
        )
        found, active = (tree_unflatten(list(x), structure) for x in (gradients, masks))
        found, active = (x[0] if one else tuple(x) for x in (found, active))
        value = value if create_graph else value.detach()
        return ((value, aux) if has_aux else value), (found, active) if return_mask else found

    check_options(on_unknown, lazy=lazy, return_mask=return_mask)
    return wrapped


def explain(f: Callable[..., Array], *args: Any, argnums: int | Sequence[int] = 0) -> Report:
    """
    Which line of a function makes its gradient NaN, and whether the entry is used.

    Parameters
    ----------
    f : callable
        Function of tensors, or of tuples, lists and dicts of them, to a scalar.
    *args : any
        Its arguments.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.

    Returns
    -------
    Report
        What was found, as data; ``str`` of it is the text.

    Raises
    ------
    TypeError
        If an argument to differentiate with respect to holds anything but real or complex tensors.
    RuntimeError
        As for `backward`.

    Notes
    -----
    **Gradient.** None is changed, and none is returned. The backward pass runs once if all is
    finite; else twice more, ordinary and masked, with the hooks of the user.

    **Source.** `torch.autograd.detect_anomaly`, which names the first operation that made a NaN,
    used or not.

    Examples
    --------
    >>> import torch
    >>> report = explain(lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum(), torch.zeros(2))
    >>> [(finding.kind, finding.operation, finding.selection) for finding in report.findings]
    [('BLOCKED', 'sqrt', 'where')]
    """
    _check_graph([])
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    every = list(args)
    for i in numbers:
        every[i] = tree_map(lambda x: _input(x, create_graph=False), args[i])
    leaves = tree_leaves([every[i] for i in numbers])
    with record_lines(), torch.enable_grad():
        value = f(*every)
    return _explained(value, leaves)


def explain_backward(tensors: Any, grad_tensors: Any = None, /, *, inputs: Any = None) -> Report:
    """
    Which line makes the gradient of a loss NaN, for a loss that is there.

    Parameters
    ----------
    tensors : tensor or sequence of tensors
        What to differentiate, such as a loss.
    grad_tensors : tensor or sequence of tensors, optional
        Cotangents in the shapes of `tensors`. Default: 1, for scalars.
    inputs : tensor or sequence of tensors, optional
        Leaves that are looked at. Default: all that the graph reaches.

    Returns
    -------
    Report
        As by `explain`. Lines are known of what ran in `record_lines`.

    Raises
    ------
    RuntimeError
        As for `backward`.

    Notes
    -----
    **Gradient.** None is changed: ``.grad`` of the leaves stays as it is, and the graph is kept.

    **Source.** As for `explain`.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(2, requires_grad=True)
    >>> with record_lines():
    ...     loss = (x.sqrt() ** 2).sum()
    >>> [finding.kind for finding in explain_backward(loss).findings]
    ['GENUINE']
    """
    return _explained(tensors, None if inputs is None else _listed(inputs), grad_tensors)


@contextmanager
def record_lines() -> Iterator[None]:
    """
    Context in which each operation is noted with its line, for `explain_backward`.

    Yields
    ------
    None

    Notes
    -----
    **Gradient.** None is changed.

    **Source.** `torch.overrides.TorchFunctionMode`. What an `autograd.Function` does has no line.

    Examples
    --------
    >>> import torch
    >>> with record_lines():
    ...     y = torch.ones(1, requires_grad=True).sqrt()
    >>> explain_backward(y).ok
    True
    """
    with RecordLines():
        yield


def _explained(tensors: Any, leaves: Any, grad_tensors: Any = None) -> Report:
    outputs = _listed(tensors)
    nodes = _nodes(outputs)
    _check_graph(nodes)
    if any(map(is_sharded, (*outputs, *(leaves or ()), *_leaves_of(nodes)))):
        msg = "expected tensors of one process, got a DTensor; explain the program of full_tensor()"
        raise TypeError(msg)
    if any(name_of(node) == "CheckpointFunctionBackward" for node in nodes):
        msg = "expected checkpoints with use_reentrant=False, got one that PyTorch runs apart"
        raise RuntimeError(msg)
    FORMER.forget_the_dead()
    seeds = _cotangents(outputs, grad_tensors)
    leaves = _leaves_of(nodes) if leaves is None else leaves
    return report_of(Graph(nodes), outputs, leaves, seeds, FORMER)


def _explained_if_possible(outputs: Any, seeds: Any, leaves: Any) -> Report:
    try:
        return explain_backward(outputs, seeds, inputs=leaves)
    except Exception as error:  # noqa: BLE001  (whatever a program raises that runs once)
        finding = Finding("UNKNOWN", "the backward pass", reason="once")
        return make_report("torch", [finding], "the gradient", [str(error)])


def _gradients_of(value: Array, inputs: Any, *, lazy: bool, **how: Any) -> tuple[Any, Any]:
    """Return gradients and masks; of a value that nothing reaches, zeros, none of them active."""
    if not value.requires_grad:
        zeros = [torch.zeros_like(x) for x in inputs]
        return zeros, [torch.zeros_like(x, dtype=torch.bool) for x in inputs]
    if lazy:
        found = grad(value, inputs, materialize_grads=True, lazy=True, **how)
        return found, found
    return grad(value, inputs, materialize_grads=True, return_mask=True, **how)


def _input(x: Any, *, create_graph: bool) -> Array:
    if not isinstance(x, torch.Tensor) or not is_number(x):
        kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        msg = f"expected real or complex tensors to differentiate with respect to, got {kind}"
        raise TypeError(msg)
    if create_graph and x.requires_grad:
        return x.view_as(x)
    return x.detach().requires_grad_()


def _listed(x: Any) -> list[Array]:
    return [x] if isinstance(x, torch.Tensor) else list(x)


def _cotangents(outputs: Sequence[Array], given: Any) -> list[Any]:
    every = [None] * len(outputs) if given is None else _listed(given)
    return [
        torch.ones_like(y) if g is None and y.numel() == 1 else None if g is None else g.clone()
        for y, g in zip(outputs, every, strict=True)
    ]


def _check_graph(nodes: Iterable[Any]) -> None:
    """Refuse what the dispatch mode cannot see into."""
    if in_a_transform():
        msg = (
            "expected a call outside torch.func.grad, vmap and jvp, which have an engine of their "
            "own; use value_and_grad of this module, twice with create_graph=True for second order"
        )
        raise RuntimeError(msg)
    # A compiled backward pass is one kernel, which may write into cotangents unseen.
    if any(name_of(node) == "CompiledFunctionBackward" for node in nodes):
        msg = (
            "expected a graph of eager operations, got the result of torch.compile, whose backward "
            "pass is fused; run it in torch.compiler.set_stance('force_eager')"
        )
        raise RuntimeError(msg)


@contextmanager
def _masking(
    nodes: Iterable[Any], cotangents: Any, on_unknown: str, *, create_graph: bool
) -> Iterator[Masking]:
    FORMER.forget_the_dead()
    mode = Masking(FORMER, on_unknown)
    for g in cotangents:
        if g is not None:
            mode.tags.write(local_of(g), active=True)
    told = scripts_told(nodes, on_unknown)
    with mode, told, customs_known(nodes, mode.tags), noted_here(nodes, mode.tags):
        yield mode
    if create_graph:
        FORMER.keep(mode.tags, partial=True)


@contextmanager
def customs_known(nodes: Iterable[Any], tags: Tags) -> Iterator[None]:
    """State that what custom functions return is active, also if it is made of constants."""

    def hook(out: Any, into: Any) -> None:
        del into
        for x in map(local_of, out):
            if x is not None and tags.read(x) is None:
                tags.write(x, active=True)

    handles = [node.register_hook(hook) for node in nodes if is_custom(node)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mask(mode: Masking, x: Array, gradient: Any) -> Array:
    if gradient is None:
        return torch.zeros_like(x, dtype=torch.bool)
    here = local_of(gradient)
    active = mode.tags.read(here)
    return whole_of(spread(True if active is None else active, here).clone(), gradient)


def _nodes(outputs: Sequence[Array]) -> list[Any]:
    """Return the graph that was recorded."""
    found: dict[Any, None] = {}
    stack = [y.grad_fn for y in outputs if y.grad_fn is not None]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack.extend(n for n, _ in node.next_functions if n is not None)
    return list(found)


def _leaves_of(nodes: Iterable[Any]) -> list[Array]:
    """Return the leaves that nodes accumulate into."""
    return [leaf for leaf in map(leaf_of, nodes) if leaf is not None]


def _accumulates_finite(
    run: Callable[[], None], nodes: Sequence[Any], leaves: Sequence[Array]
) -> bool:
    """
    Accumulate the ordinary gradients, and take them back if one is not finite.

    One that is not there, of a leaf that the graph has of its own, is not known to be finite.
    """
    require_one_rank(nodes)
    earlier = [leaf.grad for leaf in leaves]
    for leaf, gradient in zip(leaves, earlier, strict=True):
        leaf.grad = None if gradient is None else gradient.clone()
    run()
    own = set(map(id, _leaves_of(nodes)))
    reached = [leaf for leaf in leaves if id(leaf) in own]
    require_gradients(reached)
    found = all(leaf.grad is not None for leaf in reached)
    finite = found and _all_finite(leaf.grad for leaf in leaves)
    for leaf, gradient in zip(leaves, earlier, strict=True):
        if finite and gradient is not None and not leaf.grad.requires_grad:
            leaf.grad = gradient.copy_(leaf.grad)  # others may hold the tensor
        elif not finite:
            leaf.grad = gradient
    return finite


def _all_finite(gradients: Any) -> bool:
    """Whether gradients are finite: their sum is, or, if that overflows, each entry."""
    given = [g.detach() for g in gradients if g is not None]
    return all(bool(g.sum().isfinite()) or bool(g.isfinite().all()) for g in given)
