"""Compiled quotients and options: what their compilers make of them."""

import pytest

import safeops


@pytest.mark.parametrize("x", [0.0, 1e-20])
@pytest.mark.parametrize("name", ["safe_div", "xdivy"])
def test_xla_squares_no_denominator(name, x):
    """Under XLA the slope for a small denominator is right; that of the plain quotient is not."""
    tf = pytest.importorskip("tensorflow")

    def slope(divide):
        @tf.function(jit_compile=True)
        def compiled(x, y):
            with tf.GradientTape() as tape:
                tape.watch(y)
                z = divide(x, y)
            return tape.gradient(z, y)

        return float(compiled(tf.constant(x), tf.constant(1e-25)))

    assert slope(getattr(safeops, name)) == pytest.approx(-x / 1e-25 / 1e-25, rel=1e-5)
    assert slope(tf.divide) != pytest.approx(-x / 1e-25 / 1e-25, rel=1e-5)


def test_an_option_may_be_symbolic():
    """Compiled for any size, the default options of a norm are symbols, of no shape."""
    torch = pytest.importorskip("torch")
    norm = torch.compile(safeops.safe_norm, backend="aot_eager", fullgraph=True, dynamic=True)
    assert norm(torch.tensor([3.0, 4.0])) == 5
