"""An honest run passes; every planted lie is caught, and the problem names the file it was told in."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from planted_lies import LIES, Apply, Lie
from synthetic_run import BLOCKS, INPUTS, epsilons, forge_cell, forge_ledger, forge_lines, forge_run, sha256, write_run
from twinproof_verify import VerifyError as RunError
from twinproof_verify import verify as verify_run

PLD, RDP = epsilons(sum(BLOCKS))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("certified", [True, False])
@pytest.mark.parametrize("private", [True, False])
def test_an_honest_run_passes(tmp_path: Path, private: bool, certified: bool) -> None:
    root = tmp_path / "run"
    write_run(root, private=private, certified=certified)
    result = verify_run(root)
    assert result.problems == ()
    assert result.ok
    assert all(check.passed for check in result.checks)
    assert result.certificates == (INPUTS if certified else 0)
    assert (result.epsilon, result.epsilon_rdp) == ((PLD, RDP) if private else (None, None))
    assert result.delta == 1e-5
    assert json.loads(json.dumps(result.as_dict()))["ok"] is True


def test_a_run_that_says_how_long_training_took_still_passes(root: Path) -> None:
    """Earlier versions wrote it; what they wrote must be sound."""
    forge_run(lambda run: run.update(finished="2026-01-01T00:01:00Z", seconds=60.0))(root)
    assert verify_run(root).ok
    forge_run(lambda run: run.update(finished="later", seconds=-1.0))(root)
    assert sorted(problem.what.split()[0] for problem in verify_run(root).problems) == ["finished", "seconds"]


def test_a_released_run_has_no_private_folder_and_still_passes(root: Path) -> None:
    (root / "private" / "fingerprint.json").unlink()
    (root / "private").rmdir()
    assert verify_run(root).ok


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name.replace(" ", "-"))
def test_a_lie_is_caught_where_it_was_told(root: Path, lie: Lie) -> None:
    lie.apply(root)
    result = verify_run(root)
    told = [problem for problem in result.problems if problem.file == lie.file and lie.what in problem.what]
    assert told, result.problems
    assert not result.ok
    assert not all(check.passed for check in result.checks)
    assert json.loads(json.dumps(result.as_dict()))["ok"] is False


UNPRIVATE_LIES = [
    ("proven", forge_run(lambda r: r["guarantees"]["privacy"].update(status="proven")), "run.json", "no privacy"),
    ("published", forge_run(lambda r: r["guarantees"]["privacy"].update(status="published")), "run.json", "no privacy"),
    ("epsilon", forge_ledger(lambda s: s[-1][1].update(epsilon=1.0)), "ledger.jsonl", "without any spending"),
    (
        "metrics",
        forge_lines("metrics.jsonl", lambda t: t.__setitem__(0, t[0].replace("null", "1"))),
        "metrics.jsonl",
        "does not fit",
    ),
]


@pytest.mark.parametrize(("apply", "file", "what"), [lie[1:] for lie in UNPRIVATE_LIES], ids=[lie[0] for lie in UNPRIVATE_LIES])
def test_a_recipe_without_privacy_promises_none(tmp_path: Path, apply: Apply, file: str, what: str) -> None:
    root = tmp_path / "run"
    write_run(root, private=False)
    apply(root)
    assert any(problem.file == file and what in problem.what for problem in verify_run(root).problems)


def test_a_seeded_run_may_say_none(root: Path) -> None:
    forge_run(lambda run: run["config"].update(seed=7))(root)
    forge_run(lambda run: run["guarantees"]["privacy"].update(status="none"))(root)
    config = json.loads((root / "run.json").read_text())["config"]
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    forge_ledger(lambda story: story[0][1].update(config_sha256=sha256(text.encode())))(root)
    assert verify_run(root).problems == ()


def test_every_lie_is_reported_not_only_the_first(root: Path) -> None:
    forge_cell(0, 5, "9.000000")(root)
    forge_run(lambda run: run["privacy"].update(delta=0.1))(root)
    (root / "private").chmod(0o755)
    assert {"certificates.csv", "run.json", "private"} <= {problem.file for problem in verify_run(root).problems}


def test_a_flood_of_wrong_lines_is_counted_not_listed(root: Path) -> None:
    forge_lines("certificates.csv", lambda lines: lines.__setitem__(slice(1, None), ["x\n"] * 500))(root)
    problems = [problem for problem in verify_run(root).problems if problem.file == "certificates.csv"]
    assert len(problems) < 30
    assert any("480 more lines" in problem.what for problem in problems)


def test_a_pipe_in_place_of_a_file_does_not_block(root: Path) -> None:
    (root / "ledger.jsonl").unlink()
    os.mkfifo(root / "ledger.jsonl")
    assert any(problem.file == "ledger.jsonl" for problem in verify_run(root).problems)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("")])
def test_what_is_no_run_directory_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "run")
    with pytest.raises(RunError, match="not a run directory"):
        verify_run(tmp_path / "run")


def test_an_infinite_epsilon_is_reported_in_valid_json(root: Path) -> None:
    forge_ledger(lambda story: story[2][1].update(noise_multiplier=0.2, sample_rate=1.0, steps=1000))(root)
    result = verify_run(root)
    assert result.epsilon == math.inf
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["epsilon"] is None
    assert any("no finite epsilon" in problem.what for problem in result.problems)
