"""A model and its loss in compiled code."""

import torch

from safeops.integrations import guard

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)


@torch.compile(backend="aot_eager")
def loss_of(rows, sizes):
    """Return the mean of logarithms, where there is a size."""
    logarithms = torch.log(sizes * model(rows).square().squeeze(1))  # here
    return torch.where(sizes > 0, logarithms, 0.0).mean()


@guard(model, file="reports.jsonl")
def step(rows, sizes):
    """Make the gradients of a batch."""
    optimizer.zero_grad()
    loss_of(rows, sizes).backward()


rows = torch.tensor([[1.0, 2.0], [2.0, 1.0], [0.5, 1.0]])
for sizes in (torch.ones(3), torch.tensor([0.0, 1.0, 1.0])):
    step(rows, sizes)
    optimizer.step()
