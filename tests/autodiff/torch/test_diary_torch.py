"""The diary of backward passes: the norm of each gradient, and whether it is finite."""

import csv
import json

import pytest

from reported_torch import torch

pytestmark = pytest.mark.only("torch")


def lines_of(file):
    """Return the lines of a diary in CSV."""
    return list(csv.DictReader(file.read_text().splitlines()))


def test_the_diary_names_parameters_and_passes(masked, tmp_path):
    """Each pass adds a line for each parameter; a NaN is in the line of its parameter alone."""
    model, file = torch.nn.Linear(2, 1), tmp_path / "diary.csv"
    file.write_text("of an earlier run\n")

    with masked.watch_backward(
        [].append, record=file, parameters=model.named_parameters()
    ) as passes:
        for x in (1.0, float("nan")):
            model.zero_grad()
            model(torch.full((3, 2), x)).sum().backward()

    found = [tuple(line.values()) for line in lines_of(file)]
    assert passes == [False, True]
    assert [(step, name, finite) for step, name, _, finite in found] == [
        ("0", "weight", "True"),
        ("0", "bias", "True"),
        ("1", "weight", "False"),
        ("1", "bias", "True"),
    ]
    assert [float(norm) for *_, norm, _ in found[:2]] == pytest.approx([18**0.5, 3.0])


def test_tensors_without_a_name_have_a_number(masked, tmp_path):
    """JSON lines hold each tensor that a pass meets, also of `torch.autograd.grad`, and no NaN."""
    x, file = torch.ones(2, requires_grad=True), tmp_path / "diary.jsonl"

    with masked.watch_backward([].append, record=file):
        torch.autograd.grad((3 * x).sum(), x)
        (x * torch.tensor([1.0, float("inf")])).sum().backward()

    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert found == [
        {"step": 0, "parameter": "0", "norm": pytest.approx(18**0.5), "finite": True},
        {"step": 1, "parameter": "0", "norm": "inf", "finite": False},
    ]


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e30), ("float64", 1e200)])
def test_a_large_gradient_is_finite(dtype, size, masked, tmp_path):
    """A gradient is finite if its entries are, whatever its norm is."""
    x, file = torch.zeros(2, dtype=getattr(torch, dtype), requires_grad=True), tmp_path / "d.csv"

    with masked.watch_backward([].append, record=file):
        (x * size).sum().backward()

    assert lines_of(file)[0]["finite"] == "True"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize("count", [1, 3_000_000])
def test_a_norm_has_its_digits(count, size, dtype, masked, tmp_path):
    """A long gradient of equal entries, small or large, has their size times a root."""
    x = torch.zeros(count, dtype=getattr(torch, dtype), requires_grad=True)
    slope = torch.full_like(x, size).detach()

    with masked.watch_backward([].append, record=tmp_path / "d.csv"):
        torch.autograd.grad(x, x, slope)

    exact = slope[0].abs().double().item() * count**0.5
    assert float(lines_of(tmp_path / "d.csv")[0]["norm"]) == pytest.approx(exact, rel=1e-5)


def test_a_program_goes_to_another_folder(masked, tmp_path, monkeypatch):
    """A diary stays where it began."""
    monkeypatch.chdir(tmp_path)
    x = torch.ones(1, requires_grad=True)

    with masked.watch_backward([].append, record="d.csv"):
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        (2 * x).backward()

    assert len(lines_of(tmp_path / "d.csv")) == 1


def test_sparse_and_complex_gradients_have_a_norm(masked, tmp_path):
    """Equal rows of a sparse gradient are added; a complex entry counts by its size."""
    layer, file = torch.nn.Embedding(2, 1, sparse=True), tmp_path / "d.csv"
    z = torch.zeros(1, dtype=torch.complex64, requires_grad=True)

    with masked.watch_backward([].append, record=file):
        (3 * layer(torch.tensor([0, 0]))).sum().backward()
        (z * (3 - 4j)).real.sum().backward()

    assert [float(line["norm"]) for line in lines_of(file)] == pytest.approx([6.0, 5.0])
