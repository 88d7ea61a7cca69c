"""Masked gradients of real models: equal where nothing is wrong, cured where a row left out is."""


def test_a_healthy_gradient_is_the_ordinary_one(row):
    """Where no row is left out, the gradient is the ordinary one, and nothing is warned of."""
    assert row.healthy <= row.tolerance, str(row)
    assert row.healthy_warnings == [], str(row)


def test_a_healthy_row_left_out_changes_nothing(row):
    """Where the rows left out are healthy, the gradient is the ordinary one."""
    assert row.left_out <= row.tolerance, str(row)


def test_the_ordinary_gradient_is_nan(row):
    """A row left out that is NaN makes the ordinary gradient NaN: there is something to cure."""
    assert row.naive_is_nan, str(row)


def test_a_nan_row_left_out_is_absent(case, row):
    """The gradient is that of the batch without the row; an exception is NaN, with its warning."""
    assert not row.finite_and_wrong, str(row)
    assert (row.cured <= row.tolerance) == (case.stays is None), str(row)
    assert row.warnings == ([] if case.stays is None else [case.stays.operation]), str(row)


def test_what_is_undefined_stays_undefined(case, row):
    """The square root of a used 0 has the ordinary derivative, and that of an unused one is 0."""
    assert row.used, str(row)
    assert row.unused or case.stays, str(row)


def test_a_nan_row_that_is_used_is_not_hidden(case, row):
    """Where the loss is NaN by a row, the gradient is not finite, unless the row is untouched."""
    assert row.hidden == bool(case.untouched), str(row)
