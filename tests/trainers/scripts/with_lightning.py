"""The Trainer of Lightning."""

import lightning
import torch

from safeops.integrations.lightning import GuardCallback


class Module(lightning.LightningModule):
    """A linear model, and the mean length of the rows that are not empty."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Linear(3, 2, bias=False)

    def training_step(self, batch, _):
        """Return the loss of a batch."""
        squares = self.head(batch).square().sum(1)
        lengths = squares.sqrt()  # here
        return torch.where(squares > 0, lengths, 0.0).mean()

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), 0.1)


rows = torch.ones(8, 3)
rows[5] = 0.0  # the second row of the second batch
lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[GuardCallback(file="reports.jsonl")],
).fit(Module(), torch.utils.data.DataLoader(rows, batch_size=4))
