"""Branches for the tests of combinators."""


def plus(x, y=10):
    """Return a sum."""
    return x + y


def minus(x, y=10):
    """Return a difference."""
    return x - y
