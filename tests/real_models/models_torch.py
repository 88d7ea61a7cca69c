"""Other packages of PyTorch: kornia, gpytorch, e3nn, and layers of PyTorch itself."""

import warnings

import numpy as np
import torch

with warnings.catch_warnings():
    # e3nn and gpytorch script functions when they are imported; PyTorch 2.13 deprecates that
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
    import e3nn.nn
    import e3nn.o3
    import gpytorch
    import kornia

from real_models.engines import Torch
from real_models.harness import Case, Program, Stays

ENGINE = Torch
RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.standard_normal((3, 6))
SEQUENCES = RANDOM.standard_normal((3, 5, 6))
IMAGES = RANDOM.uniform(0.1, 0.9, (3, 3, 8, 8))
WEIGHT = torch.tensor([[0.9, 0.1, -0.2], [0.2, 1.1, 0.3], [0.1, -0.3, 0.8]], dtype=torch.float64)
LSTM = Stays(
    "mkldnn_rnn_layer_backward",
    "the LSTM of mkldnn, float32 on a CPU, is one kernel without a formula in PyTorch",
)


def module(package, name, make, call, x, stays=None, tolerance=1e-9, dtype=torch.float64):
    """Return the case of a module in evaluation mode."""

    def build():
        torch.manual_seed(0)
        made = make().to(dtype).eval()
        return Program(
            lambda _, x: call(made, x.to(dtype)), x, list(made.parameters()), tolerance=tolerance
        )

    return Case(package, name, build, stays)


def function(package, name, call, x, stays=None):
    """Return the case of a function of a weight and rows."""

    def build():
        weight = WEIGHT.clone().requires_grad_()
        return Program(lambda _, x: call(weight, x), x, [weight])

    return Case(package, name, build, stays)


def mixed(weight, images):
    """Return images whose colours are mixed by the weight, which keeps them positive."""
    return torch.einsum("ij,njhw->nihw", weight, images).sigmoid()


def transformed(weight, images):
    """Return images seen through a homography for each, made from their means."""
    means = images.mean((1, 2, 3)).tanh()[:, None, None]
    return kornia.geometry.transform.warp_perspective(
        images, torch.eye(3) + 0.1 * weight * means, (8, 8)
    )


def quaternions(weight, rows):
    """Return rotation matrices of rows."""
    q = kornia.geometry.quaternion.Quaternion(rows[:, :4] + weight.sum())
    return q.normalize().matrix()


class Process(gpytorch.models.ExactGP):
    """A batch of Gaussian processes."""

    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        """Return the prior at points."""
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))


def likelihoods(model, y):
    """Return the marginal log likelihood of each row."""
    points = torch.linspace(0, 2, y.shape[1], dtype=y.dtype).expand(len(y), -1)[..., None]
    prior = model["process"].forward(points)
    return model["likelihood"](prior).log_prob(y)


def processes():
    """Return the parameters of a Gaussian process and its likelihood."""
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    points = torch.zeros(1, 5, 1)
    process = Process(points, torch.zeros(1, 5), likelihood)
    return torch.nn.ModuleDict({"process": process, "likelihood": likelihood})


def normals(weight, rows):
    """Return log densities of normal distributions with a factor for each row."""
    factors = weight.tril() * (1 + rows[:, :3, None].square())
    # with validation it raises for the NaN row already
    how = {"scale_tril": factors, "validate_args": False}
    return torch.distributions.MultivariateNormal(rows[:, :3], **how).log_prob(rows[:, 3:])


def encoder():
    """Return two layers of a transformer."""
    layer = torch.nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def first(model, x):
    """Return the outputs of a recurrent network without its last state."""
    return model(x)[0]


def recurrent(kind, **options):
    """Return the maker of a recurrent network."""
    return lambda: kind(6, 4, batch_first=True, **options)


TENSORS = e3nn.o3.Irreps("3x0e + 1x1o")
CASES = [
    module("torch", "TransformerEncoder", encoder, lambda m, x: m(x), SEQUENCES),
    module("torch", "LSTM, float64", recurrent(torch.nn.LSTM), first, SEQUENCES),
    module(
        "torch",
        "LSTM, float32",
        recurrent(torch.nn.LSTM),
        first,
        SEQUENCES,
        LSTM,
        1e-3,
        torch.float32,
    ),
    module("torch", "GRU", recurrent(torch.nn.GRU, bidirectional=True), first, SEQUENCES),
    function("torch", "MultivariateNormal", normals, VECTORS),
    module(
        "e3nn",
        "FullyConnectedTensorProduct",
        lambda: e3nn.o3.FullyConnectedTensorProduct(TENSORS, TENSORS, TENSORS),
        lambda m, x: m(x, x.tanh()),
        VECTORS,
    ),
    module(
        "e3nn",
        "Linear, Gate",
        lambda: torch.nn.Sequential(
            e3nn.o3.Linear(TENSORS, "3x0e + 2x0e + 2x1o"),
            e3nn.nn.Gate("3x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o"),
        ),
        lambda m, x: m(x),
        VECTORS,
    ),
    function(
        "e3nn",
        "spherical harmonics",
        lambda w, x: e3nn.o3.spherical_harmonics([0, 1, 2], x[:, :3] @ w, True),
        VECTORS,
    ),
    module("gpytorch", "ExactGP, batch", processes, likelihoods, SEQUENCES[:, :, 0]),
    function("kornia", "rgb_to_hsv", lambda w, x: kornia.color.rgb_to_hsv(mixed(w, x)), IMAGES),
    function("kornia", "rgb_to_lab", lambda w, x: kornia.color.rgb_to_lab(mixed(w, x)), IMAGES),
    function(
        "kornia",
        "gaussian_blur2d",
        lambda w, x: kornia.filters.gaussian_blur2d(mixed(w, x), (3, 3), (1.0, 1.0)),
        IMAGES,
    ),
    function("kornia", "sobel", lambda w, x: kornia.filters.sobel(mixed(w, x)), IMAGES),
    function("kornia", "ssim", lambda w, x: kornia.metrics.ssim(mixed(w, x), x, 3), IMAGES),
    function("kornia", "warp_perspective", transformed, IMAGES),
    function("kornia", "quaternions", quaternions, VECTORS),
]
