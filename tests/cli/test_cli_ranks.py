"""``torchrun --nproc-per-node N -m twinproof``: one answer, one error, and the certificates of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from twinproof.cli.ranks import bars_of, launched_ranks, leave
from twinproof.compute.ranks import ALONE
from twinproof.progress import Silent

TRAIN = [
    *("train", "--data", "digits", "--recipe", "dpcert-gaussian", "--sigma", "0.25"),
    *("--delta", "1e-4", "--seed", "3", "--device", "cpu"),
]
SMALL = [word for pair in ("steps=200", "batch_size=100", "noise_multiplier=2.0", "model=mlp") for word in ("--set", pair)]
EVERY = ["--set", "performance.checkpoint_every=5"]


def command(world: int, *arguments: object) -> list[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), "-m", "--", "twinproof"]
    return [sys.executable, *(launch if world else ["-m", "twinproof"]), *map(str, arguments)]


def environment() -> dict[str, str]:
    # Without GPUs: there may be fewer of them than ranks.
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def call(world: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(world, *arguments), capture_output=True, text=True, env=environment(), timeout=120)


def answer(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


def test_without_a_launcher_a_verb_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with launched_ranks(as_json=False) as ranks:
        assert ranks is ALONE
        with bars_of(ranks) as bars:
            assert not isinstance(bars, Silent)


def test_a_rank_is_not_taken_apart_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's threads do then aborts one process in ten, after its work is done."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):  # what follows where the stand-in lets it go on
        leave(3)
    monkeypatch.delenv("RANK")
    with pytest.raises(SystemExit) as alone:
        leave(4)
    assert (ended, alone.value.code) == ([3], 4)


@pytest.mark.slow
def test_the_list_of_experiments_is_told_once(tmp_path: Path) -> None:
    listed = call(2, "reproduce", "--list", "--json", "--data-root", tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert len(answer(listed.stdout)["experiments"]) > 1, "one object on stdout"


@pytest.mark.slow
def test_train_and_certify_by_two_ranks(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    few = [word.replace("steps=200", "steps=8") for word in SMALL]
    for world, root in ((0, one), (2, two)):
        trained = call(world, *TRAIN, *few, "--out", root, "--json")
        assert trained.returncode == 0, trained.stderr
        assert answer(trained.stdout)["run"] == str(root), "one object on stdout"
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    certified = call(2, "certify", two, "--n", 100, "--n0", 10, "--alpha", 0.01, "--limit", 20, "--device", "cpu", "--json")
    assert certified.returncode == 0, certified.stderr
    assert answer(certified.stdout)["n"] == 100
    again = call(2, *TRAIN, *few, "--out", two, "--json")
    assert again.returncode != 0
    assert answer(again.stdout)["error"]["what"] == "there is a run in this directory already", "one error on stdout"


@pytest.mark.slow
def test_a_killed_rank_ends_the_command_with_one_clear_error(tmp_path: Path) -> None:
    root = tmp_path / "run"
    _kill_a_rank((*TRAIN, *SMALL, *EVERY, "--out", root), (root / "private" / "checkpoint.safetensors").exists)
    assert json.loads((root / "run.json").read_text())["state"] == "training"
    resumed = call(0, "train", "--out", root, "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr


def _kill_a_rank(arguments: Iterable[object], is_time: Callable[[], bool]) -> None:
    """Rank 1 of two is killed as soon as ``is_time``; the other has to end within 30 seconds, with one error that names it."""
    given = command(2, *arguments)
    running = subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        while not is_time():
            assert running.poll() is None
            time.sleep(0.02)
        os.kill(_rank_process(running.pid, 1), signal.SIGKILL)
        began = time.monotonic()
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert time.monotonic() - began < 30
    assert running.returncode != 0
    assert errors.count("error: a rank was lost") == 1
    assert "where: rank 1" in errors


def _rank_process(parent: int, rank: int) -> int:
    """The process of a rank among the children of ``parent``, which this test started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, variables = (folder / "status").read_text(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"PPid:\t{parent}\n" in status and f"RANK={rank}".encode() in variables.split(b"\0"):
            return int(folder.name)
    raise LookupError(f"rank {rank} is not there")


@pytest.mark.slow
def test_reproduce_by_two_ranks_of_which_one_is_killed(tmp_path: Path) -> None:
    """In the middle of a model, where nobody waits for the other; the same command then makes what is missing."""
    table = ["reproduce", "dpcert-table2", "--quick", "--seeds", 1, "--methods", "regular,gaussian", "--limit", 5]
    table += ["--epochs", 2, "--device", "cpu", "--out", tmp_path]
    _kill_a_rank(table, lambda: len(list((tmp_path / "cells").glob("*/run/run.json"))) == 2)
    kept = {path: path.read_bytes() for path in (tmp_path / "cells").glob("*/cell.json")}
    again = call(2, *table, "--json")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [one["processes"] for one in answer(again.stdout)["made_in"]][-1] == 2
    assert all(path.read_bytes() == content for path, content in kept.items()), "what was finished is not made again"
