"""The namespace of TensorFlow: its functions by their names in the array API standard."""

import tensorflow as tf

from safeops._backends.tensorflow import dtypes, elementwise, linalg, reductions, shapes

bool = tf.bool
int8 = tf.int8
int16 = tf.int16
int32 = tf.int32
int64 = tf.int64
uint8 = tf.uint8
uint16 = tf.uint16
uint32 = tf.uint32
uint64 = tf.uint64
float16 = tf.float16
bfloat16 = tf.bfloat16
float32 = tf.float32
float64 = tf.float64
complex64 = tf.complex64
complex128 = tf.complex128

result_type = dtypes.result_type
finfo = dtypes.finfo
iinfo = dtypes.iinfo
asarray = dtypes.asarray
astype = dtypes.astype

where = elementwise.where
divide = elementwise.divide
quotient = elementwise.quotient
hypot = elementwise.hypot
asinh = elementwise.asinh
log_difference = elementwise.log_difference
log2 = elementwise.log2
log10 = elementwise.log10
pow = elementwise.pow_
abs = elementwise.abs_
floor = elementwise.floor
round = elementwise.round_
logical_not = elementwise.logical_not
real = elementwise.real
imag = elementwise.imag
atan2 = elementwise.atan2
multiply = elementwise.multiply
logical_and = elementwise.logical_and
logical_or = elementwise.logical_or
isnan = elementwise.isnan
isinf = elementwise.isinf
isfinite = elementwise.isfinite
exp = elementwise.exp
expm1 = elementwise.expm1
log = elementwise.log
log1p = elementwise.log1p
sqrt = elementwise.sqrt
sin = elementwise.sin
cos = elementwise.cos
asin = elementwise.asin
acos = elementwise.acos
acosh = elementwise.acosh
atanh = elementwise.atanh
tanh = elementwise.tanh

expand_dims = shapes.expand_dims
reshape = shapes.reshape
ones_like = shapes.ones_like
zeros_like = shapes.zeros_like
squeeze = shapes.squeeze
full_like = shapes.full_like
permute_dims = shapes.permute_dims
concat = shapes.concat
broadcast_arrays = shapes.broadcast_arrays

maximum = reductions.maximum
minimum = reductions.minimum
any = reductions.any_
all = reductions.all_
max = reductions.max_
min = reductions.min_
sum = reductions.sum_
mean = reductions.mean
prod = reductions.prod
cumulative_sum = reductions.cumulative_sum
cumulative_prod = reductions.cumulative_prod
argmax = reductions.argmax
argmin = reductions.argmin
sort = reductions.sort
argsort = reductions.argsort
take_along_axis = reductions.take_along_axis

matmul = linalg.matmul
matrix_transpose = linalg.matrix_transpose
conj = linalg.conj
