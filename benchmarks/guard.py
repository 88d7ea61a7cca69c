"""
What a guard costs per step while gradients are finite: ``python benchmarks/guard.py [--quick]``.

A step is forward and backward pass, gradient clearing and Adam, on one thread: the median of pairs
that take turns in one process, with quartiles, guarded over plain. A row "A/A" holds the plain step
against itself.
"""

import torch
from timing import compare
from options import parsed

from safeops.integrations import guard

torch.set_num_threads(1)
torch.manual_seed(0)
HALF = 4  # the convolution that halves images


def normalised(channels, stride):
    """Return a convolution with running means."""
    convolution = torch.nn.Conv2d(channels, channels, 3, stride, padding=1)
    return [convolution, torch.nn.BatchNorm2d(channels), torch.nn.ReLU()]


IMAGES = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, padding=1),
    *(layer for i in range(8) for layer in normalised(32, 1 + (i == HALF))),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(32, 10),
)
ENCODER = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True),
    4,
    enable_nested_tensor=False,
)
PROGRAMS = {
    "ResNet-like, 9 convolutions, 16 images of 32 x 32": (IMAGES, torch.randn(16, 3, 32, 32)),
    "encoder, 4 layers of 128 units, 8 sequences of 64": (ENCODER, torch.randn(8, 64, 128)),
}


def steps(model, batch):
    """Return a guarded and a plain step of training."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)

    def backward(x):
        loss = model(x).square().mean()
        loss.backward()

    def step_with(run):
        def step():
            optimizer.zero_grad()
            run(batch)
            optimizer.step()

        return step

    return step_with(guard(model)(backward)), step_with(backward)


def main():
    """Print the table."""
    pairs = 15 if parsed(__doc__).quick else 60
    print("| model | guarded / plain | quartiles | A/A |")
    print("| --- | --- | --- | --- |")
    for name, program in PROGRAMS.items():
        found, control = compare(*steps(*program), pairs)
        print(f"| {name} | {found.ratio:.3f} | {found} | {control.ratio:.3f} |")


if __name__ == "__main__":
    main()
