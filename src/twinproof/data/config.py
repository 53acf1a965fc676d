"""The settings that say which data to load and what may be assumed about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from twinproof.checks import parse_settings
from twinproof.errors import ConfigError

Ranges = dict[str, tuple[float, float]] | Literal["test", "private"]

EVERY_OTHER_FEATURE = "*"
"""Key of ``ranges`` whose bounds hold for every feature that is not named itself."""


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
