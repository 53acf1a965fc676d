"""The one strict reader of a run's files: limited in size, typed, and every fault is a RunError that names file and key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from twinproof.errors import RunError, UserError
from twinproof.files import LARGEST_INTEGER, LARGEST_RECORD, LARGEST_TABLE, read_bounded, strict_json
from twinproof.guarantee import Status

Kind = TypeVar("Kind")

Count = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Length = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Radius = Annotated[float, Field(ge=0, le=1e4)]
"""In input units: beyond any input in [0, 1], and few enough steps of a table."""
Share = Annotated[float, Field(ge=0, le=1)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
CLOSED = ConfigDict(extra="forbid")
"""For the ``__pydantic_config__`` of a dataclass whose records have no other keys."""

_NAMED = 5  # keys with a fault that one error lists
_SHOWN = 80


def broken(path: Path, place: str, got: object, wanted: str, fix: str = "") -> RunError:
    """The error of a file that cannot be used; ``place`` is a key or a line, empty for the whole file."""
    where = f"{path}, {place}" if place else str(path)
    return RunError(f"{path.name} is broken", where=where, got=got, wanted=wanted, fix=fix or "restore the file")


def shown(value: object) -> str:
    """A value from a file, short and without control characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


@dataclass(frozen=True)
class JsonObject:
    """A JSON object of a file: ``record`` as it stands there, ``typed`` as a record of ours; ``place`` is its line, if any."""

    path: Path
    content: bytes
    record: dict[str, Any]
    place: str = ""
    fix: str = ""

    def typed(self, kind: type[Kind]) -> Kind:
        """The object as a ``kind`` (a model or a dataclass). No value is converted, but for integers where floats are wanted.

        Every field of a dataclass, and of those inside it, must be there: what a record does not say must not be taken for a
        default.
        """
        try:
            found: Kind = _adapter(kind).validate_json(self.content, strict=True)
        except ValidationError as error:
            faults = error.errors(include_url=False)[:_NAMED]
            keys = ", ".join(".".join(map(str, fault["loc"])) or "the object" for fault in faults)
            got = "; ".join("nothing" if fault["type"] == "missing" else shown(fault["input"]) for fault in faults)
            wanted = "; ".join(dict.fromkeys(fault["msg"] for fault in faults))
            raise self._broken(keys, got, wanted) from error
        except UserError as error:  # a record that checks itself
            raise self._broken(error.where, error.got, error.wanted, error.fix) from error
        if missing := list(_missing(found, self.record)):
            raise self._broken(", ".join(missing[:_NAMED]), "nothing", "a value for every key")
        return found

    def inside(self, section: str, record: dict[str, Any]) -> JsonObject:
        """A section of the object as one of its own, which states the same format."""
        inner = {"format": self.record.get("format"), **record}
        return replace(self, content=json.dumps(inner).encode(), record=inner, place=f"section {section}")

    def _broken(self, keys: str, got: str, wanted: str, fix: str = "") -> RunError:
        return broken(self.path, ", ".join(part for part in (self.place, f"key {keys}") if part), got, wanted, fix or self.fix)


def _missing(found: Any, record: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in vars(found).items() if is_dataclass(found) else ():
        if name not in record:
            yield prefix + name
        elif is_dataclass(value):
            yield from _missing(value, record[name], f"{prefix}{name}.")


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The compiled schema of ``kind``: made once, as that takes longer than reading."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def read_json(path: Path, *, fix: str = "") -> JsonObject:
    """The JSON object in ``path``, read strictly; ``fix`` is for the error."""
    return parse_json(read_bounded(path, LARGEST_RECORD), path, fix=fix)


def parse_json(content: bytes, path: Path, *, place: str = "", fix: str = "") -> JsonObject:
    """Reads the content of a file, or of a line of it."""
    try:
        record = strict_json(content)
    except ValueError as error:
        raise broken(path, place, str(error)[:200], "valid JSON", fix) from error
    if not isinstance(record, dict):
        raise broken(path, place, type(record).__name__, "a JSON object", fix)
    return JsonObject(path, content, record, place, fix)


def read_lines(path: Path, kind: type[Kind]) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, each checked to be a ``kind``; none where there is no file.

    A last line that a kill or a full disk left half written is passed over.
    """
    lines = read_bounded(path, LARGEST_RECORD).split(b"\n")[:-1] if path.is_file() else []
    found = [parse_json(line, path, place=f"line {number}") for number, line in enumerate(lines, start=1) if line]
    for line in found:
        line.typed(kind)
    return [line.record for line in found]


class Column:
    """How a cell of a table is written, and what it stands for."""

    def __init__(self, pattern: str, read: Callable[[str], Any]) -> None:
        self.pattern = pattern
        self.read = read


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


WHOLE = Column(r"-?[0-9]{1,18}", int)
NUMBER = Column(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:e[+-]?[0-9]{1,4})?", _finite)
WORD = Column(r"[a-z0-9_-]{1,60}", str)


def read_table(path: Path, columns: Sequence[Mapping[str, Column]], *, appended: bool = False) -> list[dict[str, Any]]:
    """The lines of a CSV file under one of the headers ``columns``; none where there is no file.

    Of a file that lines are ``appended`` to, a last one that a kill or a full disk left half written is passed over.
    """
    return parse_table(read_bounded(path, LARGEST_TABLE), path, columns, appended=appended) if path.is_file() else []


def parse_table(
    content: bytes, path: Path, columns: Sequence[Mapping[str, Column]], *, appended: bool = False
) -> list[dict[str, Any]]:
    """Reads the content of a table; ``path`` is for the error."""
    if not (appended or content.endswith(b"\n")):
        raise broken(path, "its last line", "no end of the line", "the whole file")
    try:
        text = content[: content.rfind(b"\n") + 1].decode("utf-8")
    except UnicodeDecodeError as error:
        raise broken(path, "", str(error), "UTF-8 text") from error
    header, *lines = text.split("\n")[:-1] or [""]
    chosen = next((found for found in columns if ",".join(found) == header), None)
    if chosen is None:
        if not text:  # not even the header was written whole
            return []
        raise broken(path, "line 1", shown(header), " or ".join(",".join(found) for found in columns))
    names, readers = tuple(chosen), tuple(column.read for column in chosen.values())
    whole_line = re.compile(",".join(f"({column.pattern})" for column in chosen.values())).fullmatch
    rows = []
    for number, line in enumerate(lines, start=2):
        try:
            cells = whole_line(line)
            if cells is None:
                raise ValueError("not a line of this table")
            rows.append({name: read(cell) for name, read, cell in zip(names, readers, cells.groups(), strict=True)})
        except ValueError as error:
            raise _broken_line(path, number, line, chosen) from error
    return rows


def _broken_line(path: Path, number: int, line: str, columns: Mapping[str, Column]) -> RunError:
    cells = line.split(",")
    if len(cells) != len(columns):
        return broken(path, f"line {number}", f"{len(cells)} cells", f"{len(columns)} cells: {','.join(columns)}")
    for (name, column), cell in zip(columns.items(), cells, strict=True):
        if re.fullmatch(column.pattern, cell) is None or (column is NUMBER and not math.isfinite(float(cell))):
            wanted = {WHOLE: "a whole number", NUMBER: "a finite number"}.get(column, "a word")
            return broken(path, f"line {number}, {name}", shown(cell), wanted)
    return broken(path, f"line {number}", shown(line), ",".join(columns))


LARGEST_INPUT = 2**22
"""The most numbers of one input."""
_MOST_CLASSES = 100_000


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Config(_Record):
    """The settings, as far as a network is built from them; ``restore_config`` reads them all."""

    model: str = ""
    width: Annotated[int, Field(ge=1, le=64)] = 1
    sigma: Length | None = None
    noise_layer: dict[str, Any] | None = None
    variant: str = ""
    data: dict[str, Any] = {}


class _Data(_Record):
    """The public description of the data set."""

    name: str = ""
    shape: list[Annotated[int, Field(ge=1, le=LARGEST_INPUT)]] = Field(default=[1], min_length=1, max_length=4)
    classes: list[str] = Field(default=[""], min_length=1, max_length=_MOST_CLASSES)
    levels: Annotated[int, Field(ge=1, le=2**53)] = 1
    test_records: Count = 0
    feature_names: list[str] = []
    scaling: dict[str, Any] | None = None

    @field_validator("shape")
    @classmethod
    def _bounded(cls, shape: list[int]) -> list[int]:
        if math.prod(shape) > LARGEST_INPUT:
            raise ValueError(f"an input holds at most {LARGEST_INPUT} numbers")
        return shape


class _Guarantee(_Record):
    status: Status = Status.NONE
    promise: str = ""
    theorem: str = ""
    assumptions: list[str] = []
    reason: str = ""
    values: dict[str, Finite | str | bool | None] = {}


class _Guarantees(_Record):
    privacy: _Guarantee = _Guarantee()
    robustness: dict[str, _Guarantee] = {}


class _FormerGuarantees(_Record):
    privacy: _Guarantee = _Guarantee()
    robustness: _Guarantee = _Guarantee()


class _Accuracy(_Record):
    value: Share
    low: Share
    high: Share
    confidence: Share


class _Privacy(_Record):
    epsilon: Length
    delta: Share = 0.0


class _File(_Record):
    sha256: str = ""


class RunFile(_Record):
    """``run.json``: what is there has its type. A report shows what it finds, so that no key is required."""

    state: str | None = None
    created: str = ""
    config: _Config = _Config()
    recipe: str = ""
    data: _Data | None = None
    guarantees: _Guarantees | None = None
    device: str = ""
    versions: dict[str, str] = {}
    files: dict[str, _File] = {}
    privacy: _Privacy | None = None
    accuracy: _Accuracy | None = None
    seconds: Length | None = None


class FormerRunFile(RunFile):
    """``run.json`` of format 1 and 2, with one promise of robustness."""

    guarantees: _FormerGuarantees | None = None  # type: ignore[assignment]


class MetricsLine(_Record):
    """A line of ``metrics.jsonl``."""

    step: Count
    test_accuracy: Share | None = None
    test_loss: Finite | None = None
    epsilon: Length | None = None


class StepLine(_Record):
    """A line about a step, in ``private/``."""

    step: Count
