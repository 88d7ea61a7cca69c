"""The page of the classes of masked autodiff, the three frameworks side by side."""

import importlib
from collections.abc import Mapping
from typing import Any

FRAMEWORKS = {"jax": "JAX", "torch": "PyTorch", "tensorflow": "TensorFlow"}
# What their backward passes are made of, subject by subject, in the order of the frameworks: the
# names of JAX's primitives, PyTorch's aten operations, and TensorFlow's raw operations.
SUBJECTS = {
    "moving entries": ("reshape", "_reshape_copy", "Reshape"),
    "reading at indices": ("gather", "index", "GatherV2"),
    "writing at indices": ("scatter", "index_put", "TensorScatterUpdate"),
    "adding at indices": ("scatter-add", "index_add", "UnsortedSegmentSum"),
    "multiplying at indices": ("scatter-mul", "scatter_reduce", ""),
    "addition": ("add_any", "add", "AddN"),
    "sum": ("reduce_sum", "sum", "Sum"),
    "running sum": ("cumsum", "cumsum", "Cumsum"),
    "running logsumexp": ("cumlogsumexp", "logcumsumexp", "CumulativeLogsumexp"),
    "where": ("select_n", "where", "SelectV2"),
    "relu": ("select_n", "threshold_backward", "ReluGrad"),
    "product with a coefficient": ("mul", "mul", "Mul"),
    "product of matrices": ("dot_general", "mm", "MatMul"),
    "convolution": ("conv_general_dilated", "convolution_backward", "Conv2DBackpropInput"),
    "softmax": ("mul", "_softmax_backward_data", "Mul"),
    "layer normalisation": ("mul", "native_layer_norm_backward", "Mul"),
    "batch normalisation": ("mul", "native_batch_norm_backward", "FusedBatchNormGradV3"),
    "attention": (
        "dot_general",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "BatchMatMulV2",
    ),
    "largest of a window": (
        "select_and_scatter_add",
        "max_pool2d_with_indices_backward",
        "MaxPoolGrad",
    ),
    "mean of a window": ("reduce_window_sum", "avg_pool2d_backward", "AvgPoolGrad"),
    "resampling, nearest": (
        "gather",
        "upsample_nearest2d_backward",
        "ResizeNearestNeighborGrad",
    ),
    "resampling, linear": ("dot_general", "upsample_bilinear2d_backward", "ResizeBilinearGrad"),
    "resampling, cubic": ("dot_general", "upsample_bicubic2d_backward", "ResizeBicubicGrad"),
    "sampling of a grid": ("gather", "grid_sampler_2d_backward", ""),
    "crops": ("", "", "CropAndResizeGradImage"),
    "triangular solve": (
        "triangular_solve",
        "linalg_solve_triangular",
        "MatrixTriangularSolve",
    ),
    "solve": ("custom_linear_solve", "linalg_lu_solve", "MatrixSolve"),
    "least squares": ("", "linalg_lstsq", "MatrixSolveLs"),
    "tridiagonal solve": ("tridiagonal_solve", "", "TridiagonalSolve"),
    "Cholesky": ("cholesky", "linalg_cholesky_ex", "Cholesky"),
    "QR": ("qr", "linalg_qr", "Qr"),
    "eigenvalues": ("eigh", "_linalg_eigh", "SelfAdjointEigV2"),
    "Fourier transform": ("fft", "_fft_c2c", "FFT"),
    "clipping a cotangent": ("clamp", "clamp", "Minimum"),
    "test of a cotangent": ("is_finite", "isfinite", "IsFinite"),
    "loop": ("while", "", "While"),
    "branch": ("cond", "", "If"),
}
PAGE = """# The classes, side by side

Masked autodiff runs the backward pass of a framework over pairs: a value, and the mask of its
active entries.
This page is made from the tables of rules that masked autodiff uses.

An operation without a rule runs as it is, with a warning, and hides nothing.
A cell is empty if the framework has no such operation.
Results of the forward pass, such as a factorisation, are constants in a backward pass.
What the backward pass hands from operation to operation is called a cotangent.
An operation needs a rule only if a derivative applies it to a cotangent, as a derivative of your
own may.

## By subject

{subjects}

## By class

{classes}"""


def tables() -> dict[str, Mapping[str, Any]]:
    """Return the rules of each framework, by the names of operations."""
    return {name: _module(name).RULES for name in FRAMEWORKS}


def _module(name: str) -> Any:
    return importlib.import_module(f"safeops.autodiff.{name}._rules")


def said(rule: Any) -> str:
    """Return what a rule does: the first line of its docstring."""
    return next(line.strip() for line in rule.__doc__.splitlines() if line.strip()).rstrip(".")


def page() -> str:
    """Return the page."""
    rules = tables()
    head = f"| subject | {' | '.join(FRAMEWORKS.values())} |\n|{' --- |' * (len(FRAMEWORKS) + 1)}"
    rows = [
        f"| {subject} | {' | '.join(map(cell, rules.values(), names))} |"
        for subject, names in SUBJECTS.items()
    ]
    subjects = "\n".join([":::{table}", "", head, *rows, ":::"])
    classes = "\n\n".join(by_class(name, title) for name, title in FRAMEWORKS.items())
    return PAGE.format(subjects=subjects, classes=classes) + "\n"


def cell(rules: Mapping[str, Any], name: str) -> str:
    """Return what is done about an operation of a framework."""
    if not name:
        return ""
    return f"`{name}`: {said(rules[name]) if name in rules else 'no rule'}"


def by_class(name: str, title: str) -> str:
    """Return the operations of a framework by their classes."""
    every = _module(name).CLASSES
    rows = [
        f"- {said(rule)}: {', '.join(f'`{x}`' for x in names.split())}."
        for rule, names in every.items()
    ]
    return f"### {title}\n\n" + "\n".join(rows)
