"""The one training loop and its state: update, learning rate, average of the weights, checkpoint. It knows no paper.

Noise that DP-SGD adds in one step is still in the weights of the next ones, and no later step takes it out on purpose. An
average over many steps does: the signal of the gradients is in all of them, the noise of each in few.

Everything random follows from the run's key and the step number, so weights, their average, optimiser state and the step are
the whole state of training. A checkpoint is one file in ``private/``, replaced in one step, never pickled.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.compute.devices import Captured
from twinproof.compute.ranks import Ranks
from twinproof.errors import ConfigError, ModelError, RunError
from twinproof.files import write_atomic
from twinproof.layers.module_state import all_tensors, same_bits
from twinproof.privacy.ledger import Entry, Ledger
from twinproof.training.per_example.paths import trainable_parameters
from twinproof.training.sources import GradientSource


class Update:
    """Hands each step's gradients to the optimiser, in tensors that stay where they are.

    A recording reads the optimiser's settings when it is made: they must not change during a run. ``scheduled`` says that
    the learning rate will; then nothing is recorded, and the optimiser's few kernels are started one by one.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, scheduled: bool = False) -> None:
        self._parameters = trainable_parameters(model)
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        device = next(iter(self._parameters.values())).device

        def step() -> None:
            optimizer.step()

        self._step = step if scheduled else Captured(step, device)

    def __call__(self, gradients: Mapping[str, Tensor]) -> None:
        """One update."""
        targets = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        torch._foreach_copy_(targets, [gradients[name] for name in self._parameters])
        self._step()


Rate = Callable[[int], float]
"""The learning rate of a step, counted from 0."""


class Schedule(StrEnum):
    """The shapes of the curve from the first step to the last."""

    CONSTANT = "constant"
    COSINE = "cosine"  # half a wave: slow, fast, slow
    LINEAR = "linear"


def rate_of(schedule: Schedule, learning_rate: float, steps: int) -> Rate | None:
    """The learning rate of every step of a run of ``steps``: all of it in step 0, and more than nothing in the last.

    None where it never changes. A schedule that looks at a training loss would have to be paid for.
    """
    match schedule:
        case Schedule.CONSTANT:
            return None
        case Schedule.COSINE:
            return lambda step: learning_rate * (0.5 * (1 + math.cos(math.pi * (step / steps))))
        case Schedule.LINEAR:
            return lambda step: learning_rate * (1 - step / steps)


class WeightAverage:
    """Weights of all steps, each counted ``decay`` times as much as that of the step after it; the counts add up to 1.

    With w_1, w_2, ... the weights after each step, the average after t steps is the sum of decay^(t-i) w_i over the sum of
    decay^(t-i), i = 1..t. The initial weights, which are random, are in none of it. It is kept in the weights' own dtype, on
    their device; numbers that are no trained parameters (buffers) are not averaged.

    Guarantees
        - A function of the released iterates of the private steps and of nothing else: post-processing, which costs no
          privacy and changes no number of the plan.
        - Training continues from the last weights, to the same bits as without an average.
        - Average and step number are its whole state: a resumed run ends with the same bits.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(
                "the decay is too large or negative", where="averaging", got=decay, wanted="at least 0 and below 1"
            )
        self._decay = decay
        named = trainable_parameters(model)
        self._names, self._weights = list(named), list[Tensor](named.values())
        self._average = [value.detach().clone() for value in self._weights]

    @torch.no_grad()
    def add(self, done: int) -> None:
        """Takes in the weights after ``done`` steps, 1 or more; each number once, in order."""
        # In the first step the share is exactly 1, so that what the average was before does not matter.
        share = (1 - self._decay) / (1 - self._decay**done)
        torch._foreach_lerp_(self._average, self._weights, share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the network has the averaged weights; afterwards its own again, to the bit and at the same addresses."""
        with torch.no_grad():
            own = [value.detach().clone() for value in self._weights]
            torch._foreach_copy_(self._weights, self._average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, own)

    def state(self) -> dict[str, Tensor]:
        """The average by the names of the parameters, for a checkpoint."""
        return dict(zip(self._names, self._average, strict=True))

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restores a checkpoint's average; KeyError where a parameter is missing in it, and nothing changed."""
        found = [state[name] for name in self._names]
        for value, stored in zip(self._average, found, strict=True):
            value.copy_(stored)


def run_loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: GradientSource,
    *,
    first: int,
    steps: int,
    after_step: Callable[[int], None],
    rate: Rate | None = None,
    average: WeightAverage | None = None,
) -> None:
    """Takes the steps first..steps-1; ``after_step`` is called with the number of steps taken in all.

    ``rate`` gives each step's learning rate instead of the optimiser's; ``average`` takes in the weights before that call.
    """
    update = Update(model, optimizer, scheduled=rate is not None)
    for step in range(first, steps):
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
        update(source.gradient(step))
        if average is not None:
            average.add(step + 1)
        after_step(step + 1)


def mean_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy averaged over the record's copies: ``logits`` (copies, classes), ``label`` a scalar."""
    return F.cross_entropy(logits, label.expand(logits.shape[0]))


CHECKPOINT_FILE = "checkpoint.safetensors"


def save_checkpoint(
    private: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    binding: str,
    average: WeightAverage | None = None,
) -> None:
    """Writes the state after ``step`` steps; a kill leaves the previous checkpoint or this one, never a mix.

    ``binding`` names the run (its settings and its key), so that no other run goes on from this state.
    """
    tensors = {f"model/{name}": value.detach() for name, value in model.state_dict().items()}
    tensors |= _optimizer_tensors(model, optimizer)
    if average is not None:
        tensors |= {f"average/{name}": value for name, value in average.state().items()}
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    content = save(tensors, metadata={"step": str(step), "binding": binding})
    write_atomic(private / CHECKPOINT_FILE, content)


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"optimizer/{name}/{key}": value.detach()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_checkpoint(
    private: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, binding: str, average: WeightAverage | None = None
) -> int:
    """Restores the last checkpoint and returns its step; 0, and nothing changed, where there is none yet."""
    path = private / CHECKPOINT_FILE
    if not path.is_file():
        return 0
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata()
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
        step, bound_to = int(metadata["step"]), metadata["binding"]
        if step < 0:
            raise ValueError(f"step {step}")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise _unusable("the checkpoint cannot be read", path, error) from error
    if bound_to != binding:
        raise _unusable("the checkpoint belongs to another run", path, "a state with other settings or another key")
    try:
        if average is not None:
            average.restore(_part(tensors, "average/"))
        model.load_state_dict(_part(tensors, "model/"))
    except KeyError as error:
        raise _unusable("the checkpoint has no average of the weights", path, f"nothing for {error}") from error
    except RuntimeError as error:
        raise _unusable("the checkpoint does not fit the network", path, str(error).partition("\n")[0]) from error
    for name, parameter in model.named_parameters():
        found = _part(tensors, f"optimizer/{name}/")
        for key, value in found.items():
            if value.ndim and value.shape != parameter.shape:
                got = f"{key} of {name} with shape {tuple(value.shape)}"
                raise _unusable("the checkpoint does not fit the network", path, got)
        if found:
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in found.items()}
    return step


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _unusable(what: str, path: Path, got: object) -> RunError:
    fix = "restore the checkpoint, or start a new run"
    return RunError(what, where=str(path), got=got, wanted="a checkpoint of this run", fix=fix)


def changed_tensor(name: str, how: str = "its value changed outside an update") -> ModelError:
    """The error for a tensor that something else than an update changed."""
    return ModelError(
        "the network changes a tensor of its own, which would then hold values of the training records without noise",
        where=name,
        got=how,
        wanted="parameters and buffers that only the noisy updates change",
        fix="keep no statistics of the records in the model; what must be learned is a parameter that the optimiser trains",
    )


def check_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The weights to release: the state dict, if it holds the model's parameters and lasting buffers and nothing else.

    Guarantees
        Every entry has the bits of the tensor of that name, so that no hook can add to what is released.
    """
    state, tensors = model.state_dict(), all_tensors(model)
    for name, value in state.items():
        if name not in tensors:
            raise ModelError(
                "the network's state holds more than its parameters and buffers",
                where=name,
                got=type(value).__name__,
                wanted="nothing from a state_dict hook or get_extra_state, which could carry training records out",
            )
        if not isinstance(value, Tensor) or not same_bits(value, tensors[name]):
            raise changed_tensor(name, "state_dict() gives another value than the model has")
    for name in dict(model.named_parameters(remove_duplicate=False)):
        if name not in state:
            raise changed_tensor(name, "state_dict() leaves it out")
    return dict(state)


class SharedLedger(Ledger):
    """The ledger as one rank has it.

    ``append`` returns on no rank before rank 0 has the entry on the disk, and on none where the heads of the chains differ.
    """

    def __init__(self, path: Path, entries: list[Entry], ranks: Ranks) -> None:
        super().__init__(path, entries)
        self._ranks = ranks
        self._agree()

    def append(self, kind: str, body: dict[str, Any]) -> None:
        if self._ranks.is_first:
            super().append(kind, body)
        else:
            self.entries.append(Entry(len(self.entries), kind, body, self._last_hash))
        self._agree()

    def _agree(self) -> None:
        self._ranks.agree("the ledger", f"{len(self.entries)} lines, head {self._last_hash[:32]}")


def weights_digest(model: nn.Module) -> str:
    """SHA-256 (hexadecimal) over names, types, shapes and bits of all that the network holds."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def agree_on_weights(ranks: Ranks, model: nn.Module, when: str) -> None:
    """Stops all ranks unless their weights are equal to the bit."""
    if ranks.world > 1:
        ranks.agree(f"the weights {when}", weights_digest(model))
