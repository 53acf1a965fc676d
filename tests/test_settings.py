"""Settings: every problem in one error, with the key that was meant."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from twinproof.checks import parse_settings
from twinproof.errors import ConfigError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    physical_batch: int = 8
    device: str = "auto"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    epsilon: float = Field(gt=0)
    learning_rate: float = 0.1
    steps: int = 10
    performance: Inner = Inner()
    maybe: Inner | None = None

    @field_validator("steps")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("an even number")
        return value


def problem(values: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_settings(Outer, values)
    return caught.value


def test_good_settings_pass() -> None:
    parsed = parse_settings(Outer, {"epsilon": 3, "performance": {"physical_batch": 4}})
    assert parsed == Outer(epsilon=3.0, performance=Inner(physical_batch=4))


def test_all_problems_come_at_once() -> None:
    error = problem({"epsilon": -1, "steps": 3, "learning_rate": "fast", "performance": {"device": 5}})
    assert error.what == "4 settings cannot be used"
    for key in ("epsilon", "steps", "learning_rate", "performance.device"):
        assert key in error.where.split(", ")
        assert f"{key}: " in error.wanted
    assert "learning_rate = 'fast'" in error.got
    assert "epsilon = -1" in error.got
    assert "steps: an even number" in error.wanted


def test_one_problem_is_told_in_the_singular() -> None:
    error = problem({"epsilon": -1})
    assert error.what == "a setting cannot be used"
    assert error.where == "epsilon"
    assert "greater than 0" in error.wanted


def test_a_missing_setting_is_named() -> None:
    error = problem({})
    assert error.where == "epsilon"
    assert error.got == "epsilon = nothing"


@pytest.mark.parametrize(
    ("values", "suggestion"),
    [
        ({"learning_rat": 0.1}, "did you mean 'learning_rate'?"),
        ({"epsilom": 0.1}, "did you mean 'epsilon'?"),
        ({"performance": {"phisical_batch": 4}}, "did you mean 'physical_batch'?"),
        ({"maybe": {"devise": "cpu"}}, "did you mean 'device'?"),
        ({"zzz": 1}, "one of epsilon, learning_rate, steps, performance, maybe"),
        ({"performance": {"zzz": 1}}, "one of physical_batch, device"),
        ({"maybe": {"zzz": 1}}, "one of physical_batch, device"),
    ],
)
def test_an_unknown_key_comes_with_the_one_that_was_meant(values: dict[str, Any], suggestion: str) -> None:
    assert suggestion in problem({"epsilon": 1.0, **values}).wanted
