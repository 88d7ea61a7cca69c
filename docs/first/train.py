import torch

rates = torch.tensor([0.0, 4.0], requires_grad=True)
scale = torch.sqrt(rates)
loss = torch.where(rates > 0, scale, 0.0).sum()
loss.backward()
