"""A loop of one's own: the mean length of the rows that are not empty."""

import torch

from safeops.integrations import guard

torch.manual_seed(0)
model = torch.nn.Linear(3, 2, bias=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


@guard(model, file="reports.jsonl")
def step(rows):
    """Make the gradients of a batch."""
    optimizer.zero_grad()
    squares = model(rows).square().sum(1)
    lengths = squares.sqrt()  # here
    torch.where(squares > 0, lengths, 0.0).mean().backward()


rows = torch.ones(4, 3)
empty = rows.clone()
empty[1] = 0.0
for batch in (rows, empty):
    step(batch)
    optimizer.step()
