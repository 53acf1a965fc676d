"""What the tests of per-example gradients share: the record-at-a-time oracle, a loss, and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from twinproof.training.per_example import PerExamplePath, RecordGradients

CLASSES = 3


class Forward(nn.Module):
    """A linear layer in a forward pass given by a function."""

    def __init__(self, function: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, CLASSES)
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(self.lin, rows)


def mean_loss(logits: Tensor, label: Tensor) -> Tensor:
    """Mean cross-entropy over a record's copies."""
    return functional.cross_entropy(logits, label.expand(logits.shape[0]))


def one_at_a_time(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Plain autograd on each record alone, stacked: nothing of the code under test.

    On contiguous inputs: the backward of GroupNorm in torch 2.13 ends the process on a channels-last input that needs no
    gradient itself.
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    rows: dict[str, list[Tensor]] = {name: [] for name in named}
    for record, label in zip(inputs, labels, strict=True):
        loss = mean_loss(model(record.contiguous()), label)
        gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for (name, parameter), gradient in zip(named.items(), gradients, strict=True):
            rows[name].append(parameter.new_zeros(parameter.shape) if gradient is None else gradient)
    return {name: torch.stack(row) if row else named[name].new_zeros(0, *named[name].shape) for name, row in rows.items()}


def worst_error(found: RecordGradients, wanted: dict[str, Tensor]) -> float:
    """Largest difference over all parameters, relative to the parameter's largest gradient entry."""
    worst = 0.0
    for name, values in wanted.items():
        actual = found.by_name[name].instantiate()
        if actual.shape != values.shape or actual.dtype != values.dtype:
            raise AssertionError(f"{name}: {actual.shape} {actual.dtype}, wanted {values.shape} {values.dtype}")
        if values.numel():
            worst = max(worst, float((actual - values).abs().max() / values.abs().max().clamp(min=1e-30)))
    return worst


def records(
    shape: tuple[int, ...], number: int, copies: int, dtype: torch.dtype, *, ids: int = 0, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Random inputs (number, copies, *shape), token ids below ``ids`` if that is given, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (number,), generator=generator)
    if ids:
        return torch.randint(0, ids, (number, copies, *shape), generator=generator), labels
    return torch.randn(number, copies, *shape, generator=generator, dtype=torch.float64).to(dtype), labels


def same_bits_beside(
    path: PerExamplePath, inputs: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor, row: int
) -> bool:
    """Whether one record's gradients, norm and loss keep every bit when the rest of the batch is exchanged."""
    beside, beside_labels = others.clone(), other_labels.clone()
    beside[row], beside_labels[row] = inputs[row], labels[row]
    first, second = path.gradients(inputs, labels), path.gradients(beside, beside_labels)
    pairs = [(first.by_name[name].instantiate(), second.by_name[name].instantiate()) for name in first.by_name]
    pairs += [(first.squared_norms(), second.squared_norms()), (first.losses, second.losses)]
    return all(torch.equal(left[row], right[row]) for left, right in pairs)
