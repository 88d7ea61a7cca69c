"""
`torch.func` with masked derivatives: gradients in which an entry that was never used is absent.

These functions have the signatures of `torch.func`, and work inside and around `torch.func.vmap`
and each other. The backward pass is masked as in `safeops.autodiff.torch.grad`; under `vmap` it
runs the operations of whole batches.

- These functions mask the derivatives that they take themselves. A `torch.func.grad` inside of a
  program stays as it is; a `torch.func.grad` around takes absent entries as zeros. Use these
  functions for both.
- `torch.compile` does not trace them: the graph breaks where one is called, and with
  ``fullgraph=True`` that is an error which says so. Compile a loss with
  `safeops.autodiff.torch.compile` instead.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops._doors import show
from safeops.autodiff._options import Reaction, check_options
from safeops.autodiff.torch._graph import nodes_of
from safeops.autodiff.torch._passes import masking
from safeops.autodiff.torch._sharded import local_of

# Masked backward passes inside the transforms of `torch.func`.
#
# In a transform tensors are wrapped, once for each `grad` and `vmap` around them. A dispatch mode
# runs below the wrappers: it sees the tensors in memory, of whole batches. So the evaluator of
# eager mode serves here too. Cotangents are unwrapped once, to state that they are active.


class Functional(TorchFunctionMode):
    """Mask the backward pass of one transform, but no backward pass inside its function."""

    def __init__(self, on_unknown: str, *, basis: bool = False) -> None:
        super().__init__()
        self.on_unknown = on_unknown
        self.basis = basis
        self.within = False

    def outside(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function in which the mode does nothing."""

        @wraps(func)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.within = True
            try:
                return func(*args, **kwargs)
            finally:
                self.within = False

        return wrapped

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        if func is not torch.autograd.grad or self.within:
            return func(*args, **(kwargs or {}))
        outputs, inputs = args
        cotangents = seeds(outputs, kwargs["grad_outputs"])
        nodes, create_graph = nodes_of(outputs), kwargs["create_graph"]
        masked = masking(nodes, outputs, cotangents, self.on_unknown, create_graph=create_graph)
        with masked as mode:
            for g in cotangents if self.basis else ():
                mode.tags.write(local_of(g), local_of(g != 0))
            return func(outputs, inputs, **{**kwargs, "grad_outputs": cotangents})


def seeds(outputs: Any, given: Any) -> list[Array]:
    """Return cotangents in memory of their own."""
    if given is None:
        return [torch.ones_like(y) for y in outputs]
    return [g.clone() for g in given]


__all__ = ["grad", "hessian", "jacrev", "value_and_grad", "vjp"]

REASON = (
    "safeops.autodiff.torch.func sees operations as they run, and is not traced: call it outside "
    "of what is compiled, or compile a loss with safeops.autodiff.torch.compile"
)


@private.outside_programs(REASON)
def run(mode: Functional, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a transform in its mode. No function is made here, as Dynamo would have to make it."""
    with mode:
        return f(*args, **kwargs)


def grad(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,  # noqa: FBT001, FBT002  (the signature of PyTorch)
    *,
    on_unknown: Reaction = "warn",
) -> Callable[..., Any]:
    """
    `torch.func.grad`, in which an entry that nothing selected is absent, and not 0.

    Parameters
    ----------
    func : callable
        Function of tensors to a scalar.
    argnums : int or tuple of ints, default: 0
        Arguments to differentiate with respect to.
    has_aux : bool, default: False
        Whether `func` returns a pair of the value and something else.
    on_unknown : {"warn", "error", "ignore"}, default: "warn"
        What to do about an operation without a rule that meets absent entries. It runs as it is,
        which hides nothing.

    Returns
    -------
    callable
        Function to the gradient, or to ``(gradient, aux)``.

    Raises
    ------
    ValueError
        If `on_unknown` is none of the three.

    Notes
    -----
    **Gradient.** As for `safeops.autodiff.torch.grad`.

    **Source.** `torch.func.grad`.

    Examples
    --------
    >>> import torch
    >>> f = grad(lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum())
    >>> torch.func.vmap(f)(torch.tensor([[0.0, 4.0], [1.0, -1.0]]))
    tensor([[0.0000, 0.2500],
            [0.5000, 0.0000]])
    """
    both = value_and_grad(func, argnums, has_aux, on_unknown=on_unknown)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def value_and_grad(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,  # noqa: FBT001, FBT002  (as above)
    *,
    on_unknown: Reaction = "warn",
) -> Callable[..., Any]:
    """
    `torch.func.grad_and_value` with masks; the value comes first, as the name says.

    Parameters
    ----------
    func, argnums, has_aux, on_unknown
        As for `grad`.

    Returns
    -------
    callable
        Function to ``(value, gradient)``, or to ``((value, aux), gradient)``.

    Notes
    -----
    **Gradient.** As for `grad`.

    **Source.** `torch.func.grad_and_value`, in the order of `jax.value_and_grad`.

    Examples
    --------
    >>> import torch
    >>> value_and_grad(lambda x: x.sqrt()[1])(torch.tensor([0.0, 4.0]))
    (tensor(2.), tensor([0.0000, 0.2500]))
    """
    check_options(on_unknown)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        mode = Functional(on_unknown)
        made = torch.func.grad_and_value(mode.outside(func), argnums, has_aux)
        gradient, value = run(mode, made, *args, **kwargs)
        return value, gradient

    return wrapped


def vjp(
    func: Callable[..., Any], *primals: Any, has_aux: bool = False, on_unknown: Reaction = "warn"
) -> Any:
    """
    `torch.func.vjp` with masks; every entry of the given cotangent is active, zeros too.

    Parameters
    ----------
    func : callable
        Function of tensors to tensors.
    *primals : tensor
        Its arguments.
    has_aux, on_unknown
        As for `grad`.

    Returns
    -------
    tuple
        ``(output, vjp_fn)``, or ``(output, vjp_fn, aux)``.

    Notes
    -----
    **Gradient.** As for `grad`.

    **Source.** `torch.func.vjp`.

    Examples
    --------
    >>> import torch
    >>> _, pull = vjp(lambda x: x.sqrt()[1], torch.tensor([0.0, 4.0]))
    >>> pull(torch.tensor(2.0))
    (tensor([0.0000, 0.5000]),)
    """
    check_options(on_unknown)
    mode = Functional(on_unknown)
    output, pull, *aux = run(mode, torch.func.vjp, mode.outside(func), *primals, has_aux=has_aux)

    def pulled(*args: Any, **kwargs: Any) -> Any:
        return run(mode, pull, *args, **kwargs)

    return (output, pulled, *aux)


def jacrev(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    on_unknown: Reaction = "warn",
) -> Callable[..., Any]:
    """
    `torch.func.jacrev` with masks: each row is the masked gradient of one entry of the output.

    Parameters
    ----------
    func : callable
        Function of tensors to tensors.
    argnums, has_aux
        As for `grad`.
    chunk_size : int, optional
        How many rows are computed at once. Default: all.
    on_unknown
        As for `grad`.

    Returns
    -------
    callable
        Function to the Jacobian, or to ``(jacobian, aux)``.

    Notes
    -----
    **Gradient.** As for `grad`; in a row of the Jacobian, other entries of the output are absent.

    **Source.** `torch.func.jacrev`.

    Examples
    --------
    >>> import torch
    >>> jacrev(lambda x: 1 / x)(torch.tensor([0.0, 2.0]))
    tensor([[   -inf,  0.0000],
            [ 0.0000, -0.2500]])
    """
    check_options(on_unknown)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        mode = Functional(on_unknown, basis=True)
        made = torch.func.jacrev(
            mode.outside(func), argnums, has_aux=has_aux, chunk_size=chunk_size
        )
        return run(mode, made, *args, **kwargs)

    return wrapped


def hessian(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, *, on_unknown: Reaction = "warn"
) -> Callable[..., Any]:
    """
    `torch.func.hessian` with masks, by reverse mode twice.

    Parameters
    ----------
    func : callable
        Function of tensors to a scalar.
    argnums, on_unknown
        As for `grad`.

    Returns
    -------
    callable
        Function to the matrix of second derivatives.

    Notes
    -----
    **Gradient.** As for `grad`, taken twice.

    **Source.** `torch.func.hessian`, which takes forward mode over reverse mode.

    Examples
    --------
    >>> import torch
    >>> hessian(lambda x: torch.where(x > 0, x.log(), 0.0).sum())(torch.tensor([0.0, 2.0]))
    tensor([[ 0.0000,  0.0000],
            [ 0.0000, -0.2500]])
    """
    once = jacrev(func, argnums, on_unknown=on_unknown)
    return jacrev(once, argnums, on_unknown=on_unknown)


__dir__ = show("safeops.autodiff.torch.func", __all__, globals())
