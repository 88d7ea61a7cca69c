"""Gradients of two batches before each step of the optimizer."""

import torch

from safeops.integrations import guard

model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Sigmoid())
torch.nn.init.ones_(model[0].weight)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


@guard(model, file="reports.jsonl")
def step(batches):
    """Make the gradients of some batches."""
    optimizer.zero_grad()
    for x, target in batches:
        loss = -(target * torch.log(model(x)))  # here
        (loss.mean() / len(batches)).backward()


x, target = torch.ones(3, 1), torch.ones(3, 1)
far, none = x.clone(), target.clone()
far[2], none[2] = -1000.0, 0.0  # a probability of 0, and 0 * log(0)
for batches in ([(x, target), (x, target)], [(x, target), (far, none)]):
    step(batches)
    optimizer.step()
