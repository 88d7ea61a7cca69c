"""What masked autodiff takes from PyTorch by private names is there, and means what it says."""

import os
import subprocess
import sys
from pkgutil import resolve_name

import pytest

from frameworks import torch_from
from private_names import FILES, HOUSE, described
from reported_torch import leaf, torch

pytestmark = pytest.mark.only("torch")
pytest.importorskip("torch", reason="PyTorch is not selected, and this file is about it alone")

from safeops._backends.torch import private  # noqa: E402

NAMES = described(FILES["torch"].read_text())
ROWS = [row for row in NAMES if row.is_in(torch.__version__)]


def owners():
    """Return what a name is looked for in, by what stands before the name."""
    from torch.distributed.tensor import DTensor

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            del ctx
            return x.clone()

    return {
        "BackwardCFunction": torch.autograd.function.BackwardCFunction,
        "DTensor": DTensor,
        "Module": torch.nn.Identity(),
        "Node": Same.apply(leaf([1.0])).grad_fn,
        "OpOverload": torch.ops.aten.mul.Tensor,
        "SavedTensor": torch._C._autograd.SavedTensor,
        "OptimizedModule": torch.compile(torch.nn.Identity()),
        "Tensor": torch.Tensor,
        "UntypedStorage": torch.UntypedStorage,
        "function": marked_by_pytorch(),
    }


def marked_by_pytorch():
    """Return a function with the marks that PyTorch's own decorators set."""
    constant = torch.compiler.assume_constant_result(lambda: 0)
    return torch.compiler.disable(constant, reason="of a test")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_names_inside_of_pytorch_are_there(row):
    """PyTorch has each name in the versions that its comment says."""
    first, _, name = row.name.partition(".")
    if first == "torch":
        assert resolve_name(row.name) is not None
    elif name in ("_saved_", "_raw_saved_"):  # begins names
        assert any(x.startswith(name) for x in dir(leaf([1.0]).exp().grad_fn))
    else:
        assert hasattr(owners()[first], name)


def test_a_name_that_has_gone_is_told_where_it_is_needed():
    """What PyTorch no longer has breaks no import, and says so in one sentence when it is used."""
    gone = private.named("torch._C._of_long_ago")
    said = f"up to PyTorch {private.NEWEST} and found {private.FOUND}, .*_of_long_ago"

    for use in (lambda: gone(1), lambda: gone.PART, lambda: isinstance(1, gone)):
        with pytest.raises(ImportError, match=said):
            use()
    with pytest.raises(ImportError, match=said):

        class Mode(gone):
            pass

    with pytest.raises(ImportError, match=said):
        private.reading(lambda: torch._C._of_long_ago)()


OLD = """
import sys, torch
torch.__version__ = "2.8.0+cpu"
import safeops, safeops.autodiff
from safeops.__main__ import main
from safeops.integrations import guard

print(safeops.safe_sqrt(torch.zeros(1)).tolist())
for use, x in ((safeops.autodiff.grad(torch.sum), torch.ones(2)), (guard, torch.nn.Identity())):
    try:
        use(x)
    except ImportError as error:
        print(error)
sys.stdout.flush()
print(main(["explain", sys.argv[1]]))
"""
SENTENCE = (
    "safeops.autodiff.torch needs PyTorch 2.9 or later and found 2.8.0; the operations work with it"
)


def test_a_version_that_is_too_old_is_told_at_the_first_use(tmp_path):
    """The operations work; other layers say what they need, and `explain` ends with 2."""
    (tmp_path / "train.py").write_text("import torch\nprint('trained')\n")
    done = subprocess.run(
        [sys.executable, "-c", OLD, str(tmp_path / "train.py")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(HOUSE.parent), *sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines() == ["[0.0]", SENTENCE, SENTENCE, "trained", "2"]
    assert done.stderr.strip().endswith(SENTENCE)
    assert "backward pass" not in done.stderr


def test_private_names_mean_what_they_say():
    """What the evaluator asks by private names has the answers that it expects."""
    x = leaf([1.0])
    storage = x.untyped_storage()

    assert torch._C._current_autograd_node() is None
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert {code.co_name for code in private.codes_of_apply()} <= {"apply", "apply_boxed"}
    assert callable(torch.autograd.graph._engine_run_backward)
    assert private.StorageWeakRef(storage).cdata == storage._cdata
    assert not private.StorageWeakRef(storage).expired()
    assert hasattr(torch.ops.aten.mul.Tensor, "decompose")
    assert "__file__" in vars(torch._compile)
    assert {torch._dynamo.eval_frame.__file__, torch._compile.__file__} < private.files_of_calls()
    assert storage._cdata == storage._weak_ref()
    assert torch.ops.aten.mul_.Tensor._opname == "mul_"
    assert torch.ops.aten.mul_.Tensor._schema.is_mutable
    assert torch.ops.aten.view.default.is_view
    assert torch.ops.aten._softmax_backward_data.default in torch._decomp.decomposition_table


def test_the_running_node_is_named():
    """While a formula runs its node is known, and it is the same object each time."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            del types
            node = torch._C._current_autograd_node()
            seen.append((node.name(), node is torch._C._current_autograd_node()))
            return func(*args, **(kwargs or {}))

    output, cotangent = leaf([1.0]).relu(), torch.ones(1).double()
    with Watch():
        output.backward(cotangent)

    assert ("ReluBackward0", True) in seen


def test_nodes_have_their_names():
    """The names of nodes by which writing over, and accumulating, are known."""
    x = leaf([1.0, 2.0])
    sliced, copied = x.clone(), x.clone()
    sliced[0] = 0.0
    copied.copy_(x)
    accumulating = x.exp().grad_fn.next_functions[0][0]

    assert accumulating.name() == "torch::autograd::AccumulateGrad"
    assert sliced.grad_fn.name() == "torch::autograd::CopySlices"
    assert copied.grad_fn.name() == "torch::autograd::CopyBackwards"
    assert x.clone().zero_().grad_fn.name().startswith("ZeroBackward")
    assert x.clone().fill_(1.0).grad_fn.name().startswith("FillBackward")


def test_every_operation_of_the_table_exists():
    """No name in the table of classes is misspelt."""
    from safeops.autodiff.torch._rules import RULES

    assert [name for name in RULES if not hasattr(torch.ops.aten, name)] == []


def test_every_selection_exists():
    """No name in the list of selections is misspelt: PyTorch has a node of that name."""
    from safeops.autodiff.torch._nodes import OURS, SELECTIONS

    nodes = {name.rpartition("Backward")[0] for name in dir(torch._C._functions)}

    absent = set() if torch_from(2, 12) else {"Aminmax"}  # which has no derivative there
    assert nodes >= SELECTIONS - {OURS} - absent


def test_the_framework_of_the_arguments_is_picked():
    """`safeops.autodiff.grad` is this one for tensors, with several arguments and masks too."""
    from safeops import autodiff

    x = torch.tensor([0.0, 2.0])
    log = autodiff.grad(lambda x: torch.where(x > 0, torch.log(x), 0.0).sum())(x)
    product = autodiff.grad(lambda a, x: a * x[1], (0, 1), return_mask=True)
    gradients, masks = product(torch.tensor(2.0), x)

    assert log.tolist() == [0.0, 0.5]
    assert gradients[1].tolist() == [0.0, 2.0]
    assert masks[1].tolist() == [False, True]
