"""The network and the examples that are measured: what is refused, and how the network is run meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from twinproof.attacks.objective import scores_of, untouched
from twinproof.attacks.run import check_batch, check_labels, refuse_nan
from twinproof.compute.devices import matrix_products
from twinproof.errors import DataError, ModelError
from twinproof.evaluation.protocols import answers_at_random
from twinproof.layers.noise import silenced

# exp of it is still a float64.
_NEVER_A_LINE = 500.0


@contextmanager
def measuring(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode, noise layers silent, no gradients for parameters, no TF32; afterwards everything is as it was.

    TF32 has ten bits: its rounding would drown the differences that curvature and Lipschitz constants are made of.
    """
    with untouched(model), silenced(model):
        if device.type != "cuda":
            yield
            return
        flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with flags, matrix_products(False):
            yield


def device_of(model: nn.Module, inputs: Tensor) -> torch.device:
    """Where the network lies; a network without parameters runs where its inputs are."""
    parameter = next(model.parameters(), None)
    return inputs.device if parameter is None else parameter.device


def check_subject(model: nn.Module, inputs: Tensor, batch_size: int | None) -> torch.device:
    """Refuses what cannot be measured; gives the device on which the rest runs."""
    if batch_size is not None:
        check_batch(batch_size)
    if inputs.dtype not in (torch.float32, torch.float64) or inputs.ndim < 2 or inputs.numel() == 0:
        raise DataError(
            "inputs cannot be measured",
            where="inputs",
            got=f"{inputs.dtype} of shape {tuple(inputs.shape)}",
            wanted="a batch (examples, *shape) of at least one float32 or float64 example",
        )
    if not bool(inputs.isfinite().all()):
        raise DataError("inputs are not finite", where="inputs", got="NaN or infinity", wanted="finite numbers")
    device = device_of(model, inputs)
    with silenced(model):
        if answers_at_random(model, inputs[:1].to(device)):
            raise ModelError(
                "the network answers at random, so that its slopes are not defined",
                where=type(model).__name__,
                got="different scores for the same input in eval mode",
                wanted="a network whose only randomness is in noise layers",
                fix="use twinproof's noise layers, which are silenced here",
            )
    return device


def true_class_losses(scores: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each row by itself, (rows,) in float64: -log softmax(scores)[label].

    Guarantees
        Value, slope and curvature keep their leading digits however sure the network is of the true class. The textbook form
        has the slope p - 1 there, which is a rounded zero from p = 1 - 1e-16 on (and in float32 from 1 - 6e-8 on); here it is
        the sigmoid of minus the margin, a small number by itself. Metrics are shown on a logarithmic scale, where that matters.
    """
    wide = scores.double()
    chosen = labels[:, None]
    others = wide.scatter(1, chosen, float("-inf")).logsumexp(dim=1)
    # log(1 + exp(-margin)). By default softplus is a straight line from 20 on; logsigmoid's second derivative forms 1 - p.
    return softplus(others - wide.gather(1, chosen)[:, 0], threshold=_NEVER_A_LINE)


def row_losses(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """``true_class_losses`` of the network at ``inputs``, with their graph; a NaN is refused."""
    scores = scores_of(model, inputs)
    check_labels(labels, len(inputs), scores.shape[1])
    losses = true_class_losses(scores, labels)
    refuse_nan(model, losses.detach())
    return losses


def lengths(rows: Tensor, order: float = 2.0) -> Tensor:
    """The norm of each row over all of its coordinates, (rows,), added up in float64."""
    length: Tensor = torch.linalg.vector_norm(rows.double().flatten(1), ord=order, dim=1)
    return length


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """(rows,) as (rows, 1, 1...), to multiply with ``like``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))
