"""Drawing the votes of some certificates again: from the key, the weights and the test set, by code of its own.

A certificate passes only if the votes drawn again agree with those of its line: on the device class and with the torch that it
was made with except for draws whose two highest outputs are equal up to rounding, elsewhere within 1 % of the draws. Which
certificates are drawn again comes from the system's entropy: no run can know it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.auditing.ask_network import CLOSE, ELSEWHERE, Place
from twinproof.auditing.redraw_network import Answers, CannotRedraw, Noise, NoisyNetwork
from twinproof.auditing.redraw_noise import Draws, subkey
from twinproof_verify import Originals, Problem
from twinproof_verify.attack_results import Tensors
from twinproof_verify.attacks import CLEAN, AttackSettings, AttackTable
from twinproof_verify.bounds import COMPLEMENT, upper_bound
from twinproof_verify.certificate_lines import Lines
from twinproof_verify.certificates import SCORES, CertificateSettings

# Deviations by which two draws of the same probability may differ: a false alarm of 1e-10.
CHANCE = 6.5
MOST_DRAWS = 10**7
_NUMBERS = 2**18
_ROWS = 1000

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Sums:
    """Of some draws, by class: the sums of what each counts and of its squares; and how many draws were close calls."""

    total: Whole
    squares: Whole
    close: int
    draws: int


@dataclass(frozen=True)
class _Sum:
    """What a line says of one class."""

    total: int
    squares: int


@dataclass(frozen=True)
class Redrawn:
    """What came of drawing again: problems, how many lines and draws, and by how many votes they differ in all.

    ``random`` says that the network draws numbers of its own, so that votes can only be compared by chance.
    """

    problems: tuple[Problem, ...]
    lines: int
    draws: int
    differing: int
    random: bool

    def words(self, place: Place) -> str:
        where = "of a network that answers at random" if self.random else place.words
        return f"{self.lines} of them, {self.draws:,} draws {where}: {self.differing:,} votes differ"


def chosen(count: int, among: int, source: random.Random | None = None) -> list[int]:
    """``count`` of the numbers below ``among``, or all of them, in order; from the system's entropy by default."""
    return sorted((source or random.SystemRandom()).sample(range(among), min(count, among)))


@dataclass(frozen=True)
class Drawn:
    """Lines whose votes can be drawn again: sound ``settings`` by name; and, for the line at each place, the stored input that
    was voted on and the key of its noise.
    """

    settings: dict[str, Any]
    lines: Lines
    stored: Callable[[int], NDArray[Any]]
    key: Callable[[int], bytes]

    @classmethod
    def of_certificates(cls, settings: CertificateSettings, lines: Lines, originals: Originals) -> Drawn:
        """The lines of certificates.csv, which are consecutive from index 0."""
        key = bytes.fromhex(settings.key)
        return cls(settings.flat, lines, lambda at: originals.inputs[at], lambda at: key)

    @classmethod
    def of_attacks(cls, settings: AttackSettings, table: AttackTable, tensors: Tensors, originals: Originals) -> Drawn:
        """The lines of attacks.csv: plain votes, and a key for each entry."""
        inputs, entries = settings.inputs, (CLEAN, *table.entries)
        keys = [subkey(bytes.fromhex(settings.key), f"judge {entry.name}") for entry in entries]

        def stored(at: int) -> NDArray[Any]:
            row, index = divmod(at, inputs)
            return np.asarray(originals.inputs[index] if row == 0 else tensors[entries[row].name][index])

        return cls({**settings.flat, "resolution": 1, "looks": []}, table.answers, stored, lambda at: keys[at // inputs])


def redraw_lines(model: nn.Module, drawn: Drawn, places: Sequence[int], shape: tuple[int, ...], place: Place) -> Redrawn:
    """Draws the votes of the lines at ``places`` again, with ``model``, whose inputs have ``shape``."""
    settings, lines = drawn.settings, drawn.lines
    if max(settings["n0"], settings["n"]) > MOST_DRAWS:
        raise CannotRedraw(f"more than {MOST_DRAWS:,} draws")
    network = NoisyNetwork(model, Noise.of(settings), shape)
    problems: list[Problem] = []
    draws = differing = 0
    with torch.inference_mode():
        if len(places):
            network.try_out(drawn.stored(places[0]))
        for at in places:
            judge = _Judge(network, settings, drawn.key(at), place)
            found, other = judge.compared(lines, at, drawn.stored(at))
            problems += found
            draws += settings["n0"] + int(lines.draws[at])
            differing += other
    return Redrawn(tuple(problems), len(places), draws, differing, network.random)


class _Judge:
    """Draws the votes of a line and compares them."""

    def __init__(self, network: NoisyNetwork, settings: dict[str, Any], key: bytes, place: Place) -> None:
        self._network, self._settings, self._place = network, settings, place
        noise = network.noise
        self._draws = Draws(key, noise.law, noise.steps, noise.dimension)
        self._scores, self._unit = settings["statistic"] == SCORES, int(settings["resolution"])
        self._alphas = {look["draws"]: look["alpha"] for look in settings["looks"]}

    def compared(self, lines: Lines, at: int, stored: NDArray[Any]) -> tuple[list[Problem], int]:
        """What is wrong with the line, and by how many votes (of its class) it differs."""
        index, top = int(lines.index[at]), int(lines.top[at])
        answers = self._network.at(stored)
        selected = self._sums(answers, "select", index, self._settings["n0"])
        made = self._sums(answers, "estimate", index, int(lines.draws[at]))
        if top >= len(made.total):
            return [_problem(lines, at, "top is not a class of the network", str(top), f"0..{len(made.total) - 1}")], 0
        problems: list[Problem] = []
        best = int(selected.total.max())
        lead = best - int(selected.total[top])
        if lead > 2 * self._allowance(best, int(selected.total[top]), selected):
            wanted = f"{int(selected.total.argmax())}, with {best} of {selected.draws} draws"
            problems.append(_problem(lines, at, "top is not the class that the n0 draws select", str(top), wanted))
        problems += self._sum_problems(lines, at, top, made)
        return problems, abs(int(made.total[top]) - int(lines.counts.total[at])) // self._unit

    def _sum_problems(self, lines: Lines, at: int, top: int, made: Sums) -> Iterator[Problem]:
        """The sums of the line against those drawn again."""
        counts = lines.counts
        said = _Sum(int(counts.total[at]), int(counts.squares[at]))
        if not self._agree(said, top, made):
            what = f"{'the sums' if self._scores else 'votes'} are not those that the key, the weights and the input give"
            yield _problem(lines, at, what, str(said.total), f"{made.total[top]} of {made.draws} draws, drawn again")
        if self._settings["runner_up"] == COMPLEMENT:
            return
        other = _Sum(int(counts.other[at]), int(counts.other_squares[at]))
        level = self._alphas.get(made.draws, self._settings["alpha"]) / self._settings["classes"]
        upper = upper_bound(self._settings["confidence"], made.total, made.squares, made.draws, self._unit, level)
        upper[top] = -math.inf
        slack = self._allowance(other.total, other.total, made) / (made.draws * self._unit)
        alike = [one for one in np.flatnonzero(upper >= upper.max() - slack).tolist() if self._agree(other, one, made)]
        if not alike:
            best = int(upper.argmax())
            what = "runner_up is not what the key, the weights and the input give"
            yield _problem(lines, at, what, str(other.total), f"{made.total[best]} of {made.draws} draws, drawn again")

    def _agree(self, said: _Sum, one: int, made: Sums) -> bool:
        """Whether a sum of the line is that of the class ``one``, and its squares too."""
        total = int(made.total[one])
        allowed = self._allowance(total, said.total, made)
        squares = abs(said.squares - int(made.squares[one])) <= 2 * self._unit * allowed
        return abs(said.total - total) <= allowed and (squares or not self._scores)

    def _allowance(self, drawn: int, said: int, sums: Sums) -> int:
        """By how much two sums of the same draws may differ, in units of the statistic."""
        most = sums.draws * self._unit
        if self._place.same and not self._network.random:
            return math.ceil(most * CLOSE) if self._scores else sums.close
        share = min(1.0, (drawn + said) / (2 * most))
        chance = CHANCE * math.sqrt(2 * sums.draws * share * (1 - share)) if self._network.random else 0.0
        return max(1, math.floor((ELSEWHERE * sums.draws + chance) * self._unit))

    def _sums(self, answers: Answers, purpose: str, index: int, count: int) -> Sums:
        if self._settings["shared_noise"]:
            purpose, index = f"{purpose}-shared", 0
        total, squares, close = None, None, 0
        rows = max(1, min(_ROWS, _NUMBERS // self._draws.dimension))
        for first in range(0, count, rows):
            outputs = answers(self._draws.of(purpose, index, first, min(rows, count - first)))
            units = _units(outputs, self._unit) if self._scores else _votes(outputs)
            close += 0 if self._scores else close_calls(outputs)
            more, more_squares = units.sum(dim=0), units.square().sum(dim=0)
            total = more if total is None else total + more
            squares = more_squares if squares is None else squares + more_squares
        if total is None or squares is None:
            raise ValueError("no draws")
        return Sums(total.cpu().numpy(), squares.cpu().numpy(), close, count)


def _votes(outputs: Tensor) -> Tensor:
    """1 for the class with the largest output; a draw with a NaN votes for nobody."""
    votes = nn.functional.one_hot(outputs.argmax(dim=1), outputs.shape[1])
    return votes * ~outputs.isnan().any(dim=1, keepdim=True)


def _units(outputs: Tensor, resolution: int) -> Tensor:
    """The softmax in whole units, rounded down; nothing for a draw with a NaN."""
    return (outputs.double().softmax(dim=1).nan_to_num(nan=0.0) * resolution).floor().long()


def close_calls(outputs: Tensor) -> int:
    """How many draws have two highest outputs that rounding may change the order of."""
    first, second = outputs.topk(2, dim=1).values.unbind(dim=1)
    return int((first - second <= CLOSE * outputs.abs().amax(dim=1)).sum())


def _problem(lines: Lines, at: int, what: str, got: str, wanted: str) -> Problem:
    return Problem(lines.file, f"line {lines.rows[at]}: {what}", got, wanted)
