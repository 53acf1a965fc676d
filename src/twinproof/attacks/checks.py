"""What is refused before an attack begins, so that nothing strange happens on a device in the middle of one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twinproof.attacks.threat import Threat
from twinproof.errors import ConfigError, DataError, ModelError


def check_inputs(inputs: Tensor, threat: Threat) -> None:
    """Inputs are a batch of floats within the range."""
    if inputs.dtype not in (torch.float32, torch.float64):
        raise DataError("inputs are no floats", where="inputs", got=inputs.dtype, wanted="float32 or float64")
    if inputs.ndim < 2:
        raise DataError("inputs are no batch", where="inputs", got=tuple(inputs.shape), wanted="(inputs, *shape)")
    if inputs.numel() and not bool(((inputs >= threat.low) & (inputs <= threat.high)).all()):
        raise DataError(
            "inputs lie outside their range",
            where="inputs",
            got=f"{float(inputs.min()):g}..{float(inputs.max()):g}",
            wanted=f"{threat.low:g}..{threat.high:g}, and no NaN",
            fix="name the range of the inputs in the threat (low, high)",
        )


def check_labels(labels: Tensor, inputs: int, classes: int) -> None:
    """One class for each input."""
    if labels.dtype != torch.int64 or tuple(labels.shape) != (inputs,):
        raise DataError(
            "labels do not fit the inputs",
            where="labels",
            got=f"{labels.dtype} of shape {tuple(labels.shape)}",
            wanted=f"int64 of shape ({inputs},)",
        )
    outside = (labels < 0) | (labels >= classes)
    if bool(outside.any()):
        raise DataError(
            "a label is no class of the network",
            where=f"labels, row {int(outside.nonzero()[0])}",
            got=int(labels[outside][0]),
            wanted=f"0..{classes - 1}",
        )


def refuse_missing_targets(targeted: bool, labels: Tensor | None) -> None:
    """A targeted attack must be told where to go; the prediction is where it already is."""
    if targeted and labels is None:
        raise ConfigError(
            "a targeted attack needs targets", where="labels", got="none", wanted="the class to reach, for each input"
        )


def refuse_nan(model: nn.Module, losses: Tensor) -> None:
    """A network that has no answer for the inputs themselves cannot be attacked, and must not be called robust for it."""
    broken = losses.isnan()
    if bool(broken.any()):
        raise ModelError(
            "the network gives NaN scores",
            where=type(model).__name__,
            got=f"NaN for {int(broken.sum())} of {len(losses)} inputs, the first in row {int(broken.nonzero()[0])}",
            wanted="numbers",
            fix="check the weights and the range of the inputs",
        )


def check_batch(batch: int) -> None:
    """At least one input at a time."""
    if batch < 1:
        raise ConfigError("the batch size cannot be used", where="batch", got=batch, wanted="at least 1")
