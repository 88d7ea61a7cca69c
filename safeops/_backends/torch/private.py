"""
What this package reads of PyTorch's inside, each once.

Above each name stands a comment with the name, the versions of PyTorch in which it is there (the
newest that was tried, or from or before which one), and its purpose. No public name serves that
purpose. The documentation shows these comments as a table, and a test asks the installed PyTorch
for each.
"""

import sys
from collections.abc import Callable
from functools import cache, wraps
from inspect import unwrap
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FrameType
from typing import Any, TypeVar, cast

import torch
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function

from safeops._core.errors import gone, require
from safeops._core.types import Array, Function

F = TypeVar("F", bound=Function)
M = TypeVar("M", bound=type)

NEWEST = "2.15"  # that was tried
FOUND = torch.__version__.partition("+")[0]  # without the name of a build
require("safeops", "PyTorch", FOUND, "2.6")


def missing(what: object) -> ImportError:
    """Return an error in one sentence: PyTorch has no longer something that stands here."""
    return gone("safeops.autodiff.torch", "PyTorch", FOUND, NEWEST, str(what))


def reading(f: F) -> F:
    """Let a function that reads PyTorch's inside say in one sentence that a name is gone."""

    @wraps(f)
    def read(*args: Any, **options: Any) -> Any:
        try:
            return f(*args, **options)
        except (AttributeError, ImportError) as error:
            raise missing(error) from error

    return cast("F", read)


class Gone:
    """What stands for a name that PyTorch no longer has, until somebody needs it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Say in one sentence that it is gone."""
        raise missing(self.path)

    __getattr__ = __instancecheck__ = __mro_entries__ = __call__


def named(path: str) -> Any:
    """Return what has this name."""
    try:
        return resolve_name(path)
    except (AttributeError, ImportError):
        return Gone(path)


# torch._C._len_torch_dispatch_stack (2.15): how many dispatch modes see each operation.
dispatch_modes: Function = named("torch._C._len_torch_dispatch_stack")

# torch._C._get_dispatch_mode (2.15): which dispatch modes of PyTorch's own are at work.
dispatch_mode: Function = named("torch._C._get_dispatch_mode")

# torch._C._TorchDispatchModeKey (2.15): the modes that trace, as a compiler does.
mode_keys: Any = named("torch._C._TorchDispatchModeKey")

# torch._C._DisableTorchDispatch (2.15): asks for numbers without the modes, in kernels.
without_dispatch: Function = named("torch._C._DisableTorchDispatch")

# torch._C.DisableTorchFunction (2.15): asks for numbers without the modes and classes of a program.
without_functions: Function = named("torch._C.DisableTorchFunction")

# torch.utils._python_dispatch._disable_current_modes (2.15): asks without dispatch modes.
without_modes: Function = named("torch.utils._python_dispatch._disable_current_modes")

# torch.utils._python_dispatch.TorchDispatchMode (2.15): sees each operation of a backward pass.
TorchDispatchMode: Any = named("torch.utils._python_dispatch.TorchDispatchMode")

# torch._C._SetExcludeDispatchKeyGuard (2.15): lets kernels respect lazily conjugated views.
without_key: Function = named("torch._C._SetExcludeDispatchKeyGuard")

# torch._C.DispatchKey (2.15): names what `without_key` leaves out, and operations made of others.
DispatchKey: Any = named("torch._C.DispatchKey")

# torch._C._dispatch_has_kernel_for_dispatch_key (2.15): whether an operation is made of others.
has_kernel: Function = named("torch._C._dispatch_has_kernel_for_dispatch_key")

# torch._C._are_functorch_transforms_active (2.15): what `autograd.Function.apply` asks itself.
in_transform: Function = named("torch._C._are_functorch_transforms_active")

# torch._C._functorch.peek_interpreter_stack (2.15): whether a transform of `torch.func` is at work.
peek_transform: Function = named("torch._C._functorch.peek_interpreter_stack")

# torch._C._functorch.is_functorch_wrapped_tensor (2.15): tensors of `grad` and `vmap`.
is_wrapper: Function = named("torch._C._functorch.is_functorch_wrapped_tensor")

# torch._C._functorch.get_unwrapped (2.15): the tensor in a wrapper, which modes see.
unwrapped: Function = named("torch._C._functorch.get_unwrapped")

# torch._C._current_autograd_node (2.15): which derivative formula is running, so that a 0 of
# `where` is told from a 0 of `norm`.
current_node: Function = named("torch._C._current_autograd_node")

# torch._C._get_cpp_backtrace (2.15): the formula within a node of an in-place write into a view.
backtrace: Function = named("torch._C._get_cpp_backtrace")

# torch.autograd._get_sequence_nr (2.15): which nodes are new.
next_number: Function = named("torch.autograd._get_sequence_nr")

# torch.ops.aten._softmax_backward_data (2.15): the derivative of softmax in one pass.
softmax_backward: Function = named("torch.ops.aten._softmax_backward_data.default")

# torch.ops.aten._log_softmax_backward_data (2.15): that of its logarithm.
log_softmax_backward: Function = named("torch.ops.aten._log_softmax_backward_data.default")

# torch.ops.aten.native_layer_norm_backward (2.15): that of layer normalisation.
layer_norm_backward: Function = named("torch.ops.aten.native_layer_norm_backward.default")

# torch.ops.aten._cdist_forward (2.15): distances, by differences.
cdist: Function = named("torch.ops.aten._cdist_forward.default")

# torch.ops.aten._cdist_backward (2.15): their derivative, which has none of its own.
cdist_backward: Function = named("torch.ops.aten._cdist_backward.default")

# torch.ops.aten._scaled_dot_product_flash_attention_for_cpu (2.15): attention without its scores.
attention: Function = named("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default")

# torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward (2.15): its derivative.
attention_backward: Function = named(
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
)

# torch.ops.aten._upsample_bilinear2d_aa (2.15): which pixels an antialiased image reads.
upsample_linear: Function = named("torch.ops.aten._upsample_bilinear2d_aa")

# torch.ops.aten._upsample_bicubic2d_aa (2.15): the same for cubic weights.
upsample_cubic: Function = named("torch.ops.aten._upsample_bicubic2d_aa")

# torch._decomp.decomposition_table (2.15): the parts of a fused kernel.
decomposition_table: Any = named("torch._decomp.decomposition_table")

# torch.autograd.function.BackwardCFunction (2.15): the class of nodes of custom functions.
Custom: Any = named("torch.autograd.function.BackwardCFunction")

# torch.multiprocessing.reductions.StorageWeakRef (2.15): memory, by a number, without holding it.
StorageWeakRef: Any = named("torch.multiprocessing.reductions.StorageWeakRef")

# torch.utils._pytree (2.15): tensors in arguments and results, and back.
tree_leaves: Function = named("torch.utils._pytree.tree_leaves")
tree_map: Function = named("torch.utils._pytree.tree_map")
tree_flatten: Function = named("torch.utils._pytree.tree_flatten")
tree_unflatten: Function = named("torch.utils._pytree.tree_unflatten")


def is_compiler_there() -> bool:
    """Whether something has imported the compiler, which takes as long as PyTorch itself."""
    return "torch._dynamo" in sys.modules


def leave_alone(code: CodeType) -> None:
    """Let the compiler run the frames of this code as they are, and look at what these call."""
    # torch._C._dynamo.eval_frame (from 2.9): marks code, also without the compiler.
    frames = torch._C._dynamo.eval_frame
    # torch._C._dynamo.eval_frame.set_code_exec_strategy (from 2.9): marks code.
    # torch._C._dynamo.eval_frame._FrameAction (from 2.9): what is done with a frame.
    # torch._C._dynamo.eval_frame._FrameExecStrategy (from 2.9): that, and what with its callees.
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, default))


def outside_programs(reason: str) -> Callable[[F], F]:
    """`torch.compiler.disable`, which does not import the compiler before there is one."""

    # That one reads the compiler's modules where it decorates. Here they are asked once they are
    # there; until then nothing can be compiling.
    def decorated(f: F) -> F:
        disabled = cache(lambda: torch.compiler.disable(f, reason=reason))

        def run(*args: Any, **options: Any) -> Any:
            return disabled()(*args, **options) if is_compiler_there() else f(*args, **options)

        leave_alone(run.__code__)
        marked: Any = wraps(f)(run)
        # function._torchdynamo_disable (2.13): the mark of what no program takes up.
        # function._torchdynamo_disable_msg (2.13): the reason that the compiler then gives.
        marked._torchdynamo_disable, marked._torchdynamo_disable_msg = True, reason
        return cast("F", marked)

    return decorated


def unseen_mode(mode: M) -> M:
    """Keep the compiler out of a dispatch mode, without importing it."""
    # PyTorch keeps it out of every dispatch mode, and imports it at the first operation for that.
    disabled = outside_programs("dispatch modes see operations as they run")
    seen: Any = mode
    seen.__torch_dispatch__ = disabled(unwrap(seen.__torch_dispatch__))
    return mode


def forward_level() -> int:
    """Return the level of forward mode, below 0 outside of it."""
    # torch.autograd.forward_ad._current_level (2.15): whether forward mode sees what is computed.
    return int(forward_ad._current_level)


def name_of_operation(func: Any) -> str:
    """Return the name of an operation without its form."""
    # OpOverload._opname (2.15): the name of an operation.
    return str(func._opname)


def has_programs(func: Any) -> bool:
    """Whether an operation takes programs, such as `cond`."""
    # torch._ops.HigherOrderOperator (2.15): what a compiler hands to a mode beside operations.
    return isinstance(func, torch._ops.HigherOrderOperator)


def schema(func: Any) -> Any:
    """Return what an operation takes, and what it writes into."""
    # OpOverload._schema (2.15): what an operation writes into.
    return func._schema


def number_of_node(node: Any) -> int:
    """Return the number of a node of autograd, which grows."""
    # Node._sequence_nr (2.15): in which order nodes were made.
    return int(node._sequence_nr())


def forward_class(node: Any) -> Any:
    """Return the `autograd.Function` of a node."""
    # Node._forward_cls (2.15): whether a formula is one of ours.
    return node._forward_cls


def saved(node: Any, name: str) -> Any:
    """Return what a node saved under a name."""
    # Node._saved_ (2.15): begins the names of what a node saved, such as windows of a convolution.
    return getattr(node, f"_saved_{name}")


def base_of(x: Array) -> Array | None:
    """Return the tensor of which x is a view."""
    # Tensor._base (2.15): the node of an in-place write into a view.
    return x._base


def compiled_from(x: Any) -> Any:
    """Return the module that a module was compiled from; None for any other module."""
    # OptimizedModule._orig_mod (2.15): the names of parameters as the program has them.
    return getattr(x, "_orig_mod", None)


def buffers_of(module: Any) -> list[str]:
    """Return the names of the buffers of a module itself, also of those that are None."""
    # Module._buffers (2.15): buffers that a first step makes.
    return [key for key, _ in module._buffers.items()]


def stored_values(x: Array) -> Array:
    """Return the numbers that a sparse tensor stores."""
    # Tensor._values (2.15): entries of a sparse tensor before equal places are merged.
    return x._values()


def gradient_hooks(x: Array) -> Any:
    """Return the hooks that run when the gradient of a leaf is there."""
    # Tensor._post_accumulate_grad_hooks (2.15): whether a hook uses gradients up.
    return getattr(x, "_post_accumulate_grad_hooks", None)


def tensor_hooks(x: Array) -> Any:
    """Return the hooks that see the gradient of a tensor."""
    # Tensor._backward_hooks (2.15): whether a second backward pass would run them again.
    return x._backward_hooks


def hooks_made() -> int:
    """Return how many hooks of any kind this process has registered so far."""
    # torch.utils.hooks.RemovableHandle.next_id (2.15): whether a hook is new, as no node tells.
    return int(torch.utils.hooks.RemovableHandle.next_id)


def without_gradient(x: Array) -> Array:
    """Return a tensor whose cotangent goes no further, though the nodes before it run."""
    # torch._C._functions.UndefinedGrad (2.15): frees a graph without computing.
    return torch._C._functions.UndefinedGrad()(x)


def run_engine(outputs: Any, cotangents: Any, inputs: Any, *, accumulate: bool) -> None:
    """Run a backward pass that frees the graph; add gradients to leaves, or forget them."""
    # By its name, below: `grad` and `backward` ask before, and import the compiler for that.
    keep = create_graph = False
    args = (tuple(outputs), tuple(cotangents), keep, create_graph, tuple(inputs))
    run = getattr(torch.autograd.graph, ENGINE)
    run(*args, allow_unreachable=True, accumulate_grad=accumulate)


def names_of_saved(kind: type) -> tuple[str, ...] | None:
    """Return under which names nodes of a class have what they saved; None if they do not tell."""
    # Node._raw_saved_ (2.15): begins the names of what a node saved, before it is unpacked.
    # SavedTensor.unpack_hook (from 2.13): the hook that unpacks it, asked below.
    if not hasattr(torch._C._autograd.SavedTensor, "unpack_hook"):
        return None
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def are_saved_in(classes: frozenset[type], node: Any, names: tuple[str, ...]) -> bool:
    """Whether the tensors that a node saved are of these classes, and have no hooks."""
    # SavedTensor.data (from 2.13): what a node saved, without unpacking it.
    for name in names:
        saved = getattr(node, name)
        for x in saved if isinstance(saved, tuple) else (saved,):
            if x.unpack_hook is not None or type(x.data) not in classes:
                return False
    return True


def hooks_saving() -> bool:
    """Whether what nodes save now gets hooks."""
    # torch._C._autograd._top_saved_tensors_default_hooks (2.15): a backward pass may save, too.
    found = torch._C._autograd._top_saved_tensors_default_hooks(False)  # noqa: FBT003  (as it is)
    return found is not None


def is_in_mode() -> bool:
    """Whether a mode sees functions or operations of this thread."""
    # torch._C._len_torch_function_stack (2.15): who would see the call of a backward pass.
    return bool(torch._C._len_torch_function_stack() or dispatch_modes())


def storage_id(storage: Any) -> int:
    """Return a number for memory."""
    # UntypedStorage._cdata (2.15): which memory a tensor lives in, as views share it.
    return int(storage._cdata)


def version(x: Array) -> int:
    """Return how often a tensor, or a view of it, has been written into."""
    # Tensor._version (2.15): whether what was known of a gradient still holds.
    return int(x._version)


def local_tensor(x: Array) -> Array:
    """Return the part of a DTensor on this rank."""
    # DTensor._local_tensor (2.15): that part, as `to_local` is a new view, on the graph.
    return x._local_tensor


def wait_tensor(x: Array) -> Array:
    """Wait for a collective; return its result."""
    # torch.ops._c10d_functional.wait_tensor (2.15): exchanges masks as gradients are exchanged.
    return torch.ops._c10d_functional.wait_tensor(x)


@reading
def collectives() -> Any:
    """Return the module of collectives that compile, and of their results."""
    # torch.distributed._functional_collectives (2.15): what a collective has not yet brought.
    from torch.distributed import _functional_collectives  # noqa: PLC0415  (slow)

    return _functional_collectives


@reading
def part_of(shape: Any, mesh: Any, places: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of the part of a DTensor on this rank, and where it begins."""
    # torch.distributed.tensor._utils (2.15): what part of a DTensor a rank has.
    from torch.distributed.tensor import _utils  # noqa: PLC0415  (slow)

    shape, offset = _utils.compute_local_shape_and_global_offset(shape, mesh, places)
    return shape, offset


@reading
def fake_tensor() -> Any:
    """Return the class of tensors without memory."""
    # torch._subclasses.fake_tensor (2.15): whether DTensor asks for a shape alone.
    from torch._subclasses import fake_tensor  # noqa: PLC0415  (slow)

    return fake_tensor.FakeTensor


@reading
def files_of_calls() -> set[str]:
    """Return the files of PyTorch that run between the engine and an operation."""
    # torch._compile (2.15): its file, by which an operation is known that no hook calls.
    # torch._ops (2.15): likewise, for the parts of a DTensor.
    of_the_compiler = Path(torch.__file__).parent / "_dynamo" / "eval_frame.py"
    return {str(torch._compile.__file__), str(torch._ops.__file__), str(of_the_compiler)}


# torch.autograd.graph._engine_run_backward (2.15): where the engine begins, on the Python stack.
ENGINE = "_engine_run_backward"


def hand_on_backward() -> None:
    """
    Let `torch.autograd.backward` hand itself to the function modes of a program, as from 2.11 on.

    Before, a call in `masked_backward` is an ordinary one, and what watches a program misses it.
    The door of the engine asks the modes, as the function itself may have other names.
    """
    # torch.autograd._engine_run_backward (before 2.11): the door, as `backward` finds it.
    # torch._C._is_torch_function_mode_enabled (before 2.11): whether a mode is at work.
    if "handle_torch_function" in torch.autograd.backward.__code__.co_names:
        return
    run, at_work = torch.autograd._engine_run_backward, torch._C._is_torch_function_mode_enabled

    @outside_programs("it runs the engine, which no compiler traces")
    def run_backward(outputs: Any, *args: Any, accumulate_grad: bool = False, **how: Any) -> Any:
        if not (accumulate_grad and at_work()):
            return run(outputs, *args, accumulate_grad=accumulate_grad, **how)
        *given, inputs = args
        ours = (torch.autograd.backward, outputs, outputs)
        return handle_torch_function(*ours, *given, inputs=inputs or None)

    torch.autograd._engine_run_backward = run_backward


def codes_of_apply() -> set[CodeType]:
    """Return the code that calls the backward method of a custom function."""
    # BackwardCFunction.apply (2.15): calls it.
    # BackwardCFunction.apply_boxed (from 2.13): calls that of a compiled graph.
    found = (vars(Custom).get(name) for name in ("apply", "apply_boxed"))
    return {function.__code__ for function in found if function is not None}


# torch.autograd.Function.apply (2.15): calls `forward`; below 2.15 it is Python, with a frame.
APPLY = getattr(torch.autograd.Function.apply, "__code__", None)


def called_function(frame: FrameType) -> Any:
    """Return the `autograd.Function` that a frame calls, or whose `forward` it is."""
    if APPLY is not None:
        return frame.f_locals["cls"] if frame.f_code is APPLY else None
    context = next((frame.f_locals.get(name) for name in frame.f_code.co_varnames[:1]), None)
    return forward_class(context) if isinstance(context, Custom) else None


@reading
def traced_stack() -> list[str]:
    """Return the lines of a user for which a compiler traces."""
    # torch.fx.traceback (2.15): the line of a user that a compiled operation stands for.
    from torch.fx import traceback  # noqa: PLC0415  (slow)

    return list(traceback.format_stack())


@reading
def frame_of_compiler() -> int | None:
    """Return the number of the function of a program that is compiled; None if there is none."""
    # torch._guards.CompileContext (2.15): by it a graph that breaks is told from one made again.
    from torch._guards import CompileContext  # noqa: PLC0415  (slow)

    made = CompileContext.current_compile_id()
    return None if made is None else made.frame_id


@cache
@reading
def files_of_joint() -> tuple[str, str]:
    """Return the file in which AOTAutograd asks for a backward pass, and one that hands that on."""
    # torch._functorch._aot_autograd.graph_capture_wrappers (2.15): which backward pass is traced.
    from torch._functorch._aot_autograd import graph_capture_wrappers  # noqa: PLC0415  (slow)

    # torch.fx.experimental.proxy_tensor (2.15): what hands the question on.
    from torch.fx.experimental import proxy_tensor  # noqa: PLC0415  (slow)

    return str(graph_capture_wrappers.__file__), str(proxy_tensor.__file__)


@reading
def lookup_backend(name: Any) -> Any:
    """Return a backend of `torch.compile`."""
    # torch._dynamo.lookup_backend (2.15): what is to compile a masked graph.
    from torch._dynamo import lookup_backend  # noqa: PLC0415  (slow)

    return lookup_backend(name)


@reading
def without_autograd_cache() -> Any:
    """Return a context in which AOTAutograd reads no cache, and writes none."""
    # torch._functorch.config (2.15): a cache that would take an ordinary graph for a masked one.
    from torch._functorch import config  # noqa: PLC0415  (slow)

    return config.patch(enable_autograd_cache=False)


@reading
def options_of_inductor(mode: str | None = None, options: Any = None) -> dict[str, Any]:
    """Return the configuration that a mode and options stand for."""
    # torch._inductor.list_mode_options (2.15): what a mode of `torch.compile` means.
    from torch._inductor import list_mode_options  # noqa: PLC0415  (slow)

    return {**(list_mode_options(mode) if mode else {}), **(options or {})}


def numbers_are_constants() -> bool:
    """Whether a program that is being compiled has the numbers of Python as constants."""
    # torch._dynamo.config.assume_static_by_default (2.15): False with dynamic=True.
    return bool(torch._dynamo.config.assume_static_by_default)


# function._dynamo_marked_constant (2.13): all that `torch.compiler.assume_constant_result` does;
# that one imports the compiler, which takes as long as PyTorch itself.
_marked: Any = numbers_are_constants
_marked._dynamo_marked_constant = True
