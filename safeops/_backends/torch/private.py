"""
The private names of PyTorch that this package uses, each once.

Above each name stands a comment with the name, the version of PyTorch in which it was seen, and its
purpose. No public name serves that purpose. The documentation shows these comments as a table, and
a test compares them with the code below.
"""

from functools import cache
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch, _pytree

from safeops._typing import Array, Function

# torch._C._len_torch_dispatch_stack (2.13): how many dispatch modes see each operation.
dispatch_modes: Function = torch._C._len_torch_dispatch_stack

# torch._C._get_dispatch_mode (2.13): which dispatch modes of PyTorch's own are at work.
dispatch_mode: Function = torch._C._get_dispatch_mode

# torch._C._TorchDispatchModeKey (2.13): the modes that trace, as a compiler does.
mode_keys: Any = torch._C._TorchDispatchModeKey

# torch._C._DisableTorchDispatch (2.13): asks for numbers without the modes, in kernels.
without_dispatch: Function = torch._C._DisableTorchDispatch

# torch._C.DisableTorchFunction (2.13): asks for numbers without the modes and classes of a program.
without_functions: Function = torch._C.DisableTorchFunction

# torch.utils._python_dispatch._disable_current_modes (2.13): asks without dispatch modes.
without_modes: Function = _python_dispatch._disable_current_modes

# torch.utils._python_dispatch.TorchDispatchMode (2.13): sees each operation of a backward pass.
TorchDispatchMode: Any = _python_dispatch.TorchDispatchMode

# torch._C._SetExcludeDispatchKeyGuard (2.13): lets kernels respect lazily conjugated views.
without_key: Function = torch._C._SetExcludeDispatchKeyGuard

# torch._C.DispatchKey (2.13): names what `without_key` leaves out, and operations made of others.
DispatchKey: Any = torch._C.DispatchKey

# torch._C._dispatch_has_kernel_for_dispatch_key (2.13): whether an operation is made of others.
has_kernel: Function = torch._C._dispatch_has_kernel_for_dispatch_key

# torch._C._are_functorch_transforms_active (2.13): what `autograd.Function.apply` asks itself.
in_transform: Function = torch._C._are_functorch_transforms_active

# torch._C._functorch.peek_interpreter_stack (2.13): whether a transform of `torch.func` is at work.
peek_transform: Function = torch._C._functorch.peek_interpreter_stack

# torch._C._functorch.is_functorch_wrapped_tensor (2.13): tensors of `grad` and `vmap`.
is_wrapper: Function = torch._C._functorch.is_functorch_wrapped_tensor

# torch._C._functorch.get_unwrapped (2.13): the tensor in a wrapper, which modes see.
unwrapped: Function = torch._C._functorch.get_unwrapped

# torch._C._current_autograd_node (2.13): which derivative formula is running, so that a 0 of
# `where` is told from a 0 of `norm`.
current_node: Function = torch._C._current_autograd_node

# torch._C._get_cpp_backtrace (2.13): the formula within a node of an in-place write into a view.
backtrace: Function = torch._C._get_cpp_backtrace

# torch.autograd._get_sequence_nr (2.13): which nodes are new.
next_number: Function = torch.autograd._get_sequence_nr

# torch.ops.aten._softmax_backward_data (2.13): the derivative of softmax in one pass.
softmax_backward: Function = torch.ops.aten._softmax_backward_data.default

# torch.ops.aten._upsample_bilinear2d_aa (2.13): which pixels an antialiased image reads.
upsample_linear: Function = torch.ops.aten._upsample_bilinear2d_aa

# torch.ops.aten._upsample_bicubic2d_aa (2.13): the same for cubic weights.
upsample_cubic: Function = torch.ops.aten._upsample_bicubic2d_aa

# torch._decomp.decomposition_table (2.13): the parts of a fused kernel.
decomposition_table: Any = torch._decomp.decomposition_table

# torch.utils._pytree (2.13): tensors in arguments and results, and back.
tree_leaves: Function = _pytree.tree_leaves
tree_map: Function = _pytree.tree_map
tree_flatten: Function = _pytree.tree_flatten
tree_unflatten: Function = _pytree.tree_unflatten


def forward_level() -> int:
    """Return the level of forward mode, below 0 outside of it."""
    # torch.autograd.forward_ad._current_level (2.13): whether forward mode sees what is computed.
    return int(forward_ad._current_level)


def name_of_operation(func: Any) -> str:
    """Return the name of an operation without its form."""
    # OpOverload._opname (2.13): the name of an operation.
    return str(func._opname)


def has_programs(func: Any) -> bool:
    """Whether an operation takes programs, such as `cond`."""
    # torch._ops.HigherOrderOperator (2.13): what a compiler hands to a mode beside operations.
    return isinstance(func, torch._ops.HigherOrderOperator)


def schema(func: Any) -> Any:
    """Return what an operation takes, and what it writes into."""
    # OpOverload._schema (2.13): what an operation writes into.
    return func._schema


def number_of_node(node: Any) -> int:
    """Return the number of a node of autograd, which grows."""
    # Node._sequence_nr (2.13): in which order nodes were made.
    return int(node._sequence_nr())


def forward_class(node: Any) -> Any:
    """Return the `autograd.Function` of a node."""
    # Node._forward_cls (2.13): whether a formula is one of ours.
    return node._forward_cls


def saved(node: Any, name: str) -> Any:
    """Return what a node saved under a name."""
    # Node._saved_ (2.13): begins the names of what a node saved, such as windows of a convolution.
    return getattr(node, f"_saved_{name}")


def base_of(x: Array) -> Array | None:
    """Return the tensor of which x is a view."""
    # Tensor._base (2.13): the node of an in-place write into a view.
    return x._base


def compiled_from(x: Any) -> Any:
    """Return the module that a module was compiled from; None for any other module."""
    # OptimizedModule._orig_mod (2.13): the names of parameters as the program has them.
    return getattr(x, "_orig_mod", None)


def buffers_of(module: Any) -> list[str]:
    """Return the names of the buffers of a module itself, also of those that are None."""
    # Module._buffers (2.13): buffers that a first step makes.
    return [key for key, _ in module._buffers.items()]


def stored_values(x: Array) -> Array:
    """Return the numbers that a sparse tensor stores."""
    # Tensor._values (2.13): entries of a sparse tensor before equal places are merged.
    return x._values()


def gradient_hooks(x: Array) -> Any:
    """Return the hooks that run when the gradient of a leaf is there."""
    # Tensor._post_accumulate_grad_hooks (2.13): whether a hook uses gradients up.
    return getattr(x, "_post_accumulate_grad_hooks", None)


def storage_id(storage: Any) -> int:
    """Return a number for memory."""
    # UntypedStorage._cdata (2.13): which memory a tensor lives in, as views share it.
    return int(storage._cdata)


def version(x: Array) -> int:
    """Return how often a tensor, or a view of it, has been written into."""
    # Tensor._version (2.13): whether what was known of a gradient still holds.
    return int(x._version)


def local_tensor(x: Array) -> Array:
    """Return the part of a DTensor on this rank."""
    # DTensor._local_tensor (2.13): that part, as `to_local` is a new view, on the graph.
    return x._local_tensor


def wait_tensor(x: Array) -> Array:
    """Return what a collective makes of x, once it is there."""
    # torch.ops._c10d_functional.wait_tensor (2.13): exchanges masks as gradients are exchanged.
    return torch.ops._c10d_functional.wait_tensor(x)


def collectives() -> Any:
    """Return the module of collectives that compile, and of their results."""
    # torch.distributed._functional_collectives (2.13): what a collective has not yet brought.
    from torch.distributed import _functional_collectives  # noqa: PLC0415  (slow)

    return _functional_collectives


def part_of(shape: Any, mesh: Any, places: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of the part of a DTensor on this rank, and where it begins."""
    # torch.distributed.tensor._utils (2.13): what part of a DTensor a rank has.
    from torch.distributed.tensor import _utils  # noqa: PLC0415  (slow)

    shape, offset = _utils.compute_local_shape_and_global_offset(shape, mesh, places)
    return shape, offset


def fake_tensor() -> Any:
    """Return the class of tensors without memory."""
    # torch._subclasses.fake_tensor (2.13): whether DTensor asks for a shape alone.
    from torch._subclasses import fake_tensor  # noqa: PLC0415  (slow)

    return fake_tensor.FakeTensor


def files_of_calls() -> set[str]:
    """Return the files of PyTorch that run between the engine and an operation."""
    # torch._compile (2.13): its file, by which an operation is known that no hook calls.
    # torch._dynamo.eval_frame (2.13): likewise.
    # torch._ops (2.13): likewise, for the parts of a DTensor.
    from torch._dynamo import eval_frame  # noqa: PLC0415  (slow)

    return {str(module.__file__) for module in (torch._compile, eval_frame, torch._ops)}


# torch.autograd.graph._engine_run_backward (2.13): where the engine begins, on the Python stack.
ENGINE = "_engine_run_backward"


def traced_stack() -> list[str]:
    """Return the lines of a user for which a compiler traces."""
    # torch.fx.traceback (2.13): the line of a user that a compiled operation stands for.
    from torch.fx import traceback  # noqa: PLC0415  (slow)

    return list(traceback.format_stack())


@cache
def files_of_joint() -> tuple[str, str]:
    """Return the file in which AOTAutograd asks for a backward pass, and one that hands that on."""
    # torch._functorch._aot_autograd.graph_capture_wrappers (2.13): which backward pass is traced.
    from torch._functorch._aot_autograd import graph_capture_wrappers  # noqa: PLC0415  (slow)
    from torch.fx.experimental import proxy_tensor  # noqa: PLC0415  (slow)

    return str(graph_capture_wrappers.__file__), str(proxy_tensor.__file__)


def lookup_backend(name: Any) -> Any:
    """Return a backend of `torch.compile`."""
    # torch._dynamo.lookup_backend (2.13): what is to compile a masked graph.
    from torch._dynamo import lookup_backend  # noqa: PLC0415  (slow)

    return lookup_backend(name)


def without_autograd_cache() -> Any:
    """Return a context in which AOTAutograd reads no cache, and writes none."""
    # torch._functorch.config (2.13): a cache that would take an ordinary graph for a masked one.
    from torch._functorch import config  # noqa: PLC0415  (slow)

    return config.patch(enable_autograd_cache=False)


def options_of_inductor(mode: str | None = None, options: Any = None) -> dict[str, Any]:
    """Return the configuration that a mode and options stand for."""
    # torch._inductor.list_mode_options (2.13): what a mode of `torch.compile` means.
    from torch._inductor import list_mode_options  # noqa: PLC0415  (slow)

    return {**(list_mode_options(mode) if mode else {}), **(options or {})}


@torch.compiler.assume_constant_result
def numbers_are_constants() -> bool:
    """Whether a program that is being compiled has the numbers of Python as constants."""
    # torch._dynamo.config.assume_static_by_default (2.13): False with dynamic=True.
    return bool(torch._dynamo.config.assume_static_by_default)
