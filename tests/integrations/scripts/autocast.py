"""Automatic mixed precision in bfloat16: the mean of the words of each sequence."""

import torch

from safeops.integrations import guard

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters())


@guard(model, file="reports.jsonl")
def step(words, keep):
    """Make the gradients of a batch, which has sequences without words."""
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(words).squeeze(-1)
    means = (found.float() * keep).sum(1) / keep.sum(1)  # here
    torch.where(keep.any(1), means, 0.0).square().mean().backward()


words, keep = torch.ones(4, 3, 2), torch.ones(4, 3, dtype=torch.bool)
empty = keep.clone()
empty[3] = False
for mask in (keep, empty):
    step(words, mask)
    optimizer.step()
