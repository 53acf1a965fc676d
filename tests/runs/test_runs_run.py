"""A run read back: only a finished one, only with the weights it made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from twinproof.errors import RunError
from twinproof.guarantee import Guarantee, Kind, Status
from twinproof.layers.networks import build_network
from twinproof.runs.layout import file_digests, read_run_json, update_run_json, write_run_json
from twinproof.runs.private_files import save_times
from twinproof.runs.run import Run

PRIVACY = Guarantee(
    Kind.PRIVACY, Status.PROVEN, "a promise", "a theorem", ("one", "two"), "", (("epsilon", 1.5), ("delta", 1e-5))
)
ROBUSTNESS = Guarantee(Kind.ROBUSTNESS, Status.NONE, "nothing", reason="not certified")


def _make(root: Path, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    model = build_network("mlp", (1, 4, 4), 3)
    save_file(model.state_dict(), root / "model.safetensors")
    record = {
        "state": "complete",
        "config": {"model": "mlp", "width": 1},
        "data": {"shape": [1, 4, 4], "classes": ["a", "b", "c"]},
        "guarantees": {"privacy": PRIVACY.as_dict(), "robustness": {"l2": ROBUSTNESS.as_dict()}},
        "privacy": {"epsilon": 1.5},
        "files": file_digests(root, ["model.safetensors"]),
    }
    write_run_json(root, {**record, **changes})
    return model


def test_a_run_gives_back_its_promises(tmp_path: Path) -> None:
    _make(tmp_path)
    run = Run.open(tmp_path)
    assert dict(run.guarantee.values) == dict(PRIVACY.values)  # JSON keeps no order
    assert replace(run.guarantee, values=PRIVACY.values) == PRIVACY
    assert run.robustness == {"l2": ROBUSTNESS}
    assert run.epsilon == 1.5
    assert run.layout.root == tmp_path


def test_a_run_is_shown_in_a_line(tmp_path: Path) -> None:
    _make(tmp_path)
    text = repr(Run.open(str(tmp_path)))
    assert text == f"Run({str(tmp_path)!r}, None, privacy proven, epsilon 1.5)"


@pytest.mark.parametrize("section", ["privacy", "robustness"])
def test_a_promise_without_a_theorem_is_named(tmp_path: Path, section: str) -> None:
    promise = {name: value for name, value in PRIVACY.as_dict().items() if name != "theorem"}
    _make(
        tmp_path,
        guarantees={"privacy": PRIVACY.as_dict(), "robustness": {}}
        | {section: promise if section == "privacy" else {"l2": promise}},
    )
    run = Run.open(tmp_path)
    with pytest.raises(RunError, match=r"run\.json is broken"):
        _ = run.guarantee, run.robustness


def test_a_run_without_privacy_has_no_epsilon(tmp_path: Path) -> None:
    _make(tmp_path, privacy=None)
    assert Run.open(tmp_path).epsilon is None


def test_how_long_training_took_is_the_owners(tmp_path: Path) -> None:
    _make(tmp_path, seconds=3.0)
    assert Run.open(tmp_path).training_seconds == 3.0, "a run of an earlier version"
    _make(tmp_path)
    assert Run.open(tmp_path).training_seconds is None, "a released run"
    (tmp_path / "private").mkdir()
    save_times(tmp_path / "private", finished="2026-01-01T00:00:00Z", seconds=2.00049)
    assert Run.open(tmp_path).training_seconds == 2.0


@pytest.mark.parametrize("state", ["training", None, "done"])
def test_an_unfinished_run_says_how_to_go_on(tmp_path: Path, state: str | None) -> None:
    _make(tmp_path, state=state)
    with pytest.raises(RunError, match="not finished") as refused:
        Run.open(tmp_path)
    assert "--resume" in refused.value.fix


def test_the_network_is_the_one_that_was_saved(tmp_path: Path) -> None:
    saved = _make(tmp_path)
    model = Run.open(tmp_path).model()
    x = torch.rand(5, 1, 4, 4)
    assert torch.equal(model(x), saved(x))
    assert not model.training


def _bound(content: bytes) -> Callable[[Path], object]:
    """Other content, with a digest that fits it."""

    def damage(root: Path) -> None:
        (root / WEIGHTS).write_bytes(content)
        update_run_json(root, files=[WEIGHTS])

    return damage


WEIGHTS = "model.safetensors"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (
        lambda root: (root / WEIGHTS).write_bytes((root / WEIGHTS).read_bytes()[:-1] + b"\7"),
        "not the ones this run made(.|\n)*verify",
    ),
    "missing": (lambda root: (root / WEIGHTS).unlink(), "weights of this run are missing"),
    "not bound by run.json": (lambda root: _make(root, files={}), "not the ones this run made"),
    **{f"{content[:12]!r}": (_bound(content), "do not fit the network") for content in (b"", b"no weights", b"\xff" * 100)},
    "of another network": (
        lambda root: update_run_json(root, data={**read_run_json(root)["data"], "classes": ["a", "b"]}),
        "do not fit the network",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_other_weights_are_refused(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    _make(tmp_path)
    damage(tmp_path)
    with pytest.raises(RunError, match=message):
        Run.open(tmp_path).model()
