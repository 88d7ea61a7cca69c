"""
Training steps of PyTorch that run again under `explain` when their gradients are not finite.

A step is a function of a batch that makes gradients. Before it runs, what it may change is
remembered: random states, buffers, gradients. If the gradients are finite afterwards, that is all.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from safeops._backends.torch import private
from safeops._core.types import Array
from safeops.autodiff._explain.finding import entries_in_words
from safeops.autodiff._explain.report import Report, listed, unknown_report, words_of
from safeops.autodiff.torch import masked_backward
from safeops.autodiff.torch._explain.comparison import rows_of
from safeops.autodiff.torch._explain.explanation import eagerly
from safeops.autodiff.torch._lines import not_finite, what_of
from safeops.autodiff.torch._ranks import rank
from safeops.autodiff.torch._sharded import is_sharded, local_of
from safeops.autodiff.torch._watch import Watch
from safeops.integrations._policy import NOT_CURED, BadStep, handle_bad_step

ANOTHER_RANK = "the gradients that this rank made are finite: what is not came from another rank"
AGAIN = (
    "the step ran again from the same arguments, and from the same random state of PyTorch and of "
    "the module random; it depends on something else, such as the random state of NumPy"
)
WRITES = "the step has written into {}, and wrote something else when it ran again, from there"
NO_RERUN = "the step cannot be masked: it writes into what it is given, and would be another step"
EARLIER = "gradients were not finite before the step; set them to None after an error"
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
        return getattr(self.module, self.name, None)

    def put(self, tensor: Any) -> None:
        setattr(self.module, self.name, tensor)


class Argument(NamedTuple):
    """A tensor among the arguments of a step."""

    full: str
    tensor: Any

    def get(self) -> Any:
        return self.tensor


def grad_of(place: Any) -> Any:
    """Return the gradient of a parameter; None if there is none."""
    return getattr(place.get(), "grad", None)


def places_in(model: Any, keys_of: Callable[[Any], Iterable[str]]) -> list[Place]:
    """Return the places of the parameters or of the buffers of a model, each module once."""
    return [
        Place(module, key, f"{path}.{key}" if path else key)
        for path, module in model.named_modules()
        for key in keys_of(module)
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
    """What a step is given and may change, as it was before."""

    given: Any  # positional and keyword arguments
    # A function that sets the random state of a device, and that state.
    states: list[tuple[Callable[[Any], Any], Any]]
    buffers: list[tuple[Place, Any, Any]]  # the place, the tensor there, a copy of it
    gradients: list[tuple[Any, Any, Any]]
    # Found when the step runs again: what it writes into, and for each gradient whether the step
    # adds to a number there; None if it replaces the gradient.
    written: list[str] = field(default_factory=list)
    added: list[bool | None] = field(default_factory=list)

    def restore_random(self) -> None:
        for put, state in self.states:
            put(state)

    def restore_buffers(self) -> None:
        """Put the buffers back, and write into them what they were."""
        with torch.no_grad():
            for place, tensor, copy in self.buffers:
                if place.get() is not tensor:
                    place.put(tensor)
                write(tensor, copy)

    def mend_buffers(self) -> None:
        """Put back the buffers of each module in which one has become not finite."""
        bad = {id(place.module) for place, _, copy in self.buffers if became_bad(place.get(), copy)}
        kept = [held for held in self.buffers if id(held[0].module) in bad]
        replace(self, buffers=kept).restore_buffers()

    def restore_gradients(self) -> None:
        """Put the gradients back, and write into them what they were."""
        with torch.no_grad():
            for place, tensor, copy in self.gradients:
                write(tensor, copy)
                if (parameter := place.get()) is not None:
                    parameter.grad = tensor


def write(tensor: Any, copy: Any) -> None:
    """Write into a tensor, unless it is the same: an expanded constant cannot be written to."""
    if copy is not None and not is_same(tensor, copy):
        local_of(tensor).copy_(local_of(copy))


def became_bad(tensor: Any, copy: Any) -> bool:
    if tensor is None or copy is None or not_finite(local_of(tensor)) is None:
        return False
    return not_finite(local_of(copy)) is None


def is_same(tensor: Any, copy: Any) -> bool:
    """Whether a tensor has the numbers of its copy, NaN in the same places."""
    here, there = local_of(tensor), local_of(copy)
    if here.layout is not torch.strided or here.shape != there.shape:
        return False
    return bool(((here == there) | (here.isnan() & there.isnan())).all())


def copied(places: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any, Any]]:
    """Return places, their tensors, and copies of these; None if a lazy one is not there yet."""
    with torch.no_grad():
        return [
            (place, x, None if x is None or is_lazy(x) else x.detach().clone())
            for place, x in places
        ]


def adds_to(gradient: Any) -> bool | None:
    """Return whether a gradient has a number other than 0; None if there is no gradient."""
    if gradient is None:
        return None
    here = local_of(gradient)
    return bool((here if here.layout is torch.strided else here.to_dense()).any())


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
    module.set_rng_state(state, device)


@dataclass
class Guard:
    """The checks around each step of a training."""

    # `tell` is called with the report on a step whose gradients are not finite, and `scaler` is the
    # GradScaler of the training, whose own overflows are no fault.

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
        self.parameters = places_in(self.model, lambda m: dict(m.named_parameters(recurse=False)))
        self.buffers = places_in(self.model, private.buffers_of)
        if self.group is None and any(is_sharded(place.get()) for place in self.parameters):
            self.group = distributed.group.WORLD  # a shard may be finite where another is not

    @property
    def devices(self) -> list[Any]:
        """The devices of the parameters, as they are now, beside the CPU."""
        used = {x.device for place in self.parameters if (x := place.get()) is not None}
        return [d for d in used if d.type not in ("cpu", "meta")]

    def run(self, step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a step, and once more if its gradients are not finite."""
        memory = self.remember((args, kwargs))
        with without_optimizer():
            result = step(*args, **kwargs)
        return self.check_step(memory, partial(step, *args, **kwargs), result)

    def remember(self, given: Any) -> Memory:
        """Return what the next step may change."""
        buffers = [(place, place.get()) for place in self.buffers]
        return Memory(
            given, random_states(self.devices), copied(buffers), self.saved_gradients(given)
        )

    def saved_gradients(self, given: Any) -> list[tuple[Any, Any, Any]]:
        """Return the gradients of parameters and arguments that are there, and copies of them."""
        places = [*self.parameters, *(x for x in arguments_in(given) if x.tensor.is_leaf)]
        return copied([(place, grad_of(place)) for place in places])

    def check_step(self, memory: Memory, again: Callable[[], Any], result: Any) -> Any:
        """Check the gradients of a step that has run; return its result, or that of another run."""
        step, self.steps = self.steps, self.steps + 1
        if not self.is_alarm() or self.is_overflow(memory, again):
            return result
        bad = BadStep(
            explain=lambda: replace(self.explain(memory, again), step=step, rank=rank()),
            run_masked=partial(self.run_masked, memory, again),
            restore=partial(self.restore, memory),
            skip=partial(self.skip, memory, result),
        )
        return handle_bad_step(bad, self.on_nan, self.tell)

    def restore(self, memory: Memory) -> None:
        """Put back what a step has changed; an error leaves all as it is, to be looked at."""
        if self.on_nan == "raise":
            return
        memory.restore_buffers()
        # A GradScaler wants to see what is not finite, and skips the step itself.
        if self.on_nan == "mask" or not self.is_scaled:
            memory.restore_gradients()

    def skip(self, memory: Memory, result: Any) -> Any:
        """Return the result of a step that has not been."""
        if not self.is_scaled:
            self.drop(memory)
        return result

    def drop(self, memory: Memory) -> None:
        """Take away the gradients that the step replaces, and all of them if they are 0."""
        moves = self.is_on_any_rank(any(memory.added) or not memory.added)
        for (place, _, _), adds in zip(memory.gradients, memory.added, strict=False):
            if (adds is None or not moves) and (parameter := place.get()) is not None:
                parameter.grad = None  # by a 0, an optimizer with momentum would move

    @property
    def is_scaled(self) -> bool:
        """Whether a GradScaler is at work."""
        return self.scaler is not None and bool(self.scaler.is_enabled())

    def is_alarm(self) -> bool:
        """Whether a gradient is not finite, on any rank of the group."""
        found = [g for place in self.parameters if (g := grad_of(place)) is not None]
        return self.is_on_any_rank(not all_finite([local_of(g) for g in found]))

    def is_on_any_rank(self, fact: Any) -> bool:
        """Whether something is so on any rank of the group."""
        if self.group is None or distributed.get_world_size(self.group) == 1:
            return bool(fact)
        device = next((x.device for p in self.parameters if (x := p.get()) is not None), "cpu")
        flag = torch.tensor(float(bool(fact)), device=device)
        distributed.all_reduce(flag, distributed.ReduceOp.MAX, group=self.group)
        return bool(flag)

    def is_overflow(self, memory: Memory, again: Callable[[], Any]) -> bool:
        """Whether the gradients are finite without the scale of the GradScaler."""
        if not self.is_scaled:
            return False
        with self.rerunning(memory) as unscaled:
            again()
            alarm = self.is_alarm()
        if alarm and unscaled and self.on_nan == "mask":
            raise RuntimeError(UNSCALED)
        return not alarm

    @contextmanager
    def rerunning(self, memory: Memory) -> Iterator[list[Any]]:
        """Rerun a step from its first state; restore the present state afterwards."""
        after = self.remember(memory.given)
        places: list[Any] = [*self.parameters, *arguments_in(memory.given)]
        kept = copied([(place, place.get()) for place in places])
        memory.restore_random()
        memory.restore_buffers()
        for place, _, _ in memory.gradients:
            if (parameter := place.get()) is not None:
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
                memory.written = [p.full for p, x, copy in kept if is_written(x, copy)]
                for _, tensor, copy in kept:
                    write(tensor, copy)

    def explain(self, memory: Memory, again: Callable[[], Any]) -> Report:
        """Run the step again while it is watched; return the report."""
        reports: list[Report] = []
        names: list[str] = []
        watch = StepWatch(partial(self.note, reports, names), memory)
        watch.batch = batch_of(memory.given)
        failed, found = "", self.bad_names()
        try:
            with self.rerunning(memory), self.naming(watch), eagerly():
                watch.put_gradients()
                with watch:
                    again()
                watch.look_at_gradients()
        except Exception as error:  # noqa: BLE001  (whatever a program raises that runs once)
            failed = words_of(error)
        report = (
            joined(reports) if reports else self.unexplained(failed, memory, scaled=watch.scaled)
        )
        notes = (*report.notes, *self.remarks(memory))
        return replace(report, notes=notes, parameters=tuple(names) or found)

    def remarks(self, memory: Memory) -> Iterator[str]:
        """Yield a sentence for each argument and parameter that is not finite, and for writes."""
        yield from arguments_of(memory.given)
        for place in self.parameters:
            x = place.get()
            bad = None if x is None or is_lazy(x) else not_finite(local_of(x))
            if bad is not None:
                what = what_of(local_of(x).detach()[bad], "nan")
                yield f"the parameter {place.full} is {what} at {entries_in_words(int(bad.sum()))}"
        if has_bad(memory):
            yield EARLIER
        if memory.written:
            yield WRITES.format(listed(memory.written))

    def note(self, reports: list[Report], names: list[str], report: Report) -> None:
        """Keep a report, and the names of the parameters whose gradient is not finite."""
        reports.append(report)
        names += [name for name in self.bad_names() if name not in names]

    def bad_names(self) -> tuple[str, ...]:
        """Return the names of the parameters whose gradient is not finite."""
        pairs = ((place.full, grad_of(place)) for place in self.parameters)
        return tuple(n for n, g in pairs if g is not None and not_finite(local_of(g)) is not None)

    def unexplained(self, failed: str, memory: Memory, *, scaled: bool) -> Report:
        """Return the report on a step in which nothing was found."""
        if failed:
            return unknown_report("torch", "the step", "once", failed)
        if scaled:
            return unknown_report("torch", "the step", "scale")
        if any(is_sharded(place.get()) for place in self.parameters):
            return unknown_report("torch", "the step", "shards")
        if rank() is not None:
            return unknown_report("torch", "another rank", "rank", ANOTHER_RANK)
        is_known = memory.written or has_bad(memory)
        return unknown_report("torch", "the step", "again", *([] if is_known else [AGAIN]))

    @contextmanager
    def naming(self, watch: Watch) -> Iterator[None]:
        """Context in which the watch knows the module that runs."""

        def enter(name: str, *_: Any) -> None:
            watch.modules.append(name)

        def leave(*_: Any) -> None:
            if watch.modules:
                watch.modules.pop()

        with ExitStack() as stack:
            for name, module in self.named_modules():
                if name and not isinstance(module, torch.jit.ScriptModule):
                    enters = module.register_forward_pre_hook(partial(enter, name))
                    leaves = module.register_forward_hook(leave, always_call=True)
                    stack.callback(enters.remove)
                    stack.callback(leaves.remove)
            yield

    def named_modules(self) -> Iterable[tuple[str, Any]]:
        named: Iterable[tuple[str, Any]] = self.model.named_modules()
        return named

    def run_masked(self, memory: Memory, again: Callable[[], Any]) -> tuple[Any, str]:
        """Run a step once more with masked gradients; return also why it is no cure."""
        if self.is_on_any_rank(memory.written):
            return None, NO_RERUN

        def run() -> Any:
            with eagerly(), masked_backward(lazy=False), without_optimizer():
                return again()

        memory.restore_random()
        result = run()
        if self.is_alarm() and not self.is_overflow(memory, run):
            return None, NOT_CURED
        memory.mend_buffers()
        return result, ""


class StepWatch(Watch):
    """Explain a step, and see whether it adds to the gradients that are there, or replaces them."""

    def __init__(self, on_report: Callable[[Report], None], memory: Memory) -> None:
        super().__init__(on_report)
        self.memory = memory
        # The parameters as they are between steps, of which FSDP2 shows others within, and what was
        # put as their gradients.
        self.put: list[tuple[Any, Any]] = []

    def put_gradients(self) -> None:
        """Let the step find the gradients that it found."""
        for place, _, copy in self.memory.gradients:
            gradient = None if copy is None else copy.clone()
            self.put.append((place.get(), gradient))
            if (parameter := place.get()) is not None:
                parameter.grad = gradient

    def look_at_gradients(self) -> None:
        """See which gradients are still those that were put, if none has been added to."""
        if not self.memory.added:
            pairs = zip(self.memory.gradients, self.put, strict=True)
            self.memory.added = [
                adds_to(copy) if grad_of(place) is put else None
                for (place, _, copy), (_, put) in pairs
            ]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_backward = func in (torch.Tensor.backward, torch.autograd.backward)
        if is_backward and not self.memory.added:
            self.memory.added = [None if p is None else adds_to(p.grad) for p, _ in self.put]
        return super().__torch_function__(func, types, args, kwargs)


def has_bad(memory: Memory) -> bool:
    """Whether a gradient was not finite before the step."""
    found = (g for *_, g in memory.gradients if g is not None)
    return any(not_finite(local_of(g)) is not None for g in found)


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
    def refuse(*_: Any) -> None:
        raise RuntimeError(IN_STEP)

    hook = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        hook.remove()


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


def arguments_in(given: Any) -> Iterator[Argument]:
    """Yield the tensors among the arguments of a step, with names."""
    args, kwargs = given
    named = {f"argument {i}": x for i, x in enumerate(args)} | kwargs
    for name, x in named.items():
        yield from starmap(Argument, tensors_of(x, name))


def is_written(tensor: Any, copy: Any) -> bool:
    """Whether a tensor has other numbers than its copy; a sparse one is not looked at."""
    is_dense = copy is not None and local_of(tensor).layout is torch.strided
    return is_dense and not is_same(tensor, copy)


def batch_of(given: Any) -> int:
    """Return the number of rows of a batch, as its first tensor has it; 0 if there is none."""
    sizes = (len(x) for _, x in arguments_in(given) if x.dim())
    return next(sizes, 0)


def arguments_of(given: Any) -> Iterator[str]:
    """Yield a sentence for each argument of a step that is not finite."""
    for name, x in arguments_in(given):
        bad = not_finite(x)
        if bad is not None:
            rows = rows_of(bad, len(x) if x.dim() else 0)
            where = f" in row{'' if len(rows) == 1 else 's'} {listed(rows)}" if rows else ""
            yield f"{name} of the step is {what_of(x.detach()[bad], 'nan')}{where}"
