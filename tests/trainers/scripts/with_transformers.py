"""The Trainer of transformers, with two batches before each step of the optimizer."""

import torch
import transformers

from safeops.integrations.transformers import guard


class Model(torch.nn.Module):
    """A linear model, and the mean length of the rows that are not empty."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Linear(3, 2, bias=False)

    def forward(self, x, labels):
        """Return the loss of a batch."""
        squares = self.head(x).square().sum(1)
        lengths = squares.sqrt()  # here
        return {"loss": torch.where(labels > 0, lengths, 0.0).mean()}


arguments = transformers.TrainingArguments(
    "out",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=2,
    train_sampling_strategy="sequential",
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
data = [{"x": torch.ones(3), "labels": torch.tensor(1.0)} for _ in range(8)]
data[7] = {"x": torch.zeros(3), "labels": torch.tensor(0.0)}  # in the fourth batch, the second step
trainer = transformers.Trainer(Model(), arguments, train_dataset=data)
guard(trainer, file="reports.jsonl").train()
