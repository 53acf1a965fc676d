"""Checks: values are named by their keyword, and every problem of the settings comes in one error."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from twinproof import checks
from twinproof.checks import parse_settings
from twinproof.errors import ConfigError


@pytest.mark.parametrize(
    ("check", "good", "bad", "wanted"),
    [
        (checks.positive, [5e-324, 1, 1e308], [0, -1, math.inf, math.nan, "x", None], "a finite number above 0"),
        (checks.not_negative, [0, 0.5], [-5e-324, math.inf, math.nan], "a finite number, 0 or above"),
        (partial(checks.between, 0, 1), [0, 0.5, 1], [-0.1, 1.1, math.nan], "a number from 0 to 1"),
        (partial(checks.inside, 0, 1), [0.5], [0, 1, math.nan], "a number above 0 and below 1"),
        (partial(checks.whole, 1, 5000), [1, 5000, 2.0], [0, 5001, 1.5, math.nan, math.inf, "3"], "from 1 to 5,000"),
        (partial(checks.whole, 2), [2, 10**400], [1, math.inf], "a whole number, at least 2"),
        (partial(checks.one_of, ("l1", "l2")), ["l1"], ["l3", 1, None], "one of l1, l2"),
    ],
)
def test_a_value_is_named_by_its_keyword(check: Callable[..., None], good: list[Any], bad: list[Any], wanted: str) -> None:
    for value in good:
        check(size=value, other=value)
    for value in bad:
        with pytest.raises(ConfigError, match="second cannot be used") as caught:
            check(first=good[0], second=value, fix="choose another")
        assert (caught.value.where, caught.value.got, caught.value.fix) == ("second", str(value), "choose another")
        assert wanted in caught.value.wanted
        with pytest.raises(ConfigError) as caught:
            check(size=value, where="here")
        assert caught.value.where == "here"
    with pytest.raises(ConfigError, match="an integer of 1329 bits"):
        checks.whole(0, 5, steps=10**400)


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


def test_good_settings_pass_and_all_problems_come_at_once() -> None:
    parsed = parse_settings(Outer, {"epsilon": 3, "performance": {"physical_batch": 4}})
    assert parsed == Outer(epsilon=3.0, performance=Inner(physical_batch=4))
    error = problem({"epsilon": -1, "steps": 3, "learning_rate": "fast", "performance": {"device": 5}})
    assert error.what == "4 settings cannot be used"
    for key in ("epsilon", "steps", "learning_rate", "performance.device"):
        assert key in error.where.split(", ")
        assert f"{key}: " in error.wanted
    assert "learning_rate = 'fast'" in error.got
    assert "epsilon = -1" in error.got
    assert "steps: an even number" in error.wanted


def test_one_problem_and_a_missing_setting() -> None:
    error = problem({"epsilon": -1})
    assert (error.what, error.where) == ("a setting cannot be used", "epsilon")
    assert "greater than 0" in error.wanted
    error = problem({})
    assert (error.where, error.got) == ("epsilon", "epsilon = nothing")


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
