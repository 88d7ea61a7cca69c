"""The warning that all frameworks share."""


class UnknownOperationWarning(UserWarning):
    """An operation without a rule met absent entries, and was run as it is."""
