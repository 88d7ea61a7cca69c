"""Guarded `fit` of Keras: nothing changes while all is finite, and what is not is explained."""

import logging
from contextlib import suppress
from importlib import import_module
from threading import Thread

import numpy as np
import pytest

from safeops.integrations import NonFiniteGradientError

keras = pytest.importorskip("keras", reason="keras is not installed")

from safeops.integrations.keras import GuardCallback  # noqa: E402  (it takes Keras)
from stepping import own_step  # noqa: E402  (so does it)

pytestmark = [
    pytest.mark.only("jax", "tensorflow", "torch"),
    pytest.mark.usefixtures("users_defaults"),
    # NumPy 2 says so of the tensors of PyTorch that Keras takes the numbers of (keras 3.15).
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
ops = keras.ops
QUIET = logging.getLogger("quiet")
QUIET.disabled = True
SIZE = 4  # of a batch
X = np.random.default_rng(0).normal(size=(3 * SIZE, 2)).astype("float32") + 3.0
BAD = X.copy()
BAD[SIZE + 1, 0] = 0.0  # the second row of the second batch, which the loss leaves out


def loss_of(y, found):
    """Return the mean of logarithms of rows that are not empty, which are told by their label."""
    size = ops.abs(found[:, 0] * y[:, 0])
    return ops.where(y[:, 0] > 0, ops.log(size), 0.0)


class OwnStep(keras.Sequential):
    """A model with a step of its own."""

    train_step = own_step(loss_of)


KINDS = [keras.Sequential, OwnStep]


def new_model(kind=keras.Sequential, **options):
    """Return a compiled model with averages and noise, with the same weights each time."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization()]
    model = kind([keras.Input((2,)), *layers, keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss_of, jit_compile=False, **options)
    return model


def train(model, x, *callbacks, **options):
    """Train for one epoch of three batches; return its loss."""
    keras.utils.set_random_seed(1)  # on PyTorch dropout has the random state of the process
    options = {"batch_size": SIZE, "shuffle": False, "verbose": 0} | options
    return model.fit(x, x[:, :1], callbacks=list(callbacks), **options).history["loss"][0]


def numbers_of(variable):
    """Return the numbers of a variable."""
    return ops.convert_to_numpy(variable.value)


def state_of(model):
    """Return all numbers of a model and its optimizer."""
    every = (*model.variables, *model.optimizer.variables)
    return [numbers_of(v) for v in every]


def assert_same(found, wanted):
    """Two states are the same, to the bit."""
    pairs = enumerate(zip(found, wanted, strict=True))
    assert [i for i, (x, y) in pairs if not np.array_equal(x, y)] == []


def test_the_comparison_can_fail():
    """Another weight is found."""
    with pytest.raises(AssertionError):
        assert_same([np.zeros(1)], [np.ones(1)])


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_a_finite_training_is_the_same(kind):
    """Weights, averages, optimizer and loss are the same bits, and the model is released."""
    plain, watched = new_model(kind), new_model(kind)

    losses = [train(plain, X), train(plain, X)]

    assert [train(watched, X, GuardCallback()), train(watched, X)] == losses
    assert_same(state_of(watched), state_of(plain))
    assert "apply" not in vars(watched.optimizer)


@pytest.mark.whole
def test_a_finite_training_of_images_is_the_same():
    """Also where a compiler would round a step with another optimizer in another way."""
    images = np.random.default_rng(0).normal(size=(10, 8, 8, 3)).astype("float32")

    def trained(*callbacks):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.BatchNormalization()]
        layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
        model.compile(keras.optimizers.SGD(0.1, 0.9), "mse", jit_compile=False)
        model.fit(images, images[:, 0, 0], 4, 2, shuffle=False, verbose=0, callbacks=[*callbacks])
        return model

    assert_same(state_of(trained(GuardCallback())), state_of(trained()))


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_the_report(kind, caplog):
    """It has kind, line, step and parameters, and nothing of the step is left."""
    model, part = new_model(kind), new_model(kind)
    train(part, X[:SIZE])

    with pytest.raises(NonFiniteGradientError) as caught:
        train(model, BAD, GuardCallback())

    report = caught.value.report
    assert [(f.kind, f.operation, f.selection) for f in report.findings] == [
        ("BLOCKED", "log", "where")
    ]
    assert "ops.log(size)" in report.findings[0].where.source
    assert report.findings[0].rows == (1,)
    assert report.step == 1
    assert len(report.parameters) == len(model.trainable_variables)
    assert "at step 1" in caplog.text
    assert_same(state_of(model), state_of(part))
    assert "apply" not in vars(model.optimizer)


def test_an_error_at_the_start_of_an_epoch():
    """Nothing of the step is left there either, where Keras on JAX has no numbers in variables."""
    y, rate = X[:SIZE, :1], keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1))

    def trained(batches, *callbacks):
        model, given = new_model(), ((x, y) for x in batches)
        keras.utils.set_random_seed(1)
        options = {"steps_per_epoch": 1, "epochs": len(batches), "shuffle": False, "verbose": 0}
        with suppress(NonFiniteGradientError):
            model.fit(given, callbacks=[rate, *callbacks], **options)
        return model

    wrong = np.float32([[np.nan, 0.0]]) * X[:SIZE]
    assert_same(
        state_of(trained([wrong], GuardCallback(logger=QUIET)))[:4], state_of(new_model())[:4]
    )
    found = trained([X[:SIZE], wrong], GuardCallback(logger=QUIET))

    assert_same(found.get_weights(), trained([X[:SIZE]]).get_weights())
    assert float(numbers_of(found.optimizer._learning_rate)) == np.float32(0.005)


def test_a_skipped_step():
    """Training is that without the batch."""
    model, part = new_model(), new_model()
    x = np.concatenate([X[:SIZE], X[2 * SIZE :]])

    loss = train(model, BAD, GuardCallback(on_nan="skip", logger=QUIET))

    assert loss == train(part, x)
    assert_same(state_of(model), state_of(part))


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_step(kind):
    """It is that of the loss with a double where."""
    model = new_model(kind)
    train(model, BAD, GuardCallback(on_nan="mask", logger=QUIET))

    def safe(y, found):
        kept = y[:, 0] > 0
        size = ops.where(kept, ops.abs(found[:, 0] * y[:, 0]), 1.0)
        return ops.where(kept, ops.log(size), 0.0)

    right = new_model()
    right.compile(keras.optimizers.Adam(0.01), safe, jit_compile=False)
    train(right, BAD)
    for x, y in zip(model.weights, right.weights, strict=True):
        np.testing.assert_allclose(numbers_of(x), numbers_of(y), rtol=1e-5, atol=1e-6)


def test_what_masking_cannot_cure():
    """A NaN that is used is an error, and nothing of the step is left."""
    model, part = new_model(), new_model()
    x = X.copy()
    x[SIZE, 1] = np.nan
    train(part, X[:SIZE])

    with pytest.raises(NonFiniteGradientError) as caught:
        train(model, x, GuardCallback(on_nan="mask", logger=QUIET))

    assert caught.value.__notes__ == ["the masked gradient is not finite either"]
    assert_same(state_of(model), state_of(part))


def test_what_is_refused():
    """Several steps in one call and a scaled loss are named, and an unknown choice."""
    with pytest.raises(ValueError, match="steps_per_execution"):
        train(new_model(steps_per_execution=2), X, GuardCallback())
    model = new_model()
    model.compile(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD()), loss_of)
    with pytest.raises(TypeError, match="LossScaleOptimizer"):
        train(model, X, GuardCallback())
    with pytest.raises(ValueError, match="expected on_nan out of"):
        GuardCallback(on_nan="stop")


def test_weights_that_overflow():
    """The gradient of weights that are infinite already is NaN, and an error."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(3e38), "mse", jit_compile=False)

    with pytest.raises(NonFiniteGradientError) as caught:
        train(model, X, GuardCallback(logger=QUIET))

    assert caught.value.report.step == 1
    assert caught.value.report.parameters == (model.weights[0].path,)


class Whole(keras.Model):
    """A model that has no variables before its first step."""

    def __init__(self):
        super().__init__()
        layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        self.body = keras.Sequential(layers)

    def call(self, x, training=False):
        """Return one number a row."""
        return self.body(x, training=training)


def not_built(metrics=("mae",)):
    """Return a compiled model without variables."""
    keras.utils.set_random_seed(0)
    model = Whole()
    model.compile(keras.optimizers.Adam(0.01), loss_of, metrics=list(metrics), jit_compile=False)
    return model


def test_a_model_that_is_built_by_its_first_step():
    """Its finite training is the same, and its first step can be skipped."""
    plain, watched = not_built(), not_built()

    assert train(watched, X, GuardCallback()) == train(plain, X)
    assert_same(state_of(watched), state_of(plain))

    x = np.roll(BAD, -SIZE, axis=0)  # the bad row is in the first batch
    skipped, part = not_built(), not_built()
    loss = train(skipped, x, GuardCallback(on_nan="skip", logger=QUIET))
    assert loss == train(part, x[SIZE:])
    numbers = [[numbers_of(v) for v in m.metrics_variables] for m in (skipped, part)]
    assert_same(*numbers)


def test_an_interrupted_training():
    """It leaves no guard in the model."""

    class Interrupted(keras.Sequential):
        def train_step(self, *_):
            raise KeyboardInterrupt

    model = new_model(Interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(model, X, GuardCallback())

    assert not isinstance(getattr(model.train_function, "__self__", None), GuardCallback)
    assert "apply" not in vars(model.optimizer)


def in_thread(action):
    """Return what an action returns in another thread."""
    found = []
    thread = Thread(target=lambda: found.append(action()))
    thread.start()
    thread.join()
    return found


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="a tape is of TensorFlow")
@pytest.mark.parametrize("on_nan", ["skip", "mask"])
def test_another_thread(on_nan):
    """It has its own gradients while a step is explained and masked."""
    tf = import_module("tensorflow")

    def slope():
        with tf.GradientTape() as tape:
            w = tf.constant([0.0, 4.0])
            tape.watch(w)
            y = tf.reduce_sum(tf.where(w > 0, tf.math.log(w), 0.0))
        return tape.gradient(y, w).numpy()

    found = []

    def loss(y, x):
        found.extend(in_thread(slope))
        return loss_of(y, x)

    model = new_model()
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    train(model, BAD, GuardCallback(on_nan=on_nan, logger=QUIET))

    assert len(found) > 1
    assert all(np.isnan(x[0]) and x[1] == 0.25 for x in found)


@pytest.mark.skipif(keras.config.backend() != "torch", reason="other arrays cannot be written to")
def test_a_step_that_writes_into_its_batch():
    """It is not masked: it would be the step of another batch."""
    torch = import_module("torch")

    class Writing(keras.Sequential):
        def train_step(self, data):
            data[0].mul_(2.0)
            return own_step(loss_of)(self, data)

    model = new_model(Writing)
    with pytest.raises(NonFiniteGradientError) as caught:
        train(model, torch.tensor(BAD), GuardCallback(on_nan="mask", logger=QUIET))

    assert "it writes into what it is given" in caught.value.__notes__[0]


@pytest.mark.skipif(keras.config.backend() == "torch", reason="PyTorch records what runs")
def test_a_step_whose_gradient_is_compiled_apart():
    """What was traced before is explained on JAX, and is UNKNOWN on TensorFlow."""
    model = new_model(apart_step(loss_of))

    with pytest.raises(NonFiniteGradientError) as caught:
        train(model, BAD, GuardCallback(logger=QUIET))

    kinds = {finding.kind for finding in caught.value.report.findings}
    assert kinds == {"UNKNOWN" if keras.config.backend() == "tensorflow" else "BLOCKED"}


def apart_step(loss):
    """Return a model that takes its gradients in a compiled function."""
    if keras.config.backend() == "tensorflow":
        tf = import_module("tensorflow")
        compiled = tf.function(own_step(loss))
    else:
        compiled = import_module("jax").jit(own_step(loss), static_argnums=0)

    class Apart(keras.Sequential):
        def train_step(self, *given):
            return compiled(self, *given)

    return Apart


@pytest.mark.whole
def test_a_masked_step_keeps_averages_finite():
    """An average to which a NaN came is what it was before the step, and the training goes on."""
    x = X.copy()
    x[SIZE + 1] = np.nan
    layers = [keras.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)

    def finite_part(y, found):
        size = ops.sum(found, -1) + y[:, 0]
        return ops.where(ops.isfinite(size), size, 0.0)

    model.compile(keras.optimizers.SGD(0.01), finite_part, jit_compile=False)

    train(model, x, GuardCallback(on_nan="mask", logger=QUIET))

    assert all(np.isfinite(numbers).all() for numbers in state_of(model))
    assert (numbers_of(model.layers[0].moving_mean) != 0).all()
