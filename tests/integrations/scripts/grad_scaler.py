"""Automatic mixed precision in float16, with a GradScaler."""

import torch

from safeops.integrations import guard

model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)


@guard(model, scaler=scaler, file="reports.jsonl")
def step(rows):
    """Make the gradients of a batch."""
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        found = model(rows).abs()
    roots = found.float() ** 0.5  # here
    scaler.scale(roots.mean()).backward()


rows = torch.ones(4, 2)
empty = rows.clone()
empty[2] = 0.0
for batch in (rows, empty):
    step(batch)
    scaler.step(optimizer)
    scaler.update()
