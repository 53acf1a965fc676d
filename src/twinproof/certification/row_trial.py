"""Whether a network is one function of one input: the trial before votes are counted, and the watch meanwhile.

A user's code is not read but tried. Every pass is made twice with the generators in one state, so that a random network gives
the same answers unless it mixes rows or remembers; only then is its randomness examined by itself.

Guarantees
    Tested, not proven: a network passes only if, in every pass that is tried,
    - the scores of some rows stay when all other rows are replaced, and (without randomness) when they stand alone;
    - every layer draws exactly as many random numbers per row in each batch, none for all rows at once, none from Python or
      NumPy; and the means over copies of one row are uncorrelated between halves of a batch (false alarm below 1e-6);
    - the same rows get the same scores, and leave the same state, after a hundred other calls and on a copy that has seen other
      rows first; parameters and buffers keep every bit.
    Scores are compared after their row's mean is subtracted, and by the class that they answer.
    A network of torch's own layers and ours, without hooks, keeps nothing and draws for each row: it is tried for mixing only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from twinproof.certification.lowering import runs_as_written
from twinproof.compute.devices import is_stateless
from twinproof.errors import ModelError
from twinproof.layers.module_state import KeptState, foreign_generators, generators_of, paths_of, tensor_digests

Hook = Callable[[str, str, object], None]
ARGUMENT, ANSWER = "argument", "answer"


def changed_state(layer: str, got: str) -> ModelError:
    """The error for a network that is not the same function in every call."""
    return ModelError(
        "the network changes while it is used in eval mode",
        where=layer,
        got=got,
        wanted="the same answer for the same input in every call",
        fix="keep nothing from one call to the next in eval mode (counters, running averages, caches that depend on inputs)",
    )


def refuse_other(before: Mapping[str, str], now: Mapping[str, str], got: str) -> None:
    """Refuses unless all digests of ``before`` are there and unchanged."""
    for name, digest in before.items():
        if now.get(name) != digest:
            raise changed_state(name, got)


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, ``numbers`` counts the random numbers that each layer of ``network`` draws from ``generators``.

    An operation counts where it advances one of the generators: a dropout that is switched off does not. A generator that a
    network makes and seeds again in each pass is not among them: it draws the same numbers every time.
    """

    def __init__(self, network: nn.Module, generators: Sequence[torch.Generator]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers: Counter[str] = Counter()
        self._network, self._generators, self._layers = network, generators, [""]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation, and compares the generators before and after where it may draw."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = [generator.get_state() for generator in self._generators]
        made = func(*args, **(kwargs or {}))
        if any(not torch.equal(one.get_state(), state) for one, state in zip(self._generators, before, strict=True)):
            first = made[0] if isinstance(made, tuple | list) else made
            self.numbers[self._layers[-1]] += first.numel() if isinstance(first, Tensor) else 1
        return made

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Counts inside, by the layer that is running."""
        with inside_layers(self._network, self._moved), self:
            yield

    def _moved(self, kind: str, path: str, held: object) -> None:
        if kind == ARGUMENT:
            self._layers.append(path)
        else:
            self._layers.pop()


@contextmanager
def inside_layers(network: nn.Module, note: Hook) -> Iterator[None]:
    """Inside, ``note`` is called around every module of ``network``: ARGUMENT or ANSWER, its path, and that value.

    Hooks for all modules, so that none is put on the network's own.
    """
    paths = paths_of(network)

    def called(kind: str, module: nn.Module, *held: object) -> None:
        if module in paths:
            note(kind, paths[module], held[-1])

    handles = [
        register_module_forward_pre_hook(partial(called, ARGUMENT)),
        register_module_forward_hook(partial(called, ANSWER)),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_difference(
    network: nn.Module, runs: Sequence[Callable[[], object]], kept: Tensor, same: Callable[[Tensor, Tensor], bool]
) -> str:
    """The layer in which two runs of one batch size first differ in the rows ``kept``; "" for the network's own code.

    Where a layer is given different numbers already, the code around it is named.
    """
    one, two = (_seen(network, run, kept) for run in runs)
    for (path, kind, here), (_, _, there) in zip(one, two, strict=False):
        if not same(here, there):
            return path if kind == ANSWER else path.rpartition(".")[0]
    return ""


def _seen(network: nn.Module, run: Callable[[], object], kept: Tensor) -> list[tuple[str, str, Tensor]]:
    found: list[tuple[str, str, Tensor]] = []
    last = int(kept.max())

    def note(kind: str, path: str, held: object) -> None:
        for value in held if isinstance(held, tuple) else (held,):
            if path and isinstance(value, Tensor) and value.ndim and len(value) > last:
                found.append((path, kind, value[kept].detach().to(torch.float64, copy=True)))

    with inside_layers(network, note):
        run()
    return found


# Batches of the trial: mixing may spare the first rows, or act in blocks of rows; with sizes that have no common divisor no
# block ends where the batch does.
_SIZES = (3, 8, 33, 50)
# Differences of centred scores relative to the largest one. Rounding differs by far less than the first number among batches
# of one size on a CPU, and by less than the second between sizes, and on a GPU, which may round to TF32 in one of two passes.
_TOLERANCE, _ACROSS_SIZES = 1e-3, 1e-2
# Answers that rounding may change: those of this share of the rows, and of one more.
_TIES = 0.02
# One row in so many is kept where the others are replaced, so that they outvote it.
_KEPT = 8
# Passes that are tried while votes are counted: the first of every size, and one of so many.
_EVERY = 32
# Calls after which the first rows are tried again: so many at least, and so many at most within these seconds.
_CALLS, _MOST_CALLS, _SECONDS = 128, 512, 1.0
# The test of shared randomness: calls, rows of the example in each, copies of each, and the probability of a false alarm.
_TEST_CALLS, _TEST_ROWS, _TEST_COPIES, _FALSE_ALARM = 128, 2, 32, 1e-6
# Rows of a pass that are also tried alone.
_ALONE = 4
_SEED = 20_261_117


def is_known(network: nn.Module) -> bool:
    """Whether the network is made of layers of torch and of ours alone, and calls nothing else."""
    return is_stateless(network) and runs_as_written(network)


@dataclass(frozen=True)
class Asked:
    """A forward pass: its rows, the states of the generators before it, and the scores."""

    rows: Tensor
    states: tuple[Tensor, ...]
    scores: Tensor


class RowTrial:
    """Tries ``network``, in eval mode, on noisy copies of ``example``, a batch of one input; ``sigma`` is the deviation."""

    def __init__(self, network: nn.Module, example: Tensor, sigma: float, classes: int, fresh: nn.Module | None = None) -> None:
        """``fresh`` is a copy that was never called, where there is one; it may have another form."""
        self.network, self.known, self._classes, self._fresh = network, is_known(network), classes, fresh
        self._example, self._sigma = example, sigma
        self._tolerance = _TOLERANCE if example.device.type == "cpu" else _ACROSS_SIZES
        self._generators = generators_of(network, example.device)
        self._choices = torch.Generator().manual_seed(_SEED)
        # Random numbers per row, by layer, once they were counted; whether the scores depend on any.
        self._drawn: dict[str, Fraction] | None = None
        self._random = False
        self._tensors: dict[str, str] = {}
        self._state: Mapping[str, str] = {}
        self._first: Asked | None = None
        # A row that is not like the example: the others are replaced by copies of it.
        self._stranger = example

    def run(self) -> None:
        """The trial before anything is counted; the ModelError names the layer where it can."""
        with self._undisturbed():
            for generator in self._generators:
                generator.manual_seed(_SEED)
            self._tensors = {} if self.known else tensor_digests(self.network)
            self._first = self.ask(torch.cat((self._noisy(8), self._wild(self._noisy(8)))))
            self._random = _differ(self._first.scores, self.ask(self._first.rows).scores, self._tolerance)
            self._stranger = self._other_answer()
            for size in _SIZES:
                self.examine(self.ask(self._noisy(size)))
            if self.known:
                return
            if self._random:
                self._refuse_shared_randomness()
            self._call_often()
            self._refuse_memory()

    def finish(self) -> None:
        """After the votes: the network must still be what it was before them."""
        if not self.known and self._first is not None:
            with self._undisturbed():
                self._ask_first_again(self.network)
                self._refuse_other_state("another value after the votes were counted")

    def ask(self, rows: Tensor, states: Sequence[Tensor] | None = None) -> Asked:
        """The scores of ``rows``, with the generators in ``states`` where they are given."""
        for generator, state in zip(self._generators, states or (), strict=False):
            generator.set_state(state)
        before = self.states()
        return Asked(rows, before, checked_scores(self.network, rows.clone(), self._classes))

    def states(self) -> tuple[Tensor, ...]:
        return tuple(generator.get_state() for generator in self._generators)

    def examine(self, made: Asked) -> None:
        """Refuses a pass in which rows depend on each other, or share random numbers."""
        with self._undisturbed():
            kept = self._kept(len(made.rows))
            for others in (self._wild(made.rows), self._stranger.expand_as(made.rows).clone()):
                others[kept] = made.rows[kept]
                again = self._counted(others, made.states)
                if _differ(made.scores[kept], again.scores[kept], self._tolerance):
                    raise self._refusal(made, others, kept)
            for place in kept[: 0 if self._random else _ALONE].tolist():
                alone = self.ask(made.rows[place : place + 1], made.states)
                if _differ(made.scores[place : place + 1], alone.scores, _ACROSS_SIZES):
                    raise self._refusal(made, alone.rows, kept)

    def _counted(self, rows: Tensor, states: Sequence[Tensor]) -> Asked:
        """``ask``, and checks where random numbers come from."""
        if self.known:
            return self.ask(rows, states)
        draws, foreign = Draws(self.network, self._generators), foreign_generators()
        with draws.watching():
            asked = self.ask(rows, states)
        if foreign != foreign_generators():
            raise _shared(type(self.network).__name__, "numbers from Python's or NumPy's generator, which belong to no row")
        found = {path: Fraction(count, len(rows)) for path, count in draws.numbers.items()}
        self._drawn = found if self._drawn is None else self._drawn
        for path in sorted(found.keys() | self._drawn.keys()):
            if found.get(path) != self._drawn.get(path):
                raise _shared(path or type(self.network).__name__, "numbers that are drawn for several rows at once")
        self._random = self._random or bool(found)
        return asked

    def _refuse_shared_randomness(self) -> None:
        """Halves of a batch of copies: what their means have in common over many calls was not drawn for each row."""
        batch = self._noisy(_TEST_ROWS).repeat(_TEST_COPIES, *[1] * (self._example.ndim - 1))
        scores = torch.stack([_centred(self.ask(batch).scores) for _ in range(_TEST_CALLS)])
        scores = scores.view(_TEST_CALLS, _TEST_COPIES, _TEST_ROWS, self._classes).cpu()
        if _common_part(scores.numpy()) < _FALSE_ALARM:
            layers = ", ".join(path for path in sorted(self._drawn or {}) if path)
            got = "answers for copies of one input that vary together from call to call"
            raise _shared(layers or type(self.network).__name__, got)

    def _call_often(self) -> None:
        began = time.monotonic()
        for number, row in enumerate(self._noisy(_MOST_CALLS)):
            if number >= _CALLS and time.monotonic() - began > _SECONDS:
                return
            self.network(row[None])

    def _refuse_memory(self) -> None:
        self._ask_first_again(self.network)
        self._state = KeptState.of(self.network, shared=False).own
        self.ask(self._wild(self._noisy(_SIZES[-1])))
        self._ask_first_again(self.network)
        self._refuse_other_state("another value after the same inputs")
        if self._fresh is not None:
            self._fresh(self._wild(self._noisy(_SIZES[-1])))
            self._ask_first_again(self._fresh, _ACROSS_SIZES)
            self._fresh = None

    def _refuse_other_state(self, got: str) -> None:
        refuse_other(self._state, KeptState.of(self.network, shared=False).own, got)
        refuse_other(self._tensors, tensor_digests(self.network), got)

    def _ask_first_again(self, network: nn.Module, tolerance: float | None = None) -> None:
        if self._first is not None:
            for generator, state in zip(generators_of(network, self._example.device), self._first.states, strict=True):
                generator.set_state(state)
            scores = checked_scores(network, self._first.rows.clone(), self._classes)
            if _differ(self._first.scores, scores, tolerance or self._tolerance):
                raise changed_state(type(self.network).__name__, "other scores for the same inputs after other calls")

    def _refusal(self, made: Asked, others: Tensor, kept: Tensor) -> ModelError:
        """Why the rows ``kept`` have other scores beside ``others``, and the first layer in which they do."""
        if _differ(made.scores[kept], self.ask(made.rows, made.states).scores[kept], self._tolerance):
            return changed_state(type(self.network).__name__, "other scores for the same inputs in the next call")
        runs = [partial(self.ask, rows, made.states) for rows in (made.rows, others)]
        layer = first_difference(self.network, runs, kept, _close) if len(others) == len(made.rows) else ""
        return ModelError(
            "the network's answer for one input depends on the other inputs of the batch",
            where=layer or type(self.network).__name__,
            got="other scores for the same input beside other inputs",
            wanted="a network that treats each input alone",
            fix="replace what mixes inputs (batch statistics, attention over the batch, sums over dimension 0)",
        )

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """The generators are afterwards as they were."""
        before = self.states()
        try:
            with torch.inference_mode():
                yield
        finally:
            for generator, state in zip(self._generators, before, strict=True):
                generator.set_state(state)

    def _noisy(self, count: int) -> Tensor:
        noise = torch.randn((count, *self._example.shape[1:]), generator=self._choices)
        return self._example + (self._sigma * noise).to(self._example)

    def _wild(self, rows: Tensor) -> Tensor:
        """Other rows, in another order and of other sizes and signs."""
        scale = 8 * torch.rand((len(rows), *[1] * (rows.ndim - 1)), generator=self._choices) - 4
        return rows[torch.randperm(len(rows), generator=self._choices).to(rows.device)] * scale.to(rows)

    def _other_answer(self) -> Tensor:
        """A row that gets another answer than the example, where one of a few does."""
        example = self._example
        some = torch.cat((example, torch.zeros_like(example), -example, 1 - example, 4 * example, self._wild(self._noisy(6))))
        answers = [int(self.ask(row[None]).scores.argmax()) for row in some]
        other = [row for row, answer in zip(some, answers, strict=True) if answer != answers[0]]
        return (other[0] if other else some[-1])[None]

    def _kept(self, rows: int) -> Tensor:
        """Some rows, the last one among them."""
        some = torch.randperm(rows, generator=self._choices)[: max(1, rows // _KEPT)]
        return torch.tensor(sorted({*some.tolist(), rows - 1}), device=self._example.device)


def _shared(layer: str, got: str) -> ModelError:
    return ModelError(
        "the inputs of a batch share random numbers of the network",
        where=layer,
        got=got,
        wanted="fresh random numbers for each input, from torch's generator, or none in eval mode",
        fix="draw them with the batch as first dimension, as Dropout does, or fix them before certifying",
    )


class Watched(nn.Module):
    """A network that passed its trial, tried again on some of the passes that count.

    The first pass of every number of rows is tried, and one of 32 others. A trial does not change the answer, nor the random
    numbers of later passes.
    """

    def __init__(self, trial: RowTrial) -> None:
        super().__init__()
        self.network, self.trial = trial.network, trial
        self.training = False  # not eval(), which would reach into a network that could not be copied
        self._sizes: set[int] = set()
        self._passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self._passes += 1
        if len(x) in self._sizes and self._passes % _EVERY:
            scores: Tensor = self.network(x)
            return scores
        self._sizes.add(len(x))
        made = self.trial.ask(x)
        self.trial.examine(made)
        return made.scores


def checked_scores(model: nn.Module, batch: Tensor, classes: int | None = None) -> Tensor:
    """The scores of ``batch``; an output of another shape is refused, because its votes would be counted for other rows."""
    scores: object = model(batch)
    got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
    if isinstance(scores, Tensor) and scores.ndim == 2 and scores.shape[0] == len(batch):
        counted = scores.shape[1]
        if counted == classes or (classes is None and counted > 1):
            return scores
    raise ModelError(
        "the network does not give one score per class",
        where=type(model).__name__,
        got=f"{got} for {len(batch)} rows",
        wanted="(rows, classes) with at least 2 classes" if classes is None else f"({len(batch)}, {classes})",
    )


def _centred(scores: Tensor) -> Tensor:
    """Scores less the mean of their row, float64; what is not finite is 0 and does not count."""
    known = scores.isfinite()
    plain = torch.where(known, scores.double(), 0.0)
    mean = plain.sum(dim=1, keepdim=True) / known.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(known, plain - mean, 0.0)


def _differ(one: Tensor, two: Tensor, tolerance: float) -> bool:
    """Whether the scores of some rows differ by more than rounding, or more answers than a few near ties."""
    for kind in (Tensor.isnan, Tensor.isposinf, Tensor.isneginf):
        if not torch.equal(kind(one), kind(two)):
            return True
    centred = _centred(one)
    rounding = torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
    size = float(torch.where(one.isfinite(), one.double(), 0.0).abs().max())
    allowed = tolerance * float(centred.abs().max()) + 8 * rounding * size
    changed = int((one.argmax(dim=1) != two.argmax(dim=1)).sum())
    return bool(((centred - _centred(two)).abs() > allowed).any()) or changed > 1 + _TIES * len(one)


def _close(one: Tensor, two: Tensor) -> bool:
    size = float(one.nan_to_num().abs().max()) if one.numel() else 0.0
    return one.shape == two.shape and bool(torch.isclose(one, two, rtol=0, atol=_TOLERANCE * size, equal_nan=True).all())


def _common_part(scores: NDArray[np.float64]) -> float:
    """The probability, at most, that even and odd copies vary together so much by chance.

    ``scores`` are those of (calls, copies, rows, classes). Exact for any law: given the numbers of the two halves, each order
    of the calls is as likely as another where all copies are independent, so that the calls above the median in both halves
    have a hypergeometric number. The statistics are chosen by means over all calls, which no order changes; how many there
    are multiplies the probability.
    """
    from scipy.stats import hypergeom

    calls, _, rows, classes = scores.shape
    found = []
    for row in range(rows):
        here = scores[:, :, row]
        leading = np.argsort(here.mean(axis=(0, 1)))[-2:]
        answers = here.argmax(axis=2)
        most = np.bincount(answers.ravel(), minlength=classes).argmax()
        parts = (*(here[:, :, one] for one in leading), np.linalg.norm(here, axis=2), (answers == most).astype(np.float64))
        for part in parts:
            above = [half.mean(axis=1) > np.median(half.mean(axis=1)) for half in (part[:, ::2], part[:, 1::2])]
            both, each = int((above[0] & above[1]).sum()), [int(half.sum()) for half in above]
            found.append(float(hypergeom.sf(both - 1, calls, *each)))
    return len(found) * min(found)
