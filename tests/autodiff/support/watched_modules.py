"""Watched programs with modules and optimizers."""

import copy
import io
from importlib import import_module

from watched import (
    gradients,
    init,
    nn,
    parameter,
    parametrizations,
    parametrize,
    program,
    torch,
    trained,
)

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
