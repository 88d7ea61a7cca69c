"""Layers of torch_geometric on two graphs in a batch, of which the loss leaves out the second."""

import warnings

import numpy as np
import torch

with warnings.catch_warnings():
    # torch_geometric 2.8 scripts functions when it is imported; PyTorch 2.13 deprecates that
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
    from torch_geometric import nn as geometric

from real_models.engines import Torch
from real_models.harness import Case, Program

ENGINE = Torch
FIRST = [[0, 1, 1, 2, 2, 3, 3, 0, 0, 2], [1, 0, 2, 1, 3, 2, 0, 3, 2, 0]]
SECOND = [[4, 5, 5, 6], [5, 4, 6, 5]]
EDGES = torch.tensor([a + b for a, b in zip(FIRST, SECOND, strict=True)])
GRAPH = torch.tensor([0, 0, 0, 0, 1, 1, 1])
WIDTH, KEPT = 6, 4
DEGREES = torch.tensor([0, 2, 3, 1])


def edges_of(x):
    """Return the edges between the nodes that there are."""
    return EDGES[:, EDGES.max(0).values < len(x)]


def program_of(layer, call, *, pooled=False):
    """Return a program of a layer in evaluation mode on seven nodes."""
    layer = layer.double().eval()
    x = np.random.default_rng(0).standard_normal((7, WIDTH))
    return Program(
        lambda _, x: call(layer, x),
        x,
        parameters=list(layer.parameters()),
        kept=KEPT,
        kept_outputs=1 if pooled else None,
    )


def along_edges(layer, x):
    """Call a layer on nodes and edges, twice with a nonlinearity between."""
    return layer(torch.tanh(layer(x, edges_of(x))), edges_of(x))


def convolution(name, *args, **options):
    """Return the case of a graph convolution."""

    def build():
        torch.manual_seed(0)
        layer = getattr(geometric, name.split(",")[0])
        made = layer(*args, **options) if args else layer(WIDTH, WIDTH, **options)
        return program_of(made, along_edges)

    return Case("torch_geometric", name, build)


def pooling(name, make, call):
    """Return the case of a layer that reads which node is in which graph."""

    def build():
        torch.manual_seed(0)
        return program_of(make(), lambda layer, x: call(layer, x, GRAPH[: len(x)]), pooled=True)

    return Case("torch_geometric", name, build)


def mlp(width=WIDTH, out=WIDTH):
    """Return a small network."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, 8), torch.nn.ReLU(), torch.nn.Linear(8, out))


def plain(layer, x, graph):
    """Call a layer on nodes and graphs."""
    return layer(x, graph)


def picked(layer, x, graph):
    """Call a layer that keeps the best nodes of each graph, and sum what is left."""
    out = layer(x, edges_of(x), batch=graph)
    return geometric.global_add_pool(out[0], out[3])


CASES = [
    convolution("GCNConv"),
    convolution("GATConv", heads=2, concat=False),
    convolution("GATv2Conv", heads=2, concat=False),
    convolution("GINConv", mlp()),
    convolution("SAGEConv"),
    convolution("SAGEConv, max", aggr="max"),
    convolution("TransformerConv", heads=2, concat=False),
    convolution("EdgeConv", mlp(2 * WIDTH)),
    convolution("ChebConv", K=3),
    convolution("GraphConv"),
    convolution("GatedGraphConv", WIDTH, num_layers=2),
    convolution("ARMAConv"),
    convolution("TAGConv"),
    convolution(
        "PNAConv",
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification"],
        deg=DEGREES,
    ),
    convolution("GENConv"),
    convolution("GeneralConv"),
    convolution("SGConv", K=2),
    convolution("LEConv"),
    convolution("SuperGATConv"),
    convolution("ResGatedGraphConv"),
    convolution("AGNNConv", True),
    pooling("global mean", mlp, lambda m, x, g: geometric.global_mean_pool(m(x), g)),
    pooling("global max", mlp, lambda m, x, g: geometric.global_max_pool(m(x), g)),
    pooling(
        "GraphNorm",
        lambda: geometric.GraphNorm(WIDTH),
        lambda m, x, g: geometric.global_add_pool(m(x, g).tanh(), g),
    ),
    pooling("Set2Set", lambda: geometric.Set2Set(WIDTH, 2), plain),
    pooling("AttentionalAggregation", lambda: geometric.AttentionalAggregation(mlp(out=1)), plain),
    pooling("SoftmaxAggregation", lambda: geometric.SoftmaxAggregation(learn=True), plain),
    pooling(
        "PowerMeanAggregation",
        lambda: geometric.PowerMeanAggregation(learn=True),
        lambda m, x, g: m(x.square(), g),
    ),
    pooling("TopKPooling", lambda: geometric.TopKPooling(WIDTH, ratio=0.9), picked),
    pooling("SAGPooling", lambda: geometric.SAGPooling(WIDTH), picked),
]
