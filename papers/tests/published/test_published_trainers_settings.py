"""The settings of StoBatch's local trainers: a section that its published variant alone has."""

from __future__ import annotations

import re
from typing import Any

import pytest
from recipe_fixtures import source as source

from twinproof.errors import ConfigError
from twinproof.recipes.config import parse_train_config

DIGITS: dict[str, Any] = {"data": {"source": "digits"}}


TRAINERS: list[tuple[dict[str, Any], str, str]] = [
    ({"recipe": "dpsgd", "trainers": {"count": 2}}, "dpsgd (variant sound)", "trainers.count = 2"),
    ({"recipe": "dpsgd", "trainers": {"per_step": 0}}, "dpsgd (variant sound)", "trainers.per_step = 0"),
    (
        {"recipe": "dpsgd", "trainers": {"count": 2, "per_step": 1}},
        "dpsgd (variant sound)",
        "trainers.count = 2, trainers.per_step = 1",
    ),
    ({"recipe": "adlm", "variant": "published", "trainers": {"count": 2}}, "adlm (variant published)", "trainers.count = 2"),
    ({"recipe": "stobatch", "trainers": {"count": 2}}, "stobatch (variant sound)", "trainers.count = 2"),
    ({"recipe": "twinproof", "trainers": 3}, "twinproof (variant sound)", "trainers = 3"),
    ({"trainers": {}}, "dpcert-gaussian (variant sound)", "trainers = {}"),
]


@pytest.mark.parametrize(("wrong", "steps", "got"), TRAINERS, ids=[steps + ": " + got for _, steps, got in TRAINERS])
def test_trainers_of_the_wrong_recipe_are_refused_for_the_recipe_and_not_for_what_they_lack(
    wrong: dict[str, Any], steps: str, got: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"the steps of {steps} know no trainers")) as caught:
        parse_train_config(DIGITS, wrong)
    assert (caught.value.where, caught.value.got) == ("trainers", got)
    assert caught.value.wanted == "stobatch with variant published"
    assert "leave trainers out" in caught.value.fix


def test_trainers_of_the_right_recipe_are_asked_for_what_they_lack() -> None:
    right = DIGITS | {"recipe": "stobatch", "variant": "published"}
    with pytest.raises(ConfigError) as caught:
        parse_train_config(right, {"trainers": {"count": 2}})
    assert (caught.value.where, caught.value.got) == ("trainers.per_step", "trainers.per_step = nothing")
    assert "trainers" not in parse_train_config(right, {"trainers": None}).model_dump()
