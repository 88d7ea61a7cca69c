"""Edits run before they are offered: what a report says of the gradient and the value."""

import pytest

from frameworks import asarray
from safeops._backends import load
from safeops.autodiff import explain

pytestmark = pytest.mark.whole


def noisy_or(xp, x):
    """Return 1 less a product, as an exponential of logarithms; it is smooth at 1."""
    logarithms = xp.sum(xp.log(1 - x))
    return 1 - xp.exp(logarithms)


def product(xp, x):
    """Return a product as an exponential of logarithms, in one expression."""
    return xp.exp(xp.sum(xp.log(x - 0.5)))


def root_mean_square(xp, x):
    """Square numbers whose squares float16 does not have."""
    return xp.sqrt(xp.mean((1000 * x) ** 2))


def root_in_where(xp, x):
    """Drop the entry at which the slope is infinite."""
    return xp.sum(xp.where(x > 0.5, xp.sqrt(x - 0.5), 0.0))


def log_of_negative(xp, x):
    """Make a NaN, and use it."""
    return xp.sum(xp.log(x - 1))


def quotient_of_roots(xp, x):
    """Divide by a root: the quotient is mended first, and then the root."""
    root = xp.sqrt(x - 0.5)
    ratio = root / root
    return xp.sum(ratio)


def quotient_of_exponentials(xp, x):
    """Divide exponentials that float16 does not have."""
    weights = xp.exp(15 * x)
    ratio = weights / xp.sum(weights)
    return ratio[0]


def log_of_no_weight(xp, x):
    """Return a logarithm that is -inf at a weight of 0, by choice, and has the slope 0 there."""
    logarithms = xp.where(x > 0.5, xp.log(x - 0.5), float("-inf"))
    return xp.sum(logarithms)


def report_on(f, framework, dtype="float32"):
    """Return the report at a singular point."""
    xp = load(framework).xp
    return explain(lambda x: f(xp, x), asarray(framework, [1.0, 0.5], dtype))


def test_a_wrong_edit_is_not_offered(autodiff_framework):
    """Where the whole is smooth, and an edit would make another slope, that slope is told."""
    report = report_on(noisy_or, autodiff_framework)

    assert [x.repair.edit for x in report.findings] == [None]
    assert "the whole has a slope of about 0.5 where the edits would make 0" in str(report)


def test_an_edit_with_the_slope_of_a_smooth_whole(autodiff_framework):
    """Where differences settle, and the edit has the same slope, nothing was chosen."""
    report = report_on(product, autodiff_framework)

    assert "safe_prod(x - 0.5)" in report.findings[0].repair.edit.new
    assert report.notes == ("with the edits the gradient is that of differences",)


def test_an_overflow_that_an_edit_cures(autodiff_framework):
    """Of float16 the report says nothing where the whole has a function that does not overflow."""
    xp = load(autodiff_framework).xp
    x = asarray(autodiff_framework, [1.0, 0.5], "float16")

    report = explain(lambda x: root_mean_square(xp, x), x)

    assert "safe_rms(1000 * x)" in report.findings[0].repair.edit.new
    assert not any("float16 overflows" in note for note in report.notes)


def test_an_edit_that_is_right(autodiff_framework):
    """An edit whose gradient is the masked one is called that."""
    report = report_on(root_in_where, autodiff_framework)

    assert report.findings[0].repair.edit is not None
    assert report.notes == ("with the edits the gradient is that of masked autodiff",)


def test_an_edit_that_changes_the_value(autodiff_framework):
    """Where the value was NaN, the report says what it becomes, and asks."""
    report = report_on(log_of_negative, autodiff_framework)

    assert "it was nan: is that what you mean?" in report.notes[-1] or "-inf" in report.notes[-1]


@pytest.mark.only("torch")  # JAX and TensorFlow find both at once
def test_a_second_round(autodiff_framework):
    """Edits that leave some entries not finite are called that."""
    report = report_on(quotient_of_roots, autodiff_framework)

    assert (
        report.notes[-1]
        == "with the edits some entries are still not finite: edit, and explain again"
    )


def test_the_code_is_put_back(autodiff_framework):
    """After a trial the program has its own code and its own names."""
    code, names = root_in_where.__code__, set(globals())

    report_on(root_in_where, autodiff_framework)

    assert root_in_where.__code__ is code
    assert set(globals()) == names


def test_an_overflow_of_float16_is_called_that(autodiff_framework):
    """No safe operation helps against it, and the report says what does."""
    f = lambda x: (x * x)[0]  # noqa: E731

    report = explain(f, asarray(autodiff_framework, [1000.0], "float16"))

    assert any("float16 overflows above 65504" in note for note in report.notes)


def test_an_overflow_that_makes_a_nan(autodiff_framework):
    """An overflow is told also where it makes a NaN, and is not replaced by a finite number."""
    report = report_on(quotient_of_exponentials, autodiff_framework, "float16")

    assert [x.repair.edit for x in report.findings] == [None]
    assert any("float16 overflows above 65504" in note for note in report.notes)
    assert "the edit is for" not in str(report)


def test_a_value_that_stays_infinite(autodiff_framework):
    """An edit that makes the gradient finite is enough where an infinite value is meant."""
    report = report_on(log_of_no_weight, autodiff_framework)

    assert any(x.repair.edit for x in report.findings)
    assert report.notes[-1] == "with the edits the gradient is finite, and the value stays -inf"
