"""What ``run.json`` and the lines of other files must look like; further keys are left to those who know them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from twinproof.guarantee import Status
from twinproof.runs.reading import Count, Finite, Length, Share

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


Needs = Mapping[str, Sequence[str]]
"""Keys that must be there, by the section that they stand in."""
STARTED: Needs = {
    "": ("state", "created", "config", "data", "device"),
    "config": ("model", "data"),
    "data": ("shape", "classes"),
}
"""What a run needs to go on with its training."""
NETWORK: Needs = {"": ("config", "data"), "config": ("model", "width"), "data": ("shape", "classes")}
"""What its network is built from."""
DATA: Needs = {"": ("config", "data"), "config": ("data",), "data": ("shape", "classes", "levels", "test_records")}
"""What its data are recognised by."""
_PROMISE = ("status", "promise", "theorem", "assumptions", "reason", "values")
GUARANTEES: Needs = {"": ("guarantees",)}
PROMISES: Needs = {
    "": ("guarantees",),
    "guarantees": ("privacy", "robustness"),
    "guarantees.privacy": _PROMISE,
    "guarantees.robustness": _PROMISE,
}
"""What is promised of a complete run."""
ANSWER: Needs = {"": ("accuracy",)}
"""What is said of a training that ended."""


def missing_keys(record: Mapping[str, Any], wanted: Needs) -> list[str]:
    """Those of the ``wanted`` keys that ``record``, which is a ``RunFile``, does not have."""
    missing = []
    for section, names in wanted.items():
        found: Mapping[str, Any] = record
        for part in section.split(".") if section else ():
            found = found.get(part) or {}
        absent = [name for name in names if name not in found or (not section and found[name] is None)]
        missing += [f"{section}.{name}".lstrip(".") for name in absent]
    return missing


class MetricsLine(_Record):
    """A line of ``metrics.jsonl``."""

    step: Count
    test_accuracy: Share | None = None
    test_loss: Finite | None = None
    epsilon: Length | None = None


class StepLine(_Record):
    """A line about a step, in ``private/``."""

    step: Count
