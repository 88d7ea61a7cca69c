import torch

from safeops import safe_log, safe_where

x = torch.tensor([0.0, 4.0], requires_grad=True)


def slope(y):
    return torch.autograd.grad(y.sum(), x)[0].tolist()


# The bug
y = torch.where(x > 0, torch.log(x), 0.0)
assert str(slope(y)) == "[nan, 0.25]"

# The cure
y = safe_where(x > 0, x, torch.log, fill_value=0, placeholder=1)
assert slope(y) == [0, 0.25]

# The same, ready-made
y = safe_log(x, fill_value=0)
assert slope(y) == [0, 0.25]
