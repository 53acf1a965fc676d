"""Ways to compute per-example gradients, and the slower ones: vmap, and one record at a time."""

from __future__ import annotations

import textwrap
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from twinproof.compute.devices import repeatable_convolutions
from twinproof.errors import ModelError
from twinproof.keys import Key
from twinproof.training.per_example.gradients import Group, Instantiated, PerExampleGradient, grouped, rounded_up, zero_gradient

RecordLoss = Callable[[Tensor, Tensor], Tensor]
"""The loss of one record: the logits of its copies (copies, classes) and its label () -> a scalar."""


@dataclass(frozen=True, eq=False)
class RecordGradients:
    """The gradients of m records by parameter name (only parameters that require a gradient), and their losses (m,)."""

    by_name: dict[str, PerExampleGradient]
    losses: Tensor

    def squared_norms(self) -> Tensor:
        """Squared norm of each record's whole gradient, over all parameters: (m,) float64, never below the exact value."""
        parts = [group.gradient.squared_norms() for group in self._groups]
        return rounded_up(torch.stack(parts).sum(0), len(parts))

    def weighted_sums(self, weights: Tensor) -> dict[str, Tensor]:
        """The sum over records of weight times gradient, by parameter name, for weights (m,) float64: in float64.

        A record of weight 0 adds exactly nothing, even if its gradient is NaN.
        """
        found: dict[str, Tensor] = {}
        for group in self._groups:
            found |= group.parts(group.gradient.weighted_sum(weights))
        return {name: found[name] for name in self.by_name}

    @cached_property
    def _groups(self) -> list[Group]:
        return grouped(self.by_name)


class PerExamplePath(ABC):
    """A way of computing the gradient of each record's loss, where a record has several copies (augmentations).

    Guarantees
        A record's gradient is a function of the model, its own copies and its own label: at a fixed number of records it does
        not change by one bit when the other records change, NaN included.
    """

    @abstractmethod
    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        """Gradients of m records: ``inputs`` (m, copies, *shape), ``labels`` (m,). m may be 0."""

    def begin(self, step: int, key: Key) -> None:  # noqa: B027 (most paths need nothing)
        """Called before each training step with the run's key, for what is set or drawn once for a step."""


class OuterPath(PerExamplePath):
    """A path around ``inner``, which takes the gradients in the end."""

    inner: PerExamplePath

    def begin(self, step: int, key: Key) -> None:
        """Hands the call on."""
        self.inner.begin(step, key)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by the module's own names; a shared one once, under its first name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def no_records(model: nn.Module, inputs: Tensor) -> RecordGradients:
    """The answer for an empty batch, which a Poisson sampler does draw: empty results in the right shapes."""
    parameters = trainable_parameters(model)
    dtype = next((parameter.dtype for parameter in parameters.values()), torch.get_default_dtype())
    by_name: dict[str, PerExampleGradient] = {name: zero_gradient(value, 0) for name, value in parameters.items()}
    return RecordGradients(by_name, torch.zeros(0, dtype=dtype, device=inputs.device))


def checked_logits(logits: object, rows: int) -> Tensor:
    """The network's output if it is one row of logits for each row of input."""
    if isinstance(logits, Tensor) and logits.dim() == 2 and logits.shape[0] == rows:
        return logits
    raise ModelError(
        "the network does not return one row of logits for each input",
        where="output of the network",
        got=f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__,
        wanted=f"a tensor of shape ({rows}, classes)",
    )


def checked_loss(loss: object) -> Tensor:
    """The loss of one record if it is a scalar."""
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return loss
    raise ModelError(
        "the loss of one record is not a scalar",
        where="output of the loss",
        got=f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__,
        wanted="a tensor of shape ()",
        fix="take the mean over the record's copies",
    )


_TORCH = Path(torch.__file__).parent
_OWN = Path(__file__).parent


class NotMappable(ModelError):
    """The user's code uses an operation that cannot be mapped over records."""


@contextmanager
def naming_the_operation(subject: str) -> Iterator[None]:
    """Turns an error of torch inside the block into a NotMappable that names the operation; running out of memory passes."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
        raise NotMappable(
            f"{subject} cannot be computed record by record",
            where=_user_line(error.__traceback__),
            got=first_line(error),
            wanted="operations on tensors that torch.func.vmap can map over records",
            fix="replace the operation: no .item(), no Python branch on a tensor's value, no writing into fixed tensors",
        ) from error


def first_line(error: Exception) -> str:
    """The start of an error's message: torch explains at length."""
    return textwrap.shorten(str(error).strip().partition("\n")[0], 240, placeholder=" ...")


def _user_line(trace: TracebackType | None) -> str:
    """File, line and text of the innermost frame that is neither torch's nor ours."""
    frames = [frame for frame in traceback.extract_tb(trace) if not _is_library(Path(frame.filename))]
    if not frames:
        return "the network"
    frame = frames[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}: {frame.line}"


def _is_library(file: Path) -> bool:
    return file.is_relative_to(_TORCH) or file.is_relative_to(_OWN) or file.name == "contextlib.py"


def changed_buffers(names: Iterable[str]) -> ModelError:
    """The error for buffers that a forward pass changes."""
    return ModelError(
        "the forward pass changes a buffer, which would then hold values of the training records without noise",
        where=", ".join(sorted(names)),
        got="a buffer that changes in forward",
        wanted="buffers that stay as they are",
        fix="drop the running statistics, or make the value a parameter so that it is trained with privacy",
    )


@contextmanager
def watched_buffers(model: nn.Module) -> Iterator[None]:
    """Raises ModelError where a buffer was replaced or written to inside the block."""
    before = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}
    yield
    after = dict(model.named_buffers())
    changed = [
        name for name, (buffer, version) in before.items() if after.get(name) is not buffer or buffer._version != version
    ]
    changed += [name for name in after if name not in before]
    if changed:
        raise changed_buffers(changed)


@contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Puts every buffer back as it was, also after an error: a trial must leave no trace in the user's model."""
    before = {name: (buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        for name, (buffer, value) in before.items():
            if not torch.equal(buffer, value):
                with torch.no_grad():
                    buffer.copy_(value)
            path, _, local = name.rpartition(".")
            model.get_submodule(path)._buffers[local] = buffer


class VmapPath(PerExamplePath):
    """``vmap(grad)`` over records, with a record's copies inside; any module without layers that mix examples.

    ``reason`` says why the fast path was not taken, where it was tried.

    The mapped function is given one record, so that its gradient cannot depend on another one; randomness (dropout) is
    drawn for each record separately.
    """

    def __init__(self, model: nn.Module, loss: RecordLoss, *, reason: str = "") -> None:
        self.model = model
        self.loss = loss
        self.reason = reason

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        if inputs.shape[0] == 0:
            return no_records(self.model, inputs)
        trained: dict[str, Tensor] = {}
        fixed: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            (trained if parameter.requires_grad else fixed)[name] = parameter.detach()
        buffers = dict(self.model.named_buffers())

        def record_loss(values: dict[str, Tensor], record: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
            state = {**values, **fixed, **buffers}
            logits = checked_logits(functional_call(self.model, state, (record,)), record.shape[0])
            changed = [name for name, buffer in buffers.items() if state[name] is not buffer]
            if changed:
                raise changed_buffers(changed)
            value = checked_loss(self.loss(logits, label))
            return value, value.detach()

        mapped = vmap(grad(record_loss, has_aux=True), in_dims=(None, 0, 0), randomness="different")
        with repeatable_convolutions(inputs.device), naming_the_operation("a record's gradient"):
            values, losses = mapped(trained, inputs, labels)
        by_name: dict[str, PerExampleGradient] = {name: Instantiated(value) for name, value in values.items()}
        return RecordGradients(by_name, losses)


class SpacedPath(OuterPath):
    """Lets ``inner`` compute each record in a row that is a multiple of ``every``; the rows between hold zeros.

    A matrix product on a CPU adds up in an order that depends on where in memory a row begins. A row of 7 numbers begins at
    four kinds of places, every fourth row at one kind: with three empty rows between records all of them are computed alike.
    """

    def __init__(self, inner: PerExamplePath, every: int) -> None:
        self.inner = inner
        self.every = every

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        spaced = inputs.new_zeros(len(inputs) * self.every, *inputs.shape[1:])
        spaced[:: self.every] = inputs
        spaced_labels = labels.new_zeros(len(spaced))
        spaced_labels[:: self.every] = labels
        found = self.inner.gradients(spaced, spaced_labels)
        by_name: dict[str, PerExampleGradient] = {
            name: Instantiated(value.instantiate()[:: self.every].contiguous()) for name, value in found.by_name.items()
        }
        return RecordGradients(by_name, found.losses[:: self.every].contiguous())


class SinglePath(PerExamplePath):
    """Plain autograd, one record after the other: as slow as it sounds, and right for every module.

    A forward pass sees the copies of one record and nothing else, so that no other record can act on its gradient, nor
    the row that it stands in. Numbers drawn inside are drawn for that record.
    """

    def __init__(self, model: nn.Module, loss: RecordLoss) -> None:
        self.model = model
        self.loss = loss

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        if inputs.shape[0] == 0:
            return no_records(self.model, inputs)
        parameters = trainable_parameters(self.model)
        stacked = {name: value.new_empty(len(inputs), *value.shape).detach() for name, value in parameters.items()}
        losses = []
        with torch.enable_grad(), repeatable_convolutions(inputs.device):
            for row, (record, label) in enumerate(zip(inputs, labels, strict=True)):
                logits = checked_logits(self.model(record.clone()), record.shape[0])
                value = checked_loss(self.loss(logits, label))
                found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True, materialize_grads=True)
                for name, gradient in zip(parameters, found, strict=True):
                    stacked[name][row] = gradient
                losses.append(value.detach())
        by_name: dict[str, PerExampleGradient] = {name: Instantiated(value) for name, value in stacked.items()}
        return RecordGradients(by_name, torch.stack(losses))
