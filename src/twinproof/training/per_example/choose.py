"""Chooses the path for a model: the fast one where a trial proves it, otherwise vmap.

A model can step around the fast path's assumptions (using a layer's weight without calling the layer, mixing the rows of the
batch), and no inspection of its modules would show it. So its gradients are compared with the vmap path's, and record 0's
gradient is computed twice beside different neighbours. The parameters are shifted a little meanwhile: behind a layer that
starts at zero every gradient is zero, and any two paths agree.

Why the comparison is made in float64
    In float32 the input of a ReLU, or two inputs of a max-pool, may be equal but for rounding; two right paths then follow
    different branches, and their gradients differ in the second digit (ResNet-18: on two trials of three). In float64 the
    same paths agree to 1e-14, so that a right rule raises no alarm and one that is wrong by a little cannot hide.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor, nn

from twinproof.errors import ConfigError, ModelError
from twinproof.layers.cross_example import refuse_cross_example_layers
from twinproof.training.per_example.fast import FastPath, supported_layers
from twinproof.training.per_example.paths import (
    PerExamplePath,
    RecordGradients,
    RecordLoss,
    VmapPath,
    first_line,
    restored_buffers,
    trainable_parameters,
    watched_buffers,
)

_RECORDS = 7  # beside each other in the test for mixing: what mixes may be shifted by some rows, or leave the first few alone
_COMPARED = 2  # records whose gradients are compared with the oracle's: a wrong rule is wrong for every one of them
_SEED = 20_240_229
_RELATIVE = {torch.float32: 1e-4, torch.float64: 1e-8}
_RELATIVE_BELOW = 1e-2
# From float64 to the model's own dtype, by norms. Measured on ResNet-18: 0.01 in float32 (ties of ReLUs), 0.3 in bfloat16.
_NEAR = {torch.float32: 0.1}
_NEAR_BELOW = 0.6
# A copy runs the user's code under conditions that it may not have been written for, and some devices have no float64.
COPY_FAILURES = (ModelError, copy.Error, RuntimeError, TypeError, ValueError, AttributeError, LookupError)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True, eq=False)
class Trial:
    """Random records in the model's input format: ``inputs`` (7, copies, *shape), ``others`` with all but record 0 changed."""

    inputs: Tensor
    labels: Tensor
    others: Tensor
    other_labels: Tensor

    def run(self, model: nn.Module, path: PerExamplePath) -> RecordGradients:
        """One run of a path on the first two records, with dropout off so that two paths can be compared."""
        with _undisturbed(model), _without_dropout(model):
            return path.gradients(self.inputs[:_COMPARED], self.labels[:_COMPARED])

    def mixes(self, model: nn.Module, path: PerExamplePath) -> str:
        """Where record 0's gradient changes with the other records, in the model's own mode; empty if nowhere."""
        with _undisturbed(model):
            first = path.gradients(self.inputs, self.labels).by_name
        with _undisturbed(model):
            second = path.gradients(self.others, self.other_labels).by_name
        for name, gradient in first.items():
            if not torch.equal(gradient.instantiate()[0], second[name].instantiate()[0]):
                return f"the gradient of {name} for one record changes with the other records of the batch"
        return ""

    def in_float64(self) -> Trial:
        """The same records for a model in float64; ids stay integers."""
        if not self.inputs.is_floating_point():
            return self
        return replace(self, inputs=self.inputs.double(), others=self.others.double())


@dataclass(frozen=True)
class TrialFormat:
    """How the trial's records look; ``example`` gives their dtype, the model's own otherwise.

    ``columns``: what the model returns beside the logits of the ``classes``.
    """

    input_shape: tuple[int, ...]
    classes: int
    copies: int
    example: Tensor | None = None
    columns: int = 0


def make_trial(model: nn.Module, form: TrialFormat, attempt: int = 0) -> Trial:
    """Records from a generator of their own: floats in [0, 1), or valid ids where the example holds integers."""
    reference = next(model.parameters())
    generator = torch.Generator().manual_seed(_SEED + attempt)
    shape = (_RECORDS, form.copies, *form.input_shape)
    example = form.example

    def draw() -> Tensor:
        if example is None or example.is_floating_point():
            dtype = reference.dtype if example is None else example.dtype
            return torch.rand(shape, generator=generator, dtype=torch.float64).to(reference.device, dtype)
        return torch.randint(0, _ids(model, example), shape, generator=generator).to(reference.device, example.dtype)

    labels = torch.randint(0, form.classes, (_RECORDS,), generator=generator)
    other_labels = labels.clone()
    other_labels[1:] = (labels[1:] + 1) % form.classes
    inputs, others = draw(), draw()
    others[0] = inputs[0]
    return Trial(inputs, labels.to(reference.device), others, other_labels.to(reference.device))


def difference(found: RecordGradients, wanted: RecordGradients) -> str:
    """Where two paths disagree by more than rounding; empty if nowhere.

    A gradient that is zero but for rounding (a bias before a normalisation) is compared on the scale of the whole gradient.
    """
    values = {name: gradient.instantiate().double() for name, gradient in wanted.by_name.items()}
    sizes = {name: _largest(value) for name, value in values.items()}
    whole = max(sizes.values(), default=0.0)
    for name, size in sizes.items():
        actual = found.by_name[name].instantiate()
        relative = _RELATIVE.get(actual.dtype, _RELATIVE_BELOW)
        error = _largest(actual.double() - values[name])
        if not error <= relative * (size + 1e-2 * whole):
            return f"the gradient of {name} differs from the vmap path's by {error:.3g} (largest entry {size:.3g})"
    return ""


def distance(found: RecordGradients, exact: RecordGradients) -> str:
    """Where a path in the model's own dtype is far from what it must round; empty if nowhere.

    Ties make single entries differ as they like, so that norms are compared. This is for a rule that works in float64 and
    not in the dtype of the training; a rule that is wrong in both is found by :func:`difference`.
    """
    values = {name: gradient.instantiate() for name, gradient in exact.by_name.items()}
    norms = {name: _norm(value) for name, value in values.items()}
    whole = math.hypot(*norms.values())
    for name, norm in norms.items():
        actual = found.by_name[name].instantiate()
        error = _norm(actual.double() - values[name])
        if not error <= _NEAR.get(actual.dtype, _NEAR_BELOW) * (norm + 1e-2 * whole):
            return f"the gradient of {name} in {actual.dtype} is {error:.3g} away from the vmap path's (norm {norm:.3g})"
    return ""


def float64_copy(model: nn.Module) -> nn.Module | None:
    """A copy of the model in float64 on its device; None where there can be none.

    A model that has nothing but float64 in it is its own copy.

    The model is not touched: a copy that shares a module, a parameter or a buffer with it is not cast.
    """
    if all(value.dtype == torch.float64 for value in _tensors(model) if value.is_floating_point()):
        return model
    try:
        copied = copy.deepcopy(model)
        shared = set.intersection(*({id(part) for part in (*each.modules(), *_tensors(each))} for each in (model, copied)))
        return None if shared else copied.double()
    except COPY_FAILURES:
        return None


def check_forward(model: nn.Module, trial: Trial, classes: int) -> None:
    """ModelError unless the model turns the trial's records into logits of ``classes`` columns and keeps its buffers."""
    rows = trial.inputs.flatten(0, 1)
    try:
        with _undisturbed(model), watched_buffers(model), torch.no_grad():
            logits = model(rows)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ModelError(
            "the network cannot process a record of the declared shape",
            where="forward pass",
            got=first_line(error),
            wanted=f"a network for inputs of shape {tuple(rows.shape)} and dtype {rows.dtype}",
            fix="give the right input shape, or an example with the right dtype",
        ) from error
    if not isinstance(logits, Tensor) or logits.shape != (rows.shape[0], classes):
        raise ModelError(
            "the network's output does not fit the classes",
            where="forward pass",
            got=f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__,
            wanted=f"({rows.shape[0]}, {classes}): one row of logits for each input",
        )


def _ids(model: nn.Module, example: Tensor) -> int:
    """One more than the largest id that is safe to draw."""
    tables = [layer.num_embeddings for layer in model.modules() if isinstance(layer, nn.Embedding)]
    return min(tables) if tables else int(example.max()) + 1


def _tensors(model: nn.Module) -> tuple[Tensor, ...]:
    return (*model.parameters(), *model.buffers())


def _largest(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values, ord=math.inf)) if values.numel() else 0.0


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values))


@contextmanager
def shifted_parameters(model: nn.Module) -> Iterator[None]:
    """A small random shift of the parameters inside, and every bit of them as before afterwards, also on an error."""
    generator = torch.Generator().manual_seed(_SEED)
    before = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    try:
        with torch.no_grad():
            for parameter, value in before:
                size = 0.1 * torch.linalg.vector_norm(value, dtype=torch.float64) / max(1, value.numel()) ** 0.5 + 0.01
                noise = torch.randn(value.shape, generator=generator).to(value.device)
                parameter.add_((noise * size).to(value.dtype))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in before:
                parameter.copy_(value)


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """A fixed seed inside, and the global random state and the model's buffers as before afterwards."""
    devices = sorted({parameter.device.index or 0 for parameter in model.parameters() if parameter.is_cuda})
    with torch.random.fork_rng(devices=devices), restored_buffers(model):
        torch.manual_seed(_SEED)
        yield


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    active = [layer for layer in model.modules() if isinstance(layer, _DROPOUTS) and layer.training]
    try:
        for layer in active:
            layer.training = False
        yield
    finally:
        for layer in active:
            layer.training = True


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
    columns: int = 0,
) -> PerExamplePath:
    """The path for this model and loss; ``example`` (1, *input_shape) gives the input's dtype (integer for token ids).

    ``columns``: what the model, a view of a network, returns beside the logits.

    Guarantees
        A model with layers that mix examples is refused. The fast path is returned only if, on random records, it agreed
        with the vmap path and one record's gradient did not change by one bit with the others. They are compared in float64,
        to 1e-8 of a gradient's largest entry; where the module, the loss or the device cannot do that, in the model's own
        dtype. The model, its mode, its parameters and buffers and the global random state are left as they were, to the bit.
    """
    refuse_cross_example_layers(model)
    _check_arguments(model, copies, path)
    form = TrialFormat(input_shape, classes, copies, example, columns)
    reason = ""
    with shifted_parameters(model):
        trial = make_trial(model, form)
        check_forward(model, trial, classes + columns)
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
    references = _references(model, loss, form)
    reason = ""
    for channels_last in (True, False) if _gains_from_channels_last(model, form.input_shape) else (False,):
        fast = FastPath(model, loss, channels_last=channels_last)
        reason = _why_not(fast, references, form)
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


def _references(model: nn.Module, loss: RecordLoss, form: TrialFormat) -> list[Callable[[], _Reference]]:
    """What a path must agree with one of: in float64 on one trial, or in the model's own dtype on several.

    Each is computed when it is first called, and once: the second layout costs no second reference.
    """

    def in_own_dtype(attempt: int) -> _Reference:
        trial = make_trial(model, form, attempt)
        return _Reference(model, trial, trial.run(model, VmapPath(model, loss)))

    exact = float64_copy(model)
    if exact is not None:
        trial = make_trial(model, form).in_float64()
        try:
            found = _Reference(exact, trial, trial.run(exact, VmapPath(exact, loss)))
            return [lambda: found]
        except COPY_FAILURES:  # for one a forward or a loss that insists on its dtype, or a device that has no room
            pass
    attempts: list[Callable[[], _Reference]] = [cache(partial(in_own_dtype, attempt)) for attempt in range(_ATTEMPTS)]
    attempts[0]()  # a model that cannot be mapped is refused here
    return attempts


def _why_not(fast: FastPath, references: Sequence[Callable[[], _Reference]], form: TrialFormat) -> str:
    """Why this fast path may not be used; empty if it may.

    In the model's own dtype the comparison may be tried on other records, since ties excuse a difference; a wrong path
    differs on all of them. Mixing is never excused.
    """
    try:
        reason = make_trial(fast.model, form).mixes(fast.model, fast)
        if reason:
            return reason
        for reference in references:
            reason = _disagreement(fast, reference(), form)
            if not reason:
                return ""
    except ModelError as error:
        return _in_short(error)
    except RuntimeError as error:  # a forward that cannot take the layout, for one by ``view``
        return first_line(error)
    return reason


def _disagreement(fast: FastPath, reference: _Reference, form: TrialFormat) -> str:
    """Where the fast path disagrees with a reference: with the same rules on its model, and then as it will run."""
    same_rules = FastPath(reference.model, fast.loss, channels_last=fast.channels_last)
    reason = difference(reference.trial.run(reference.model, same_rules), reference.gradients)
    if reason or reference.model is fast.model:
        return reason
    return distance(make_trial(fast.model, form).run(fast.model, fast), reference.gradients)


def _in_short(error: ModelError) -> str:
    return f"{error.what} ({error.where}: {error.got})"
