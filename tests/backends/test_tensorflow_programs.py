"""Operations of TensorFlow that run eagerly as one program, where nothing differentiates."""

import numpy as np
import pytest

import safeops as so
from safeops._backends import load

pytestmark = pytest.mark.only("tensorflow")

# Each exponent of float32, subnormal numbers too, zero, inf and NaN.
SIZES = np.ldexp(1.0, np.arange(-149, 128))
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan]
ROWS = {
    "nanmax": so.nanmax,
    "nanmin": so.nanmin,
    "nansum": so.nansum,
    "safe_distance": lambda x, axis: so.safe_distance(x, -0.5 * x, axis=axis),
    "safe_norm": so.safe_norm,
    "safe_normalize": so.safe_normalize,
    "safe_pow": lambda x, axis: so.safe_pow(x, x[..., ::axis]),
    "safe_softmax": so.safe_softmax,
    "safe_log_softmax": so.safe_log_softmax,
    "safe_logsumexp": so.safe_logsumexp,
    "safe_max": so.safe_max,
    "safe_min": so.safe_min,
    "safe_sum": so.safe_sum,
    "xlog1py": lambda x, axis: so.xlog1py(x, x[..., ::axis]),
    "xlogy": lambda x, axis: so.xlogy(x, x[..., ::axis]),
}


def test_each_operation_with_programs_has_a_row():
    """The table of operations is whole."""
    from safeops._backends.tensorflow.programs import NAMES

    assert set(ROWS) == NAMES


def entries():
    """Return rows of three entries of float32, of all sizes and all special numbers."""
    import tensorflow as tf

    numbers = np.asarray([*SIZES, *-SIZES, *SPECIAL], np.float32)
    shifts = [np.roll(numbers, shift) for shift in (0, 7, 290)]
    return tf.constant(np.stack(shifts, axis=-1))


def by_kernels(f, *args, **options):
    """Return a value of an operation that runs kernel by kernel, as a tape looks on."""
    import tensorflow as tf

    with tf.GradientTape():
        return f(*args, **options)


def programs_of(name):
    """Return how many programs an operation has."""
    found = load("tensorflow").programs.get(name)
    return 0 if found is None else len(found.programs)


@pytest.mark.parametrize("name", ROWS)
def test_a_program_has_the_bits_of_its_kernels(name):
    """The value of a program is that of the kernels, one by one, to the last bit."""
    x = entries()

    got = ROWS[name](x, axis=-1).numpy()

    assert programs_of(name) > 0
    np.testing.assert_array_equal(got, by_kernels(ROWS[name], x, axis=-1).numpy())


def test_there_is_one_program_for_all_shapes():
    """Another shape needs no other program, and another rank does."""
    import tensorflow as tf

    so.nansum(tf.zeros([2, 3], tf.float64), axis=-1)
    before = programs_of("nansum")
    so.nansum(tf.zeros([4, 5], tf.float64), axis=-1)
    same = programs_of("nansum")
    so.nansum(tf.zeros([4, 5, 6], tf.float64), axis=-1)

    assert same == before
    assert programs_of("nansum") == before + 1


def test_many_entries_run_by_kernels():
    """A large array makes no program."""
    import tensorflow as tf

    before = programs_of("nanmax")
    so.nanmax(tf.zeros([1, 1, 1, 1, 2**15]))
    large = programs_of("nanmax")
    so.nanmax(tf.zeros([1, 1, 1, 1, 2]))

    assert large == before
    assert programs_of("nanmax") == before + 1


def test_what_is_differentiated_is_no_program():
    """A tape and an accumulator have the derivatives of kernels, of which a program has none."""
    import tensorflow as tf

    x = tf.constant([4.0, 0.0])
    so.safe_pow(x, 0.5)  # makes the program
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = so.safe_pow(x, 0.5)
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        pushed = so.safe_pow(x, 0.5)

    assert tape.gradient(value, x).numpy().tolist() == [0.25, 0.0]
    assert accumulator.jvp(pushed).numpy().tolist() == [0.25, 0.0]


def test_a_program_itself_would_lose_its_gradient():
    """TensorFlow takes a program called in this way for a constant."""
    import tensorflow as tf

    x = tf.constant([2.0])
    square = tf.function(lambda x: x * x, [tf.TensorSpec([None])]).get_concrete_function()
    with tf.GradientTape() as tape:
        tape.watch(x)
        [value] = tf.raw_ops.PartitionedCall(args=[x], Tout=[tf.float32], f=square)

    assert value.numpy() == [4.0]
    with pytest.raises(LookupError, match="PartitionedCall"):
        tape.gradient(value, x)


def test_a_check_of_numbers_sees_each_kernel():
    """`enable_check_numerics` raises for an operation that has a program already."""
    import tensorflow as tf

    x = tf.constant([np.nan])
    so.safe_norm(x)  # makes the program

    with load("tensorflow").nan_detector(), pytest.raises(tf.errors.InvalidArgumentError):
        so.safe_norm(x)


def test_errors_are_those_of_the_operation():
    """A mask of another shape, and an axis that is not there, are refused as without a program."""
    import tensorflow as tf

    x = tf.constant([1.0, 2.0])

    with pytest.raises(ValueError, match="expected where of a shape"):
        so.nansum(x, where=tf.constant([True, False, True]))
    with pytest.raises(np.exceptions.AxisError, match="axis=5"):
        so.nansum(x, axis=5)


def test_python_inside_of_a_graph_runs_programs():
    """A function of Python that a graph calls waits for its program, and returns."""
    import tensorflow as tf

    @tf.function
    def graph(x):
        return tf.py_function(so.nanmax, [x], tf.float32)

    assert graph(tf.constant([1.0, np.nan])).numpy() == 1.0


def test_a_function_called_with_ever_new_numbers_is_not_compiled():
    """There are at most 64 programs of one function; the next number runs without."""
    import tensorflow as tf

    x = tf.constant([3.0, 4.0], tf.float64)
    values = [float(so.safe_norm(x, min_norm=k / 8)) for k in range(70)]

    assert values == [max(5.0, k / 8) for k in range(70)]
    assert programs_of("safe_norm") <= 64
