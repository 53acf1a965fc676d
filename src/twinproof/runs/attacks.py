"""Attacks on disk: their settings and results, one line for each input and attack, and the attacked inputs themselves."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from twinproof.errors import RunError
from twinproof.files import write_atomic, write_json
from twinproof.rounding import format_down, format_up
from twinproof.runs.certificates import ABSTAIN
from twinproof.runs.layout import FORMAT, refuse_unknown_format
from twinproof.runs.record import COMPLETE

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

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> AttackLine:
        """Reads one line back; ValueError, KeyError or TypeError where it is malformed."""
        kinds = {"str": str, "int": int, "float": float}
        return cls(**{field.name: kinds[str(field.type)](row[field.name]) for field in fields(cls)})


HEADER = tuple(field.name for field in fields(AttackLine))


@dataclass(frozen=True)
class AttackSettings:
    """What all lines of a run's attacks share; see docs/formats/run.md for each field."""

    model_sha256: str
    norm: str
    sizes: tuple[float, ...]
    attacks: tuple[str, ...]
    protocols: tuple[str, ...]
    steps: int
    step_size: float | None
    paper_steps: int
    restarts: int
    draws: int
    aim: str | None
    inputs: int
    certificate_norm: str
    sigma: float
    levels: int
    law: str
    place: str
    bound: str
    operator_norm: float
    slack: float
    grid: float
    tau: float
    dimension: int
    noise_dimension: int
    n0: int
    n: int
    alpha: float
    key: str
    random_network: bool
    form: str
    device: str
    versions: dict[str, str]
    created: str
    seconds: float
    state: str = ATTACKING
    slackless_norm: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; the slackless norm only where there is one."""
        unsaid = () if self.slackless_norm is not None else ("slackless_norm",)
        return {"format": FORMAT, **{name: value for name, value in asdict(self).items() if name not in unsaid}}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> AttackSettings:
        """Reads ``as_dict`` back; ValueError, KeyError or TypeError where it is malformed."""
        values = {field.name: record[field.name] for field in fields(cls) if field.name != "slackless_norm"}
        values["slackless_norm"] = record.get("slackless_norm")
        for name in ("sizes", "attacks", "protocols"):
            values[name] = tuple(values[name])
        return cls(**values)


@dataclass(frozen=True)
class AttackRecord:
    """The content of ``attacks.json``: settings, and the results that follow from the lines and the certificates."""

    settings: AttackSettings
    results: dict[str, Any]


def entry_name(protocol: str, target: str, attack: str, size: float) -> str:
    """``adaptive/smoothed/pgd/0.25``."""
    return "/".join((protocol, target, attack, size_name(size)))


def read_attack_settings(path: Path) -> tuple[AttackSettings, dict[str, Any]] | None:
    """Settings, and all of the object that holds them; None where there is no such file."""
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        refuse_unknown_format(path, record["format"])
        return AttackSettings.from_dict(record), record
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path.name} is broken",
            where=str(path),
            got=error,
            wanted="the format of docs/formats/run.md",
            fix="restore the file, or attack again with --overwrite",
        ) from error


def read_attacks(root: Path) -> AttackRecord | None:
    """What ``attacks.json`` says, or None where the run was not attacked yet."""
    found = read_attack_settings(root / ATTACKS_JSON)
    return None if found is None else AttackRecord(found[0], dict(found[1].get("results", {})))


def read_attack_lines(root: Path) -> list[AttackLine]:
    """All lines of ``attacks.csv``; none where the run was not attacked yet."""
    path = root / ATTACKS_CSV
    return parse_lines(path.read_text(encoding="utf-8"), path) if path.is_file() else []


def read_attacked_inputs(root: Path) -> dict[str, NDArray[Any]]:
    """The attacked inputs in stored levels, by the name of their entry."""
    path = root / ATTACKED_INPUTS
    try:
        return dict(load_file(path)) if path.is_file() else {}
    except SafetensorError as error:
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


def parse_lines(text: str, path: Path) -> list[AttackLine]:
    """Reads ``format_lines`` back; ``path`` is for the error."""
    try:
        return [AttackLine.from_row(row) for row in csv.DictReader(io.StringIO(text))]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path.name} is broken", where=str(path), got=error, wanted=",".join(HEADER)) from error


def is_complete(settings: AttackSettings) -> bool:
    """Whether all lines were made."""
    return settings.state == COMPLETE
