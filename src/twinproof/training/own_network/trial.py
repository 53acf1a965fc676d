"""The trial of an owner's own network, on copies of it, before any training record is seen.

A module's code is not read. It is run at the size of the passes that training will make, on random and public records, and what
it answers must fit a network that treats each record alone: the same record beside other records, in another row, after other
passes, in a fresh copy gives the same bits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from twinproof.errors import ModelError
from twinproof.layers.module_state import KeptState, differences, foreign_generators, same_bits
from twinproof.training.own_network.state import UnchangedTensors, first_difference, row_digests
from twinproof.training.per_example.choose import shifted_parameters
from twinproof.training.per_example.paths import PerExamplePath, SinglePath, first_line

# Each draws inside and hands out something else than the numbers: they cannot be moved to another row.
_NOT_PLAIN = ("native_dropout", "rrelu", "attention")


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every random number that torch draws inside; with ``take``, row i gets the numbers drawn for row ``take[i]``.

    The first axis of what is drawn must count the ``records`` (each may have several rows). ``shared`` names draws with fewer
    numbers than records, which some records must have in common; ``unplaced`` those that belong to no row in an obvious way.
    """

    def __init__(self, records: int, take: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.records = records
        self.take = take
        self.happened = False
        self.shared: list[str] = []
        self.unplaced: list[str] = []

    def __torch_dispatch__(
        self, func: OpOverload[Any, Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operation."""
        found = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.happened = True
            self._place(str(func), found)
        return found

    def _place(self, name: str, drawn: object) -> None:
        if isinstance(drawn, Tensor) and drawn.numel() < self.records:
            self.shared.append(f"{name} of shape {tuple(drawn.shape)}")
        elif not isinstance(drawn, Tensor) or any(word in name for word in _NOT_PLAIN):
            self.unplaced.append(name)
        elif drawn.dim() == 0 or drawn.shape[0] % self.records:
            self.unplaced.append(f"{name} of shape {tuple(drawn.shape)}")
        elif self.take is not None:
            by_record = drawn.reshape(self.records, -1)
            drawn.copy_(by_record[self.take.to(drawn.device)].view(drawn.shape))


Digests = dict[str, Tensor]

_SEED = 20_261_119
_SEEDS, _SEEDS_OF_FEW_ROWS, _FEW_ROWS = 8, 40, 8
_ROUNDING = 1e-4  # of the scores: what is beyond it is not the order of a sum
_KEPT = 5  # every fifth record stays where it is while the others change
_NAMED = 5


@dataclass(frozen=True, eq=False)
class Probe:
    """A pass of records (m, copies, *shape) with labels, and other records for the same rows."""

    inputs: Tensor
    labels: Tensor
    others: Tensor
    other_labels: Tensor

    @property
    def records(self) -> int:
        """How many there are."""
        return len(self.labels)

    @property
    def rows(self) -> Tensor:
        """What a forward pass over all copies is given."""
        return self.inputs.flatten(0, 1)

    def to(self, device: torch.device, most: int) -> Probe:
        """The first ``most`` records on another device."""
        parts = (self.inputs, self.labels, self.others, self.other_labels)
        return Probe(*(part[:most].to(device) for part in parts))


def make_probe(model: nn.Module, public: Tensor, classes: int, *, records: int, copies: int) -> Probe:
    """Random records in [0, 1) and, in every second row, ``public`` ones (n, *shape)."""
    reference = next(model.parameters())
    generator = torch.Generator().manual_seed(_SEED)
    dtype = reference.dtype if reference.is_floating_point() else torch.float32

    def draw() -> Tensor:
        found = torch.rand((records, copies, *public.shape[1:]), generator=generator, dtype=torch.float64)
        if len(public):
            chosen = torch.randint(0, len(public), (len(found[1::2]),), generator=generator)
            found[1::2] = public.detach().cpu()[chosen].double().unsqueeze(1)
        return found.to(reference.device, dtype)

    labels, other_labels = (torch.randint(0, classes, (records,), generator=generator) for _ in range(2))
    return Probe(draw(), labels.to(reference.device), draw(), other_labels.to(reference.device))


@contextmanager
def seeded(device: torch.device, seed: int = _SEED) -> Iterator[None]:
    """Torch's generators at ``seed`` inside, and all generators of the process as they were afterwards.

    Raises ModelError where one that the run's key does not decide was drawn from.
    """
    before, numpy = foreign_generators(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
    names = ("Python's random", "numpy.random")
    if drew := [name for name, old, new in zip(names, before, foreign_generators(), strict=True) if old != new]:
        random.setstate(before[0])
        np.random.set_state(numpy)
        raise ModelError(
            "the network draws random numbers that are not torch's",
            where="forward pass",
            got=" and ".join(drew),
            wanted="numbers from torch, for each row of the batch its own: the run's key seeds them",
            fix="draw with torch.rand(rows, ...) or torch.bernoulli",
        )


def try_forward(make: Callable[[], nn.Module], probe: Probe) -> None:
    """ModelError where a forward pass writes to the model, mixes rows, shares a draw between them, or is not repeatable."""
    model, device = make(), probe.labels.device
    tensors, state = UnchangedTensors(model), KeptState.of(model)
    tensors.check()
    with shifted_parameters(model):
        shifted = UnchangedTensors(model)
        draws = Draws(probe.records)
        with seeded(device), draws:
            first = _scores(model, probe.rows)
        shifted.check()
        if draws.shared and probe.records > 1:
            raise _shared(draws.shared[0])
        with seeded(device):
            again = _scores(model, probe.rows)
        exact = device.type == "cpu"  # on a GPU sums may be made in the order in which parts are finished
        if not (same_bits(first, again) if exact else torch.allclose(first, again, rtol=_ROUNDING, atol=_ROUNDING)):
            raise _kept(model, state, "two passes over the same records with the same seed differ")
        _refuse_mixing(model, probe, first)
        if not draws.unplaced:
            _refuse_places(model, probe, draws=draws.happened)
        if draws.happened:
            _refuse_common_draw(model, probe)
        shifted.check()
    tensors.check()


def _scores(model: nn.Module, rows: Tensor) -> Tensor:
    with torch.no_grad():
        scores: Tensor = model(rows.clone()).detach().double()
    return scores


def _refuse_mixing(model: nn.Module, probe: Probe, first: Tensor) -> None:
    kept = torch.zeros(probe.records, dtype=torch.bool, device=first.device)
    kept[::_KEPT] = True
    copies = probe.inputs.shape[1]
    rows = kept.repeat_interleave(copies)
    scale = _ROUNDING * float(_centred(first[rows]).abs().max().nan_to_num(0.0))
    for name, neighbours in _neighbours(probe, kept):
        with seeded(probe.labels.device):
            found = _scores(model, neighbours.flatten(0, 1))
        error = (_centred(found[rows]) - _centred(first[rows])).abs().nan_to_num(torch.inf).max()
        if float(error) > scale and not same_bits(found[rows], first[rows]):
            raise ModelError(
                "the network's answer for one record depends on the other records of the pass",
                where="forward pass in training mode",
                got=f"scores that move by {float(error):.3g} where the other rows become {name}",
                wanted="operations that treat each row of the batch alone",
                fix="take means, maxima, sorts and counts over the axes of one record, never over the batch",
            )


def _refuse_places(model: nn.Module, probe: Probe, *, draws: bool) -> None:
    """The same record, with the same numbers drawn, must get the same answer in every row."""
    for row in {0, probe.records - 1}:
        same = torch.full_like(probe.labels, row)
        with seeded(probe.labels.device), Draws(probe.records, same if draws else None):
            found = _scores(model, probe.inputs[same].flatten(0, 1))
        found = found.view(*probe.inputs.shape[:2], -1)
        error = _centred(found - found[:1]).abs().nan_to_num(0.0).max()
        if float(error) > _ROUNDING * float(_centred(found).abs().max().nan_to_num(0.0)):
            raise ModelError(
                "the network's answer for one record depends on the row that it stands in",
                where="forward pass in training mode",
                got=f"scores of equal rows that differ by {float(error):.3g}",
                wanted="operations that treat each row of the batch alone, and all rows alike",
                fix="no counts, ranks or capacities over the batch, no constants for single rows",
            )


def _centred(scores: Tensor) -> Tensor:
    """Without the part that all classes have in common: a large one would hide what moves."""
    return scores - scores.mean(dim=-1, keepdim=True)


def _neighbours(probe: Probe, kept: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The probe's records with all but the kept ones replaced."""
    keep = kept.view(-1, *(1 for _ in probe.inputs.shape[1:]))
    first = probe.inputs[:1].expand_as(probe.inputs)
    for name, others in (
        ("other records", probe.others),
        ("copies of one record", first),
        ("zeros", torch.zeros_like(probe.inputs)),
        ("ones", torch.ones_like(probe.inputs)),
    ):
        yield name, torch.where(keep, probe.inputs, others)


def _refuse_common_draw(model: nn.Module, probe: Probe) -> None:
    """Where the seed changes the answer, equal rows must get different ones."""
    rows = probe.rows[:1].expand_as(probe.rows).contiguous()
    if probe.records < 2:
        return
    found = []
    for seed in range(_SEEDS if len(rows) >= _FEW_ROWS else _SEEDS_OF_FEW_ROWS):
        with seeded(probe.labels.device, _SEED + seed):
            found.append(_scores(model, rows))
    scores = torch.stack(found)
    room = _ROUNDING * float(_centred(scores).abs().max().nan_to_num(0.0))
    within = (scores - scores[:, :1]).abs().max()
    between = (scores - scores[:1]).abs().max()
    if float(between) > room >= float(within):
        raise _shared("the seed moves the scores of all rows alike")


def _shared(got: str) -> ModelError:
    return ModelError(
        "the network draws random numbers that the records of a pass share",
        where="forward pass in training mode",
        got=got,
        wanted="numbers of its own for every row: what records share moves all their gradients together",
        fix="draw with the batch's size as first axis, for example torch.rand(x.shape[0], 1)",
    )


def _kept(model: nn.Module, before: KeptState, got: str) -> ModelError:
    now = KeptState.of(model)
    places = differences(before.own, now.own) + differences(before.shared, now.shared)
    return state_error(places, got)


def state_error(places: Sequence[str], got: str) -> ModelError:
    """The error for a network whose gradients depend on what it saw in earlier passes."""
    return ModelError(
        "the network remembers earlier passes, and its gradients depend on it",
        where=", ".join(places[:_NAMED]) or "the network (where it keeps it was not found)",
        got=got,
        wanted="a gradient that is a function of the weights, the record and numbers drawn for it",
        fix="keep nothing between calls of forward: no counters, caches of activations, or running statistics",
    )


class RowTrial:
    """Whether a path gives one record's gradient the same bits in every row, beside any records, on a probe's pass."""

    def __init__(self, path: PerExamplePath, probe: Probe) -> None:
        self._path = path
        self._probe = probe
        self._draws = False

    def reason(self) -> str:
        """What does not hold; empty if everything does."""
        try:
            return self._reason()
        except (ModelError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            return error.what + f" ({error.got})" if isinstance(error, ModelError) else first_line(error)

    def base(self) -> Digests:
        """The digests of the pass as it is."""
        return self._run(self._probe.inputs, self._probe.labels)

    def _reason(self) -> str:
        probe, everywhere = self._probe, torch.arange(self._probe.records)
        base = self._run(probe.inputs, probe.labels, note=True)
        if isinstance(self._path, SinglePath) and self._draws:
            return ""  # its rows cannot meet; and what it draws for one record stands where the others left the generator
        device = probe.labels.device
        rolled = torch.arange(probe.records, device=device).roll(1)
        found = self._run(probe.inputs[rolled], probe.labels[rolled], take=rolled)
        if where := first_difference({name: value[rolled] for name, value in base.items()}, found, everywhere):
            return f"one record's gradient changes with its row: {where}"
        for row in {0, probe.records // 2}:
            take = torch.full_like(rolled, row)
            found = self._run(probe.inputs[take], probe.labels[take], take=take)
            if where := first_difference({name: value[take] for name, value in base.items()}, found, everywhere):
                return f"one record's gradient changes with its row: {where}"
        kept = torch.zeros(probe.records, dtype=torch.bool, device=device)
        kept[::_KEPT] = True
        labels = torch.where(kept, probe.labels, probe.other_labels)
        others = torch.arange(probe.records, device=device)
        others[~kept] = others[~kept].roll(1)
        for name, inputs in _neighbours(probe, kept):
            found = self._run(inputs, labels, take=others)
            if where := first_difference(base, found, everywhere[kept.cpu()]):
                return f"one record's gradient changes with the other records ({name}): {where}"
        return ""

    def _run(self, inputs: Tensor, labels: Tensor, *, take: Tensor | None = None, note: bool = False) -> Digests:
        with seeded(labels.device), Draws(self._probe.records, take if self._draws else None) as draws:
            found = self._path.gradients(inputs.contiguous(), labels)
        if note:
            self._draws = draws.happened
            if draws.unplaced and not isinstance(self._path, SinglePath):
                raise ModelError("numbers are drawn that belong to no row", got=draws.unplaced[0])
        return row_digests(found)


@dataclass(frozen=True, eq=False)
class Remembered:
    """What the trial of a network left to compare with: the gradients of its probe, and values that copies share."""

    digests: Digests
    shared: dict[str, str]


def try_state(
    make: Callable[[], nn.Module], build: Callable[[nn.Module], PerExamplePath], probe: Probe, used: nn.Module
) -> tuple[Remembered, list[str]]:
    """Compares ``used``, which has seen many passes, with fresh copies; returns where the network keeps values that differ.

    ModelError where the gradients differ.
    """
    everywhere = range(probe.records)
    wanted = RowTrial(build(used), probe).base()
    kept = KeptState.of(used)
    places: list[str] = []
    for warmed in (False, True):
        fresh = make()
        with shifted_parameters(fresh):
            path = build(fresh)
            if warmed:
                with seeded(probe.labels.device, _SEED + 1):
                    path.gradients(probe.others, probe.other_labels)
            found = RowTrial(path, probe).base()
            now = KeptState.of(fresh)
        places += differences(kept.own, now.own) + differences(kept.shared, now.shared)
        if where := first_difference(wanted, found, everywhere):
            raise state_error(places, f"a fresh copy gives another gradient for the same records: {where}")
    return Remembered(wanted, dict(KeptState.of(used).shared)), sorted(set(places))
