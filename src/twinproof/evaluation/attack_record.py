"""Attacks on disk: settings and results, one line for each input and attack, the attacked inputs (docs/formats/run.md)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.numpy import load_file

from twinproof.certification.method import MADE, NOISE, Method, NoiseRecord, Sampling
from twinproof.errors import RunError
from twinproof.evaluation.protocols import AttackPlan, Entry, size_name
from twinproof.guarantee import format_down, format_up
from twinproof.runs.reading import NUMBER, WHOLE, WORD, Count, Length, Share, parse_table, read_table
from twinproof.runs.records import ABSTAIN, ATTACKS, WorkSettings, evidence, read_settings, same_names

CSV, INPUTS = "attacks.csv", "attacks.safetensors"
NOBODY = -1  # aim: the attack was untargeted


@dataclass(frozen=True)
class AttackLine:
    """One attacked input: what the network and the smoothed classifier say of it; see docs/formats/run.md for each field.

    ``prediction``, ``votes``, ``top``, ``radius`` and ``draws`` are those of a certificate at the attacked input. ``network``
    is the network's own class there, ``network_unrounded`` its class before the input was brought to stored levels.
    """

    index: int
    protocol: str
    target: str
    attack: str
    size: float
    label: int
    aim: int
    length: float
    network: int
    network_unrounded: int
    prediction: int
    votes: int
    top: int
    radius: float
    draws: int

    @property
    def entry(self) -> str:
        """The name that all lines of one attack share, and that its tensor has."""
        return Entry(self.protocol, self.target, self.attack, self.size).name

    @property
    def correct(self) -> bool:
        """Whether the smoothed classifier answered, and with the true class."""
        return self.prediction == self.label

    @property
    def misled(self) -> bool:
        """Whether the smoothed classifier answered with another class; an abstention is no answer."""
        return self.prediction not in (ABSTAIN, self.label)

    def row(self) -> list[str]:
        """The line of ``attacks.csv``: radii rounded down, lengths up."""
        values = {**asdict(self), "size": size_name(self.size)}
        values |= {"length": format_up(self.length), "radius": format_down(self.radius)}
        return [str(values[name]) for name in HEADER]


HEADER = tuple(field.name for field in fields(AttackLine))
_KINDS = {"str": WORD, "int": WHOLE, "float": NUMBER}
_COLUMNS = {field.name: _KINDS[str(field.type)] for field in fields(AttackLine)}


@dataclass(frozen=True, kw_only=True)
class AttackSettings(WorkSettings):
    """What all lines of one set of attacks share; ``certificates`` names the certification that they are compared with.

    ``dimension`` is the number of input coordinates. ``random_network`` says that the network answers at random even with its
    noise layer silenced, so that it was attacked in expectation.
    """

    FREE: ClassVar = frozenset({"certificates"})  # the results are renewed

    plan: AttackPlan
    method: Method
    sampling: Sampling
    noise: NoiseRecord
    certificates: str | None
    dimension: Count
    random_network: bool


class _Results(BaseModel):
    """What a report says of ``results``; they follow from the lines, so that further keys are left alone."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Interval(_Results):
    value: float
    low: float
    high: float
    confidence: float


class _Scores(_Results):
    smoothed: _Interval
    network: _Interval
    abstained: _Interval
    certified: _Interval
    inputs: Count


class _Certified(_Interval):
    inputs: Count


class _Protocol(_Results):
    attacks: dict[str, _Scores]


class _Adaptive(_Protocol):
    worst: _Scores


class _Size(_Results):
    size: Length
    certified: _Certified
    paper: _Protocol | None = None
    adaptive: _Adaptive | None = None
    difference: dict[str, float] | None = None
    flips: Count
    flips_probability: Share
    crossing: bool


class _AllResults(_Results):
    clean: _Scores
    sizes: list[_Size]
    crossing: bool
    warnings: list[str] = []


class _WithResults(_Results):
    results: _AllResults


@dataclass(frozen=True)
class Attacks:
    """Attacks on a run, by their name: settings, and the results that follow from the lines and the certificates."""

    name: str
    path: Path
    settings: AttackSettings
    results: dict[str, Any]

    @property
    def csv(self) -> Path:
        return self.path.with_name(CSV)

    @property
    def lines(self) -> list[AttackLine]:
        """The lines, read from the disk."""
        return [AttackLine(**row) for row in read_table(self.csv, (_COLUMNS,))]

    @property
    def inputs(self) -> dict[str, NDArray[Any]]:
        """The attacked inputs in stored levels, by the name of their entry."""
        path = self.path.with_name(INPUTS)
        try:
            return {name: np.asarray(value) for name, value in load_file(path).items()} if path.is_file() else {}
        except (SafetensorError, KeyError, TypeError, ValueError) as error:  # numpy does not know every type of theirs
            raise RunError(
                "the attacked inputs cannot be read", where=str(path), got=error, wanted="a safetensors file"
            ) from error


# Where the keys of formats 1 and 2 stand now; what these did not record is left empty.
_FORMER = {
    "plan": same_names(
        "norm", "sizes", "attacks", "protocols", "steps", "step_size", "restarts", "draws", "paper_steps", "aim"
    ),
    "method": {"norm": "certificate_norm", **same_names("bound", "statistic", "confidence", "runner_up")},
    "sampling": same_names("n0", "n", "alpha", "target_radius", "shared_noise"),
    "noise": NOISE | {"dimension": "noise_dimension"},
    "network": same_names("model_sha256", "form", "arithmetic", "classes"),
    "made": MADE,
}
_NOT_RECORDED: dict[str, Any] = {
    "slackless_norm": None,
    "in_l2": None,
    "operator_norm_method": "",
    "arithmetic": "",
    "classes": 0,
    "certificates": None,
    "statistic": "votes",
    "confidence": "clopper-pearson",
    "runner_up": "complement",
    "target_radius": None,
    "shared_noise": False,
}


def read_attack_settings(path: Path) -> AttackSettings:
    return _read(path)[0]


def _read(path: Path) -> tuple[AttackSettings, dict[str, Any]]:
    settings, found = read_settings(
        path, AttackSettings, _FORMER, fix="restore the file, or attack again with --overwrite", **_NOT_RECORDED
    )
    found.typed(_WithResults)
    return settings, found.record["results"]


def read_attacks(path: Path, name: str) -> Attacks:
    return Attacks(name, path, *_read(path))


def attacks_of(root: str | Path) -> dict[str, Attacks]:
    return {name: read_attacks(path, name) for name, path in evidence(Path(root), ATTACKS).items()}


def format_lines(lines: Iterable[AttackLine]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(line.row() for line in lines)
    return text.getvalue().encode()


def parse_lines(content: bytes, path: Path) -> list[AttackLine]:
    """Reads ``format_lines`` back; ``path`` is for the error."""
    return [AttackLine(**row) for row in parse_table(content, path, (_COLUMNS,))]
