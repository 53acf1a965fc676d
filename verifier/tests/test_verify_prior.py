"""The weights that a run says it started from: those of the package, or verify says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synthetic_run import forge_run, write_run
from twinproof_verify import verify as verify_run
from twinproof_verify.promises import PRIOR_SHA256, prior_problems

SHA256 = PRIOR_SHA256["gelu-cnn"]
HONEST: dict[str, Any] = {
    "config": {"prior": "figures", "model": "gelu-cnn"},
    "prior": {"name": "figures", "sha256": SHA256},
}


@pytest.mark.parametrize(
    "run",
    [{}, {"config": {}}, {"config": {"prior": "none"}}, HONEST],
    ids=["nothing", "before the setting", "random", "figures"],
)
def test_what_runs_say_now_and_said_before_passes(run: dict[str, Any]) -> None:
    assert list(prior_problems(run)) == []


LIES: list[tuple[dict[str, Any], str]] = [
    ({"prior": ...}, "not the one of config"),
    ({"config": {}}, "started at random"),
    ({"config": {"prior": "none"}}, "started at random"),
    ({"prior": {"name": "photographs", "sha256": SHA256}}, "not the one of config"),
    ({"prior": "figures"}, "not the one of config"),
    ({"prior": None}, "not the one of config"),
    ({"prior": {"name": "figures", "sha256": "0" * 64}}, "not those of this version"),
    ({"config": {"prior": "figures", "model": "interval-cnn"}}, "not those of this version"),
    ({"config": {"prior": "figures", "model": "mlp"}}, "not those of this version"),
    ({"prior": {"name": "figures"}}, "not the one of config"),
]


@pytest.mark.parametrize(("change", "what"), LIES, ids=[str(number) for number in range(len(LIES))])
def test_a_lie_about_the_start_is_found(change: dict[str, Any], what: str) -> None:
    run = {name: value for name, value in (HONEST | change).items() if value is not ...}
    (problem,) = prior_problems(run)
    assert what in problem.what
    assert problem.file == "run.json"


def test_verify_asks(tmp_path: Path) -> None:
    root = tmp_path / "run"
    write_run(root)
    forge_run(lambda run: run.update(prior={"name": "figures", "sha256": "0" * 64}))(root)
    assert [problem.what for problem in verify_run(root).problems] == ["prior is stated for a run that started at random"]
