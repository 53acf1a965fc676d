"""Strict models of the files of a run, and the comparison of what is written with what was computed again."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from twinproof_verify.bounds import clopper_pearson
from twinproof_verify.evidence import shown
from twinproof_verify.findings import MOST_PROBLEMS, Problem

FORMATS = (1, 2, 3)
"""The formats that this verifier reads."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
"""What certifications, attacks and audits may be called: no part of a path leads out of the run."""
LARGEST_WHOLE = 2**53
# Two float64 computations of one number, and of one that comes out of an incomplete beta function.
EXACT = 1e-12
SPECIAL = 1e-9
ROUNDING_UNIT = 1e-6
CONFIDENCE = 0.95


def _utc(text: str) -> str:
    try:
        good = text.endswith("Z") and text.isascii() and bool(datetime.fromisoformat(text))
    except ValueError:
        good = False
    if not good:
        raise ValueError("a UTC time in ISO 8601, with a Z at the end")
    return text


def _power_of_two(value: float) -> float:
    if math.frexp(value)[0] != 0.5:
        raise ValueError("a power of two")
    return value


Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
OpenProbability = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=LARGEST_WHOLE)]
PositiveCount = Annotated[int, Field(ge=1, le=LARGEST_WHOLE)]
Draws = Annotated[int, Field(ge=1, le=10**9)]
Text = Annotated[str, Field(min_length=1)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
KeyText = Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$")]
UtcTime = Annotated[str, AfterValidator(_utc)]
Grid = Annotated[float, Field(gt=0), AfterValidator(_power_of_two)]
Format = Annotated[int, Field(ge=FORMATS[0], le=FORMATS[-1])]
Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class Record(BaseModel):
    """A JSON object: its keys are a closed set, and no value is converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


M = TypeVar("M", bound=Record)


def read(model: type[M], record: object, file: str, where: str = "") -> tuple[M | None, list[Problem]]:
    """``record`` as a ``model``, or None and every key that is missing, unknown or has a value it cannot have."""
    try:
        return model.model_validate(record), []
    except ValidationError as error:
        return None, [_problem(dict(one), file, where) for one in error.errors(include_url=False)[:MOST_PROBLEMS]]


def sound(model: type[M], record: object) -> M | None:
    """``record`` as a ``model``; None where it is none, which is reported where its file is read."""
    try:
        return model.model_validate(record)
    except ValidationError:
        return None


def _problem(error: dict[str, Any], file: str, where: str) -> Problem:
    """One of pydantic's errors in the words of this verifier."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in error["loc"]]
    words = str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    wanted = "an object" if error["type"] == "model_type" else shown(words)
    path = "".join(parts).lstrip(".")
    if error["type"] == "missing":
        return Problem(file, f"{where}{path} is missing", "nothing", "a value for this key")
    if error["type"] == "extra_forbidden":
        parent = "".join(parts[:-1]).lstrip(".")
        what = f"{where}{parent}{'.' if parent else ''}there is an unknown key"
        return Problem(file, what, parts[-1][1:], "the keys of the format")
    return Problem(file, f"{where}{path or 'this'} has a value it cannot have", shown(error["input"]), wanted)


def is_former(run: dict[str, Any]) -> bool:
    """Whether a run has the layout before format 3: one of each kind of evidence, and no folders."""
    return type(run.get("format")) is not int or run["format"] < 3


ONLY = "only"
"""How the certification of a run before format 3 is called here; there it has no name."""

_MADE = "device versions created seconds"
_NOISE = "law place sigma grid levels tau operator_norm slack slackless_norm"
_SECTIONS = {
    "certificates": {
        "method": "norm bound statistic confidence runner_up",
        "sampling": "n0 n alpha target_radius shared_noise",
        "noise": f"{_NOISE} dimension operator_norm_method",
        "network": "model_sha256 form arithmetic classes",
        "made": _MADE,
    },
    "attacks": {
        "plan": "norm sizes attacks protocols steps step_size restarts draws paper_steps aim",
        "method": "norm=certificate_norm bound",
        "sampling": "n0 n alpha",
        "noise": f"{_NOISE} dimension=noise_dimension",
        "network": "model_sha256 form",
        "made": _MADE,
    },
    "audits": {
        "budget": "steps draws restarts directions rounds screen votes",
        "network": "model_sha256 form arithmetic",
        "made": _MADE,
    },
}
"""Before format 3 (docs/formats/run.md): for each section its keys; where one was called otherwise, ``key=former``."""
# What attacks did not say, as it was always the same. The precision was not written down, and is compared with nothing.
_PLAIN: dict[str, dict[str, Any]] = {
    "method": {"statistic": "votes", "confidence": "clopper-pearson", "runner_up": "complement"},
    "sampling": {"target_radius": None, "shared_noise": False},
    "noise": {"operator_norm_method": "not stated"},
    "network": {"arithmetic": "float32"},
}


def translated(kind: str, record: dict[str, Any], certified: str | None = None, classes: int | None = None) -> dict[str, Any]:
    """A record of formats 1 and 2 as format 3 has it, where keys do not stand beside each other.

    ``kind`` is that of the evidence, ``certified`` the name of the certificates beside it. A key that had no place then has
    none afterwards, and is reported as unknown.
    """
    if kind == "certificates":
        return _nested(record, kind)
    if kind == "attacks":
        made = _nested(record, kind, certificates=certified)
        for section, values in _PLAIN.items():
            made[section] |= values
        made["network"]["classes"] = classes or 1
        return made
    if not isinstance(record.get("certificates"), dict):
        return record
    made = _nested(record["certificates"], kind, of=certified)
    made["network"]["classes"] = classes or 1
    return {**record, "certificates": made}


def _nested(record: dict[str, Any], kind: str, **added: Any) -> dict[str, Any]:
    sections = {name: [key.rpartition("=") for key in keys.split()] for name, keys in _SECTIONS[kind].items()}
    moved = {old for keys in sections.values() for _, _, old in keys}
    names = {*sections, *added}
    rest = {f"{name} (format 3)" if name in names else name: value for name, value in record.items() if name not in moved}
    nested = {name: {new or old: record[old] for new, _, old in keys if old in record} for name, keys in sections.items()}
    if "noise" in nested:
        nested["noise"].setdefault("slackless_norm", None)
    return {**rest, **nested, **added}


def format_problems(file: str, record: dict[str, Any], *, former: bool) -> Iterator[Problem]:
    """Each layout has formats of its own."""
    stated = record.get("format")
    if type(stated) is int and (stated < 3) != former:
        yield Problem(file, "format has a value it cannot have here", str(stated), "1 or 2" if former else "3, as in run.json")


def number(value: object) -> float | None:
    """``value`` as a finite float if it is a JSON number that a float holds, else None; true and false are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        return None
    return float(value) if math.isfinite(value) else None


def block(record: object, name: str) -> dict[str, Any]:
    found = record.get(name) if isinstance(record, dict) else None
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Near:
    """A number from ``low`` to ``high``; ``value`` is the one to name."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Anything:
    """A value that is checked elsewhere: ``accepts`` it or not, ``wanted`` in words."""

    accepts: Callable[[object], bool]
    wanted: str


def exact(value: float, *, below: float = 0.0, above: float = 0.0) -> Near:
    """The same number up to the last bits, and what rounding may have moved it by."""
    slack = EXACT * max(1.0, abs(value))
    return Near(value, value - below - slack, value + above + slack)


def rounded_down(value: float) -> Near:
    """Six places, not above ``value``; one unit of room, as the last bit can decide between two decimals."""
    return exact(value, below=ROUNDING_UNIT)


def rounded_up(value: float) -> Near:
    return exact(value, above=ROUNDING_UNIT)


def special(value: float) -> Near:
    return Near(value, value * (1 - 1e-6) - 1e-300, value * (1 + 1e-6) + 1e-300)


def share(count: int, total: int) -> dict[str, Near]:
    """A share with its two-sided Clopper-Pearson interval: ``low`` rounded down and ``high`` up, never inwards."""
    low, high = clopper_pearson(count, total, CONFIDENCE)
    room = 2 * ROUNDING_UNIT + SPECIAL
    return {
        "value": exact(count / total),
        "low": Near(low, low - room, low + EXACT),
        "high": Near(high, high - EXACT, high + room),
        "confidence": exact(CONFIDENCE),
    }


def differences(got: object, wanted: object, path: str) -> Iterator[tuple[str, str, str]]:
    """Path, value and wanted value of everything in ``got`` that is not as ``wanted`` says."""
    if isinstance(wanted, dict):
        if not isinstance(got, dict):
            yield path, shown(got), "an object"
            return
        for name in sorted(set(wanted) - set(got)):
            yield f"{path}.{name}", "nothing", "a value"
        for name in sorted(set(got) - set(wanted)):
            yield f"{path}.{shown(name)}", shown(got[name]), "no such key"
        for name in wanted:
            if name in got:
                yield from differences(got[name], wanted[name], f"{path}.{name}")
    elif isinstance(wanted, list):
        if not isinstance(got, list) or len(got) != len(wanted):
            yield path, shown(got), f"a list of {len(wanted)}"
            return
        for at, (one, right) in enumerate(zip(got, wanted, strict=True)):
            yield from differences(one, right, f"{path}[{at}]")
    elif isinstance(wanted, Anything):
        if not wanted.accepts(got):
            yield path, shown(got), wanted.wanted
    elif isinstance(wanted, Near):
        value = number(got)
        if value is None or not wanted.low <= value <= wanted.high:
            yield path, shown(got), repr(wanted.value)
    elif type(got) is not type(wanted) or got != wanted:
        yield path, shown(got), shown(wanted)
