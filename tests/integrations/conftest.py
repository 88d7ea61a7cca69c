"""A file of one framework is not imported without it: JAX in a process warns of each fork."""

import os


def pytest_ignore_collect(collection_path, config):
    """Leave out the file of a framework that is not selected."""
    name = collection_path.stem.removeprefix("test_guard_").partition("_")[0]
    if collection_path.stem.endswith("_keras"):  # whose backend conftest.py has chosen
        name = os.environ.get("KERAS_BACKEND", "tensorflow")
    return True if name in {"jax", "tensorflow", "torch"} - {*config.frameworks} else None
