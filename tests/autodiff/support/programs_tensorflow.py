"""TensorFlow's differentiable operations, each as a program on a few numbers."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

ROWS = np.array([[0.9, 0.3, 0.6], [0.5, 0.75, 0.2], [0.35, 0.8, 0.45], [0.15, 0.65, 0.55]])
MATRICES = np.stack([k * np.eye(3) + ROWS[:3] * k / 4 for k in (1.0, 1.25, 1.5)])
DEFINITE = np.stack([m @ m.T + np.eye(3) for m in MATRICES])
IMAGES = np.random.default_rng(0).uniform(0.1, 0.9, (2, 4, 4, 2))
VOLUMES = np.random.default_rng(1).uniform(0.1, 0.9, (2, 2, 4, 4, 1))
FILTER = np.random.default_rng(2).uniform(-1, 1, (2, 2, 2, 2))
BOXES = [[0.0, 0.0, 0.5, 0.5], [0.25, 0.25, 1.0, 1.0]]


class Program(NamedTuple):
    """A function of one array, where it is run, and why NaN stays in it if it does."""

    f: Any
    x: np.ndarray = ROWS
    stays: str = ""


def single(f):
    """Return a function of numbers in single precision, for which alone some kernels are."""
    return lambda x: f(tf.cast(x, tf.float32))


def of_parts(f):
    """Return a function of complex numbers as one of two real ones."""

    def call(x):
        y = f(tf.complex(x, x[::-1]))
        return tf.concat([tf.math.real(y), tf.math.imag(y)], -1)

    return call


def normalised(is_training):
    """Return the fused batch normalisation."""

    def call(x):
        x = tf.cast(x, tf.float32)
        given = () if is_training else (tf.constant([0.1, 0.2]), tf.constant([0.7, 0.5]))
        scale = tf.reduce_sum(x, [0, 1, 2]) * 0 + [1.5, 0.5]
        return tf.compat.v1.nn.fused_batch_norm(
            x, scale, scale, *given, epsilon=0.01, is_training=is_training
        )[0]

    return call


def looped(x):
    """Repeat a step by a loop."""
    step = lambda i, s: (i + 1, s * x + tf.sin(s))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 3, step, (0, x), maximum_iterations=3)[1]


DENSE = "dense within a matrix, a column or a row: what of it is read reads all of it"
ZERO = "its formula is a 0 that is not made of the cotangent"
NUMBERS = "its formula takes logarithms of cotangents, in which a 0 is a number"

ELEMENTWISE = """
    abs acos acosh asin asinh atan atanh cos cosh digamma erf erfc erfinv exp expm1 lgamma log log1p
    log_sigmoid ndtri reciprocal rsqrt sigmoid sin sinh softplus softsign sqrt square tan tanh floor
    bessel_i0 bessel_i1 special.dawsn special.expint special.fresnel_cos special.spence
""".split()  # noqa: SIM905  (a list of words)


def named(name):
    """Return a function of `tf.math` by its name."""
    found = tf.math
    for part in name.split("."):
        found = getattr(found, part)
    return found


def elementwise(name):
    """Return an elementwise function, inside of its domain."""
    return (lambda x: named(name)(x + 1)) if name == "acosh" else named(name)


SHAPES = {
    "reshape": lambda x: tf.reshape(x, [6, 2]),
    "expand_dims": lambda x: tf.expand_dims(x, 1),
    "squeeze": lambda x: tf.squeeze(x[:, None], 1),
    "transpose": tf.transpose,
    "slice": lambda x: tf.slice(x, [1, 0], [2, 2]),
    "strided_slice": lambda x: x[::2, 1:],
    "strided slice backwards": lambda x: x[::-1, ::-2],
    "gather": lambda x: tf.gather(x, [2, 0, 2]),
    "gather along rows": lambda x: tf.gather(x, [2, 0], axis=1),
    "gather by batches": lambda x: tf.gather(x, [[0], [1], [2], [0]], batch_dims=1),
    "gather_nd": lambda x: tf.gather_nd(x, [[0, 1], [3, 2], [0, 1]]),
    "scatter_nd": lambda x: tf.scatter_nd([[3], [0], [4], [3]], x, [5, 3]),
    "tensor_scatter_nd_sub": lambda x: tf.tensor_scatter_nd_sub(x, [[0], [2]], x[2:]),
    "tensor_scatter_nd_update": lambda x: tf.tensor_scatter_nd_update(x, [[0], [2]], x[2:]),
    "tensor_scatter_nd_max": lambda x: tf.tensor_scatter_nd_max(x, [[0], [2]], x[2:]),
    "tensor_scatter_nd_max, out of range": lambda x: tf.raw_ops.TensorScatterMax(
        tensor=x[:2], indices=[[0], [7]], updates=x[2:], bad_indices_policy="IGNORE"
    ),
    "tensor_scatter_nd_min": lambda x: tf.tensor_scatter_nd_min(x, [[0], [2]], x[2:]),
    "concat": lambda x: tf.concat([x, x[:1]], 0),
    "stack": lambda x: tf.stack([x[0], x[2]], 1),
    "unstack": lambda x: tf.unstack(x)[1],
    "split": lambda x: tf.split(x, 3, 1)[1],
    "pad": lambda x: tf.pad(x, [[1, 0], [0, 2]]),
    "pad by reflection": lambda x: tf.pad(x, [[1, 1], [0, 2]], "REFLECT"),
    "tile": lambda x: tf.tile(x, [2, 1]),
    "broadcast_to": lambda x: tf.broadcast_to(x[:1], [4, 3]),
    "reverse": lambda x: tf.reverse(x, [0]),
    "reverse_sequence": lambda x: tf.reverse_sequence(x, [1, 2, 3, 2], 1),
    "roll": lambda x: tf.roll(x, 1, 0),
    "linalg.diag": tf.linalg.diag,
    "linalg.diag_part": tf.linalg.diag_part,
    "linalg.set_diag": lambda x: tf.linalg.set_diag(x, x[:3, 0]),
    "linalg.band_part": lambda x: tf.linalg.band_part(x, 1, 0),
    "dynamic_partition": lambda x: tf.concat(tf.dynamic_partition(x, [0, 1, 0, 1], 2), 0),
    "dynamic_stitch": lambda x: tf.dynamic_stitch([[0, 2], [1, 3]], [x[:2], x[2:]]),
    "space_to_batch": (lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), IMAGES),
    "batch_to_space": (
        lambda x: tf.batch_to_space(tf.concat([x, x], 0), [2, 2], [[0, 1], [0, 0]]),
        IMAGES,
    ),
    "space_to_depth": (lambda x: tf.nn.space_to_depth(x, 2), IMAGES),
    "depth_to_space": (lambda x: tf.nn.depth_to_space(tf.tile(x, [1, 1, 1, 2]), 2), IMAGES),
    "extract_patches": (
        lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"),
        IMAGES,
    ),
    "boolean_mask": lambda x: tf.boolean_mask(x, [True, False, True, True]),
    "where": lambda x: tf.where(x > 0.5, x, -x),
    "sort": lambda x: tf.sort(x, 0),
    "top_k": lambda x: tf.math.top_k(x, 2)[0],
    "nth_element": lambda x: tf.raw_ops.NthElement(input=x, n=1),
    "embedding_lookup": lambda x: tf.nn.embedding_lookup(x, [3, 1, 3]),
    "clip_by_value": lambda x: tf.clip_by_value(x, 0.3, 0.7),
    "identity_n": lambda x: tf.identity_n([x, 2 * x])[1],
    "complex": of_parts(lambda z: z * z),
    "abs of complex": lambda x: tf.abs(tf.complex(x, x[::-1])),
    "angle of complex": lambda x: tf.math.angle(tf.complex(x, x[::-1])),
    "quotient of complex": of_parts(lambda z: 1 / (z + z[::-1])),
    "matmul of complex": of_parts(lambda z: z @ tf.linalg.adjoint(z[:2] + 1j)),
    "root of complex": of_parts(tf.sqrt),
}
OF_TWO = {
    "add": lambda x: x + x[::-1],
    "sub": lambda x: x - 2 * x[:1],
    "mul": lambda x: x * x[::-1],
    "div": lambda x: x / x[::-1],
    "divide_no_nan": lambda x: tf.math.divide_no_nan(x, x[::-1]),
    "multiply_no_nan": lambda x: tf.math.multiply_no_nan(x, x[::-1]),
    "pow": lambda x: x ** x[::-1],
    "floormod": lambda x: tf.math.floormod(x, x[::-1]),
    "maximum": lambda x: tf.maximum(x, x[::-1] + 0.01),
    "minimum": lambda x: tf.minimum(x, x[:1]),
    "squared_difference": lambda x: tf.math.squared_difference(x, x[::-1]),
    "atan2": lambda x: tf.atan2(x, x[::-1]),
    "xdivy": lambda x: tf.math.xdivy(x, x[::-1]),
    "xlogy": lambda x: tf.math.xlogy(x, x[::-1]),
    "xlog1py": lambda x: tf.math.xlog1py(x, x[::-1]),
    "betainc": lambda x: tf.math.betainc(tf.cast(1.5, x.dtype), tf.cast(0.5, x.dtype), x / 2),
    "igamma": lambda x: tf.math.igamma(x, x[::-1] + 0.5),
    "zeta": lambda x: tf.math.zeta(tf.cast(1.5, x.dtype), x),
    "polygamma": lambda x: tf.math.polygamma(tf.ones_like(x), x),
    "cross": Program(lambda x: tf.linalg.cross(x, x[::-1]), stays=DENSE),
    "select by a scalar": lambda x: tf.where(True, x, x * 2),
}
SUMS = {
    "reduce_sum": lambda x: tf.reduce_sum(x, 1),
    "reduce_mean": lambda x: tf.reduce_mean(x, 0),
    "reduce_prod": lambda x: tf.reduce_prod(x, 1),
    "reduce_max": lambda x: tf.reduce_max(x, 1),
    "reduce_min": lambda x: tf.reduce_min(x, 0),
    "reduce_variance": lambda x: tf.math.reduce_variance(x, 1),
    "reduce_std": lambda x: tf.math.reduce_std(x, 1),
    "reduce_logsumexp": lambda x: tf.reduce_logsumexp(x, 1),
    "reduce_euclidean_norm": lambda x: tf.math.reduce_euclidean_norm(x, 1),
    "norm": lambda x: tf.norm(x, axis=1),
    "cumsum": lambda x: tf.cumsum(x, 1),
    "cumsum, exclusive": lambda x: tf.cumsum(x, 0, exclusive=True, reverse=True),
    "cumprod": lambda x: tf.math.cumprod(x, 1),
    "cumulative_logsumexp": Program(lambda x: tf.math.cumulative_logsumexp(x, 1), stays=NUMBERS),
    "add_n": lambda x: tf.add_n([x, x[::-1]]),
    "accumulate_n": lambda x: tf.math.accumulate_n([x, x[::-1]]),
    "bias_add": lambda x: tf.nn.bias_add(x, x[0]),
    "segment_sum": lambda x: tf.math.segment_sum(x, [0, 1, 1, 3]),
    "segment_mean": lambda x: tf.math.segment_mean(x, [0, 1, 1, 3]),
    "segment_max": lambda x: tf.math.segment_max(x, [0, 1, 1, 3]),
    "segment_min": lambda x: tf.math.segment_min(x, [0, 1, 1, 3]),
    "segment_prod": lambda x: tf.math.segment_prod(x, [0, 1, 1, 3]),
    **{
        f"unsorted_segment_{name}": lambda x, name=name: getattr(
            tf.math, f"unsorted_segment_{name}"
        )(x, [2, 0, -1, 0], 3)
        for name in ("sum", "mean", "sqrt_n", "max", "min", "prod")
    },
    "sparse segment sum": lambda x: tf.sparse.segment_sum(x, [0, 2, 3, 0], [0, 0, 1, 2]),
    "sparse segment mean": lambda x: tf.sparse.segment_mean(x, [0, 2, 3, 0], [0, 0, 1, 2]),
    "sparse segment sqrt_n": lambda x: tf.sparse.segment_sqrt_n(x, [0, 2, 3, 0], [0, 0, 1, 2]),
    "embedding_lookup_sparse": lambda x: tf.nn.embedding_lookup_sparse(
        x, tf.sparse.from_dense([[1, 3, 0], [2, 0, 0]]), None, combiner="mean"
    ),
    "sparse dense matmul, entries": lambda x: tf.sparse.sparse_dense_matmul(
        tf.SparseTensor([[0, 1], [1, 0], [2, 2]], x[:3, 0], [3, 3]), x[1:]
    ),
    "l2_loss": lambda x: tf.stack([tf.nn.l2_loss(x[0]), tf.nn.l2_loss(x[1])]),
}
PRODUCTS = {
    "matmul": lambda x: x @ tf.transpose(x),
    "matmul, transposed": lambda x: tf.matmul(x, x, transpose_a=True),
    "matmul by batches": (lambda x: x @ x[::-1], MATRICES),
    "einsum": lambda x: tf.einsum("ij,kj->ik", x, x[:2]),
    "einsum of a diagonal": (lambda x: tf.einsum("bii->bi", x), MATRICES),
    "tensordot": lambda x: tf.tensordot(x, x[:2], [[1], [1]]),
    "matvec": lambda x: tf.linalg.matvec(x, x[0]),
    "conv1d": (
        lambda x: tf.nn.conv1d(x[:, 0], tf.cast(FILTER[0], x.dtype) * x[0, 0, 0, 0], 1, "SAME"),
        IMAGES,
    ),
    "conv2d": (lambda x: tf.nn.conv2d(x, tf.cast(FILTER, x.dtype), 1, "SAME"), IMAGES),
    "conv2d, of its filter": (
        lambda x: tf.nn.conv2d(x, tf.cast(FILTER, x.dtype) * x[0, :2, :2, :, None], 2, "VALID"),
        IMAGES,
    ),
    "conv2d_transpose": (
        lambda x: tf.nn.conv2d_transpose(x, tf.cast(FILTER, x.dtype), [2, 8, 8, 2], 2),
        IMAGES,
    ),
    "depthwise_conv2d": (
        lambda x: tf.nn.depthwise_conv2d(x, tf.cast(FILTER, x.dtype), [1, 1, 1, 1], "SAME"),
        IMAGES,
    ),
    "separable_conv2d": (
        lambda x: tf.nn.separable_conv2d(
            x,
            tf.cast(FILTER[..., :1], x.dtype),
            tf.cast(FILTER[:1, :1], x.dtype),
            [1, 1, 1, 1],
            "SAME",
        ),
        IMAGES,
    ),
    "conv3d": (
        lambda x: tf.nn.conv3d(
            x, tf.cast(FILTER[..., None, :1], x.dtype)[..., 0][..., None], [1] * 5, "SAME"
        ),
        VOLUMES,
    ),
}
LAYERS = {
    "relu": lambda x: tf.nn.relu(x - 0.52),
    "relu6": lambda x: tf.nn.relu6(x * 10 - 3.3),
    "elu": lambda x: tf.nn.elu(x - 0.52),
    "selu": lambda x: tf.nn.selu(x - 0.52),
    "gelu": tf.nn.gelu,
    "silu": tf.nn.silu,
    "leaky_relu": lambda x: tf.nn.leaky_relu(x - 0.52),
    "crelu": lambda x: tf.nn.crelu(x - 0.52),
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "softmax cross entropy": lambda x: tf.nn.softmax_cross_entropy_with_logits(x[::-1], x),
    "sparse softmax cross entropy": lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(
        [0, 1, 2, 1], x
    ),
    "sigmoid cross entropy": lambda x: tf.nn.sigmoid_cross_entropy_with_logits(x[::-1], x),
    "l2_normalize": lambda x: tf.math.l2_normalize(x, 1),
    "moments": lambda x: tf.concat(tf.nn.moments(x, [1]), 0),
    "batch_normalization": lambda x: tf.nn.batch_normalization(
        x, *tf.unstack(tf.cast([0.1, 0.7, 1.0], x.dtype)), x[0], 0.01
    ),
    "fused batch norm, training": (normalised(is_training=True), IMAGES),
    "fused batch norm, fixed": (normalised(is_training=False), IMAGES),
    "dropout": lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, [1, 2]),
    "fake quantisation": single(tf.quantization.fake_quant_with_min_max_args),
    "ctc loss": Program(
        single(
            lambda x: tf.nn.ctc_loss(
                [[1], [2]], x[:, None] * [[1.0], [0.5]], [1, 1], [4, 4], blank_index=0
            )
        )
    ),
}
POOLS = {
    "max_pool2d": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), IMAGES),
    "max_pool2d, overlapping": (lambda x: tf.nn.max_pool2d(x, 3, 1, "SAME"), IMAGES),
    "max_pool_with_argmax": (
        lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "VALID")[0],
        IMAGES,
    ),
    "max_pool3d": (single(lambda x: tf.nn.max_pool3d(x, 2, 2, "VALID")), VOLUMES),
    "avg_pool2d": (lambda x: tf.nn.avg_pool2d(x, 2, 2, "VALID"), IMAGES),
    "avg_pool3d": (single(lambda x: tf.nn.avg_pool3d(x, 2, 2, "VALID")), VOLUMES),
    "fractional_max_pool": (
        lambda x: tf.nn.fractional_max_pool(x, 1.5, seed=1)[0],
        IMAGES,
    ),
    "fractional_avg_pool": (
        lambda x: tf.nn.fractional_avg_pool(x, [1.0, 1.5, 1.5, 1.0], seed=1)[0],
        IMAGES,
    ),
    "dilation2d": (
        lambda x: tf.nn.dilation2d(
            x, tf.cast(FILTER[..., 0], x.dtype), [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]
        ),
        IMAGES,
    ),
    "local_response_normalization": (single(tf.nn.local_response_normalization), IMAGES),
    **{
        f"resize, {method}": (
            single(lambda x, method=method: tf.image.resize(x, [6, 8], method)),
            IMAGES,
        )
        for method in ("bilinear", "nearest", "bicubic", "lanczos3")
    },
    "crop_and_resize, image": (
        lambda x: tf.image.crop_and_resize(x, BOXES, [0, 1], [3, 3]),
        IMAGES,
    ),
    "crop_and_resize, boxes": single(
        lambda x: tf.image.crop_and_resize(
            tf.cast(IMAGES, tf.float32),
            tf.concat([x[:2, :2] / 4, x[2:, 1:] / 4 + 0.6], 1),
            [0, 1],
            [3, 3],
        )
    ),
    "crop_and_resize, both": (
        single(
            lambda x: tf.image.crop_and_resize(
                x,
                tf.reshape(x[:, 0, 0, :] * 0.5, [2, 2]) @ [[1.0, 0, 1, 0], [0, 1.0, 0, 1]]
                + [0.0, 0.0, 0.5, 0.5],
                [0, 1],
                [3, 3],
            )
        ),
        IMAGES,
        DENSE,
    ),
    "image transform": (
        single(
            lambda x: tf.raw_ops.ImageProjectiveTransformV3(
                images=x,
                transforms=tf.constant([[1.0, 0.1, 0.2, -0.1, 1.0, 0.3, 0.0, 0.0]]),
                output_shape=[4, 4],
                fill_value=0.0,
                interpolation="BILINEAR",
            )
        ),
        IMAGES,
    ),
    "rgb_to_hsv": tf.image.rgb_to_hsv,
}
SOLVES = {
    "linalg.solve": (lambda x: tf.linalg.solve(x, tf.sin(x[..., :2])), MATRICES),
    "linalg.solve, adjoint": (
        lambda x: tf.linalg.solve(x, tf.sin(x[..., :2]), adjoint=True),
        MATRICES,
    ),
    "linalg.inv": (tf.linalg.inv, MATRICES),
    "linalg.det": (tf.linalg.det, MATRICES),
    "linalg.slogdet": (lambda x: tf.linalg.slogdet(x)[1], MATRICES),
    "linalg.logdet": (tf.linalg.logdet, DEFINITE),
    "linalg.cholesky": (tf.linalg.cholesky, DEFINITE),
    "linalg.cholesky_solve": (
        lambda x: tf.linalg.cholesky_solve(tf.linalg.cholesky(x), x[..., :1]),
        DEFINITE,
    ),
    "linalg.triangular_solve": (
        lambda x: tf.linalg.triangular_solve(x, tf.sin(x[..., :2])),
        MATRICES,
    ),
    "linalg.triangular_solve, adjoint": (
        lambda x: tf.linalg.triangular_solve(x, tf.sin(x[..., :2]), lower=False, adjoint=True),
        MATRICES,
        DENSE,
    ),
    "linalg.banded_triangular_solve": (
        lambda x: tf.linalg.banded_triangular_solve(x[..., :2, :] + 1, x[..., :2]),
        MATRICES,
        DENSE,
    ),
    "linalg.tridiagonal_solve": (
        lambda x: tf.linalg.tridiagonal_solve(x + tf.constant([[0.0], [4], [0]], x.dtype), x),
        MATRICES,
        DENSE,
    ),
    "linalg.tridiagonal_matmul": (lambda x: tf.linalg.tridiagonal_matmul(x, x), MATRICES, DENSE),
    "linalg.lstsq": (lambda x: tf.linalg.lstsq(x, tf.sin(x[..., :2]), 0.1), MATRICES),
    "linalg.qr": (lambda x: tf.linalg.qr(x)[0], MATRICES, DENSE),
    "linalg.qr, upper": (lambda x: tf.linalg.qr(x)[1], MATRICES, DENSE),
    "linalg.eigvalsh": (tf.linalg.eigvalsh, DEFINITE),
    "linalg.eigh": (lambda x: tf.linalg.eigh(x)[1], DEFINITE),
    "linalg.svd": (lambda x: tf.linalg.svd(x, compute_uv=False), MATRICES),
    "linalg.svd, vectors": (lambda x: tf.linalg.svd(x)[1], MATRICES),
    "linalg.sqrtm": (tf.linalg.sqrtm, DEFINITE),
    "linalg.expm": (tf.linalg.expm, MATRICES),
    "linalg.pinv": (tf.linalg.pinv, MATRICES),
    "linalg.global_norm": lambda x: tf.stack([tf.linalg.global_norm([r]) for r in tf.unstack(x)]),
    "linalg.trace": (tf.linalg.trace, MATRICES),
    "linalg.matrix_transpose": (tf.linalg.matrix_transpose, MATRICES),
    "signal.fft": of_parts(tf.signal.fft),
    "signal.ifft2d": of_parts(lambda z: tf.signal.ifft2d(z[None])[0]),
    "signal.rfft": lambda x: tf.math.real(tf.signal.rfft(x)),
    "signal.irfft": Program(lambda x: tf.signal.irfft(tf.complex(x, x[::-1])), stays=DENSE),
    "signal.dct": single(tf.signal.dct),
    "signal.frame": lambda x: tf.signal.frame(x, 2, 1),
}
CONTROL = {
    "while_loop": looped,
    "cond": lambda x: tf.cond(x[0, 0] > 0, lambda: tf.sin(x), lambda: x),
    "map_fn": lambda x: tf.map_fn(tf.sin, x),
    "scan": lambda x: tf.scan(lambda s, row: s * row, x, x[0]),
    "function": tf.function(tf.sin, autograph=False),
    "vectorized_map": lambda x: tf.vectorized_map(tf.sin, x),
}
TABLE = {
    **{f"math.{name}": elementwise(name) for name in ELEMENTWISE},
    "math.sign": Program(tf.sign, stays=ZERO),
    **SHAPES,
    **OF_TWO,
    **SUMS,
    **PRODUCTS,
    **LAYERS,
    **POOLS,
    **SOLVES,
    **CONTROL,
}


def program(entry):
    """Return an entry of the table as a program."""
    if isinstance(entry, Program):
        return entry
    return Program(*entry) if isinstance(entry, tuple) else Program(entry)


PROGRAMS = {name: program(entry) for name, entry in TABLE.items()}
