"""A model in DistributedDataParallel, in the processes that torchrun starts."""

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from safeops.integrations import guard

distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)


@guard(model, file="reports.jsonl")
def step(scores, keep):
    """Make the gradients of a batch, of which a row may have no entry to keep."""
    optimizer.zero_grad()
    found = model(scores).exp() * keep
    weights = found / found.sum(1, keepdim=True)  # here
    weights[keep.any(1)].square().mean().backward()


scores, keep = torch.ones(3, 2), torch.ones(3, 2, dtype=torch.bool)
empty = keep.clone()
empty[1] = False
for mask in (keep, empty if distributed.get_rank() == 0 else keep):
    step(scores, mask)
    optimizer.step()
distributed.destroy_process_group()
