"""What certificates, attacks and audits record alike, and where finished ones lie (docs/formats/run.md)."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from twinproof.errors import ConfigError
from twinproof.guarantee import format_down
from twinproof.keys import Key
from twinproof.runs.layout import FORMAT, refuse_unknown_format, software_versions, utc_now
from twinproof.runs.reading import CLOSED, NUMBER, WHOLE, Count, Digest, JsonObject, Length, Share, read_json, read_table
from twinproof.runs.reading import Key as KeyText

CERTIFICATES, ATTACKS, AUDITS = "certificates", "attacks", "audits"
WORKING = "working"
# Files of formats 1 and 2, which hold one of each.
FORMER = {CERTIFICATES: "certificates.json", ATTACKS: "attacks.json", AUDITS: "audit.json"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


@dataclass(frozen=True)
class Made:
    """Where and when a piece of work was begun, and how long it took."""

    device: str
    versions: dict[str, str]
    created: str
    seconds: Length = 0.0

    @classmethod
    def now(cls, device: str) -> Made:
        """Begun at this moment, on ``device``."""
        return cls(device, software_versions(), utc_now())

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.device.partition(":")[0]


@dataclass(frozen=True)
class NetworkRecord:
    """The network as it was run: its weights, which of its equal forms, and the precision of its products."""

    model_sha256: Digest
    form: str
    arithmetic: str
    classes: Count


@dataclass(frozen=True, kw_only=True)
class WorkSettings:
    """What was asked of a piece of work, and what it rests on; each kind of work adds its own.

    Those that are ``FREE`` may differ where work is taken up.
    """

    FREE: ClassVar[frozenset[str]] = frozenset()

    network: NetworkRecord
    inputs: Count
    key: KeyText
    made: Made
    state: str = WORKING

    def as_dict(self) -> dict[str, Any]:
        """The record as it is written."""
        return {"format": FORMAT, **asdict(self)}

    @property
    def secret(self) -> Key:
        """The key that everything random in this work grows from."""
        return Key(bytes.fromhex(self.key))

    def form_on(self, kind: str) -> str | None:
        """The form of the network that further work on such a device should take; None elsewhere."""
        return self.network.form if self.made.kind == kind else None


S = TypeVar("S", bound=WorkSettings)


def default_name(norm: str, bound: str, usual: str) -> str:
    """The norm, and the bound where it is not the ``usual`` one."""
    return norm if bound == usual else f"{norm}-{bound}"


def check_name(name: str) -> str:
    """``name``, if it can be one."""
    if _NAME.fullmatch(name) is None:
        wanted = "letters, digits, '.', '_' and '-', at most 60, the first a letter or digit"
        raise ConfigError("this name cannot be used", where="name", got=name, wanted=wanted)
    return name


def evidence(root: Path, kind: str) -> dict[str, Path]:
    """The files with the settings of finished work of a ``kind``, by name; in runs of format 1 and 2 the name is the norm."""
    former = root / FORMER[kind]
    if former.is_file():
        record = read_json(former).record
        norm = (record.get(CERTIFICATES) or {}).get("norm") if kind == AUDITS else record.get("norm")
        return {norm if isinstance(norm, str) and _NAME.fullmatch(norm) else "l2": former}
    if kind == AUDITS:
        return {path.stem: path for path in sorted((root / kind).glob("*.json")) if _NAME.fullmatch(path.stem)}
    paths = sorted((root / kind).glob(f"*/{kind}.json"))
    return {path.parent.name: path for path in paths if _NAME.fullmatch(path.parent.name)}


def read_settings(
    path: Path, kind: type[S], nested: Mapping[str, Mapping[str, str]], *, fix: str, **more: Any
) -> tuple[S, JsonObject]:
    """The settings in ``path``, whose keys stood side by side in formats 1 and 2, and the whole object.

    ``nested`` says where they stand now: for each section its keys, with the names that they had; ``more`` are values of keys
    that may not have been there.
    """
    found = read_json(path, fix=fix)
    refuse_unknown_format(path, found.record.get("format"))
    return unfolded(found, nested, **more).typed(kind), found


def unfolded(found: JsonObject, nested: Mapping[str, Mapping[str, str]], **more: Any) -> JsonObject:
    """A record of format 1 or 2 in the shape of today's, with ``more`` keys that it did not have; others stay as they are."""
    if found.record.get("format") not in (1, 2):
        return _with_later_keys(found)
    flat = {**more, **found.record}
    record = {
        **flat,
        **{section: {key: flat[old] for key, old in keys.items() if old in flat} for section, keys in nested.items()},
    }
    return replace(found, record=record, content=json.dumps(record).encode())


# Keys of format 3 that its first records did not have, by section.
_LATER: dict[str, dict[str, None]] = {"noise": {"in_l2": None}}


def _with_later_keys(found: JsonObject) -> JsonObject:
    given = {name: found.record.get(name) for name in _LATER}
    old = {name: {**_LATER[name], **one} for name, one in given.items() if isinstance(one, dict) and _LATER[name].keys() - one}
    record = {**found.record, **old}
    return replace(found, record=record, content=json.dumps(record).encode()) if old else found


def json_file(record: Mapping[str, Any]) -> bytes:
    """The content of a JSON file of a run: sorted and indented."""
    return (json.dumps(record, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def same_names(*names: str) -> dict[str, str]:
    """Keys whose name did not change, for ``unfolded``."""
    return {name: name for name in names}


def values_of(settings: WorkSettings, *paths: str) -> dict[str, Any]:
    """Settings by their own names, from their places: ``noise.sigma`` as ``sigma``."""
    return {path.rpartition(".")[2]: attrgetter(path)(settings) for path in paths}


ABSTAIN = -1  # prediction: the votes do not allow an answer
UNKNOWN = -2  # label: nobody said what the truth is
HEADER = ("index", "label", "prediction", "votes", "top", "radius", "correct", "draws")
# Columns of evidence that is more than one number of votes.
MORE = ("squares", "runner_up", "runner_up_squares")
# The columns of a deterministic certificate, which has no votes.
WITHOUT_VOTES = ("index", "label", "prediction", "radius", "correct")
_COLUMNS = dict.fromkeys(HEADER, WHOLE) | {"radius": NUMBER}
_FEW_COLUMNS = dict.fromkeys(WITHOUT_VOTES, WHOLE) | {"radius": NUMBER}


@dataclass(frozen=True)
class Certificate:
    """One input's answer: ``prediction`` (or ``ABSTAIN``), the votes behind it, and a radius that is already rounded down.

    ``draws`` is the number of estimation draws that the votes come from; 0 where nobody said. ``votes`` are votes, or the sum
    of the class's scores; ``squares``, and the sums of the strongest other class (``runner_up``), are 0 where the number of
    votes is all the evidence.
    """

    index: int
    label: int
    prediction: int
    votes: int
    top: int
    radius: float
    draws: int = 0
    squares: int = 0
    runner_up: int = 0
    runner_up_squares: int = 0

    @property
    def correct(self) -> bool:
        """Whether the answer is the true label; labels are classes or ``UNKNOWN``, so that an abstention never is."""
        return self.prediction == self.label

    def robust_at(self, size: float) -> bool:
        """Whether no change smaller than ``size`` can change the answer: false for an abstention, even at size 0."""
        return self.prediction != ABSTAIN and self.radius >= size

    def row(self, *, more: bool = False) -> list[str]:
        """The line of ``certificates.csv``; with ``more`` it ends with the columns ``MORE``."""
        numbers = (self.index, self.label, self.prediction, self.votes, self.top)
        line = [*map(str, numbers), format_down(self.radius), str(int(self.correct)), str(self.draws)]
        return line + [str(getattr(self, name)) for name in MORE] if more else line


@dataclass(frozen=True)
class Look:
    """A look at the votes after ``draws`` estimation draws, with a bound that fails with probability at most ``alpha``."""

    __pydantic_config__: ClassVar = CLOSED

    draws: Count
    alpha: Share


def format_certificates(certificates: Iterable[Certificate], *, more: bool = False) -> bytes:
    """Header and lines of ``certificates.csv``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER + MORE if more else HEADER)
    writer.writerows(certificate.row(more=more) for certificate in certificates)
    return text.getvalue().encode()


def format_deterministic(certificates: Iterable[Certificate]) -> bytes:
    """Header and lines of the ``certificates.csv`` of deterministic certificates."""
    lines = (f"{one.index},{one.label},{one.prediction},{format_down(one.radius)},{int(one.correct)}\n" for one in certificates)
    return "".join([",".join(WITHOUT_VOTES) + "\n", *lines]).encode()


def read_certificates(path: Path) -> list[Certificate]:
    """The lines of ``certificates.csv``; in formats 1 and 2 a last line that a kill cut short is passed over.

    A deterministic certificate has no votes, and its prediction is what came first.
    """
    rows = read_table(path, (_COLUMNS, _COLUMNS | dict.fromkeys(MORE, WHOLE), _FEW_COLUMNS), appended=True)
    without = ({"votes": 0, "top": row["prediction"]} for row in rows)
    return [
        Certificate(**{**none, **{name: value for name, value in row.items() if name != "correct"}})
        for none, row in zip(without, rows, strict=True)
    ]
