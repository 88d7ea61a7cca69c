"""What masked autodiff on PyTorch cannot see into: it says so, and names the way out."""

import warnings

import numpy as np
import pytest

from reported_torch import NAN, functional, leaf, root_of_its_own, torch

pytestmark = pytest.mark.only("torch")


def scripted():
    """Return a program that TorchScript compiles, from its second run on."""
    import torch

    def program(x):
        return torch.where(x > 0, torch.log(x), torch.zeros_like(x)).sum()

    return torch.jit.script(program)


def test_a_script_is_told(masked):
    """From its second run on a script has NaN in its gradient, and a warning names the way out."""
    program, x = scripted(), leaf([0.0, 4.0])
    program(x)

    for _ in range(2):
        with pytest.warns(masked.UnknownOperationWarning, match=r"optimized_execution\(False\)"):
            (gradient,) = masked.grad(program(x), x)
        assert gradient[0].isnan()
    with pytest.warns(masked.UnknownOperationWarning, match="TorchScript"):
        masked.backward(program(x))
    with pytest.raises(NotImplementedError, match="TorchScript"):
        masked.grad(program(x), x, on_unknown="error")


def test_the_way_out_of_a_script(masked):
    """Without TorchScript's compiler all runs have the right gradient."""
    program, x = scripted(), leaf([0.0, 4.0])

    with torch.jit.optimized_execution(False):
        gradients = [masked.grad(program(x), x)[0].tolist() for _ in range(3)]

    assert gradients == [[0.0, 0.25]] * 3


def test_a_healthy_script_is_not_told(masked):
    """A script without NaN has its gradient, and no warning."""
    program, x = scripted(), leaf([1.0, 4.0])

    gradients = [masked.grad(program(x), x)[0].tolist() for _ in range(3)]

    assert gradients == [[1.0, 0.25]] * 3


class ByNumPy:
    """A root in NumPy, whose backward pass PyTorch does not see."""

    @classmethod
    def apply(cls, x):
        """Return the root."""

        class Root(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return torch.from_numpy(np.sqrt(x.detach().numpy()))

            @staticmethod
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                with np.errstate(all="ignore"):
                    return torch.from_numpy(gradient.numpy() * 0.5 / np.sqrt(x.numpy()))

        return Root.apply(x)


def by_a_kernel(x):
    """Read one entry of a root in NumPy."""
    return ByNumPy.apply(x)[1]


def by_a_script(x):
    """Run a script for the third time."""
    program = scripted()
    program(x)
    program(x)
    return program(x)


def by_a_sparse_matrix(x):
    """Multiply by a sparse matrix that has no entry for the first row."""
    matrix = torch.tensor([[0.0, 1.0], [0.0, 2.0]], dtype=x.dtype).to_sparse()
    return torch.sparse.mm(matrix, x.sqrt()[:, None]).sum()


def by_compressed_rows(x):
    """Multiply by a matrix of compressed rows."""
    with warnings.catch_warnings(action="ignore"):  # that they are in beta
        matrix = torch.tensor([[0.0, 1.0], [0.0, 2.0]], dtype=x.dtype).to_sparse_csr()
    return (matrix @ x.sqrt()[:, None]).sum()


def by_sparse_entries(x):
    """Make a sparse tensor of the entries, and read one row."""
    places = torch.tensor([[0, 1], [1, 0]])
    made = torch.sparse_coo_tensor(places, x.sqrt(), (2, 2), check_invariants=True)
    return made.to_dense()[1].sum()


def by_mkldnn(x):
    """Read one sequence of an LSTM in float32."""
    torch.manual_seed(0)
    rows = torch.tensor([[[NAN, NAN]], [[1.0, 2.0]]])
    return torch.nn.LSTM(2, 1, batch_first=True)(rows * x.float())[0][1].sum()


def by_sums_over_bags(x):
    """Sum a bag in which the first row is not."""
    rows = torch.tensor([1, 1])
    return functional.embedding_bag(rows, x.sqrt()[:, None], torch.tensor([0])).sum()


def by_a_loss_of_sequences(x):
    """Take a loss that reads three of five steps of a sequence."""
    torch.manual_seed(0)
    steps = torch.randn(5, 1, 4, dtype=x.dtype).log_softmax(-1)
    steps[3:] = NAN
    lengths = torch.tensor([3]), torch.tensor([2])
    return functional.ctc_loss(steps * x[1], torch.tensor([[1, 2]]), *lengths)


UNSEEN = {
    by_a_kernel: ("root", "with operations of PyTorch"),
    by_a_script: ("TorchScript", "torch.jit.optimized_execution(False)"),
    by_a_sparse_matrix: ("sparse_addmm", "to_dense()"),
    by_compressed_rows: ("matmul", "to_dense()"),
    by_sparse_entries: ("to_dense", "to_dense()"),
    by_mkldnn: ("mkldnn_rnn_layer", "torch.backends.mkldnn.flags(enabled=False)"),
}


@pytest.mark.parametrize("program", UNSEEN, ids=lambda f: f.__name__)
def test_what_nobody_sees_into_is_unknown(masked, program):
    """An entry that nothing reads is not called used: one finding says what cannot be seen."""
    operation, way_out = UNSEEN[program]

    (finding,) = masked.explain(program, leaf([0.0, 4.0])).findings

    assert (finding.kind, finding.operation) == ("UNKNOWN", operation)
    assert way_out in finding.repair.text


LEFT_OUT = {
    by_sums_over_bags: ("sqrt", "embedding_bag"),
    by_a_loss_of_sequences: ("mul", "ctc_loss"),
}


@pytest.mark.parametrize("program", LEFT_OUT, ids=lambda f: f.__name__)
def test_what_a_kernel_leaves_out_by_itself_is_blocked(masked, program):
    """A row that is in no bag, and a step behind the end of a sequence, are not used."""
    (finding,) = masked.explain(program, leaf([0.0, 4.0])).findings

    assert (finding.kind, finding.operation, finding.selection) == ("BLOCKED", *LEFT_OUT[program])


def test_the_way_out_of_mkldnn(masked):
    """Without mkldnn the same program is BLOCKED."""
    with (
        warnings.catch_warnings(action="ignore"),  # that there is no GPU of Intel (PyTorch 2.13)
        torch.backends.mkldnn.flags(enabled=False),
    ):
        report = masked.explain(by_mkldnn, leaf([1.0, 4.0]))

    assert {finding.kind for finding in report.findings} == {"BLOCKED"}


def test_a_custom_function_of_tensors_is_seen(masked):
    """The backward pass of a custom function that PyTorch runs is seen into, and GENUINE."""
    (finding,) = masked.explain(lambda x: root_of_its_own(x).sum(), leaf([0.0, 4.0])).findings

    assert (finding.kind, finding.operation) == ("GENUINE", "root")
