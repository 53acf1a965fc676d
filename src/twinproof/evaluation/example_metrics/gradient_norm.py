"""Input gradient norm: how fast an example's loss rises when its input moves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twinproof.evaluation.example_metrics.batches import in_batches, rows_at_once
from twinproof.evaluation.example_metrics.subject import check_subject, lengths, measuring, row_losses


def input_gradient_norms(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch_size: int | None = None) -> Tensor:
    """The l2 norm over all coordinates of d CE(x, y) / dx at each clean input: (examples,), float64, on the CPU.

    Guarantees
        Each number is a function of its own input and label: the batch is one backward pass through the sum of the losses,
        whose gradient at a row is that row's own. Noise layers are silent, the model runs in eval mode and is left as found.
    """
    device = check_subject(model, inputs, batch_size)
    norms = []
    with measuring(model, device), torch.enable_grad():
        for rows in in_batches(len(inputs), rows_at_once(model, inputs, device, batch_size)):
            points = inputs[rows].detach().to(device).requires_grad_()
            losses = row_losses(model, points, labels[rows].to(device))
            (slopes,) = torch.autograd.grad(losses.sum(), points)
            norms.append(lengths(slopes).cpu())
    return torch.cat(norms)
