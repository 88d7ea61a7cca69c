"""Small models of PyTorch whose gradient is NaN for some batch, and what is to be said of it."""

from typing import NamedTuple

import torch
from torch import nn

NAN = float("nan")


class Attention(nn.Module):
    """Attention whose softmax has a row of -inf where a sequence is empty."""

    def __init__(self, size):
        super().__init__()
        self.key = nn.Linear(size, size)

    def forward(self, x, keep):
        """Return a mean of the entries that are kept, by sequence."""
        scores = self.key(x) @ x.mT
        scores = scores.masked_fill(~keep[:, None, :], -torch.inf)
        weights = torch.softmax(scores, -1)
        return weights @ x


class Layer(nn.Module):
    """A layer of an encoder."""

    def __init__(self, size):
        super().__init__()
        self.attention = Attention(size)
        self.norm = nn.LayerNorm(size)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, keep):
        """Return the next states."""
        return self.norm(x + self.drop(self.attention(x, keep)))


class Encoder(nn.Module):
    """An encoder of words, as BERT is one."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.layers = nn.ModuleList(Layer(4) for _ in range(2))

    def forward(self, words, keep):
        """Return a number for each sequence."""
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, keep)
        return x.sum((1, 2))

    def loss(self, words, keep):
        """Return the sum of squares over the sequences that are not empty."""
        return self(words, keep)[keep.any(1)].square().sum()


class Images(nn.Module):
    """A small residual network with normalisation by group."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block = nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.head = nn.Linear(4, 1)

    def forward(self, images):
        """Return a number for each image."""
        x = self.stem(images)
        x = x + self.block(x)
        return self.head(x.mean((2, 3))).squeeze(1)

    def loss(self, images):
        """Return the sum of squares over the images that are numbers."""
        found = self(images)
        kept = images.isfinite().all((1, 2, 3))
        return torch.where(kept, found, 0.0).square().sum()


class Graph(nn.Module):
    """A graph network that takes means over neighbours."""

    def __init__(self):
        super().__init__()
        self.message = nn.Linear(2, 2)

    def loss(self, nodes, edges):
        """Return the sum of squares over nodes; one without neighbours gets no message."""
        sums = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
        degree = torch.zeros(len(nodes)).index_add(0, edges[1], torch.ones(edges.shape[1]))
        means = sums / degree[:, None]
        messages = self.message(means)
        return torch.where(degree[:, None] > 0, messages, 0.0).square().sum()


class Steps(nn.Module):
    """A recurrent network that normalises its state at each step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 2, bias=False)

    def loss(self, series):
        """Return the sum of last states; a state of 0 stays 0."""
        state = torch.zeros(len(series), 2)
        for x in series.unbind(1):
            state = self.cell(torch.cat([x, state], 1))
            size = state.square().sum(1, keepdim=True).sqrt()
            state = torch.where(size > 0, state / size, 0.0)
        return (state[:, 0] + state[:, 1] ** 2).sum()


class Ordinary(nn.Module):
    """A model with all that may differ in a second run: dropout, running means, written weights."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 8, max_norm=1.0)  # which writes into its weights
        self.body = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)
        )

    def loss(self, words, scale=1.0):
        """Return a loss, NaN in the gradient where the scale is."""
        return (self.body(self.words(words)) * scale).square().mean()


KEEP = torch.ones(3, 3, dtype=torch.bool)
KEEP[1] = False
WORDS = torch.tensor([[0, 1, 2], [3, 3, 3], [4, 1, 0]])
PICTURES = torch.linspace(-1, 1, 64).reshape(4, 1, 4, 4)
PICTURES[2] = NAN
NODES = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 1.0]])
EDGES = torch.tensor([[0, 1], [1, 0]])
SERIES = torch.tensor([[[1.0, 2.0], [0.5, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])


class Case(NamedTuple):
    """A model, a batch, the part of the batch that is read; and the finding."""

    model: type
    batch: tuple
    part: tuple
    line: str  # the line in which the derivative is not finite
    entered: str  # the line that made the NaN; "" for the same
    row: int
    module: str
    parameter: str  # one whose gradient is not finite


CASES = {
    "bert": Case(
        Encoder,
        (WORDS, KEEP),
        (WORDS[[0, 2]], KEEP[[0, 2]]),
        "return weights @ x",
        "weights = torch.softmax(scores, -1)",
        1,
        "layers.0.attention",
        "layers.0.norm.weight",
    ),
    "images": Case(
        Images,
        (PICTURES,),
        (PICTURES[[0, 1, 3]],),
        "x = self.stem(images)",
        "",
        2,
        "stem",
        "block.0.weight",
    ),
    "graph": Case(
        Graph,
        (NODES, EDGES),
        (NODES[:2], EDGES),
        "messages = self.message(means)",
        "means = sums / degree[:, None]",
        2,
        "message",
        "message.weight",
    ),
    "steps": Case(
        Steps,
        (SERIES,),
        (SERIES[:1],),
        "size = state.square().sum(1, keepdim=True).sqrt()",
        "",
        1,
        "",
        "cell.weight",
    ),
}
