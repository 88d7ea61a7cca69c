"""Watched programs that use autograd in unusual ways: views, modes, custom functions, compilers."""

from importlib import import_module

from watched import gradients, nn, parameter, program, torch

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
