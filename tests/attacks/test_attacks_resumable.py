"""Killed at any batch and begun again, an attack ends with the same bits; other attacks' folders are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_problems import KEY, NoisyInput, batch_of, smooth_network

from twinproof.attacks.objective import Expectation, Objective, Plain, Smoothed
from twinproof.attacks.resumable import SETTINGS, attack_in_folder
from twinproof.attacks.run import run_attack
from twinproof.attacks.search import ROWS, AttackResult, fgsm, pgd
from twinproof.attacks.threat import Threat
from twinproof.errors import ConfigError, RunError
from twinproof.keys import Key
from twinproof.progress import Silent

OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "plain": lambda: Plain(smooth_network()),
    "expectation": lambda: Expectation(NoisyInput(smooth_network(), 0.2), 2, judged_on=3),
    "smoothed": lambda: Smoothed(smooth_network(), 0.2, 2, judged_on=3),
}


def arguments(**changes: Any) -> dict[str, Any]:
    inputs, labels = batch_of(11)
    given = {
        "attack": pgd(3),
        "target": Plain(smooth_network()),
        "inputs": inputs,
        "labels": labels,
        "threat": Threat("l2", 0.3),
        "key": KEY,
        "batch": 4,
    }
    return {**given, **changes}


def same(one: AttackResult, two: AttackResult) -> bool:
    return one.targeted == two.targeted and all(torch.equal(getattr(one, name), getattr(two, name)) for name in ROWS)


class Killed(BaseException):
    """Not an Exception, as a kill is none."""


class Killer(Silent):
    """Ends the work after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches
        self.begun_at = -1

    def start(self, stage: str, total: int, done: int = 0) -> None:
        self.begun_at = done

    def advance(self, units: int = 1) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


@pytest.mark.parametrize("kind", sorted(OBJECTIVES))
@pytest.mark.parametrize("batches", [1, 2])
def test_same_bits_after_a_kill(tmp_path: Path, kind: str, batches: int) -> None:
    given = arguments(target=OBJECTIVES[kind]())
    whole = run_attack(**given)
    with pytest.raises(Killed):
        attack_in_folder(tmp_path / "a", **given, progress=Killer(batches))
    watching = Killer(100)
    torch.manual_seed(batches)
    assert same(attack_in_folder(tmp_path / "a", **given, progress=watching), whole)
    assert watching.begun_at == 4 * batches
    assert same(attack_in_folder(tmp_path / "a", **given), whole)


def test_a_half_written_batch_is_made_again(tmp_path: Path) -> None:
    given = arguments()
    whole = attack_in_folder(tmp_path, **given)
    last = sorted(tmp_path.glob("rows-*"))[-1]
    last.rename(last.with_name(last.name + ".part"))
    assert same(attack_in_folder(tmp_path, **given), whole)


@pytest.mark.parametrize(
    "change",
    [
        {"attack": pgd(4)},
        {"threat": Threat("l2", 0.31)},
        {"key": Key.from_seed(77)},
        {"batch": 5},
        {"targeted": True},
        {"target": Plain(smooth_network(seed=9))},
        {"target": Smoothed(smooth_network(), 0.1, 2)},
        {"inputs": batch_of(11, seed=3)[0]},
        {"labels": batch_of(11, seed=3)[1]},
    ],
    ids=str,
)
def test_another_attack_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    attack_in_folder(tmp_path, **arguments())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunError, match="belongs to another attack"):
        attack_in_folder(tmp_path, **arguments(**change))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", [SETTINGS, "rows-000000004.safetensors"])
def test_broken_files(tmp_path: Path, name: str) -> None:
    attack_in_folder(tmp_path, **arguments())
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(RunError, match=r"broken|cannot be read"):
        attack_in_folder(tmp_path, **arguments())


def test_a_batch_of_another_attack_is_not_mixed_in(tmp_path: Path) -> None:
    attack_in_folder(tmp_path / "a", **arguments())
    attack_in_folder(tmp_path / "b", **arguments(attack=fgsm()))
    name = "rows-000000004.safetensors"
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    with pytest.raises(RunError, match="belongs to another attack"):
        attack_in_folder(tmp_path / "a", **arguments())


def test_nothing_is_written_for_a_bad_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs targets"):
        attack_in_folder(tmp_path / "a", **arguments(labels=None, targeted=True))
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="holds other things"):
        attack_in_folder(tmp_path / "b", **arguments())


def test_nothing_to_attack(tmp_path: Path) -> None:
    inputs, labels = batch_of(0)
    assert len(attack_in_folder(tmp_path, **arguments(inputs=inputs, labels=labels))) == 0
