"""The fuzz of run files, in short: some hundred mutated runs through every reader, and a planted reader that is caught."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import benchmarks_path  # noqa: F401 (makes the folder importable)
import pytest

import fuzz_runs
from run_mutations import mutate, mutate_json, mutate_lines, mutate_table, mutate_tensors
from twinproof.files import LARGEST_RECORD, read_bounded

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the command line is tried in forked processes")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    with fuzz_runs._nothing_twice():
        made = fuzz_runs.make_seeds(tmp_path_factory.mktemp("seeds"))
        yield {name: made[name] for name in ("whole", "unfinished")}


def test_mutated_runs_are_answered_or_refused(seeds: dict[str, Path]) -> None:
    tally = fuzz_runs._share(seeds, range(80), 27, 7)
    assert tally.problems == []
    assert {verb: sum(ends.values()) for verb, ends in tally.ends.items()} == dict.fromkeys(fuzz_runs.READERS, 80)
    assert all(ends["read"] > 3 and ends["RunError"] > 3 for ends in tally.ends.values()), tally.ends


def test_a_reader_that_trusts_is_caught(seeds: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: what is read is indexed without a look at it."""

    def trusting(root: Path) -> None:
        record = json.loads(read_bounded(root / "run.json", LARGEST_RECORD))
        float(record["config"]["sigma"] or 0), tuple(record["data"]["shape"])

    monkeypatch.setattr(fuzz_runs, "READERS", {"trusting": trusting})
    tally = fuzz_runs._share(seeds, range(400), 0, 7)
    assert any("KeyError" in problem["what"] or "TypeError" in problem["what"] for problem in tally.problems)


def test_a_reader_that_takes_too_long_is_caught(seeds: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(root: Path) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzz_runs, "READERS", {"endless": endless})
    monkeypatch.setattr(fuzz_runs, "SECONDS", 0.05)
    assert [problem["what"] for problem in fuzz_runs._share(seeds, range(1), 0, 7).problems] == ["over 0.05 s"]


def test_a_reader_that_takes_too_much_is_caught(seeds: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the one that raises the peak: others of this process may have been larger, and are not the next run's fault."""
    peak = fuzz_runs._peak()
    tally = fuzz_runs.Tally(largest=peak)
    monkeypatch.setattr(fuzz_runs, "BYTES", 10**6)
    for used in (peak, peak + 1, peak + 1):
        tally.memory("verify", f"{used}", used)
    assert [problem["what"] for problem in tally.problems] == [f"{peak + 1} bytes"]


def test_mutations_are_repeatable_and_change_something(seeds: dict[str, Path], tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        root = Path(shutil.copytree(seeds["whole"], tmp_path / name))
        contents.append((mutate(root, random.Random(11)), (root / "run.json").read_bytes()))
    assert contents[0] == contents[1]
    whole = seeds["whole"]
    for file, change in (
        ("run.json", mutate_json),
        ("certificates/l2/certificates.csv", mutate_table),
        ("model.safetensors", mutate_tensors),
        ("ledger.jsonl", lambda content, dice: mutate_lines(content, dice, chained=True)),
    ):
        content = (whole / file).read_bytes()
        assert sum(change(content, random.Random(number)) != content for number in range(20)) >= 12
