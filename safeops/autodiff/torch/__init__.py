"""
Masked autodiff for PyTorch: `loss.backward()` in which an entry that nothing used is absent.

The program and the autograd engine are PyTorch's own. While the engine runs, a dispatch mode sees
the operations of the derivative formulas, and evaluates them over pairs of a value and the mask of
its active entries. Hooks, views, in-place writes, accumulation and checkpoints stay with the
engine.

Limits:

- An operation without a rule runs on values in which absent entries are zeros, and all of its
  result counts as active: nothing is hidden. `on_unknown` decides whether that is reported. Among
  these operations: the LSTM of mkldnn (float32 on a CPU; under
  ``torch.backends.mkldnn.flags(enabled=False)`` an LSTM has rules), attention kernels of GPUs,
  sparse gradients, nested tensors, custom operators, and those listed below. A product with a
  sparse matrix has a rule.
- In an in-place write into a view (`y[:2].floor_()`) PyTorch hides which formula runs. If the
  formula writes zeros or selects, its name is read from the C++ stack, in 2 ms. If the stack has no
  names, the zeros of the formula count as numbers.
- A factorisation or a solution of equations is dense within a matrix; an FFT is dense along its
  axes.
- A zero that a hook or an `autograd.Function` writes is a number, also if it is added around a
  cotangent (`zeros`, `cat`, `pad`). In both, a function that is 0 at 0 (`clamp`, `sign`, a norm)
  keeps absent entries absent; any other (``1 - g``) turns them into numbers.
- An entry that is absent in a gradient made with ``create_graph=True`` stays absent in later
  programs that use this gradient, also in its ``detach()``.
- `as_strided_scatter` has PyTorch's derivative, which belongs to other entries (2.13), and a
  warning. In `embedding_bag` with ``scale_grad_by_freq`` PyTorch's CPU kernel divides by a wrong
  count: if all bags are used the derivative is PyTorch's, and if a bag is left out it is the right
  one.
- A selection in a branch of `cond` makes zeros that are numbers; `scan`, `while_loop`: no rule.
- The result of `torch.compile` has one fused backward kernel: `backward` raises a RuntimeError.
  `compile` of this module takes its place, with ``edges=True`` where the loss is in eager code. In
  a compiled function that calls `backward` the graph breaks there.
- In a graph that TorchScript has compiled (from the second run on) a selection is a product. If a
  NaN comes out of it, `on_unknown` decides whether that is reported. Run the program in
  ``torch.jit.optimized_execution(False)``, where its operations are those of eager mode.
- Inside `torch.func.grad`, `vmap` and `jvp` this module raises: use `safeops.autodiff.torch.func`.
- A kernel that writes into a cotangent without PyTorch's dispatcher (NumPy, Triton) is not seen: a
  custom function has to write into a new tensor, as PyTorch demands anyway.

Without a rule in the formulas of PyTorch's test database (2.13, CPU, float64) are, by class:

- sparse tensors: _sparse_mm_reduce_impl_backward, sparse_mask
- a slope of other entries: as_strided_scatter

A test keeps the list current.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from safeops._backends.torch import private
from safeops._backends.torch.private import FOUND, tree_flatten, tree_unflatten
from safeops._core.errors import require
from safeops._core.types import Array
from safeops._doors import show

OPERATIONS = "the operations work with it"
require("safeops.autodiff.torch", "PyTorch", FOUND, "2.9", also=OPERATIONS)

from safeops.autodiff._explain.report import Report
from safeops.autodiff._options import (
    Reaction,
    UnknownOperationWarning,
    check_options,
    is_one,
    places_of,
)
from safeops.autodiff.torch import _graph as graphs
from safeops.autodiff.torch import func
from safeops.autodiff.torch._compiled import compile  # noqa: A004  (the name that PyTorch has)
from safeops.autodiff.torch._explain.explanation import explained, explained_call
from safeops.autodiff.torch._first import carried, chosen
from safeops.autodiff.torch._lines import RecordLines
from safeops.autodiff.torch._passes import (
    EARLIER_GRADIENTS,
    gradients_of,
    mask_of_gradient,
    mask_of_leaf,
)
from safeops.autodiff.torch._ranks import require_kept_gradients, union_over
from safeops.autodiff.torch._redirect import Redirect
from safeops.autodiff.torch._sharded import is_sharded, local_of
from safeops.autodiff.torch._watch import watch_backward

__all__ = [
    "UnknownOperationWarning", "backward", "compile", "explain", "explain_backward", "func", "grad",
    "gradient_mask", "masked_backward", "record_lines", "value_and_grad", "watch_backward",
]  # fmt: skip

REASON = "the dispatch mode of safeops.autodiff.torch sees eager operations only"


@private.outside_programs(REASON)
def backward(
    tensors: Any,
    grad_tensors: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
    return_mask: bool = False,
    lazy: bool | None = None,
    on_unknown: Reaction = "warn",
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
        Whether the gradients can be differentiated; use this module for that too.
    inputs : tensor or sequence of tensors, optional
        Leaves to accumulate into. Default: all that the graph reaches.
    return_mask : bool, default: False
        Whether to return, for each leaf, where its gradient is active.
    lazy : bool, optional
        Whether to take the ordinary gradient, and the masked one only if the ordinary one is not
        finite. Default: where nobody can tell that there are two passes, see Notes. True has hooks
        on the way run twice, keeps a graph whose ordinary gradient is finite, takes a NaN for gone
        where a hook or a custom function writes 0 over it, and is refused where several processes
        share a gradient, as their decisions could differ.
    on_unknown : {"warn", "error", "ignore"}, default: "warn"
        What to do about an operation without a rule that meets absent entries. It runs as it is,
        and hides nothing.

    Returns
    -------
    None or dict of tensors
        With `return_mask` a mask for each leaf, as by `gradient_mask`.

    Raises
    ------
    ValueError
        If `on_unknown` is none of the three, or `lazy` and `return_mask` are both given.
    RuntimeError
        Inside a transform of `torch.func`, or for the result of `torch.compile`. With `lazy`
        also in a process group of several ranks, or with parameters of FSDP2.

    Notes
    -----
    **Gradient.** The gradient of a scalar tape, which visits only what the output reaches. It
    equals the gradient of `torch.autograd.backward` where that is finite.

    By default the ordinary pass runs first, on a CPU, in one process, without `return_mask`,
    `create_graph`, ``on_unknown="error"``, modes, forward mode and anomaly detection, unless hooks,
    a custom function or a checkpoint would run twice. In-place writes into views, and versions of
    PyTorch that do not tell of hooks on what is saved (2.9), are masked from the start. The
    ordinary pass keeps the graph, which is freed at the end. Gradients are added once they are
    finite; else, or after an error, the masked pass runs. A tensor on the way with `retain_grad()`
    then has the gradient of the masked pass alone; it is an error if an earlier gradient is in it,
    or if its ordinary one is all NaN, which cannot be told apart. Where the gradients of leaves are
    finite it keeps its ordinary one, NaN included.

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
    # An ordinary pass returns gradients that are added to leaves without their graph.
    lazy = chosen(None if create_graph else lazy, return_mask, create_graph, on_unknown == "error")
    graph = graphs.graph_of(graphs.listed(tensors), grad_tensors)
    to_add = None if inputs is None else graphs.listed(inputs)
    leaves = graph.leaves if to_add is None else graphs.tensors_of(to_add)
    keep = create_graph if retain_graph is None else retain_graph
    to: Any = {"create_graph": create_graph, "inputs": to_add}
    run = partial(torch.autograd.backward, graph.outputs, graph.cotangents, **to)
    how: Any = {"lazy": lazy, "keep": keep, "on_unknown": on_unknown, "create_graph": create_graph}
    # A leaf of the graph that is unused has got data of another dtype since: masked, not an error.
    asked = (graph.outputs, leaves, graph.cotangents)
    first = partial(torch.autograd.grad, *asked, allow_unused=inputs is not None)
    _, mode = carried(first, run, graph, leaves, add=True, **how)
    for leaf in leaves if mode else ():
        if leaf.grad is not None:
            EARLIER_GRADIENTS.keep_gradient(mode.tags, local_of(leaf.grad), has_graph=create_graph)
    if not return_mask:
        return None
    require_kept_gradients(leaves)
    return {leaf: gradient_mask(leaf) for leaf in leaves}


def gradient_mask(x: Array, /, *, group: Any = None) -> Array:
    """
    Where the gradient of a leaf is active: a 0 that is not active belongs to an unused entry.

    Parameters
    ----------
    x : tensor
        A leaf, after a masked pass.
    group : process group, optional
        The process group over which to unite the masks, such as `torch.distributed.group.WORLD`;
        then all its ranks have to call this function. Default: the mask of this rank alone, even
        where the gradient has been reduced over ranks, as by DDP.

    Returns
    -------
    tensor of bool
        In the shape of `x`; the union over all calls that have accumulated into it. For a DTensor,
        a DTensor with the mask of all ranks.

    Raises
    ------
    ValueError
        If an ordinary backward pass has made the gradient, or FSDP2 has replaced it.

    Notes
    -----
    **Gradient.** A leaf without a gradient has no active entries.

    **Source.** The masks of `torch.masked.MaskedTensor`.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
    >>> backward(0.0 * x[1], lazy=False)
    >>> x.grad, gradient_mask(x)
    (tensor([0., 0.]), tensor([False,  True]))
    """
    mask = mask_of_leaf(x)
    if group is not None and not is_sharded(x):
        mask = union_over(group, mask, x)
    if mask is None:
        msg = (
            "expected a tensor whose .grad a masked backward has made, got one without a mask, as "
            "from an ordinary backward, of which lazy=False makes a masked one, or from FSDP2, "
            "which makes another gradient of it"
        )
        raise ValueError(msg)
    return mask


@private.outside_programs(REASON)
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
    lazy: bool | None = None,
    on_unknown: Reaction = "warn",
) -> Any:
    """
    `torch.autograd.grad`, in which an entry that nothing selected is absent, and not 0.

    Parameters
    ----------
    outputs : tensor or sequence of tensors
        What to differentiate.
    inputs : tensor or sequence of tensors
        The inputs to differentiate with respect to.
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
        Whether to return masks as well.
    lazy : bool, optional
        As for `backward`.
    on_unknown : {"warn", "error", "ignore"}, default: "warn"
        As for `backward`.

    Returns
    -------
    tuple of tensors
        The gradients; with `return_mask` a pair of the gradients and their masks.

    Raises
    ------
    ValueError, RuntimeError
        As for `backward`.

    Notes
    -----
    **Gradient.** As for `backward`. For second derivatives use ``create_graph=True`` and this
    function again: for `torch.autograd.grad`, absent entries of a masked gradient are zeros.

    **Source.** `torch.autograd.grad`.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> grad(x.sqrt()[1], x, return_mask=True)
    ((tensor([0.0000, 0.2500]),), (tensor([False,  True]),))
    """
    check_options(on_unknown, lazy=lazy, return_mask=return_mask)
    lazy = chosen(lazy, return_mask, create_graph, on_unknown == "error")
    graph, xs = graphs.graph_of(graphs.listed(outputs), grad_outputs), graphs.listed(inputs)
    keep = create_graph if retain_graph is None else retain_graph
    run = partial(
        torch.autograd.grad,
        graph.outputs,
        xs,
        graph.cotangents,
        create_graph=create_graph,
        allow_unused=allow_unused,
        materialize_grads=materialize_grads,
    )
    how: Any = {"lazy": lazy, "keep": keep, "on_unknown": on_unknown, "create_graph": create_graph}
    found, mode = carried(run, run, graph, xs, **how)
    if not return_mask:
        return found
    return found, tuple(mask_of_gradient(mode, x, g) for x, g in zip(xs, found, strict=True))


@contextmanager
def masked_backward(*, lazy: bool | None = None, on_unknown: Reaction = "warn") -> Iterator[None]:
    """
    Context in which ``loss.backward()`` is masked, for code that cannot be changed.

    Parameters
    ----------
    lazy, on_unknown
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
    check_options(on_unknown, lazy=lazy)
    with Redirect({call: partial(f, lazy=lazy) for call, f in OURS.items()}, on_unknown):
        yield


OURS: Mapping[Any, Callable[..., Any]] = {
    torch.Tensor.backward: backward,
    torch.autograd.backward: backward,
    torch.autograd.grad: grad,
}


def value_and_grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    create_graph: bool = False,
    return_mask: bool = False,
    lazy: bool | None = None,
    on_unknown: Reaction = "warn",
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
    one = is_one(argnums)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        graphs.check_graph([])
        every, numbers = list(args), places_of(argnums, len(args))
        given, structure = tree_flatten([args[i] for i in numbers])
        inputs = [graphs.input_of(x, create_graph=create_graph) for x in given]
        for i, x in zip(numbers, tree_unflatten(inputs, structure), strict=True):
            every[i] = x
        with torch.enable_grad():
            value = f(*every, **kwargs)
        value, aux = value if has_aux else (value, None)
        graphs.require_one_number(value)
        how: Any = {"return_mask": return_mask, "lazy": lazy, "on_unknown": on_unknown}
        gradients, masks = gradients_of(grad, value, inputs, create_graph=create_graph, **how)
        found, active = (tree_unflatten(list(x), structure) for x in (gradients, masks))
        found, active = (x[0] if one else tuple(x) for x in (found, active))
        value = value if create_graph else value.detach()
        return ((value, aux) if has_aux else value), (found, active) if return_mask else found

    check_options(on_unknown, lazy=lazy, return_mask=return_mask)
    return wrapped


def explain(
    f: Callable[..., Array], *args: Any, argnums: int | Sequence[int] = 0, interim: bool = False
) -> Report:
    """
    Which line of a function makes its gradient NaN, and whether the entries concerned are used.

    Parameters
    ----------
    f : callable
        Function of tensors, or of tuples, lists and dicts of them, to a scalar.
    *args : any
        Its arguments.
    argnums : int or sequence of ints, default: 0
        Arguments to differentiate with respect to.
    interim : bool, default: False
        As for `safeops.autodiff.explain`.

    Returns
    -------
    Report
        The findings; ``str`` of it is the text.

    Raises
    ------
    TypeError
        If an argument to differentiate with respect to holds anything but real or complex tensors.
    RuntimeError
        As for `backward`.

    Notes
    -----
    **Gradient.** None is changed, and none is returned. The backward pass runs once if value and
    gradient are finite; else twice more, ordinary and masked, with the hooks of the user.

    **Source.** `torch.autograd.detect_anomaly`, which names the first operation that made a NaN,
    used or not.

    Examples
    --------
    >>> import torch
    >>> report = explain(lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum(), torch.zeros(2))
    >>> [(finding.kind, finding.operation, finding.selection) for finding in report.findings]
    [('BLOCKED', 'sqrt', 'where')]
    """
    return explained_call(f, args, argnums, interim=interim)


def explain_backward(tensors: Any, grad_tensors: Any = None, /, *, inputs: Any = None) -> Report:
    """
    Which line makes the gradient of an existing loss NaN.

    Parameters
    ----------
    tensors : tensor or sequence of tensors
        What to differentiate, such as a loss.
    grad_tensors : tensor or sequence of tensors, optional
        Cotangents in the shapes of `tensors`. Default: 1, for scalars.
    inputs : tensor or sequence of tensors, optional
        Leaves whose gradients are checked. Default: all that the graph reaches.

    Returns
    -------
    Report
        As by `explain`. The lines are known of operations that ran in `record_lines`.

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
    return explained(tensors, None if inputs is None else graphs.listed(inputs), grad_tensors)


@contextmanager
def record_lines() -> Iterator[None]:
    """
    Context in which each operation is recorded with its line, for `explain_backward`.

    Yields
    ------
    None

    Notes
    -----
    **Gradient.** None is changed.

    **Source.** `torch.overrides.TorchFunctionMode`. Operations in an `autograd.Function` have no
    line.

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


__dir__ = show("safeops.autodiff.torch", __all__, globals())
