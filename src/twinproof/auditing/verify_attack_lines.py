"""attacks.csv: the lines that attacks.json asks for, in order, each answer following from its votes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_attack_settings import CLEAN, Entry, answer_rule, entries_of, size_text
from twinproof.auditing.verify_certificate_lines import ABSTAIN, Lines, named, vote_problems, wrong
from twinproof.auditing.verify_certificates import ROUNDING_UNIT
from twinproof.auditing.verify_confidence import Counts
from twinproof.auditing.verify_originals import Originals
from twinproof.auditing.verify_run_json import PublicData
from twinproof.auditing.verify_table import CLASS, COUNT, LENGTH, Form, read_table, text_of

FILE = "attacks.csv"
HEADER = b"index,protocol,target,attack,size,label,aim,length,network,network_unrounded,prediction,votes,top,radius,draws"
NOBODY = -1
# A decimal of six places, read as a float, against another float.
FLOAT_SLACK = 1e-9

_ENTRY = rb"[a-z]{1,20},[a-z]{1,20},[a-z]{1,20},[0-9.e+-]{1,24}"
_FORM = Form(
    FILE,
    HEADER,
    "this is no line of an attack",
    (COUNT, _ENTRY, COUNT, CLASS, LENGTH, COUNT, COUNT, CLASS, COUNT, COUNT, LENGTH, COUNT),
    words=_ENTRY + b",",
)


@dataclass(frozen=True)
class AttackLines:
    """Columns of all lines of attacks.csv. ``answers`` holds those of a certificate, at the attacked input.

    ``entry`` names protocol, target, attack and size, each followed by a comma.
    """

    answers: Lines
    entry: tuple[bytes, ...]
    aim: NDArray[np.int64]
    length: NDArray[np.float64]
    network: NDArray[np.int64]
    unrounded: NDArray[np.int64]


@dataclass(frozen=True)
class AttackTable:
    """Sound lines: rows are the inputs as they are and then each of ``entries``, columns the inputs.

    ``answers`` are the same lines one after the other.
    """

    entries: tuple[Entry, ...]
    label: NDArray[np.int64]
    length: NDArray[np.float64]
    network: NDArray[np.int64]
    unrounded: NDArray[np.int64]
    prediction: NDArray[np.int64]
    radius: NDArray[np.float64]
    answers: Lines

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the smoothed classifier names the true class."""
        return np.asarray(self.prediction == self.label)

    @property
    def misled(self) -> NDArray[np.bool_]:
        """Whether it names another one; an abstention does not."""
        return np.asarray((self.prediction != ABSTAIN) & ~self.correct)


def read_attack_lines(content: bytes) -> tuple[AttackLines, list[Problem]]:
    """The columns of attacks.csv, and every line that is none."""
    table = read_table(content, _FORM)
    index, label, aim, _, network, unrounded, prediction, votes, top, _, draws = table.cells.T
    correct = (prediction == label).astype(np.int64)
    counts, radius = Counts.of_votes(votes), table.decimals(9)
    answers = Lines(table.rows, index, label, prediction, counts, top, correct, radius, draws, FILE)
    return AttackLines(answers, tuple(table.words), aim, table.decimals(3), network, unrounded), table.problems


def attack_line_problems(lines: AttackLines, settings: dict[str, Any], data: PublicData) -> Iterator[Problem]:
    """What sound settings say about each line by itself: classes, votes, radii, and lengths within the size."""
    answers = lines.answers
    if data.classes is not None:
        wanted = f"0..{data.classes - 1}"
        columns = {"label": answers.label, "top": answers.top, "network": lines.network, "network_unrounded": lines.unrounded}
        for name, column in columns.items():
            yield from wrong(answers, column >= data.classes, f"{name} is no class", column, lambda at: wanted)
    rule = answer_rule(settings)
    yield from wrong(answers, answers.draws != rule.n, "draws is not n", answers.draws, lambda at: str(rule.n))
    yield from vote_problems(answers, rule)


def arranged(
    lines: AttackLines, settings: dict[str, Any], data: PublicData, originals: Originals | None
) -> tuple[AttackTable | None, list[Problem]]:
    """The lines as a table, or None where they are not the lines that sound settings ask for; and what is wrong with it."""
    entries, inputs = entries_of(settings), settings["inputs"]
    answers, wanted = lines.answers, inputs * (len(entries) + 1)
    if len(answers.rows) != wanted:
        got = f"{len(answers.rows)} lines"
        return None, [Problem(FILE, "the number of lines is not the one that attacks.json asks for", got, f"{wanted} lines")]
    texts = [f"{one.protocol},{one.target},{one.attack},{size_text(one.size)},".encode() for one in (CLEAN, *entries)]
    strange = [at for at, got in enumerate(lines.entry) if got != texts[at // inputs]]
    what = "the attack is not the one that attacks.json asks for here"
    problems = list(
        named(
            FILE,
            answers.rows[strange].tolist(),
            what,
            lambda at: text_of(lines.entry[strange[at]][:-1]),
            lambda at: text_of(texts[strange[at] // inputs][:-1]),
        )
    )
    turn = np.tile(np.arange(inputs), len(texts))
    problems += wrong(answers, answers.index != turn, "the index is not consecutive", answers.index, lambda at: str(turn[at]))
    if problems:
        return None, problems
    shape = (len(texts), inputs)
    table = AttackTable(
        entries,
        answers.label.reshape(shape),
        lines.length.reshape(shape),
        lines.network.reshape(shape),
        lines.unrounded.reshape(shape),
        answers.prediction.reshape(shape),
        answers.radius.reshape(shape),
        answers,
    )
    return table, list(_table_problems(lines, table, settings, data, originals))


def _table_problems(
    lines: AttackLines, table: AttackTable, settings: dict[str, Any], data: PublicData, originals: Originals | None
) -> Iterator[Problem]:
    """Labels, aims and lengths of lines that belong together."""
    answers, copies = lines.answers, len(table.entries) + 1
    labels = table.label[0] if originals is None else originals.labels[: settings["inputs"]].astype(np.int64)
    true = np.tile(labels, copies)
    yield from wrong(answers, answers.label != true, "label is not that of the input", answers.label, lambda at: str(true[at]))
    yield from _aim_problems(lines, true, settings, data)
    most = np.repeat([0.0, *(entry.size for entry in table.entries)], settings["inputs"])
    over = ~(lines.length <= most + ROUNDING_UNIT * (most > 0) + FLOAT_SLACK)
    yield from wrong(answers, over, "the attacked input lies outside the ball", lines.length, lambda at: f"at most {most[at]}")


def _aim_problems(lines: AttackLines, true: NDArray[np.int64], settings: dict[str, Any], data: PublicData) -> Iterator[Problem]:
    """The class that each line aims at: nobody's, the one that the rule names, or at least another one than the true one."""
    aim: str | None = settings["aim"]
    if aim is None:
        wanted = np.full_like(true, NOBODY)
    elif data.classes is None:
        return
    else:
        following = (true + 1) % data.classes
        # The network's last choice cannot be asked here, but is the same in all lines of an input.
        first = np.tile(lines.aim[: settings["inputs"]], len(true) // settings["inputs"])
        last_choice = np.where((first >= 0) & (first < data.classes) & (first != true), first, following)
        chosen = int(aim.partition(":")[2] or 0)
        wanted = {"next": following, "least-likely": last_choice}.get(aim, np.where(true == chosen, following, chosen))
    yield from wrong(
        lines.answers,
        lines.aim != wanted,
        "aim is not the class that attacks.json names",
        lines.aim,
        lambda at: str(wanted[at]),
    )
