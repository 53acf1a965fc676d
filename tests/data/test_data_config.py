from __future__ import annotations

from typing import Any

import pytest

from twinproof.data.config import DataConfig, parse_data_config, refuse_settings
from twinproof.errors import ConfigError


def test_defaults_and_ranges() -> None:
    config = parse_data_config({"source": "table.csv", "ranges": {"age": [0, 120]}, "classes": ["no", "yes"]})
    assert config == DataConfig(source="table.csv", ranges={"age": (0.0, 120.0)}, classes=("no", "yes"))
    assert (config.test, config.public_fraction, config.label, config.ranges_noise) == (None, None, None, 20.0)


@pytest.mark.parametrize(
    ("values", "key", "wanted"),
    [
        ({}, "source", "required"),
        ({"source": ""}, "source", "1 character"),
        ({"source": "a", "public_fraction": 0}, "public_fraction", "greater than 0"),
        ({"source": "a", "public_fraction": 1.0}, "public_fraction", "less than 1"),
        ({"source": "a", "test_fraction": 0.2}, "test_fraction", "its new name: public_fraction"),
        ({"source": "a", "classes": ["only"]}, "classes", "two or more"),
        ({"source": "a", "classes": ["b", "b"]}, "classes", "different"),
        ({"source": "a", "ranges": "train"}, "ranges", "'test', 'private'"),
        ({"source": "a", "ranges": {"age": [3, 3]}}, "ranges", "low below high for feature 'age'"),
        ({"source": "a", "ranges": {"age": [0, float("inf")]}}, "ranges", "finite"),
        ({"source": "a", "ranges": {"age": [0, float("nan")]}}, "ranges", "finite"),
        ({"source": "a", "ranges": {"age": [-1e308, 1e308]}}, "ranges", "finite"),
        ({"source": "a", "ranges": {"age": ["0", "1"]}}, "ranges", "two finite numbers"),
        ({"source": "a", "ranges": {"age": [1]}}, "ranges", "two finite numbers"),
        ({"source": "a", "ranges": {1: [0, 1]}}, "ranges", "as text"),
        ({"source": "a", "ranges_noise": 0}, "ranges_noise", "greater than 0"),
        ({"source": "a", "ranges_noise": float("inf")}, "ranges_noise", "finite"),
        ({"source": "a", "labels": "b"}, "labels", "did you mean 'label'?"),
    ],
)
def test_a_problem_names_its_key(values: dict[str, Any], key: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_data_config(values)
    assert caught.value.where == key
    assert wanted in caught.value.wanted


def test_all_problems_at_once() -> None:
    with pytest.raises(ConfigError, match="3 settings") as caught:
        parse_data_config({"source": "a", "public_fraction": 7, "ranges": 5, "speed": 1})
    assert caught.value.where == "public_fraction, ranges, speed"
    assert "public_fraction = 7; ranges = 5; speed = 1" in caught.value.got


def test_settings_without_effect_are_refused_together() -> None:
    config = DataConfig(source="mnist", test="t", label="y")
    with pytest.raises(ConfigError, match="does not apply") as caught:
        refuse_settings(config, ("test", "label", "classes"), "a set of its own")
    assert caught.value.where == "test, label"


def test_frozen() -> None:
    config: Any = DataConfig(source="a")
    with pytest.raises(ValueError, match="frozen"):
        config.source = "b"
