"""An owner's own network under watch while it trains: at some steps on a real pass it is compared with a fresh copy.

A trial on random records cannot show what the network does later: after its fiftieth call, or on records that are unlike any
that were tried. At steps 1, 2, 4, 8, ... and at the end its gradients are computed again by a copy with the present weights
that has never seen a record; and again with every second record taken out of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.keys import Key
from twinproof.layers.module_state import KeptState, all_tensors, differences, evaluation_mode, same_bits
from twinproof.training.own_network.state import TensorWatch, first_difference, row_digests
from twinproof.training.own_network.trial import Probe, Remembered, RowTrial, seeded, state_error
from twinproof.training.per_example.choose import shifted_parameters
from twinproof.training.per_example.paths import OuterPath, PerExamplePath, RecordGradients, SinglePath

# Where bits differ by the device's rounding: of a gradient's norm. Ties of ReLUs move single entries as they like.
_NEAR = 0.1
_ROWS = 16


@dataclass(frozen=True, eq=False)
class Workshop:
    """How copies of the network and paths on them are made: ``fresh`` has the weights that training began with."""

    fresh: Callable[[], nn.Module]
    build: Callable[[nn.Module], PerExamplePath]
    probe: Probe
    remembered: Remembered
    exact: bool = True


class WatchedPath(OuterPath):
    """The path of the network in training, compared with a fresh copy's at powers of two from the first step and in the last.

    ``note`` is called with the places where the network keeps values between passes that no fresh copy has.
    """

    def __init__(
        self, inner: PerExamplePath, model: nn.Module, shop: Workshop, key: Key, note: Callable[[Sequence[str]], None]
    ) -> None:
        self.inner = inner
        self._model = model
        self._shop = shop
        self._key = key
        self._note = note
        self._tensors: TensorWatch | None = None
        self._first, self._steps = 0, 0
        self._step = 0
        self._due = False

    def start(self, tensors: TensorWatch, first: int, steps: int) -> None:
        """To be called before the steps ``first`` to ``steps`` - 1; ``tensors`` watches the network meanwhile."""
        self._tensors, self._first, self._steps = tensors, first, steps

    def begin(self, step: int, key: Key) -> None:
        """Decides whether a pass of this step is compared."""
        self._step = step
        done = step - self._first + 1
        self._due = self._due or done & (done - 1) == 0 or step == self._steps - 1
        self.inner.begin(step, key)

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        if not self._due or inputs.shape[0] == 0:
            return self.inner.gradients(inputs, labels)
        self._due = False
        generators = _Generators(inputs.device)
        found = self.inner.gradients(inputs.clone(), labels)
        if self._tensors is not None:
            self._tensors.compare()  # what it wrote to says more than what comes of it
        after = _Generators(inputs.device)
        kept = KeptState.of(self._model)
        self._compare_with_copy(found, inputs, labels, kept, generators)
        self._compare_without_half(found, inputs, labels, generators)
        after.put_back()
        return found

    def finish(self) -> None:
        """Compares once more, on the trial's records and in eval mode, before anything is released."""
        probe = self._shop.probe
        with seeded(probe.labels.device):
            self._due = True
            self.gradients(probe.inputs, probe.labels)
        copy = self._copy()
        rows = probe.rows
        scores = []
        for model in (self._model, copy):
            with seeded(probe.labels.device), torch.no_grad(), evaluation_mode(model):
                scores.append(model(rows.clone()).detach())
        if self._shop.exact and not same_bits(*scores):
            raise state_error([], "a fresh copy with the same weights gives other scores in eval mode")

    def _copy(self) -> nn.Module:
        """A network that has seen nothing, with the present weights."""
        copy = self._shop.fresh()
        now = all_tensors(self._model)
        with torch.no_grad():
            for name, value in all_tensors(copy).items():
                value.copy_(now[name])
        return copy

    def _compare_with_copy(
        self, found: RecordGradients, inputs: Tensor, labels: Tensor, kept: KeptState, generators: _Generators
    ) -> None:
        untouched = self._shop.fresh()
        with shifted_parameters(untouched):
            before = RowTrial(self._shop.build(untouched), self._shop.probe).base()
        copy = self._copy()
        path = self._shop.build(copy)
        path.begin(self._step, self._key)
        generators.put_back()
        again = path.gradients(inputs.clone(), labels)
        now = KeptState.of(copy)
        places = differences(kept.own, now.own) + differences(self._shop.remembered.shared, now.shared)
        rows = range(len(labels))
        if where := self._difference(found, again, rows):
            raise state_error(places, f"{self._when()} a fresh copy gives another gradient: {where}")
        if self._shop.exact and (
            where := first_difference(self._shop.remembered.digests, before, range(self._shop.probe.records))
        ):
            raise state_error(places, f"{self._when()} a copy gives another gradient than before training: {where}")
        if places:
            self._note(places)

    def _compare_without_half(self, found: RecordGradients, inputs: Tensor, labels: Tensor, generators: _Generators) -> None:
        """Takes every second record out: the gradients of the others must stay as they were."""
        if isinstance(self.inner, SinglePath):
            return  # its rows cannot meet
        thinned, thinned_labels = inputs.clone(), labels.clone()
        thinned[1::2], thinned_labels[1::2] = 0, 0
        generators.put_back()
        again = self.inner.gradients(thinned, thinned_labels)
        if where := self._difference(found, again, range(0, len(labels), 2)):
            raise ModelError(
                "one record's gradient depends on the other records of the pass",
                where=self._when(),
                got=f"another gradient without them: {where}",
                wanted="operations that treat each row of the batch alone",
                fix="take means, maxima, sorts and counts over the axes of one record, never over the batch",
            )

    def _difference(self, one: RecordGradients, other: RecordGradients, rows: Sequence[int]) -> str:
        if self._shop.exact:
            return first_difference(row_digests(one), row_digests(other), rows)
        chosen = list(rows)[:: max(1, len(rows) // _ROWS)]
        for name, gradient in one.by_name.items():
            wanted = gradient.instantiate()[chosen].double().flatten(1)
            error = (other.by_name[name].instantiate()[chosen].double().flatten(1) - wanted).norm(dim=1)
            if bool((error > _NEAR * wanted.norm(dim=1).clamp_min(1e-6)).any()):
                return name
        return ""

    def _when(self) -> str:
        return f"step {self._step + 1}"


class _Generators:
    """Where torch's own generators stand, to be put back there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def put_back(self) -> None:
        torch.set_rng_state(self._host)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)
