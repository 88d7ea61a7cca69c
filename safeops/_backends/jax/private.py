"""
What this package reads of JAX's inside, each once: traces, programs, parameters of operations.

Above each name stands a comment with the name, the versions of JAX in which it is there (the newest
that was tried, or from or before which one), and its purpose. No public name serves that purpose.
The documentation shows these comments as a table, and a test asks the installed JAX for each.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.extend.core import JaxprEqn

from safeops._backends.jax.bodies import Program, closed, opened
from safeops._core.errors import gone
from safeops._core.types import Array, Function

NEWEST = "0.12"  # that was tried
LAYER = "safeops.autodiff.jax"
FILL = "fill_value"  # a parameter

Params: TypeAlias = Mapping[str, Any]


def reading(f: Function) -> Function:
    """Let a function that reads JAX's inside say in one sentence that a name is gone."""

    @wraps(f)
    def read(*args: Any) -> Any:
        try:
            return f(*args)
        except (AttributeError, ImportError, KeyError) as error:
            raise gone(LAYER, "JAX", jax.__version__, NEWEST, str(error)) from error

    return read


# Traces


@reading
def _of_traces() -> tuple[Any, Any, Any]:
    try:
        # jax.core.Trace (from 0.10): sees each operation of a function, without tracing it.
        from jax.core import Trace  # noqa: PLC0415  (from 0.10)

        # jax.extend.core.find_top_trace (from 0.10): the trace that operations go to now.
        # jax.extend.core.set_current_trace (from 0.10): sends operations to a trace.
        from jax.extend.core import find_top_trace, set_current_trace  # noqa: PLC0415  (from 0.10)
    except ImportError:
        # jax._src.core.Trace (before 0.10): that of `jax.core`.
        # jax._src.core.find_top_trace (before 0.10): that of `jax.extend.core`.
        # jax._src.core.set_current_trace (before 0.10): that of `jax.extend.core`.
        from jax._src.core import Trace, find_top_trace, set_current_trace  # noqa: PLC0415  (old)
    return Trace, find_top_trace, set_current_trace


_Trace: Any
_Trace, _find_top_trace, set_current_trace = _of_traces()


def running_trace() -> Any:
    """Return the trace that operations go to now."""
    return _find_top_trace(())


class Call(NamedTuple):
    """What a trace is told to do with functions: its own method, them, and what else it takes."""

    method: str
    primitive: Any
    functions: tuple[Any, ...]
    options: dict[str, Any]
    params: tuple[Any, ...] = ()

    def by(self, trace: Any, args: Any) -> Any:
        """Return the results by a trace."""
        method = getattr(trace, self.method)
        return method(self.primitive, *self.functions, args, *self.params, **self.options)

    def again(self, *args: Any) -> Any:
        """Return the results by the trace that runs; functions before fill their stores once."""
        # WrappedFun.stores (0.12): what a function that ran has told, which it tells once.
        for store in (store for f in self.functions for store in getattr(f, "stores", ())):
            if store is not None:
                store.reset()
        return self.by(running_trace(), args)

    @property
    def is_reverse(self) -> bool:
        """Whether a function has a rule of its own for the backward pass."""
        return len(self.functions) == 3  # noqa: PLR2004  (itself, forward, backward)

    def of_changed(self, change: Callable[[Any], Any]) -> "Call":
        """Return the call of other functions, which `change` makes of these."""
        return self._replace(functions=tuple(_changed(f, change) for f in self.functions))

    def without_types(self) -> "Call":
        """Return the call of a sharded function without the types of its mesh."""
        return self._replace(options=self.options | {CHECKED: False})


def _changed(f: Any, change: Callable[[Any], Any]) -> Any:
    # WrappedFun.call_wrapped (before 0.9): runs a sharded function, which JAX had wrapped.
    run = getattr(f, "call_wrapped", None)
    if run is None:
        return change(f)
    from jax.extend.linear_util import wrap_init  # noqa: PLC0415  (before 0.9)

    return wrap_init(change(run), debug_info=f.debug_info)


class Passing(_Trace):
    """Pass each operation on to the trace below."""

    # The names that JAX calls stand here alone; a class that is derived has `operation`, `call`,
    # `shards` and `ruled`.

    def __init__(self, parent: Any) -> None:
        super().__init__()
        # Trace.parent_trace (0.12): the trace below, for those of JAX's that ask for it.
        self.parent_trace = parent
        # Trace.requires_low (0.12): whether types of the user's own are taken apart above.
        self.requires_low = getattr(parent, "requires_low", True)

    def below(self) -> Any:
        """Return a context in which operations go to the trace below."""
        return set_current_trace(self.parent_trace)

    # Trace.stage_value (from 0.10): takes a constant into a trace.
    def stage_value(self, value: Any) -> Any:
        """Take a constant into this trace."""
        with self.below():
            return self.parent_trace.stage_value(value)

    # Trace.process_primitive (0.12): runs one operation.
    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        """Run one operation."""
        return self.operation(primitive, args, params)

    # Trace.process_call (before 0.11): runs a call.
    def process_call(self, primitive: Any, f: Any, args: Any, params: Any, /) -> Any:
        """Run a call."""
        return self.call(Call("process_call", primitive, (f,), {}, (params,)), args)

    # Trace.process_shard_map (0.12): runs a sharded function.
    def process_shard_map(self, primitive: Any, f: Any, args: Any, /, **params: Any) -> Any:
        """Run a sharded function."""
        return self.shards(Call("process_shard_map", primitive, (f,), params), args)

    # Trace.process_custom_jvp_call (0.12): runs a function with a derivative rule of its own.
    def process_custom_jvp_call(
        self, primitive: Any, f: Any, rule: Any, args: Any, /, **how: Any
    ) -> Any:
        """Run a function with a derivative rule of its own."""
        return self.ruled(Call("process_custom_jvp_call", primitive, (f, rule), how), args)

    # Trace.process_custom_vjp_call (0.12): runs one with a rule for the backward pass.
    def process_custom_vjp_call(
        self, primitive: Any, f: Any, forward: Any, backward: Any, args: Any, /, **how: Any
    ) -> Any:
        """Run a function with a rule of its own for the backward pass."""
        rules = (f, forward, backward)
        return self.ruled(Call("process_custom_vjp_call", primitive, rules, how), args)

    def operation(self, primitive: Any, args: Any, params: Any) -> Any:
        """Run one operation."""
        with self.below():
            return primitive.bind(*args, **params)

    def call(self, call: Call, args: Any) -> Any:
        """Run what calls functions, as it is."""
        with self.below():
            return call.by(self.parent_trace, args)

    def shards(self, call: Call, args: Any) -> Any:
        """Run a sharded function, as it is."""
        return self.call(call, args)

    def ruled(self, call: Call, args: Any) -> Any:
        """Run a function with a derivative rule of its own, which is kept."""
        return self.call(call, args)


def traced(f: Callable[..., Any], over: Callable[[Any], Passing]) -> Callable[..., Any]:
    """Return `f` under a trace that `over` makes over the one that runs."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with set_current_trace(over(running_trace())):
            return f(*args, **kwargs)

    return wrapped


def repacked(whole: Any, outs: Sequence[Any]) -> Any:
    """Return other results of a sharded function as JAX packs them: a list before 0.9."""
    # FlatTree.update (from 0.9): results of `shard_map` that are others.
    return list(outs) if isinstance(whole, list) else whole.update(outs)


# Programs


@reading
def _bound_params(eqn: JaxprEqn) -> tuple[Sequence[Any], Params]:
    # Primitive.get_bind_params (0.12): parameters as an operation takes them.
    params = eqn.primitive.get_bind_params(eqn.params)
    # Before JAX 0.10, the functions of a call are not among its parameters.
    return params if isinstance(params, tuple) else ((), params)


def plain(eqn: JaxprEqn, ins: Sequence[Any]) -> list[Array]:
    """Run one operation of a program as it is."""
    functions, params = _bound_params(eqn)
    out = eqn.primitive.bind(*functions, *ins, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def primal_of(x: Any) -> Any:
    """Return the value of a tracer of `jax.vjp`, which is known where nothing is compiled."""
    # LinearizeTracer.primal (0.12): the value beside a tangent.
    while isinstance(x, jax.core.Tracer) and hasattr(x, "primal"):
        x = x.primal
    return x


class Origin(NamedTuple):
    """The operation that made a value: itself, its arguments, and which of its results it is."""

    eqn: Any
    inputs: Sequence[Any]
    result: int


def is_staged(x: Any) -> bool:
    """Whether a value belongs to a program that is traced to be compiled."""
    # DynamicJaxprTracer.parent (0.12): the operation of a traced program that made a value.
    return isinstance(x, jax.core.Tracer) and hasattr(x, "parent")


@reading
def origin_of(x: Any) -> Origin | None:
    """Return the operation that made a tracer; None if none did, or it is not known."""
    eqn = getattr(x, "parent", None)
    if eqn is None:
        return None
    # TracingEqn.in_tracers (0.12): the arguments of that operation, whose results are its outvars.
    return Origin(eqn, eqn.in_tracers, eqn.outvars.index(x.val))


@reading
def constant_of(x: Any) -> Any:
    """Return the constant of a program that a tracer stands for; itself if it is none."""
    # DynamicJaxprTracer.full_lower (0.12): the value of a constant.
    return x.full_lower() if is_staged(x) else x


@reading
def scope_of(eqn: JaxprEqn) -> str:
    """Return the name scopes in which an operation was made."""
    # JaxprEqn.source_info.name_stack (0.12): the scope that says whose derivative an operation is.
    return str(eqn.source_info.name_stack)


@reading
def codes_of(eqn: JaxprEqn) -> list[tuple[Any, int, int]]:
    """Return the code, byte offset and line of each frame of Python that made an operation."""
    # JaxprEqn.source_info.traceback (0.12): the lines of the user that made an operation.
    traceback = eqn.source_info.traceback
    if traceback is None:
        return []
    # Traceback.frames (0.12): their lines.
    lines = [frame.line_num for frame in traceback.frames]
    # Traceback.raw_frames (0.12): their code, from which the columns come.
    codes, offsets = traceback.raw_frames()
    return list(zip(codes, offsets, lines, strict=True))


@reading
def place_of(program: Program) -> tuple[str | None, int | None]:
    """Return the file and the first line of the function that a program was traced from."""
    # Jaxpr.debug_info.func_filename (0.12): whether a function is a library's.
    # Jaxpr.debug_info.func_lineno (0.12): where the frames of a body end.
    info = opened(program).debug_info
    return info.func_filename, info.func_lineno


@reading
def varying_axes(aval: Any) -> frozenset[Any]:
    """Return the mesh axes of a shard_map over which values of a type vary."""
    # ShapedArray.manual_axis_type.varying (from 0.10): over which axes a value varies.
    # ShapedArray.vma (before 0.10): over which axes a value varies.
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset(aval.vma if kind is None else kind.varying)


# Parameters of control flow


@reading
def body_of_call(params: Params) -> Any:
    """Return the body of a call, with its constants."""
    # jit.jaxpr (0.12): the body, as in most calls.
    # custom_vjp_call.call_jaxpr (0.12): that of a function with a rule of its own.
    names = ("jaxpr", "call_jaxpr")
    found = [params[name] for name in names if name in params]
    if not found:
        msg = f"the body of a call, {', '.join(names)}"
        raise KeyError(msg)
    return closed(found[0])


class Scan(NamedTuple):
    """A scan: its body, and how many of its arguments are fixed, and carried."""

    body: Any
    fixed: int
    carried: int
    length: int
    reverse: bool
    unroll: Any

    def parts(self, ins: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return which arguments are fixed, which are carried, and which are scanned."""
        last = self.fixed + self.carried
        return list(ins[: self.fixed]), list(ins[self.fixed : last]), list(ins[last:])


@reading
def scan_of(params: Params) -> Scan:
    """Return what a scan is."""
    # scan.num_consts (before 0.11): how many arguments are fixed.
    # scan.num_carry (before 0.11): how many arguments are carried.
    # scan.ft_in (from 0.11): trees of the arguments that are fixed, carried and scanned.
    if "ft_in" in params:
        fixed, carried, _ = map(len, params["ft_in"].unpack())
    else:
        fixed, carried = params["num_consts"], params["num_carry"]
    # scan.jaxpr (0.12): the body.
    # scan.length (0.12): the number of steps.
    # scan.reverse (0.12): whether the last step is first.
    # scan.unroll (0.12): how many steps are one of the compiled loop.
    steps = params["length"], params["reverse"], params["unroll"]
    return Scan(params["jaxpr"], fixed, carried, *steps)


class While(NamedTuple):
    """A loop with a condition, and how many arguments each has that are not carried."""

    test: Any
    body: Any
    for_test: int
    for_body: int

    def parts(self, ins: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the arguments of the condition alone, of the body alone, and those carried."""
        last = self.for_test + self.for_body
        return list(ins[: self.for_test]), list(ins[self.for_test : last]), list(ins[last:])


@reading
def while_of(params: Params) -> While:
    """Return what a loop with a condition is."""
    # while.cond_jaxpr (0.12): the condition.
    # while.body_jaxpr (0.12): the body.
    # while.cond_nconsts (0.12): how many arguments are of the condition alone.
    # while.body_nconsts (0.12): how many arguments are of the body alone.
    counts = params["cond_nconsts"], params["body_nconsts"]
    return While(params["cond_jaxpr"], params["body_jaxpr"], *counts)


@reading
def branches_of(params: Params) -> Sequence[Any]:
    """Return the branches of a `cond`."""
    # cond.branches (0.12): the bodies.
    return params["branches"]


class Shards(NamedTuple):
    """A sharded function: its body for one device, and what its arguments and results are."""

    body: Any
    mesh: Any
    names: Any
    into: Any
    out_of: Any
    checked: bool


CHECKED = "check_vma"


@reading
def shards_of(params: Params) -> Shards:
    """Return what a `shard_map` is."""
    # shard_map.jaxpr (0.12): the body.
    # shard_map.mesh (0.12): the mesh.
    # shard_map.newly_manual_axes (from 0.10): which axes of the mesh are split.
    # shard_map.manual_axes (before 0.10): which axes of the mesh are split.
    # shard_map.in_specs (0.12): how arguments are split.
    # shard_map.out_specs (0.12): how results are split.
    # shard_map.check_vma (0.12): whether types tell what varies.
    names = params["newly_manual_axes" if "newly_manual_axes" in params else "manual_axes"]
    specs = params["in_specs"], params["out_specs"]
    return Shards(params["jaxpr"], params["mesh"], names, *specs, params[CHECKED])


def has_axis(params: Params) -> bool:
    """Whether an operation has an axis of a mesh: a collective, which has no effect (0.10.2)."""
    # all_gather.axis_name (0.12): in collectives.
    return "axis_name" in params


@reading
def axes_of_sum(params: Params) -> Any:
    """Return the axes of a mesh over which a sum goes."""
    # psum_invariant.axes (0.12): of a sum that is the same on each device.
    return params["axes"]


@reading
def with_callback(params: Params, change: Function) -> dict[str, Any]:
    """Return the parameters of a callback with a changed function."""
    # pure_callback.callback (0.12): the function that is called.
    return {**params, "callback": change(params["callback"])}


def name_of_call(params: Params) -> str:
    """Return the name of the function that a call is of; "" if it has none."""
    # jit.name (0.12): the name of a function.
    return str(params.get("name", ""))


def is_where(params: Params) -> bool:
    """Whether an operation is the call of `jax.numpy.where`."""
    # jax._src.numpy.util._where (0.12): the compiled function in which it selects, by its name.
    return name_of_call(params) == "_where"


# Parameters of operations


@reading
def permutation(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return the order of axes in a transposed array."""
    # transpose.permutation (0.12): the order.
    return tuple(eqn.params["permutation"])


@reading
def axes_of_broadcast(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return which axes of the result are those of the array that is broadcast."""
    # broadcast_in_dim.broadcast_dimensions (0.12): the axes.
    return tuple(eqn.params["broadcast_dimensions"])


@reading
def axis_of_iota(eqn: Any) -> int:
    """Return the axis along which whole numbers are counted."""
    # iota.dimension (0.12): the axis.
    return eqn.params["dimension"]


@reading
def slices_of(eqn: Any) -> tuple[slice, ...]:
    """Return which part of each axis is cut out."""
    # slice.start_indices (0.12): where each part begins.
    # slice.limit_indices (0.12): where each part ends.
    # slice.strides (0.12): every how many entries are taken.
    limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    steps = eqn.params["strides"] or [1] * len(limits[0])
    return tuple(map(slice, *limits, steps))


@reading
def padding_of(eqn: Any) -> tuple[tuple[int, int, int], ...]:
    """Return how many entries are put before, behind and between those of each axis."""
    # pad.padding_config (0.12): these numbers; below 0, entries are cut off.
    return tuple(eqn.params["padding_config"])


def windows_of(eqn: JaxprEqn) -> dict[str, Any]:
    """Return the windows of an operation, as `lax.reduce_window` takes them."""
    # select_and_scatter_add.window_dimensions (0.12): the windows of a max pool.
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    return {name: eqn.params[name] for name in names if name in eqn.params}


class Fill(NamedTuple):
    """The number that is filled in, None for NaN, and whether it is where indices are outside."""

    value: Any
    is_used: bool


def fill_of(params: Params) -> Fill | None:
    """Return what an operation fills in; None if it fills nothing."""
    # gather.fill_value (0.12): the number.
    # gather.mode (0.12): what is done where indices are outside.
    if FILL not in params:
        return None
    return Fill(params[FILL], str(params.get("mode", "")).endswith("FILL_OR_DROP"))


def with_fill(params: Params, value: Any) -> dict[str, Any]:
    """Return the parameters with another number to fill in."""
    return {**params, FILL: value}


@reading
def exponent(eqn: JaxprEqn) -> int:
    """Return the exponent of an integer power."""
    # integer_pow.y (0.12): the exponent.
    return eqn.params["y"]


@reading
def reduced_axes(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return the axes of a reduction."""
    # reduce_max.axes (0.12): the axes.
    return tuple(eqn.params["axes"])


@reading
def running_axis(eqn: JaxprEqn) -> tuple[int, bool]:
    """Return the axis of a cumulative reduction, and whether it begins at its end."""
    # cummax.axis (0.12): the axis.
    # cummax.reverse (0.12): whether it begins at the end.
    return eqn.params["axis"], eqn.params["reverse"]


@reading
def sorted_axis(eqn: JaxprEqn) -> int:
    """Return the axis that is sorted."""
    # sort.dimension (0.12): the axis.
    return eqn.params["dimension"]


@reading
def axes_of_product(eqn: JaxprEqn) -> Any:
    """Return the axes of a product of tensors: contracted, and of a batch, of both factors."""
    # dot_general.dimension_numbers (0.12): the axes.
    return eqn.params["dimension_numbers"]


@reading
def axes_of_windows(eqn: JaxprEqn) -> tuple[Any, Any]:
    """Return the axes for batch, features and windows, of both arguments of a convolution."""
    # conv_general_dilated.dimension_numbers (0.12): the axes.
    return eqn.params["dimension_numbers"][:2]


@reading
def is_one_group(eqn: JaxprEqn) -> bool:
    """Whether every feature of a convolution meets every other."""
    # conv_general_dilated.feature_group_count (0.12): groups of features.
    # conv_general_dilated.batch_group_count (0.12): groups of examples.
    counts = eqn.params["feature_group_count"], eqn.params["batch_group_count"]
    return counts == (1, 1)


@reading
def is_left(eqn: JaxprEqn) -> bool:
    """Whether a triangular matrix stands on the left of what is solved for."""
    # triangular_solve.left_side (0.12): on which side the matrix stands.
    return eqn.params["left_side"]


@reading
def transformed_axes(eqn: JaxprEqn) -> range:
    """Return the axes of a Fourier transform."""
    # fft.fft_lengths (0.12): the lengths along these axes, the last ones.
    return range(-len(eqn.params["fft_lengths"]), 0)


class System(NamedTuple):
    """A linear system: the product with its matrix, and how many arguments are constants."""

    product: Program
    fixed: int  # of the product
    constants: int  # of it and of the solvers


@reading
def system_of(eqn: JaxprEqn) -> System:
    """Return what a linear system is."""
    # custom_linear_solve.const_lengths (0.12): how many arguments are constants.
    # custom_linear_solve.jaxprs (0.12): the product with the matrix, and the solvers.
    lengths = eqn.params["const_lengths"]
    return System(eqn.params["jaxprs"].matvec, lengths.matvec, sum(lengths))


def mapped_axes(eqn: JaxprEqn) -> Any:
    """Return the axes over which equinox maps an operation."""
    # vprim.__batch_axes (0.12): over which axes equinox maps an operation.
    return eqn.params["__batch_axes"]
