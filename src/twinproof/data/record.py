"""The data set record that every other room works with, and a keyed fingerprint of it.

Inputs are kept as the integers they are stored as: a pixel 0..255, a feature on 65,536 levels between its declared bounds.
The network sees ``stored / levels``, a number in [0, 1]; radii and attack sizes are in that unit. Integers make the
certificate exact (docs/decisions/0002-noise-on-a-grid.md): adding grid noise to an integer is free of rounding.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from twinproof import checks
from twinproof.checks import parse_settings
from twinproof.errors import ConfigError, DataError

Ranges = dict[str, tuple[float, float]] | Literal["test", "private"]


class DataConfig(BaseModel):
    """Which data, and what is declared about it.

    ``ranges`` decides what the bounds of features may be taken from: declared numbers (free), the test records (declared
    public, free), or a private estimate from the training records, which the ledger counts.

    ``test`` and ``public_fraction`` decide which records are public where the data bring no test part: a user's own records
    become public only by one of these words.
    """

    RENAMED: ClassVar[dict[str, str]] = {"test_fraction": "public_fraction (these records become public; it has no default)"}

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(min_length=1, description="name of a known data set, or path of a file or folder")
    test: str | None = Field(default=None, min_length=1, description="path of the test records, which are public")
    public_fraction: float | None = Field(
        default=None, gt=0, lt=1, description="share of the records that become the test part, and public"
    )
    label: str | None = Field(default=None, min_length=1, description="label column of a table")
    classes: tuple[str, ...] | None = Field(default=None, description="declared class names, in the order of their numbers")
    ranges: Ranges | None = Field(default=None, description="bounds of the features: declared, 'test' or 'private'")
    ranges_noise: float = Field(
        default=20.0, gt=0, allow_inf_nan=False, description="noise multiplier of the private estimate of ranges"
    )

    @field_validator("classes")
    @classmethod
    def _different_names(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (len(value) < 2 or len(set(value)) != len(value) or "" in value):
            raise ValueError("two or more different, non-empty names")
        return value

    @field_validator("ranges", mode="before")
    @classmethod
    def _usable_ranges(cls, value: object) -> object:
        """Checks by hand, because the errors of a union speak of its branches and not of the user's mistake."""
        if value is None or value in ("test", "private"):
            return value
        if not isinstance(value, Mapping):
            raise ValueError("'test', 'private', or a table of feature = [low, high]")
        return {name: _bounds(name, pair) for name, pair in value.items()}


def _bounds(name: object, pair: object) -> tuple[float, float]:
    if not isinstance(name, str):
        raise ValueError(f"feature names as text (got {name!r})")
    if (
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and not any(isinstance(bound, bool) or not isinstance(bound, (int, float)) for bound in pair)
    ):
        low, high = float(pair[0]), float(pair[1])
        if low < high and math.isfinite(high - low):
            return low, high
    raise ValueError(f"two finite numbers [low, high] with low below high for feature {name!r}")


def parse_data_config(values: Mapping[str, Any]) -> DataConfig:
    """A checked ``DataConfig``; otherwise one ``ConfigError`` that names every key with a problem."""
    return parse_settings(DataConfig, values)


def refuse_settings(config: DataConfig, keys: tuple[str, ...], reason: str) -> None:
    """Ends in one error where any of ``keys`` is set: a setting that would silently do nothing is a misunderstanding."""
    given = [key for key in keys if getattr(config, key) is not None]
    if given:
        raise ConfigError(
            "a setting does not apply to this data",
            where=", ".join(given),
            got="; ".join(f"{key} = {getattr(config, key)!r}" for key in given),
            wanted=reason,
            fix=f"leave out {' and '.join(given)}",
        )


def refuse_second_test_part(key: str, given: object, found: str) -> None:
    """Ends in an error where the setting ``key`` names test records of data that have a test part already."""
    if given is not None:
        raise ConfigError(
            "there are two test parts", where=key, got=f"{given}, and {found}", wanted="one test part", fix=f"leave out `{key}`"
        )


RANGE_SOURCES = ("declared", "test", "private")


class InputKind(StrEnum):
    """What one record's input is; decides the default network and how the report shows it."""

    IMAGE = "image"
    FEATURES = "features"


@dataclass(frozen=True)
class Split:
    """Inputs (N, *shape) as uint8 or uint16 and labels (N,) as int64, row for row."""

    inputs: NDArray[Any]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True)
class RangeSpending:
    """A private estimate of feature ranges: one Gaussian mechanism that the ledger must count."""

    noise_multiplier: float


@dataclass(frozen=True)
class Scaling:
    """How raw features became levels: bounds per feature and where the bounds came from ('declared', 'test' or 'private').

    Bounds that came from the training records carry their price: ``source`` is 'private' exactly where ``spending`` is set.
    Every ``high - low`` is finite and above 0.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    source: str
    spending: RangeSpending | None = None

    def __post_init__(self) -> None:
        checks.one_of(RANGE_SOURCES, source=self.source, where="scaling")
        if (self.source == "private") != (self.spending is not None) or len(self.low) != len(self.high):
            raise ConfigError(
                "the record of the scaling contradicts itself",
                where="scaling",
                got=f"source {self.source!r}, spending {self.spending}, {len(self.low)} low and {len(self.high)} high bounds",
                wanted="a spending for private bounds and for no others, and one pair of bounds for each feature",
            )
        for index, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not (low < high and math.isfinite(high - low)):
                raise ConfigError(
                    "a feature has no usable bounds",
                    where=f"scaling, feature {index}",
                    got=f"[{low}, {high}]",
                    wanted="finite numbers, low below high",
                    fix="declare the bounds of that feature under `ranges`",
                )

    def as_dict(self) -> dict[str, Any]:
        """The record as plain JSON values; ``from_dict`` reads it back."""
        record: dict[str, Any] = {"low": list(self.low), "high": list(self.high), "source": self.source}
        if self.spending is not None:
            record["noise_multiplier"] = self.spending.noise_multiplier
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Scaling:
        """Reads ``as_dict`` back, so that a run's data can be loaded again without estimating (and paying) twice."""
        try:
            multiplier = record.get("noise_multiplier")
            spending = None if multiplier is None else RangeSpending(float(multiplier))
            low, high = (tuple(float(bound) for bound in record[name]) for name in ("low", "high"))
            return cls(low=low, high=high, source=str(record["source"]), spending=spending)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                "the record of the scaling is broken", where="scaling", got=repr(error), wanted="low, high, source"
            ) from error


@dataclass(frozen=True)
class Dataset:
    """Records for training (private) and testing (declared public), with what the public may know about them.

    ``public`` says that this is a known public set; records of other sets are shown only where the user asks for it.

    Guarantees
        Whether a class has a training record makes no difference: only the test part must have all classes. If the training
        part needed them, the existence of a run would show that somebody with a rare class took part.
    """

    name: str
    kind: InputKind
    train: Split
    test: Split
    classes: tuple[str, ...]
    levels: int
    feature_names: tuple[str, ...] = ()
    scaling: Scaling | None = None
    public: bool = False

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise DataError(
                "the classes cannot be told apart",
                where=self.name,
                got=", ".join(self.classes) or "no class",
                wanted="two or more different class names",
                fix="declare the class names under `classes`",
            )
        for part, split in (("train", self.train), ("test", self.test)):
            self._check_split(f"{self.name}, {part} split", split)
        empty = np.flatnonzero(np.bincount(self.test.labels, minlength=len(self.classes)) == 0)
        if len(empty):
            raise DataError(
                "a class has no test record",
                where=f"{self.name}, test split",
                got=f"no record of class {self.classes[int(empty[0])]!r}",
                wanted="at least one test record of every class",
                fix="add test records of that class or leave the class out",
            )
        check_alike(self.train, self.test, self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: (channels, height, width) for images, (features,) otherwise."""
        return tuple(int(size) for size in self.test.inputs.shape[1:])

    def public_description(self) -> dict[str, Any]:
        """What a released file may say: nothing here is computed from the training records."""
        return {
            "name": self.name,
            "kind": str(self.kind),
            "shape": list(self.shape),
            "classes": list(self.classes),
            "levels": self.levels,
            "test_records": len(self.test),
            "feature_names": list(self.feature_names),
            "scaling": None if self.scaling is None else self.scaling.as_dict(),
        }

    def _check_split(self, where: str, split: Split) -> None:
        if split.inputs.dtype not in (np.uint8, np.uint16):
            raise DataError("inputs are not stored as levels", where=where, got=split.inputs.dtype, wanted="uint8 or uint16")
        if len(split) == 0:
            raise DataError("there are no records", where=where, got=0, wanted="at least one record")
        check_paired(split.inputs, split.labels, where)
        if (largest := int(split.inputs.max(initial=0))) > self.levels:
            wanted = f"0..{self.levels}"
            raise DataError("an input lies above the largest level", where=where, got=largest, wanted=wanted)
        outside = np.flatnonzero((split.labels < 0) | (split.labels >= len(self.classes)))
        if len(outside):
            raise DataError(
                "a label does not fit the classes",
                where=f"{where}, record {int(outside[0])}",
                got=int(split.labels[outside[0]]),
                wanted=f"0..{len(self.classes) - 1} ({len(self.classes)} classes)",
                fix="correct the label, or declare the classes",
            )


def check_paired(inputs: NDArray[Any], labels: NDArray[Any], where: str) -> None:
    """Refuses another number of labels than of inputs."""
    if len(inputs) != len(labels):
        raise DataError(
            "the number of inputs and labels differ",
            where=where,
            got=f"{len(inputs)} inputs, {len(labels)} labels",
            wanted="one label for each input",
            fix="check that the inputs and labels belong together",
        )


def check_alike(train: Split | Records, test: Split | Records, where: str) -> None:
    """Refuses training and test inputs of different shapes or types."""
    kinds = [(str(part.inputs.dtype), part.inputs.shape[1:]) for part in (train, test)]
    if kinds[0] != kinds[1]:
        raise DataError(
            "training and test inputs differ in shape or type",
            where=where,
            got=" and ".join(f"{dtype} {shape}" for dtype, shape in kinds),
            wanted="one shape and type for all records",
            fix="prepare both parts in the same way",
        )


@dataclass(frozen=True)
class Records:
    """Inputs and raw labels (integers or text), row for row; ``rows`` are their positions in the file, for error messages."""

    inputs: NDArray[Any]
    labels: NDArray[Any]
    where: str
    rows: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        check_paired(self.inputs, self.labels, self.where)
        if 0 in self.inputs.shape[1:]:
            got = f"shape {self.inputs.shape}"
            raise DataError("the inputs are empty", where=self.where, got=got, wanted="pixels or features")

    def __len__(self) -> int:
        return len(self.labels)

    def row(self, index: int) -> int:
        """Position in the file of the record that is now at ``index``."""
        return index if self.rows is None else int(self.rows[index])

    def take(self, chosen: NDArray[np.bool_]) -> Records:
        """The chosen records, in their order."""
        rows = np.flatnonzero(chosen) if self.rows is None else self.rows[chosen]
        return replace(self, inputs=self.inputs[chosen], labels=self.labels[chosen], rows=rows)


@dataclass(frozen=True)
class Parts:
    """One data set as read. ``levels`` is None for raw features, which still have to be scaled between bounds.

    ``public_fraction`` is the share that becomes the test part where there is none and the user does not choose another: set
    only for records that are public anyway. ``public`` says that all of them are, as those of a known set.
    """

    name: str
    kind: InputKind
    train: Records
    test: Records | None
    levels: int | None
    classes: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] = ()
    bounds: Mapping[str, tuple[float, float]] | None = None
    public_fraction: float | None = None
    public: bool = False


MINIMUM_KEY_BYTES = 16
_HEADER = b"twinproof training split 1"


def fingerprint(split: Split, key_bytes: bytes) -> str:
    """HMAC-SHA256 (hexadecimal) over types, shapes, inputs and labels.

    Without the key it tells nothing about the records, while a plain digest would let anybody test whether a guessed data set
    is the one. With the key, two splits of one fingerprint are equal, in the same order and with the same shapes and types (or
    a collision of SHA-256 was found): types and shapes are hashed first and fix the length of everything that follows.
    """
    if len(key_bytes) < MINIMUM_KEY_BYTES:
        raise ValueError(f"a fingerprint key holds at least {MINIMUM_KEY_BYTES} bytes, got {len(key_bytes)}")
    digest = hmac.new(key_bytes, _HEADER, hashlib.sha256)
    arrays = [np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")) for array in (split.inputs, split.labels)]
    for array in arrays:
        sizes = (array.dtype.itemsize, array.ndim, *array.shape)
        digest.update(array.dtype.kind.encode() + b"".join(size.to_bytes(8, "little") for size in sizes))
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()
