"""``twinproof federate``, as a user calls it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FAST = ("--set", "model=mlp", "--set", "steps=3", "--set", "noise_multiplier=20.0", "--set", "recipe=dpsgd", "--device", "cpu")


def test_four_parties_on_one_machine(call: Any, tmp_path: Path) -> None:
    answer = call("federate", "--out", tmp_path / "run", "--delta", "1e-4", *FAST, "--json")
    assert answer.code == 0
    found = answer.json()
    assert found["status"] == "proven"
    assert [party["name"] for party in found["parties"]] == ["party-1", "party-2", "party-3", "party-4"]
    assert sum(party["records"] for party in found["parties"]) == 1397
    assert call("verify", tmp_path / "run", "--json").json()["ok"] is True


def test_people_get_a_table(call: Any, tmp_path: Path) -> None:
    answer = call("federate", "--out", tmp_path / "run", "--parties", "2", "--seed", "1", "--delta", "1e-4", *FAST)
    assert answer.code == 0
    assert "party-2 (932 records)" in answer.out
    assert "known seed" in answer.out


def test_a_recipe_without_privacy_is_a_mistake(call: Any, tmp_path: Path) -> None:
    answer = call("federate", "--out", tmp_path / "run", "--recipe", "regular", "--json")
    assert answer.code == 2
    assert answer.json()["error"]["what"] == "parties train together only under a plan"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--parties", "0", "this many parties cannot share the records"),
        ("--parties", "-3", "this many parties cannot share the records"),
        ("--timeout", "inf", "a party cannot be given this time for a round"),
        ("--data", "no/such/folder", "there is nothing at this path"),
    ],
)
def test_a_wrong_option_is_one_clear_message_and_no_run(call: Any, tmp_path: Path, option: str, value: str, what: str) -> None:
    answer = call("federate", "--out", tmp_path / "run", option, value, "--delta", "1e-4", *FAST, "--json")
    assert answer.code == 2
    assert answer.json()["error"]["what"] == what
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="flwr is installed: nothing is missing")
def test_flower_is_named_where_it_is_missing(call: Any, tmp_path: Path) -> None:
    answer = call("federate", "--out", tmp_path / "run", "--flower", "--delta", "1e-4", *FAST, "--json")
    assert answer.code == 2
    assert answer.json()["error"]["fix"] == "pip install 'twinproof[federated]'"
