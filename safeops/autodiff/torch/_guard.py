"""
Training steps of PyTorch that run again under `explain` when their gradients are not finite.

A step is a function of a batch that makes gradients. Before it runs, what it may change is
remembered: random states, buffers, gradients. If the gradients are finite afterwards, that is all.
"""

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from safeops._backends.torch import private
from safeops._typing import Array
from safeops.autodiff._explain.report import Finding, Report, listed, make_report
from safeops.autodiff._options import NonFiniteGradientError
from safeops.autodiff.torch import masked_backward
from safeops.autodiff.torch._explain.lines import not_finite, what_of
from safeops.autodiff.torch._explain.report import rows_of
from safeops.autodiff.torch._modes import Watch
from safeops.autodiff.torch._ranks import ranks
from safeops.autodiff.torch._sharded import is_sharded, local_of

ANOTHER_RANK = "the gradients that this rank made are finite: what is not came from another rank"
AGAIN = (
    "the step ran again from the same arguments, and from the same random state of PyTorch and of "
    "the module random; it depends on something else, such as the random state of NumPy"
)
NOT_CURED = "the masked gradient is not finite either"
IN_STEP = (
    "expected a step that makes gradients alone, got one that calls optimizer.step(), before which "
    "the gradients are checked; call it after the guarded function"
)
UNSCALED = (
    'expected scaler.unscale_() after the guarded function with on_nan="mask", got it inside: '
    "a GradScaler unscales once, and the step runs again"
)


class Place:
    """A parameter or a buffer of a module, whatever tensor is there at the moment."""

    def __init__(self, module: Any, name: str, full: str) -> None:
        self.module, self.name, self.full = module, name, full

    def get(self) -> Any:
        """Return the tensor that is there; None if there is none."""
        return getattr(self.module, self.name, None)


def grad_of(place: Place) -> Any:
    """Return the gradient of a parameter; None if there is none."""
    return getattr(place.get(), "grad", None)


def places_in(model: Any, which: str) -> list[Place]:
    """Return the places of the parameters or of the buffers of a model, each module once."""
    return [
        Place(module, key, f"{path}.{key}" if path else key)
        for path, module in model.named_modules()
        for key in dict(getattr(module, which)(recurse=False))
    ]


def unwrapped(model: Any) -> Any:
    """Return the model that DDP, DataParallel or torch.compile has wrapped, with its own names."""
    while True:
        inner = private.compiled_from(model)
        if isinstance(model, DistributedDataParallel | torch.nn.DataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


@dataclass
class Memory:
    """What a step may change, as it was before."""

    # A function that sets the random state of a device, and that state.
    states: list[tuple[Callable[[Any], Any], Any]]
    buffers: list[tuple[Place, Any, Any]]  # the place, the tensor there, a copy of it
    gradients: list[tuple[Place, Any, Any]]

    def restore_random(self) -> None:
        """Set the random states."""
        for put, state in self.states:
            put(state)

    def restore_buffers(self) -> None:
        """Put the buffers back, and write into them what they were."""
        with torch.no_grad():
            for place, tensor, copy in self.buffers:
                if place.get() is not tensor:
                    setattr(place.module, place.name, tensor)
                write(tensor, copy)

    def restore_gradients(self) -> None:
        """Put the gradients back, and write into them what they were."""
        with torch.no_grad():
            for place, tensor, copy in self.gradients:
                write(tensor, copy)
                if (parameter := place.get()) is not None:
                    parameter.grad = tensor


def write(tensor: Any, copy: Any) -> None:
    """Write into a tensor, unless it is the same: an expanded constant cannot be written to."""
    if tensor is None:
        return
    here, there = local_of(tensor), local_of(copy)
    if here.layout is not torch.strided or not torch.equal(here, there):
        here.copy_(there)


def copied(places: Sequence[tuple[Place, Any]]) -> list[tuple[Place, Any, Any]]:
    """Return places, their tensors, and copies of these."""
    with torch.no_grad():
        return [(place, x, None if x is None else x.detach().clone()) for place, x in places]


def random_states(devices: Sequence[Any]) -> list[tuple[Callable[[Any], Any], Any]]:
    """Return the random states of the CPU, of other devices, and of the module `random`."""
    states: list[tuple[Callable[[Any], Any], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
    ]
    for device in devices:
        module = torch.get_device_module(device)
        put = partial(put_state, module, device)
        states.append((put, module.get_rng_state(device)))
    return states


def put_state(module: Any, device: Any, state: Any) -> None:
    """Set the random state of a device."""
    module.set_rng_state(state, device)


@dataclass
class Guard:
    """
    The checks around each step of a training.

    `tell` is called with the report on a step whose gradients are not finite, and `scaler` is the
    GradScaler of the training, whose own overflows are no fault.
    """

    model: Any
    on_nan: str
    scaler: Any
    group: Any
    tell: Callable[[Report], None]
    steps: int = 0
    parameters: list[Place] = field(init=False)
    buffers: list[Place] = field(init=False)

    def __post_init__(self) -> None:
        """List what the model has."""
        if self.group is None:  # DDP and FSDP name theirs
            self.group = getattr(self.model, "process_group", None)
        self.model = unwrapped(self.model)
        self.parameters = places_in(self.model, "named_parameters")
        self.buffers = places_in(self.model, "named_buffers")
        if self.group is None and any(is_sharded(place.get()) for place in self.parameters):
            self.group = distributed.group.WORLD  # a shard may be finite where another is not
        used = {x.device for place in self.parameters if (x := place.get()) is not None}
        self.devices = [d for d in used if d.type not in ("cpu", "meta")]

    def run(self, step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a step, and once more if its gradients are not finite."""
        memory = self.remember()
        with without_optimizer():
            result = step(*args, **kwargs)
        return self.settle(memory, partial(step, *args, **kwargs), result, (args, kwargs))

    def remember(self) -> Memory:
        """Return what the next step may change."""
        buffers = [(place, place.get()) for place in self.buffers]
        return Memory(random_states(self.devices), copied(buffers), self.held())

    def held(self) -> list[tuple[Place, Any, Any]]:
        """Return the gradients that are there, and copies of them."""
        return copied([(place, grad_of(place)) for place in self.parameters])

    def settle(self, memory: Memory, again: Callable[[], Any], result: Any, given: Any) -> Any:
        """Check the gradients of a step that has run; return its result, or that of another run."""
        step, self.steps = self.steps, self.steps + 1
        if not self.is_alarm() or self.is_overflow(memory, again):
            return result
        report = replace(self.explain(memory, again, given), step=step, rank=rank())
        self.tell(report)
        if self.on_nan == "raise":
            raise NonFiniteGradientError(report)
        memory.restore_buffers()
        if self.on_nan == "skip" and self.is_scaled:
            return result  # a GradScaler wants to see what is not finite, and skips the step itself
        memory.restore_gradients()
        return self.masked(memory, again, report) if self.on_nan == "mask" else result

    @property
    def is_scaled(self) -> bool:
        """Whether a GradScaler is at work."""
        return self.scaler is not None and bool(self.scaler.is_enabled())

    def is_alarm(self) -> bool:
        """Whether a gradient is not finite, on any rank of the group."""
        found = [g for place in self.parameters if (g := grad_of(place)) is not None]
        alarm = not all_finite([local_of(g) for g in found])
        if self.group is None or distributed.get_world_size(self.group) == 1:
            return alarm
        device = found[0].device if found else torch.device("cpu")
        flag = torch.tensor(float(alarm), device=device)
        distributed.all_reduce(flag, distributed.ReduceOp.MAX, group=self.group)
        return bool(flag)

    def is_overflow(self, memory: Memory, again: Callable[[], Any]) -> bool:
        """Whether the gradients are finite without the scale of the GradScaler."""
        if not self.is_scaled:
            return False
        with self.once_more(memory) as unscaled:
            again()
            alarm = self.is_alarm()
        if alarm and unscaled and self.on_nan == "mask":
            raise RuntimeError(UNSCALED)
        return not alarm

    @contextmanager
    def once_more(self, memory: Memory) -> Iterator[list[Any]]:
        """Context in which a step starts where it did, and after which nothing of it is left."""
        after = self.remember()
        weights = copied([(place, place.get()) for place in self.parameters])
        memory.restore_random()
        memory.restore_buffers()
        for _, parameter, _ in weights:
            if parameter is not None:
                parameter.grad = None
        torch.clear_autocast_cache()
        try:
            with neutral(self.scaler) as unscaled:
                yield unscaled
        finally:
            after.restore_random()
            after.restore_buffers()
            after.restore_gradients()
            with torch.no_grad():
                for _, tensor, copy in weights:
                    write(tensor, copy)

    def explain(self, memory: Memory, again: Callable[[], Any], given: Any) -> Report:
        """Run the step again while it is watched; return the report."""
        reports: list[Report] = []
        names: list[str] = []
        watch = Watch(partial(self.note, reports, names))
        watch.batch = batch_of(given)
        failed, found = "", self.bad_names()
        try:
            with self.once_more(memory), self.naming(watch), eagerly(), watch:
                again()
        except Exception as error:  # noqa: BLE001  (whatever a program raises that runs once)
            failed = f"{type(error).__name__}: {error}"
        report = joined(reports) if reports else self.unexplained(failed)
        notes = (*report.notes, *arguments_of(given))
        return replace(report, notes=notes, parameters=tuple(names) or found)

    def note(self, reports: list[Report], names: list[str], report: Report) -> None:
        """Keep a report, and the names of the parameters whose gradient is not finite."""
        reports.append(report)
        names += [name for name in self.bad_names() if name not in names]

    def bad_names(self) -> tuple[str, ...]:
        """Return the names of the parameters whose gradient is not finite."""
        pairs = ((place.full, grad_of(place)) for place in self.parameters)
        return tuple(n for n, g in pairs if g is not None and not_finite(local_of(g)) is not None)

    def unexplained(self, failed: str) -> Report:
        """Return the report on a step in which nothing was found."""
        checked = "the gradients of one step"
        if failed:
            finding = Finding("UNKNOWN", "the step", reason="once")
            return make_report("torch", [finding], checked, [failed])
        if any(is_sharded(place.get()) for place in self.parameters):
            finding = Finding("UNKNOWN", "the step", reason="shards")
            return make_report("torch", [finding], checked)
        if rank() is not None:
            return make_report("torch", [], checked, [ANOTHER_RANK])
        finding = Finding("UNKNOWN", "the step", reason="again")
        return make_report("torch", [finding], checked, [AGAIN])

    @contextmanager
    def naming(self, watch: Watch) -> Iterator[None]:
        """Context in which the watch knows the module that runs."""

        def enter(name: str, *_: Any) -> None:
            watch.modules.append(name)

        def leave(*_: Any) -> None:
            if watch.modules:
                watch.modules.pop()

        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                if name and not isinstance(module, torch.jit.ScriptModule):
                    enters = module.register_forward_pre_hook(partial(enter, name))
                    leaves = module.register_forward_hook(leave, always_call=True)
                    stack.callback(enters.remove)
                    stack.callback(leaves.remove)
            yield

    def masked(self, memory: Memory, again: Callable[[], Any], report: Report) -> Any:
        """Run the step once more with masked gradients; raise if these are not finite either."""
        memory.restore_random()
        with eagerly(), masked_backward(), without_optimizer():
            result = again()
        if self.is_alarm():
            memory.restore_gradients()
            memory.restore_buffers()
            error = NonFiniteGradientError(report)
            error.add_note(NOT_CURED)
            raise error
        return result


def all_finite(gradients: Sequence[Array]) -> bool:
    """Whether gradients are finite: one sum each and one answer; if it is not, entry by entry."""
    sums: dict[Any, list[Array]] = {}
    for g in gradients:
        if g.layout is torch.strided and g.element_size() > 1:
            total = g.detach().sum()
            sums.setdefault((total.device, total.dtype), []).append(total)
        elif not_finite(g) is not None:
            return False
    if all(bool(torch.stack(found).isfinite().all()) for found in sums.values()):
        return True
    return all(not_finite(g) is None for g in gradients)  # a sum may overflow


@contextmanager
def without_optimizer() -> Iterator[None]:
    """Context in which an optimizer does not step."""

    def refuse(*_: Any) -> None:
        raise RuntimeError(IN_STEP)

    hook = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        hook.remove()


def eagerly() -> Any:
    """Return a context in which compiled functions run eagerly."""
    # What has compiled nothing has not imported the compiler, which takes seconds.
    has_compiler = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if has_compiler else nullcontext()


@contextmanager
def neutral(scaler: Any) -> Iterator[list[Any]]:
    """Context in which a GradScaler does not scale; yields the optimizers that it unscaled."""
    unscaled: list[Any] = []
    if scaler is None:
        yield unscaled
        return
    vars(scaler).update(scale=lambda outputs: outputs, unscale_=unscaled.append)
    try:
        yield unscaled
    finally:
        del scaler.scale, scaler.unscale_


def rank() -> int | None:
    """Return the rank of this process in a group of several."""
    return distributed.get_rank() if ranks() > 1 else None


def joined(reports: Sequence[Report]) -> Report:
    """Return the reports on the backward passes of a step as one."""
    first, *rest = reports
    findings = dict.fromkeys(f for report in reports for f in report.findings)
    notes = dict.fromkeys(note for report in reports for note in report.notes)
    return replace(first, findings=tuple(findings), notes=tuple(notes)) if rest else first


def tensors_of(x: Any, name: str) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of nested arguments, with names."""
    if isinstance(x, torch.Tensor):
        yield name, x
    elif isinstance(x, Mapping):
        for key, part in x.items():
            yield from tensors_of(part, f"{name}[{key!r}]")
    elif isinstance(x, list | tuple):
        for i, part in enumerate(x):
            yield from tensors_of(part, f"{name}[{i}]")


def arguments_with_names(given: Any) -> Iterator[tuple[str, Array]]:
    """Yield the tensors among the arguments of a step, with names."""
    args, kwargs = given
    for i, x in enumerate(args):
        yield from tensors_of(x, f"argument {i}")
    for key, x in kwargs.items():
        yield from tensors_of(x, key)


def batch_of(given: Any) -> int:
    """Return the number of rows of a batch, as its first tensor has it; 0 if there is none."""
    sizes = (len(x) for _, x in arguments_with_names(given) if x.dim())
    return next(sizes, 0)


def arguments_of(given: Any) -> Iterator[str]:
    """Yield a sentence for each argument of a step that is not finite."""
    for name, x in arguments_with_names(given):
        bad = not_finite(x)
        if bad is not None:
            rows = rows_of(bad, len(x) if x.dim() else 0)
            where = f" in row{'' if len(rows) == 1 else 's'} {listed(rows)}" if rows else ""
            yield f"{name} of the step is {what_of(x.detach()[bad], 'nan')}{where}"
