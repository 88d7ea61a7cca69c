"""Guarded training with the trainers of transformers and Lightning."""

import logging

import lightning
import pytest
import torch
import transformers

from safeops.integrations import NonFiniteGradientError
from safeops.integrations import transformers as hugging
from safeops.integrations.lightning import GuardCallback

QUIET = logging.getLogger("quiet")
QUIET.disabled = True
BAD = 3  # the step with an empty row
STEPS = 5


class Reader(torch.nn.Module):
    """A linear model that reads the rows that are not empty, with dropout and running means."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)
        )
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        """Return the loss, as models of transformers do."""
        size = x.square().sum(1, keepdim=True)
        found = self.head(self.body(x.nan_to_num()))
        length = (found.square() * size).sum(1).sqrt()
        loss = torch.where(size[:, 0] > 0, length - labels, 0.0).square().mean()
        return {"loss": loss}


def data(*, bad):
    """Return rows, one of which is empty in the fourth batch of two."""
    x = torch.linspace(-1.0, 2.0, 6 * STEPS).reshape(2 * STEPS, 3)
    if bad:
        x[2 * BAD + 1] = 0.0
    return [{"x": row, "labels": torch.tensor(0.5)} for row in x]


def run_transformers(folder, guarded, *, bad=False, **options):
    """Train with transformers; return the model and the guarded trainer."""
    model = Reader()
    arguments = transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        max_steps=STEPS,
        train_sampling_strategy="sequential",
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=0.1,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data(bad=bad))
    if guarded:
        assert hugging.guard(trainer, logger=QUIET, **options) is trainer
    trainer.train()
    return model


class Module(lightning.LightningModule):
    """The model as a module of Lightning."""

    def __init__(self):
        super().__init__()
        self.model = Reader()

    def training_step(self, batch, index):
        """Return the loss, and log it."""
        loss = self.model(**batch)["loss"]
        self.log("loss", loss)
        return {"loss": loss} if index % 2 else loss

    def configure_optimizers(self):
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), 0.1)


def run_lightning(folder, guarded, *, bad=False, module=Module, **options):
    """Train with Lightning; return the model."""
    torch.manual_seed(1)
    found = module()
    trainer = lightning.Trainer(
        default_root_dir=folder,
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[GuardCallback(logger=QUIET, **options)] if guarded else [],
        accumulate_grad_batches=1,
    )
    trainer.fit(found, torch.utils.data.DataLoader(data(bad=bad), batch_size=2))
    return found.model


RUNS = {"transformers": run_transformers, "lightning": run_lightning}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_finite_training_is_the_same(run, tmp_path):
    """Weights and running means are the same bits."""
    wanted = run(tmp_path, guarded=False).state_dict()

    found = run(tmp_path, guarded=True).state_dict()

    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_step_is_explained(run, tmp_path):
    """The report has kind, line, row, parameters and the step."""
    with pytest.raises(NonFiniteGradientError) as caught:
        run(tmp_path, guarded=True, bad=True)

    report = caught.value.report
    first = report.findings[0]
    assert (first.kind, first.operation, first.rows) == ("BLOCKED", "sqrt", (1,))
    assert first.where.source == "length = (found.square() * size).sum(1).sqrt()"
    assert report.step == BAD
    assert any(name.endswith("head.weight") for name in report.parameters)


@pytest.mark.parametrize("on_nan", ["skip", "mask"])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_training_goes_on(run, on_nan, tmp_path):
    """Weights stay finite; without the guard they do not."""
    spoilt = run(tmp_path, guarded=False, bad=True)

    found = run(tmp_path, guarded=True, bad=True, on_nan=on_nan)

    assert not all(x.isfinite().all() for x in spoilt.parameters())
    assert all(x.isfinite().all() for x in found.state_dict().values())
    steps = found.body[1].num_batches_tracked.item()
    assert steps == (STEPS if on_nan == "mask" else STEPS - 1)


def test_optimization_by_hand_is_refused(tmp_path):
    """The way out is the decorator."""

    class ByHand(Module):
        automatic_optimization = False

    with pytest.raises(TypeError, match=r"safeops\.integrations\.guard"):
        run_lightning(tmp_path, guarded=True, module=ByHand)


def test_what_is_no_trainer():
    """It is named."""
    with pytest.raises(TypeError, match="expected a Trainer of transformers, got Reader"):
        hugging.guard(Reader())
