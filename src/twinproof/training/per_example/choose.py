"""Chooses the path for a model: the fast one where it is proven on a trial, otherwise vmap."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from twinproof.errors import ConfigError, ModelError
from twinproof.layers.cross_example import refuse_cross_example_layers
from twinproof.training.per_example.failures import first_line
from twinproof.training.per_example.fast import FastPath, supported_layers
from twinproof.training.per_example.path import PerExamplePath, RecordLoss, trainable_parameters
from twinproof.training.per_example.trial import ATTEMPTS, TrialFormat, check_forward, difference, make_trial
from twinproof.training.per_example.vmap import VmapPath

PathName = Literal["auto", "fast", "vmap"]


def choose_path(
    model: nn.Module,
    loss: RecordLoss,
    input_shape: tuple[int, ...],
    classes: int,
    *,
    copies: int,
    path: PathName = "auto",
    example: Tensor | None = None,
) -> PerExamplePath:
    """The path for this model and loss; ``example`` (1, *input_shape) gives the input's dtype (integer for token ids).

    Guarantees
        A model with layers that mix examples is refused. The fast path is returned only if, on random records, it agreed
        with the vmap path and one record's gradient did not change by one bit with the others. The model, its mode, its
        parameters and buffers and the global random state are left as they were, to the bit.
    """
    refuse_cross_example_layers(model)
    _check_arguments(model, copies, path)
    form = TrialFormat(input_shape, classes, copies, example)
    trial = make_trial(model, form)
    check_forward(model, trial, classes)
    vmap_path = VmapPath(model, loss)
    trial.run(model, vmap_path)
    if path == "vmap":
        return vmap_path
    candidates = [FastPath(model, loss)]
    if _gains_from_channels_last(model, input_shape):
        candidates.insert(0, FastPath(model, loss, channels_last=True))
    reason = ""
    for fast in candidates:
        reason = _why_not(fast, vmap_path, form)
        if not reason:
            return fast
    if path == "fast":
        raise ModelError(
            "the fast path cannot be used for this network",
            where="trial on random records",
            got=reason,
            wanted="layers that are called, and rows of the batch that do not meet",
            fix="path='auto' or path='vmap'",
        )
    return VmapPath(model, loss, reason=reason)


def _check_arguments(model: nn.Module, copies: int, path: str) -> None:
    if path not in ("auto", "fast", "vmap"):
        raise ConfigError("unknown path for per-example gradients", where="path", got=path, wanted="auto, fast or vmap")
    if copies < 1:
        raise ConfigError("a record needs at least one copy", where="copies", got=copies, wanted="1 or more")
    if not trainable_parameters(model):
        raise ModelError(
            "the network has no parameter to train",
            where="parameters",
            got="none that requires a gradient",
            wanted="at least one",
            fix="unfreeze a layer with requires_grad_(True)",
        )


def _gains_from_channels_last(model: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Two-dimensional convolutions on a CPU: there the layout is the largest single gain."""
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    return on_cpu and len(input_shape) == 3 and any(isinstance(layer, nn.Conv2d) for layer in model.modules())


def _why_not(fast: FastPath, oracle: VmapPath, form: TrialFormat) -> str:
    """Why this fast path may not be used; empty if it may.

    The comparison with the oracle may be tried on other records: where two inputs of a max-pool are equal but for rounding,
    the two paths may rightly follow different ones. A wrong path disagrees on all of them. Mixing is never excused.
    """
    model = fast.model
    reason = ""
    try:
        supported_layers(model)
        for attempt in range(ATTEMPTS):
            trial = make_trial(model, form, attempt)
            mixed = trial.mixes(model, fast)
            if mixed:
                return mixed
            reason = difference(trial.run(model, fast), trial.run(model, oracle))
            if not reason:
                return ""
    except ModelError as error:
        return f"{error.what} ({error.where}: {error.got})"
    except RuntimeError as error:  # a forward that cannot take the layout, for one by ``view``
        return first_line(error)
    return reason
