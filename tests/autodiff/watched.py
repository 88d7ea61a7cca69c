"""
Correct programs of PyTorch, of the kinds that meet what watches them in unusual ways.

Each returns tensors. It draws its random numbers after a seed, and touches no global state.
"""

import copy
import io
from contextlib import contextmanager
from importlib import import_module

from reported_torch import Lazy

torch, nn, functional = Lazy("torch"), Lazy("torch.nn"), Lazy("torch.nn.functional")
init, parametrize = Lazy("torch.nn.init"), Lazy("torch.nn.utils.parametrize")
parametrizations = Lazy("torch.nn.utils.parametrizations")

PROGRAMS = {}


def program(f):
    """Put a program into the table."""
    PROGRAMS[f.__name__] = f
    return f


def parameter(*shape):
    """Return a parameter of random entries."""
    return nn.Parameter(torch.rand(shape) + 0.5)


def gradients(loss, *parameters):
    """Run a backward pass; return what it has accumulated."""
    loss.backward()
    return [x.grad for x in parameters]


def trained(model, x, optimizer=None, steps=2):
    """Take steps; return the parameters."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return [x.detach() for x in model.parameters()]


# In place, and views of parameters.


@program
def row_of_a_parameter_filled():
    """Write into a view of a parameter."""
    w = parameter(3, 2)
    with torch.no_grad():
        w[0].fill_(0)
    return gradients(w.square().sum(), w)


@program
def row_of_a_parameter_scaled():
    """Multiply a view, and assign through one."""
    w = parameter(3, 2)
    with torch.no_grad():
        w[0].mul_(2)
        w[:, 0] += 1
        w[1:].zero_()
        w.view(-1)[2] = 5
        w.t()[0, 1] = 3
    return gradients(w.square().sum(), w)


@program
def base_written_under_its_view():
    """Make a view without gradients, write into its base, and read the view."""
    w = parameter(3, 2)
    with torch.no_grad():
        row = w[0]
        w.mul_(2)
        again = row + 1
        several = w.unbind(0)
        w.add_(1)
        sums = [x.sum() for x in several]
    return [again, *sums, *gradients(w.sum(), w)]


@program
def data_of_a_parameter():
    """Write through ``.data`` and ``detach``."""
    w = parameter(3)
    w.data[0] = 2.0
    w.data.mul_(3)
    w.detach()[1:].add_(1)
    w.data = torch.ones(3)
    return gradients((w * 2).sum(), w)


@program
def views_in_place_with_a_graph():
    """Write into views that have a graph."""
    x = parameter(4, 3)
    y = x * 2
    y[0] = 0
    y[1:].mul_(3)
    y.view(-1)[5:].neg_()
    y.diagonal().add_(1)
    y.t()[0].mul_(4)
    return gradients(y.sum(), x)


@program
def several_views():
    """Take views that PyTorch lets nobody write into."""
    x = parameter(4, 3)
    first, second = (x * 2).split(2)
    one, *rest = (x * 3).unbind(0)
    parts = (x * 4).chunk(2, 1)
    return gradients((first + second).sum() + one.sum() + rest[0].sum() + parts[1].sum(), x)


@program
def functions_with_out():
    """Write results into tensors that are there."""
    out = torch.empty(3)
    torch.add(torch.ones(3), 1, out=out)
    torch.sum(torch.ones(3, 3), 0, out=out)
    into = torch.zeros(3)
    into.copy_(out).clamp_(max=2).masked_fill_(torch.tensor([True, False, False]), -1)
    return [out, into, torch.zeros(2, 3).index_copy_(0, torch.tensor([1]), into[None])]


@program
def tensors_that_swap():
    """Exchange storages and contents."""
    x, y = torch.ones(2), torch.zeros(3)
    x.set_(y)
    x.resize_(2, 2).fill_(1)
    torch.utils.swap_tensors(x, y)
    released = torch.ones(4)
    view = released.view(2, 2)
    released.untyped_storage().resize_(0)
    rows = view.view(4)
    return [x, y, torch.tensor(rows.shape)]


# Modes of gradients.


@program
def inference_mode():
    """Compute, write and view in inference mode, and use the results outside."""
    w = parameter(3, 2)
    with torch.inference_mode():
        y = w * 2
        y[0].fill_(1)
        y.view(-1).add_(1)
        z = w[0] + w.t()[0, 0]
    return [y.clone(), z.clone(), *gradients((w * y.clone()).sum(), w)]


@program
def inference_tensor_outside():
    """Use tensors of inference mode where there are gradients."""
    with torch.inference_mode():
        constant = torch.rand(3)
        row = constant[1:]
    view = row[:1]
    w = parameter(3)
    return [view + 1, (w * 2).detach() + constant]


@program
def decorated_functions():
    """Switch gradients off and on by decorators and by calls."""

    @torch.no_grad()
    def frozen(w):
        w[0].zero_()
        with torch.enable_grad():
            return (w * 2)[1:]

    w = parameter(3, 2)
    y = frozen(w)
    with torch.set_grad_enabled(False):
        z = w[1:].neg_().neg_()
    return [z, *gradients(y.sum(), w)]


@program
def version_counters_kept():
    """Write without raising the version of what was saved."""
    w = parameter(3)
    y = w.exp()
    with torch.autograd._unsafe_preserve_version_counter(y):
        y.detach().add_(0)
    return gradients(y.sum(), w)


@program
def anomaly_mode():
    """Run in PyTorch's own mode that looks for NaN."""
    w = parameter(3)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        return gradients(w.log().sum(), w)


@program
def saved_tensors_hooks():
    """Store what the backward pass needs elsewhere."""
    w = parameter(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(), torch.from_numpy):
        y = (w.detach().requires_grad_() * 1).exp()
    with torch.autograd.graph.save_on_cpu():
        z = w.exp()
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        u = w.sin()
    return [y.detach(), *gradients((z * u).sum(), w)]


@program
def mutation_of_what_was_saved():
    """Write into what was saved, where PyTorch is told to keep a copy."""
    w = parameter(3)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = w * 2
        z = y.square()
        y.add_(1)
        return gradients(z.sum(), w)


# Modules.


@program
def embeddings():
    """Build embeddings with padding, sparse ones, and bags."""
    layer = nn.Embedding(10, 4, padding_idx=0)
    bag = nn.EmbeddingBag(10, 4, padding_idx=0, mode="sum", include_last_offset=True)
    sparse = nn.Embedding(6, 2, sparse=True, max_norm=1.0)
    given = nn.Embedding.from_pretrained(torch.ones(3, 2), freeze=False, padding_idx=1)
    y = layer(torch.tensor([0, 1, 0])).sum() + given(torch.tensor([1, 2])).sum()
    y = y + bag(torch.tensor([0, 3, 4]), torch.tensor([0, 2, 3])).sum()
    (sparse(torch.tensor([0, 3])).sum() + y).backward()
    torch.optim.SparseAdam(list(sparse.parameters()), lr=0.1).step()
    return [layer.weight.grad, bag.weight.grad, given.weight.grad, sparse.weight.detach()]


@program
def functions_of_init():
    """Run all of `torch.nn.init`, on parameters and on views of them."""
    w, small = nn.Parameter(torch.empty(6, 6)), nn.Parameter(torch.empty(6, 6, 3))
    names = [name for name in vars(import_module("torch.nn.init")) if name.endswith("_")]
    public = sorted(name for name in names if not name.startswith("_"))
    assert len(public) >= 13
    found = []
    for name in public:
        f = getattr(init, name)
        options = {"constant_": (0.5,), "sparse_": (0.5,)}.get(name, ())
        for x in (small, small[:, :, :2]) if name == "dirac_" else (w, w[2:], w.t()):
            f(x, *options)
            found.append(x.detach().clone())
    return found


@program
def weight_norm():
    """Train layers with weight norm, old and new."""
    import warnings

    with warnings.catch_warnings(action="ignore"):  # that the old one is deprecated
        old = nn.utils.weight_norm(nn.Linear(3, 2))
    new = parametrizations.weight_norm(nn.Conv1d(2, 2, 1), dim=None)
    x = torch.rand(4, 3)
    found = trained(old, x) + trained(new, torch.rand(2, 2, 3))
    nn.utils.remove_weight_norm(old)
    parametrize.remove_parametrizations(new, "weight")
    return [*found, old.weight.detach(), new.weight.detach()]


@program
def spectral_norm():
    """Train with spectral norm, whose buffers are written in place."""
    layer = parametrizations.spectral_norm(nn.Linear(3, 2))
    return trained(layer, torch.rand(4, 3))


@program
def orthogonal():
    """Train with an orthogonal weight, and assign to it."""
    layer = parametrizations.orthogonal(nn.Linear(3, 3))
    layer.weight = torch.eye(3)
    other = parametrizations.orthogonal(nn.Linear(3, 2), orthogonal_map="cayley")
    return trained(layer, torch.rand(4, 3)) + trained(other, torch.rand(4, 3))


@program
def own_parametrisation():
    """Cache a parametrisation of one's own."""

    class Symmetric(nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).mT

    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    with parametrize.cached():
        y = layer(torch.ones(1, 3)) + layer(torch.zeros(1, 3))
    y.sum().backward()
    return [x.grad for x in layer.parameters()]


@program
def pruning():
    """Prune a layer by a mask, for good."""
    layer = nn.Linear(4, 3)
    prune = import_module("torch.nn.utils.prune")
    prune.l1_unstructured(layer, "weight", amount=0.5)
    found = trained(layer, torch.rand(2, 4))
    prune.remove(layer, "weight")
    return [*found, layer.weight.detach()]


@program
def recurrent_layers():
    """Train an LSTM on packed sequences, and a GRU."""
    lstm, gru = nn.LSTM(2, 3, batch_first=True), nn.GRU(2, 3, bidirectional=True)
    rnn = import_module("torch.nn.utils.rnn")
    packed = rnn.pack_sequence([torch.rand(3, 2), torch.rand(2, 2)])
    y, _ = lstm(packed)
    z, _ = gru(torch.rand(4, 1, 2))
    loss = rnn.pad_packed_sequence(y)[0].sum() + z.sum()
    return gradients(loss, *lstm.parameters(), *gru.parameters())


@program
def transformer():
    """Train an encoder with padding; in a mode of functions PyTorch takes no fast path in eval."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x, padding = torch.rand(2, 3, 8), torch.tensor([[False] * 3, [False, False, True]])
    model(x, src_key_padding_mask=padding).sum().backward()
    model.eval()
    with torch.no_grad():
        y = model(x, src_key_padding_mask=padding)
    return [(y[:, :2] * 1e3).round(), *[x.grad for x in model.parameters()]]


@program
def batch_norm():
    """Update running statistics, and load a state dict in place."""
    layer = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(inplace=True)).double()
    found = trained(layer, torch.rand(2, 1, 3, 3).double())
    return [*found, *layer.buffers()]


@program
def state_dicts():
    """Load parameters by copy and by assignment, through a file too."""
    source, by_copy, by_assignment = (nn.Linear(2, 2) for _ in range(3))
    by_copy.load_state_dict(source.state_dict())
    by_assignment.load_state_dict(source.state_dict(), assign=True)
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    empty.to_empty(device="cpu").load_state_dict(torch.load(file))
    return [x.detach() for m in (by_copy, by_assignment, empty) for x in m.parameters()]


@program
def copies():
    """Copy models and parameters deeply, and average them."""
    model = nn.Linear(2, 2)
    twin = copy.deepcopy(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    found = trained(model, torch.rand(3, 2))
    average.update_parameters(model)
    with torch.no_grad():
        for slow, fast in zip(twin.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast, 0.1)
            slow[0].mul_(0.9).add_(fast[0], alpha=0.1)
    return [*found, *(x.detach() for x in (*twin.parameters(), *average.parameters()))]


@program
def lazy_modules():
    """Build parameters when the first input is there."""
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    model(torch.rand(2, 4))
    return trained(model, torch.rand(2, 4))


@program
def modules_on_meta():
    """Run a model that has no data."""
    model = nn.Linear(3, 2, device="meta")
    y = model(torch.rand(4, 3, device="meta"))
    return [torch.tensor(y.shape)]


@program
def hooks():
    """Use hooks of modules, tensors and nodes."""
    layer, seen = nn.Linear(2, 2), []
    layer.register_forward_hook(lambda _, __, y: y * 2)
    layer.register_full_backward_hook(lambda _, __, out: seen.append(out[0].clone()))
    layer.weight.register_hook(lambda g: g.clamp(max=1.0))
    layer.bias.register_post_accumulate_grad_hook(lambda x: seen.append(x.grad.clone()))
    y = layer(parameter(3, 2))
    y.retain_grad()
    y.grad_fn.register_prehook(lambda gs: gs)
    y.sum().backward()
    return [y.grad, layer.weight.grad, layer.bias.grad, *seen]


@program
def optimizer_in_the_backward_pass():
    """Take the step of each parameter in its hook, and drop the gradient."""
    model = nn.Linear(2, 2)
    steps = {x: torch.optim.SGD([x], lr=0.1) for x in model.parameters()}

    def step(x):
        steps[x].step()
        steps[x].zero_grad()

    for x in model.parameters():
        x.register_post_accumulate_grad_hook(step)
    model(torch.ones(1, 2)).sum().backward()
    return [x.detach() for x in model.parameters()]


# Optimizers.


@program
def optimizers():
    """Take steps with each kind of loop over parameters."""
    found = []
    for name in ("Adam", "AdamW", "SGD", "Adagrad"):
        for options in ({"foreach": True}, {"foreach": False}, {"fused": True}):
            torch.manual_seed(0)
            model = nn.Linear(2, 2)
            optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
            found += trained(model, torch.ones(1, 2), optimizer)
    return found


@program
def closures_and_schedules():
    """Run LBFGS, which calls a closure, and a schedule."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    optimizer.step(closure)
    schedule.step()
    return [x.detach() for x in model.parameters()]


@program
def clipped_gradients():
    """Clip gradients by norm and by value, and make vectors of parameters."""
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    return [norm, vector, *(x.detach() for x in model.parameters())]


@program
def mixed_precision():
    """Train in bfloat16 with a scaler of gradients."""
    model = nn.Linear(2, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.ones(1, 2)).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return [x.detach() for x in model.parameters()]


@program
def small_dtypes():
    """Compute in dtypes that have few operations."""
    x = torch.tensor([0.5, 1.0, 2.0])
    eighths = [x.to(getattr(torch, name)) for name in ("float8_e4m3fn", "float8_e5m2")]
    halves = x.half().view(torch.int16).view(torch.float16)
    bits = torch.tensor([True]).view(torch.uint8)
    return [*(y.float() for y in eighths), halves, bits, x.cdouble().conj()]


# Functions with rules of their own.


@program
def custom_functions():
    """Mark what is written, what has no gradient, and views."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.variable, ctx.name = x, "scale"  # PyTorch has names of its own like these
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(_, g):
            return g * 2

    class Sort(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y, order = x.sort()
            ctx.mark_non_differentiable(order)
            ctx.save_for_backward(order)
            ctx.set_materialize_grads(False)
            return y, order

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g, _):
            (order,) = ctx.saved_tensors
            return torch.zeros_like(g).index_put((order,), g)

    class View(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.view(-1)

        @staticmethod
        def backward(_, g):
            return g.view(2, 2)

    w = parameter(2, 2)
    y = Scale.apply(w * 1)
    z, _ = Sort.apply(View.apply(y))
    return gradients((z * torch.arange(4)).sum(), w)


@program
def transforms():
    """Use the transforms of functions, which have an engine of their own."""
    func = import_module("torch.func")
    model, x = nn.Linear(2, 1), torch.rand(3, 2)
    weights = {name: w.detach() for name, w in model.named_parameters()}

    def loss(weights, x):
        return func.functional_call(model, weights, (x,)).square().sum()

    each = func.vmap(func.grad(loss), (None, 0))(weights, x)
    _, tangent = func.jvp(torch.sin, (x,), (torch.ones_like(x),))
    stack, _ = func.stack_module_state([model, nn.Linear(2, 1)])
    hessian = func.hessian(lambda x: x.exp().sum())(x[0])
    _, pull = func.vjp(torch.exp, x)
    rows = func.jacrev(torch.sin)(x[0])
    return [*each.values(), tangent, hessian, *stack.values(), *pull(x), rows]


@program
def forward_mode():
    """Carry tangents forward with dual numbers."""
    forward = import_module("torch.autograd.forward_ad")
    with forward.dual_level():
        x = forward.make_dual(torch.rand(3), torch.ones(3))
        y = x.exp()
        y[0].mul_(2)
        value, tangent = forward.unpack_dual(y)
        return [value.clone(), tangent.clone()]


@program
def higher_orders():
    """Differentiate gradients, and make jacobians."""
    w = parameter(3)
    (g,) = torch.autograd.grad(w.exp().sum(), w, create_graph=True)
    jacobian = torch.autograd.functional.jacobian(torch.sin, w, create_graph=False)
    batched = torch.autograd.grad(
        w.sin(), w, torch.eye(3), is_grads_batched=True, retain_graph=True
    )
    return [jacobian, *batched, *gradients(g.square().sum(), w)]


@program
def checkpoints():
    """Run parts again in the backward pass, both ways."""
    checkpoint = import_module("torch.utils.checkpoint")
    layer, x = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), parameter(3, 2)
    y = checkpoint.checkpoint(layer, x, use_reentrant=True)
    z = checkpoint.checkpoint(layer, x, use_reentrant=False)
    u = checkpoint.checkpoint_sequential(layer, 2, x, use_reentrant=False)
    return gradients((y + z + u).sum(), x, *layer.parameters())


@program
def backward_of_parts():
    """Name the inputs of a backward pass, and free the graph."""
    w, v = parameter(2), parameter(2)
    y = w * 2
    torch.autograd.backward([(y * v).sum(), y.sum()], inputs=[w], retain_graph=True)
    y.backward(torch.ones(2), inputs=(w, v))
    nothing = torch.autograd.grad(w.sum(), [w, v], allow_unused=True, materialize_grads=True)
    y = w * v
    torch.autograd.backward(y.sum(), inputs=[y, v])
    return [w.grad, v.grad, *nothing]


@program
def compiled_parts():
    """Compile a part of the program."""
    torch._dynamo.reset()
    f = torch.compile(lambda x: (x.sin() * 2).relu(), backend="aot_eager", fullgraph=True)
    w = parameter(3)
    found = gradients(f(w).sum(), w)
    torch._dynamo.reset()
    return found


@program
def scripted_parts():
    """Call functions that were scripted and traced, often."""
    import warnings

    import torch

    def f(x):
        return torch.where(x > 0, x * 2, x)

    with warnings.catch_warnings(action="ignore"):  # that scripts are deprecated
        scripted = torch.jit.script(f)
        traced = torch.jit.trace(f, torch.ones(3))
    w, operations = parameter(3), [node.kind() for node in traced.graph.nodes()]
    assert sorted(operations) == sorted(node.kind() for node in scripted.graph.nodes())
    return [gradients((scripted(w) + traced(w)).sum(), w)[0].clone() for _ in range(3)]


@program
def exported_programs():
    """Export a program, and trace it symbolically."""
    fx = import_module("torch.fx")
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    traced = fx.symbolic_trace(model)
    made = import_module("torch.fx.experimental.proxy_tensor").make_fx(torch.sin)(torch.ones(2))
    exported = torch.export.export(model, (torch.ones(1, 2),)).module()
    x = torch.ones(1, 2)
    return [traced(x).detach(), made(x), exported(x).detach()]


# Other tensors.


@program
def nested_tensors():
    """Compute with ragged rows, both layouts."""
    import warnings

    parts = [torch.rand(2, 3), torch.rand(1, 3)]
    with warnings.catch_warnings(action="ignore"):  # that they are a prototype
        w = parameter(3, 3)
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
        found = gradients((jagged @ w).to_padded_tensor(0.0).sum(), w)
        strided = torch.nested.nested_tensor(parts)
        return [*found, (strided * 2).to_padded_tensor(-1.0), *strided.unbind()]


@program
def sparse_tensors():
    """Compute with each layout of sparse tensors."""
    import warnings

    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    with warnings.catch_warnings(action="ignore"):  # that they are in beta
        w = parameter(2, 2)
        coo = dense.to_sparse()
        y = torch.sparse.mm(coo, w).sum() + torch.sparse.sum(coo.coalesce())
        csr, csc = dense.to_sparse_csr(), dense.to_sparse_csc()
        bsr = dense.to_sparse_bsr((1, 1))
        z = (csr @ w).sum()
        return [*gradients(y + z, w), *(x.to_dense() for x in (csr, csc, bsr, coo * 2))]


@program
def masked_tensors():
    """Compute with tensors of another class."""
    import warnings

    with warnings.catch_warnings(action="ignore"):  # that they are a prototype
        x = torch.masked.masked_tensor(torch.tensor([1.0, 2.0]), torch.tensor([True, False]))
        return [(x * 2).get_data(), x.sum().get_data()]


@program
def subclasses():
    """Compute with classes that have functions of their own, and modes of the program."""

    class Counted(torch.Tensor):
        count = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.count += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(2).as_subclass(Counted)
    y = (x + 1).sum()
    fake = import_module("torch._subclasses.fake_tensor").FakeTensorMode()
    with fake:
        z = torch.ones(3, 2) @ torch.ones(2, 2)
    return [y.as_subclass(torch.Tensor), torch.tensor(z.shape), torch.tensor(Counted.count)]


@program
def modes_of_the_program():
    """Count what is dispatched, and what functions are called."""
    flops = import_module("torch.utils.flop_counter").FlopCounterMode(display=False)
    python = import_module("torch.utils._python_dispatch").TorchDispatchMode
    overrides = import_module("torch.overrides").TorchFunctionMode
    names = []

    class Names(overrides):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    class Operations(python):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    w = parameter(2, 2)
    with flops, Names(), Operations():
        y = (w @ w).sum()
    return [torch.tensor([flops.get_total_flops(), len(names)]), *gradients(y, w)]


@program
def data_loaders():
    """Load batches in this process and in others."""
    data = import_module("torch.utils.data")
    rows = data.TensorDataset(torch.arange(6.0).view(3, 2), torch.arange(3))
    found = [list(data.DataLoader(rows, batch_size=2, num_workers=n)) for n in (0, 1)]
    split = data.random_split(rows, [2, 1])
    return [x for batches in found for batch in batches for x in batch] + [split[0][0][0]]


@program
def random_numbers():
    """Draw numbers, and go back to an earlier state."""
    generator = torch.Generator().manual_seed(3)
    first = torch.rand(2, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        second = torch.randn(2)
    sample = torch.distributions.Normal(torch.zeros(2), 1.0).rsample()
    third = torch.empty(3).uniform_().bernoulli_(0.5)
    return [first, second, sample, third, torch.multinomial(torch.ones(3), 2)]


@program
def defaults():
    """Change the default device and dtype for a while."""
    with torch.device("cpu"):
        x = torch.ones(2)
    torch.set_default_dtype(torch.float64)
    try:
        y = torch.ones(2) / 3
    finally:
        torch.set_default_dtype(torch.float32)
    return [x, y, torch.from_numpy(y.numpy()), torch.tensor(x.tolist()), y.to(torch.float16)]


@program
def numbers_that_are_not_finite():
    """Have inf and NaN where they belong."""
    scores = torch.zeros(2, 3).masked_fill(torch.tensor([False, False, True]), -torch.inf)
    w = parameter(3)
    best = torch.full((3,), torch.inf)
    best = torch.minimum(best, w.detach())
    number = torch.tensor([torch.nan]).nan_to_num()
    return [best, number, *gradients((scores.softmax(-1) @ w).sum(), w)]


@program
def threads():
    """Run backward passes in threads."""
    pool = import_module("concurrent.futures").ThreadPoolExecutor(2)
    ws = [parameter(2) for _ in range(2)]
    with pool:
        return list(pool.map(lambda w: gradients(w.exp().sum(), w)[0], ws))


@contextmanager
def seeded():
    """Have the same random numbers each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
