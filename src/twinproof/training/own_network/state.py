"""What a network in training keeps in its tensors: digests of gradients, and a watch over parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from twinproof.layers.module_state import all_tensors, bits
from twinproof.training.loop import changed_tensor, check_state_dict
from twinproof.training.per_example.paths import RecordGradients
from twinproof.training.sources import GradientSource

_SEED = 20_261_117
_MOST_AT_ONCE = 1 << 22


def row_digests(gradients: RecordGradients) -> dict[str, Tensor]:
    """One number (m,) for each parameter and record that changes with every bit of that gradient.

    Zeros of both signs count as one, and so do all NaN: neither makes a difference to a sum of finite gradients.
    """
    return {name: _digest(value.instantiate()) for name, value in gradients.by_name.items()}


def _digest(values: Tensor) -> Tensor:
    flat = values.detach().reshape(values.shape[0], -1)
    columns = max(1, _MOST_AT_ONCE // max(1, flat.shape[0]))
    total = torch.zeros(flat.shape[0], dtype=torch.int64, device=flat.device)
    generator = torch.Generator().manual_seed(_SEED)
    for block in torch.split(flat, columns, dim=1):
        plain = torch.where(block.isnan(), torch.nan, block + 0.0)
        weights = torch.randint(-(2**62), 2**62, (block.shape[1],), generator=generator) * 2 + 1
        total += (bits(plain).to(torch.int64) * weights.to(flat.device)).sum(1)
    return total


def first_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor], rows: Tensor | Sequence[int]) -> str:
    """The parameter and row at which two tables of digests differ; empty if nowhere among ``rows``."""
    for name, digests in one.items():
        differing = (digests != other[name])[rows].nonzero()
        if len(differing):
            return f"{name} in {len(differing)} of {len(rows)} rows"
    return ""


class TensorWatch:
    """Watches the tensors of a model through a whole training.

    ``start`` is the network as it was before the first step of the run; ``moves`` names frozen tensors that this package
    itself moves after an update (the deviation of a noise layer).

    Guarantees
        Between one update and the next no parameter or buffer changed by one bit; at the end every
        buffer and every frozen parameter has the bits that it began with, those of ``moves`` aside. On a GPU nothing waits:
        what was seen is read when ``check`` is called, which must be before anything is released.
    """

    def __init__(self, model: nn.Module, start: nn.Module, moves: Iterable[str] = ()) -> None:
        self._model = model
        self._tensors, begun = all_tensors(model), all_tensors(start)
        trained = {name for name, value in self._tensors.items() if value.requires_grad}
        self._moving = trained | set(moves)
        self._kept = {
            name: (value if name in self._moving else begun[name]).detach().clone() for name, value in self._tensors.items()
        }
        device = next(model.parameters()).device
        self._changed = {name: torch.zeros((), dtype=torch.bool, device=value.device) for name, value in self._kept.items()}
        self._lazy = device.type == "cuda"

    def updated(self) -> None:
        """To be called after an update, and after what this package does to the weights then."""
        with torch.no_grad():
            for name in self._moving:
                self._kept[name].copy_(self._tensors[name])

    def compare(self) -> None:
        """Compares every tensor with what it was after the last update; on a CPU ends in an error at once."""
        now = all_tensors(self._model)
        for name in self._kept.keys() | now.keys():
            if now.get(name) is not self._tensors.get(name):
                other = "another tensor stands in its place" if name in self._kept else "it was not there before"
                raise changed_tensor(name, other if name in now else "it is gone")
        for name, value in self._kept.items():
            if self._lazy:
                self._changed[name] |= (bits(self._tensors[name]) != bits(value)).any()
            elif not torch.equal(bits(self._tensors[name]), bits(value)):
                raise changed_tensor(name)

    def check(self) -> None:
        """ModelError if any comparison so far has found a change."""
        for name, changed in self._changed.items():
            if bool(changed):
                raise changed_tensor(name)


class UnchangedTensors(TensorWatch):
    """Watches a model that nothing at all may change."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, model)
        self._names = sorted(model.state_dict())

    def check(self) -> None:
        """ModelError unless the model has the same tensors under the same names with the same bits."""
        self.compare()
        super().check()
        check_state_dict(self._model)
        if sorted(self._model.state_dict()) != self._names:
            raise changed_tensor("state_dict()", "other names than before")


class WatchedSource(GradientSource):
    """The gradients of ``source``; ends in an error where the model's tensors are not those of the last update."""

    def __init__(self, source: GradientSource, watch: TensorWatch) -> None:
        self._source = source
        self.pass_size = source.pass_size
        self._watch = watch

    def gradient(self, step: int) -> dict[str, Tensor]:
        found = self._source.gradient(step)
        self._watch.compare()
        self.last = self._source.last
        return found
