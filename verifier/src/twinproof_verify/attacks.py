"""Attacks on a run: sound settings about the smoothed classifier that is certified, and lines that follow from their votes.

What cannot be seen here: whether the network really answered so (`twinproof verify` asks it), or whether a stronger attack
exists. Whatever the files hold ends in problems, never in an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from twinproof_verify import models
from twinproof_verify.bounds import Counts, Rule, Whole
from twinproof_verify.certificate_lines import (
    ABSTAIN,
    CLASS,
    COUNT,
    LENGTH,
    Form,
    Lines,
    named,
    read_table,
    text_of,
    vote_problems,
    wrong,
)
from twinproof_verify.certificates import (
    INPUT,
    Method,
    Noise,
    NormName,
    Sampling,
    Smoothed,
    bound_problems,
    network_problems,
    noise_problems,
    rule_of,
    size_problems,
)
from twinproof_verify.evidence import Originals, shown
from twinproof_verify.files import Evidence
from twinproof_verify.findings import Problem
from twinproof_verify.models import ROUNDING_UNIT, Record, block, number, read
from twinproof_verify.run_json import PublicData, plugin_names

KNOWN = ("fgsm", "ifgsm", "mim", "pgd")
# What the gradients of each protocol come from, in the order of the lines.
TARGETS = {"paper": ("network",), "adaptive": ("network", "smoothed")}
# What must agree with the certificates: another one is another smoothed classifier, or other radii.
REPEATED = (("noise", "sigma"), ("method", "norm"), ("noise", "law"), ("noise", "place"), ("method", "bound"))
STALE = "stale: another smoothed classifier was attacked than the one of the run"
NOBODY = -1
# A decimal of six places, read as a float, against another float.
FLOAT_SLACK = 1e-9

HEADER = b"index,protocol,target,attack,size,label,aim,length,network,network_unrounded,prediction,votes,top,radius,draws"
_ENTRY = rb"[a-z]{1,20},[a-z]{1,20},[a-z0-9_-]{1,40},[0-9.e+-]{1,24}"
_FORM = Form(
    HEADER,
    "this is no line of an attack",
    (COUNT, _ENTRY, COUNT, CLASS, LENGTH, COUNT, COUNT, CLASS, COUNT, COUNT, LENGTH, COUNT),
    words=_ENTRY + b",",
)


def size_text(size: float) -> str:
    """A size as attacks.csv and the names of the tensors write it."""
    return format(size, ".12g")


def _growing(sizes: list[float]) -> list[float]:
    if any(later <= earlier for earlier, later in pairwise(sizes)) or any(float(size_text(one)) != one for one in sizes):
        raise ValueError("growing sizes of at most 12 significant digits")
    return sizes


def _different(words: list[str]) -> list[str]:
    if len(set(words)) != len(words):
        raise ValueError("different words")
    return words


class Plan(Record):
    """What was asked for."""

    norm: NormName
    sizes: Annotated[list[models.Positive], Field(min_length=1, max_length=1000), AfterValidator(_growing)]
    attacks: Annotated[list[str], Field(min_length=1), AfterValidator(_different)]
    protocols: Annotated[list[Literal["paper", "adaptive"]], Field(min_length=1), AfterValidator(_different)]
    steps: models.PositiveCount
    step_size: models.Positive | None
    restarts: models.PositiveCount
    draws: models.PositiveCount
    paper_steps: models.PositiveCount
    aim: Annotated[str, Field(pattern=r"^(next|least-likely|class:(0|[1-9][0-9]{0,8}))$")] | None


class JudgingMethod(Method):
    """Answers at attacked inputs are plain votes, whatever the certificates were made with."""

    statistic: Literal["votes"]
    confidence: Literal["clopper-pearson"]
    runner_up: Literal["complement"]


class JudgingSampling(Sampling):
    """One look, and noise of each input's own."""

    target_radius: None
    shared_noise: Literal[False]


class AttackSettings(Smoothed):
    """attacks.json; its results are counted again."""

    method: JudgingMethod
    sampling: JudgingSampling
    plan: Plan
    certificates: models.Name | None
    inputs: models.PositiveCount
    dimension: models.PositiveCount
    random_network: bool
    results: dict[str, Any]

    @property
    def rule(self) -> Rule | None:
        return rule_of(self, self.sampling.n, self.sampling.alpha)


@dataclass(frozen=True)
class Entry:
    """One attack of one size under one protocol: as many lines as there are inputs, and one tensor."""

    protocol: str
    target: str
    attack: str
    size: float

    @property
    def name(self) -> str:
        return f"{self.protocol}/{self.target}/{self.attack}/{size_text(self.size)}"


CLEAN = Entry("clean", "none", "none", 0.0)


def entries_of(settings: AttackSettings) -> tuple[Entry, ...]:
    plan = settings.plan
    return tuple(
        Entry(protocol, target, attack, size)
        for size in plan.sizes
        for protocol in plan.protocols
        for attack in plan.attacks
        for target in TARGETS[protocol]
    )


def read_attacks(
    file: str, record: dict[str, Any], data: PublicData, run: dict[str, Any], certificates: tuple[str, dict[str, Any]] | None
) -> tuple[AttackSettings | None, list[Problem]]:
    """Settings that can be used (else None), and what is wrong with them, against data, noise and certificates too.

    ``certificates`` are the file and the settings of those that the attacks are compared with, None without any.
    """
    settings, problems = read(AttackSettings, record, file)
    problems += size_problems(file, record, data)
    problems += _sigma_problems(file, record, run) if certificates is None else _stale_problems(file, record, *certificates)
    if settings is None:
        return None, problems
    problems += network_problems(file, settings, data.classes)
    unknown = [name for name in settings.plan.attacks if name not in (*KNOWN, *plugin_names(run, "attack"))]
    if unknown:
        problems.append(Problem(file, "attacks has a value it cannot have", shown(unknown), ", ".join(KNOWN)))
    unproven = list(bound_problems(file, settings, plugin_names(run, "bound")))
    problems += [*unproven, *noise_problems(Noise.of(file, settings))]
    return None if unknown or unproven else settings, problems


def _stale_problems(file: str, record: dict[str, Any], of: str, certificates: dict[str, Any]) -> Iterator[Problem]:
    """Attacks on another smoothed classifier say nothing about the one that is certified now."""
    for section, name in REPEATED:
        said, wanted = block(record, section).get(name), block(certificates, section).get(name)
        if said is not None and wanted is not None and said != wanted:
            fix = f"{name} {shown(wanted)} ({of}); attack again with --overwrite"
            yield Problem(file, STALE, f"{name} {shown(said)}", fix)


def _sigma_problems(file: str, record: dict[str, Any], run: dict[str, Any]) -> Iterator[Problem]:
    """Without certificates it is the run's own sigma; that of a noise layer is in the weights, and is checked with these."""
    config, noise = block(run, "config"), block(record, "noise")
    own, said = number(config.get("sigma")), number(noise.get("sigma"))
    inside = config.get("noise_layer") is not None or noise.get("place") != INPUT
    if not inside and said is not None and own is not None and said != own:
        yield Problem(file, STALE, f"sigma {said!r}", f"sigma {own!r} (config); attack again with --overwrite")


@dataclass(frozen=True)
class AttackTable:
    """Sound lines: rows are the inputs as they are and then each of ``entries``, columns the inputs.

    ``answers`` are the same lines one after the other, as certificates at the attacked inputs.
    """

    files: Evidence
    entries: tuple[Entry, ...]
    label: Whole
    length: NDArray[np.float64]
    network: Whole
    unrounded: Whole
    prediction: Whole
    radius: NDArray[np.float64]
    answers: Lines

    @property
    def correct(self) -> NDArray[np.bool_]:
        return np.asarray(self.prediction == self.label)

    @property
    def misled(self) -> NDArray[np.bool_]:
        """Whether it names another one; an abstention does not."""
        return np.asarray((self.prediction != ABSTAIN) & ~self.correct)


def read_lines(
    content: bytes, files: Evidence, settings: AttackSettings, data: PublicData, originals: Originals | None
) -> tuple[AttackTable | None, int, list[Problem]]:
    """The lines as a table (None where they are not those that the settings ask for), their number, and what is wrong."""
    table = read_table(content, _FORM, files.csv)
    index, label, aim, _, network, unrounded, prediction, votes, top, _, draws = table.cells.T
    correct = (prediction == label).astype(np.int64)
    radius, length, count = table.decimals(9), table.decimals(3), len(table.rows)
    answers = Lines(table.rows, index, label, prediction, Counts.of_votes(votes), top, correct, radius, draws, files.csv)
    problems = table.problems
    if data.classes is not None:
        wanted = f"0..{data.classes - 1}"
        for name, column in (("label", label), ("top", top), ("network", network), ("network_unrounded", unrounded)):
            problems += wrong(answers, column >= data.classes, f"{name} is no class", column, lambda at: wanted)
    n = settings.sampling.n
    problems += wrong(answers, draws != n, "draws is not n", draws, lambda at: str(n))
    if settings.rule is not None:
        problems += vote_problems(answers, settings.rule)
    entries = entries_of(settings)
    faults = list(_order_problems(answers, table.words, entries, settings.inputs))
    if faults:
        return None, count, [*problems, *faults]
    shape = (len(entries) + 1, settings.inputs)
    made = AttackTable(
        files,
        entries,
        label.reshape(shape),
        length.reshape(shape),
        network.reshape(shape),
        unrounded.reshape(shape),
        prediction.reshape(shape),
        radius.reshape(shape),
        answers,
    )
    return made, count, [*problems, *_input_problems(made, aim, settings, data, originals)]


def _order_problems(answers: Lines, words: list[bytes], entries: tuple[Entry, ...], inputs: int) -> Iterator[Problem]:
    """As many lines as the settings ask for, each of the right attack and input."""
    wanted = inputs * (len(entries) + 1)
    if len(answers.rows) != wanted:
        what = "the number of lines is not the one that attacks.json asks for"
        yield Problem(answers.file, what, f"{len(answers.rows)} lines", f"{wanted} lines")
        return
    texts = [f"{one.protocol},{one.target},{one.attack},{size_text(one.size)},".encode() for one in (CLEAN, *entries)]
    strange = [at for at, got in enumerate(words) if got != texts[at // inputs]]
    yield from named(
        answers.file,
        answers.rows[strange].tolist(),
        "the attack is not the one that attacks.json asks for here",
        lambda at: text_of(words[strange[at]][:-1]),
        lambda at: text_of(texts[strange[at] // inputs][:-1]),
    )
    turn = np.tile(np.arange(inputs), len(texts))
    yield from wrong(answers, answers.index != turn, "the index is not consecutive", answers.index, lambda at: str(turn[at]))


def _input_problems(
    table: AttackTable, aim: Whole, settings: AttackSettings, data: PublicData, originals: Originals | None
) -> Iterator[Problem]:
    answers, copies = table.answers, len(table.entries) + 1
    labels = table.label[0] if originals is None else originals.labels[: settings.inputs].astype(np.int64)
    true = np.tile(labels, copies)
    yield from wrong(answers, answers.label != true, "label is not that of the input", answers.label, lambda at: str(true[at]))
    aims = _aims(aim, true, settings, data.classes)
    if aims is not None:
        what = "aim is not the class that attacks.json names"
        yield from wrong(answers, aim != aims, what, aim, lambda at: str(aims[at]))
    length = table.length.ravel()
    most = np.repeat([0.0, *(entry.size for entry in table.entries)], settings.inputs)
    over = ~(length <= most + ROUNDING_UNIT * (most > 0) + FLOAT_SLACK)
    yield from wrong(answers, over, "the attacked input lies outside the ball", length, lambda at: f"at most {most[at]}")


def _aims(aim: Whole, true: Whole, settings: AttackSettings, classes: int | None) -> Whole | None:
    """The class that each line aims at: nobody's, the one that the rule names, or at least another one than the true one."""
    rule = settings.plan.aim
    if rule is None:
        return np.full_like(true, NOBODY)
    if classes is None:
        return None
    following = (true + 1) % classes
    if rule == "next":
        return following
    if rule == "least-likely":
        # The network's last choice cannot be asked here, but is the same in all lines of an input.
        first = np.tile(aim[: settings.inputs], len(true) // settings.inputs)
        return np.where((first >= 0) & (first < classes) & (first != true), first, following)
    chosen = int(rule.partition(":")[2])
    return np.where(true == chosen, following, chosen)


def label_problems(table: AttackTable, certificates: Lines) -> Iterator[Problem]:
    """Attacks and certificates speak of the same inputs, and so of the same classes."""
    both = min(len(certificates.rows), table.label.shape[1])
    different = (certificates.label[:both] != table.label[0, :both]).nonzero()[0]
    if len(different):
        at = int(different[0])
        got = f"input {at}: {table.label[0, at]}; {len(different)} inputs in all"
        what, wanted = "labels are not those of certificates.csv", f"{certificates.label[at]} ({certificates.file})"
        yield Problem(table.files.csv, what, got, wanted)
