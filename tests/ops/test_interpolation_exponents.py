"""Interpolation over the exponents of float32, against its closed form in float64."""

import numpy as np

import safeops as so
from assertions import assert_close
from frameworks import asarray
from whole import gradient_in, pytest_generate_tests

__all__ = ["pytest_generate_tests"]  # runs the tests below in each `way`


def test_knots_and_values_of_all_sizes(way):
    """Slopes for all arguments are right over the exponents of float32."""
    sizes = 2.0 ** np.arange(-116, 122, 2.0)
    knots, values = sizes, sizes * np.resize([1.0, -0.5, 2.0], len(sizes))
    x = 1.5 * sizes[:-1]
    width, rise = np.diff(knots), np.diff(values)
    part = (x - knots[:-1]) / width
    of_knots, of_values = np.zeros((2, len(sizes)))
    of_knots[:-1] += rise * (part - 1) / width
    of_knots[1:] -= rise * part / width
    of_values[:-1] += 1 - part
    of_values[1:] += part
    given = (x, knots, values)
    fixed = [asarray(way[0], a, "float32") for a in given]

    for place, wanted in enumerate((rise / width, of_knots, of_values)):

        def f(y, place=place):
            return so.safe_interp(*fixed[:place], y, *fixed[place + 1 :])

        found = gradient_in(way, f, given[place], "float32")
        assert_close(found, wanted, 1e-5, f"argument {place}", atol=1e-5)
