"""Attacks on disk: their settings and results, one line for each input and attack, and the attacked inputs themselves."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from twinproof.errors import RunError
from twinproof.files import write_atomic, write_json
from twinproof.rounding import format_down, format_up
from twinproof.runs.certificates import ABSTAIN
from twinproof.runs.layout import COMPLETE, FORMAT, refuse_unknown_format
from twinproof.runs.reading import (
    NUMBER,
    WHOLE,
    WORD,
    Count,
    Digest,
    JsonObject,
    Key,
    Length,
    Share,
    parse_json,
    parse_table,
    read_json,
    read_table,
)

ATTACKS_JSON, ATTACKS_CSV, ATTACKED_INPUTS = "attacks.json", "attacks.csv", "attacks.safetensors"
ATTACK_FILES = (ATTACKS_JSON, ATTACKS_CSV, ATTACKED_INPUTS)
NOBODY = -1  # aim: the attack was untargeted
ATTACKING = "attacking"


def size_name(size: float) -> str:
    """An attack size as the text that keys tables, tensors and JSON: ``0``, ``0.25``, ``1``."""
    return format(size, ".12g")


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
        return entry_name(self.protocol, self.target, self.attack, self.size)

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


@dataclass(frozen=True)
class AttackSettings:
    """What all lines of a run's attacks share; see docs/formats/run.md for each field."""

    model_sha256: Digest
    norm: str
    sizes: tuple[Length, ...]
    attacks: tuple[str, ...]
    protocols: tuple[str, ...]
    steps: Count
    step_size: Length | None
    paper_steps: Count
    restarts: Count
    draws: Count
    aim: str | None
    inputs: Count
    certificate_norm: str
    sigma: Length
    levels: Count
    law: str
    place: str
    bound: str
    operator_norm: Length
    slack: Length
    grid: Length
    tau: Length
    dimension: Count
    noise_dimension: Count
    n0: Count
    n: Count
    alpha: Share
    key: Key
    random_network: bool
    form: str
    device: str
    versions: dict[str, str]
    created: str
    seconds: Length
    state: str = ATTACKING
    slackless_norm: Length | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; the slackless norm only where there is one."""
        unsaid = () if self.slackless_norm is not None else ("slackless_norm",)
        return {"format": FORMAT, **{name: value for name, value in asdict(self).items() if name not in unsaid}}


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
class AttackRecord:
    """The content of ``attacks.json``: settings, and the results that follow from the lines and the certificates."""

    settings: AttackSettings
    results: dict[str, Any]


def entry_name(protocol: str, target: str, attack: str, size: float) -> str:
    """``adaptive/smoothed/pgd/0.25``."""
    return "/".join((protocol, target, attack, size_name(size)))


def read_attack_settings(path: Path) -> AttackSettings | None:
    """The settings of attacks, finished or not; None where there is no such file."""
    return _settings(_read(path)) if path.is_file() else None


def attack_settings(content: bytes) -> AttackSettings:
    """The settings as another rank sends them."""
    return _settings(parse_json(content, Path(ATTACKS_JSON)))


def read_attacks(root: Path) -> AttackRecord | None:
    """What ``attacks.json`` says, or None where the run was not attacked yet."""
    path = root / ATTACKS_JSON
    if not path.is_file():
        return None
    found = _read(path)
    settings = _settings(found)
    found.typed(_WithResults)
    return AttackRecord(settings, found.record["results"])


def _read(path: Path) -> JsonObject:
    return read_json(path, fix="restore the file, or attack again with --overwrite")


def _settings(found: JsonObject) -> AttackSettings:
    refuse_unknown_format(found.path, found.record.get("format"))
    return found.typed(AttackSettings, optional=("slackless_norm",))


def read_attack_lines(root: Path) -> list[AttackLine]:
    """All lines of ``attacks.csv``; none where the run was not attacked yet."""
    return [AttackLine(**row) for row in read_table(root / ATTACKS_CSV, (_COLUMNS,))]


def read_attacked_inputs(root: Path) -> dict[str, NDArray[Any]]:
    """The attacked inputs in stored levels, by the name of their entry."""
    path = root / ATTACKED_INPUTS
    try:
        return dict(load_file(path)) if path.is_file() else {}
    except (SafetensorError, KeyError, TypeError, ValueError) as error:  # numpy does not know every type of theirs
        raise RunError("the attacked inputs cannot be read", where=str(path), got=error, wanted="a safetensors file") from error


def write_attacks(root: Path, record: AttackRecord, lines: Iterable[AttackLine], inputs: Mapping[str, NDArray[Any]]) -> None:
    """Writes the three files, each in one step; ``attacks.json`` last, as it says that the others are complete."""
    # The library lays tensors out by type and name and pads its header, so that equal content has equal bytes.
    write_atomic(root / ATTACKED_INPUTS, save({name: np.ascontiguousarray(array) for name, array in inputs.items()}))
    write_atomic(root / ATTACKS_CSV, format_lines(lines).encode())
    write_record(root, record)


def write_record(root: Path, record: AttackRecord) -> None:
    """Writes ``attacks.json`` alone."""
    write_json(root / ATTACKS_JSON, {**record.settings.as_dict(), "results": record.results})


def format_lines(lines: Iterable[AttackLine]) -> str:
    """Header and lines as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(line.row() for line in lines)
    return text.getvalue()


def parse_lines(content: bytes, path: Path) -> list[AttackLine]:
    """Reads ``format_lines`` back; ``path`` is for the error."""
    return [AttackLine(**row) for row in parse_table(content, path, (_COLUMNS,))]


def is_complete(settings: AttackSettings) -> bool:
    """Whether all lines were made."""
    return settings.state == COMPLETE
