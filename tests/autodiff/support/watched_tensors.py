"""Watched programs with tensors of other kinds, and with modes, data loaders and threads."""

from importlib import import_module

from watched import gradients, parameter, program, torch


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
