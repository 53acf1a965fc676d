"""Chooses the path for a model: the fast one where it is proven on a trial, otherwise vmap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from twinproof.errors import ConfigError, ModelError
from twinproof.layers.cross_example import refuse_cross_example_layers
from twinproof.training.per_example.failures import first_line
from twinproof.training.per_example.fast import FastPath, supported_layers
from twinproof.training.per_example.path import PerExamplePath, RecordGradients, RecordLoss, trainable_parameters
from twinproof.training.per_example.trial import (
    COPY_FAILURES,
    Trial,
    TrialFormat,
    check_forward,
    difference,
    distance,
    float64_copy,
    make_trial,
    shifted_parameters,
)
from twinproof.training.per_example.vmap import VmapPath

PathName = Literal["auto", "fast", "vmap"]
# Trials that a right path is given where only the model's own dtype can be compared: ties raise false alarms there.
_ATTEMPTS = 3


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
        with the vmap path and one record's gradient did not change by one bit with the others. They are compared in float64,
        to 1e-8 of a gradient's largest entry; where the module, the loss or the device cannot do that, in the model's own
        dtype. The model, its mode, its parameters and buffers and the global random state are left as they were, to the bit.
    """
    refuse_cross_example_layers(model)
    _check_arguments(model, copies, path)
    form = TrialFormat(input_shape, classes, copies, example)
    reason = ""
    with shifted_parameters(model):
        trial = make_trial(model, form)
        check_forward(model, trial, classes)
        if path != "vmap":
            found = _proven_fast_path(model, loss, form)
            if isinstance(found, FastPath):
                return found
            reason = found
        if path == "fast":
            raise ModelError(
                "the fast path cannot be used for this network",
                where="trial on random records",
                got=reason,
                wanted="layers that are called, and rows of the batch that do not meet",
                fix="path='auto' or path='vmap'",
            )
        vmap_path = VmapPath(model, loss, reason=reason)
        trial.run(model, vmap_path)  # what cannot be mapped is refused here, not in the middle of a training
    return vmap_path


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


def _proven_fast_path(model: nn.Module, loss: RecordLoss, form: TrialFormat) -> FastPath | str:
    """The first layout of the fast path that passes the trial, or why none does."""
    try:
        supported_layers(model)
    except ModelError as error:
        return _in_short(error)
    oracle = _Oracle(model, loss, form)
    reason = ""
    for channels_last in (True, False) if _gains_from_channels_last(model, form.input_shape) else (False,):
        fast = FastPath(model, loss, channels_last=channels_last)
        reason = _why_not(fast, oracle)
        if not reason:
            return fast
    return reason


def _gains_from_channels_last(model: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Two-dimensional convolutions on a CPU: there the layout is the largest single gain."""
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    return on_cpu and len(input_shape) == 3 and any(isinstance(layer, nn.Conv2d) for layer in model.modules())


@dataclass(frozen=True, eq=False)
class _Reference:
    """The vmap path's gradients on a trial's records, and the model, in float64 or not, that they belong to."""

    model: nn.Module
    trial: Trial
    gradients: RecordGradients


class _Oracle:
    """What the vmap path gives: in float64 on one trial, or in the model's own dtype on several.

    Each is computed when it is first asked for and kept, so that the second layout costs no second oracle.
    """

    def __init__(self, model: nn.Module, loss: RecordLoss, form: TrialFormat) -> None:
        self.form = form
        self._model = model
        self._loss = loss
        exact = self._in_float64()
        self._kept = [self._in_own_dtype(0) if exact is None else exact]
        self._attempts = _ATTEMPTS if exact is None else 1

    def references(self) -> Iterator[_Reference]:
        """One after the other; a path needs to agree with one of them."""
        for attempt in range(self._attempts):
            if attempt == len(self._kept):
                self._kept.append(self._in_own_dtype(attempt))
            yield self._kept[attempt]

    def _in_float64(self) -> _Reference | None:
        twin = float64_copy(self._model)
        if twin is None:
            return None
        trial = make_trial(self._model, self.form).in_float64()
        try:
            return _Reference(twin, trial, trial.run(twin, VmapPath(twin, self._loss)))
        except COPY_FAILURES:  # for one a forward or a loss that insists on its dtype, or a device that has no room
            return None

    def _in_own_dtype(self, attempt: int) -> _Reference:
        trial = make_trial(self._model, self.form, attempt)
        return _Reference(self._model, trial, trial.run(self._model, VmapPath(self._model, self._loss)))


def _why_not(fast: FastPath, oracle: _Oracle) -> str:
    """Why this fast path may not be used; empty if it may.

    In the model's own dtype the comparison may be tried on other records, since ties excuse a difference; a wrong path
    differs on all of them. Mixing is never excused.
    """
    model, reason = fast.model, ""
    try:
        reason = make_trial(model, oracle.form).mixes(model, fast)
        if reason:
            return reason
        for reference in oracle.references():
            reason = _disagreement(fast, reference, oracle.form)
            if not reason:
                return ""
    except ModelError as error:
        return _in_short(error)
    except RuntimeError as error:  # a forward that cannot take the layout, for one by ``view``
        return first_line(error)
    return reason


def _disagreement(fast: FastPath, reference: _Reference, form: TrialFormat) -> str:
    """Where the fast path disagrees with a reference: with the same rules on its model, and then as it will run."""
    model, twin = fast.model, reference.model
    twin_path = FastPath(twin, fast.loss, channels_last=fast.channels_last)
    reason = difference(reference.trial.run(twin, twin_path), reference.gradients)
    if reason or twin is model:
        return reason
    return distance(make_trial(model, form).run(model, fast), reference.gradients)


def _in_short(error: ModelError) -> str:
    return f"{error.what} ({error.where}: {error.got})"
