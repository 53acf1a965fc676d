"""The fuzz of the loaders in short, and that it notices a loader with a hole, one that is slow, and one that takes too much."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import benchmarks_path
import pytest

from twinproof.data import arrays as npz
from twinproof.data import load as own_files
from twinproof.data import table
from twinproof.data.images import read_cifar10

load_module = sys.modules["twinproof.data.load"]  # the package's attribute of that name is the function
fuzz = pytest.importorskip("fuzz_data", reason=f"not found in {benchmarks_path.BENCHMARKS}")


@pytest.fixture(scope="module")
def damage() -> Any:
    return fuzz.Damage()


@pytest.fixture(autouse=True)
def _whole_reader_afterwards() -> Iterator[None]:
    yield
    vars(own_files)["read_cifar10"] = read_cifar10


def outcomes(damage: Any, numbers: range, folder: Path) -> Counter[str]:
    fuzz.small_cifar10()
    return Counter(fuzz.try_file(fuzz.damaged(damage, number, 7), number, folder / "data").outcome for number in numbers)


def test_damaged_files_end_in_a_data_set_or_one_error(damage: Any, tmp_path: Path) -> None:
    found = outcomes(damage, range(600), tmp_path)
    assert set(found) == {"loaded", "refused"}, found
    assert found["loaded"] > 40


@contextmanager
def open_door(*_: object, **__: object) -> Iterator[None]:
    yield


def test_a_loader_that_lets_errors_through_is_caught(damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (load_module, npz, table):
        monkeypatch.setattr(module, "reading", open_door)
    found = outcomes(damage, range(0, 300, len(fuzz.FORMS)), tmp_path)
    assert found["traceback"] > 5


def test_a_slow_loader_and_a_large_one_are_caught(damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    with monkeypatch.context() as slow:
        slow.setattr(fuzz, "load", lambda *_, **__: time.sleep(5))
        assert outcomes(damage, range(2), tmp_path) == {"slow": 2}
    with monkeypatch.context() as large:
        peaks = iter([1, 3 * 10**9, 3 * 10**9, 3 * 10**9])
        large.setattr(fuzz, "_peak", lambda: next(peaks))
        found = [fuzz.try_file(fuzz.damaged(damage, 0, 7), 0, tmp_path / "data").outcome for _ in range(2)]
        assert found[0] == "large"
        assert found[1] in fuzz.GOOD, "the memory of an earlier file"


def test_commands_end_with_one_message(damage: Any, tmp_path: Path) -> None:
    """Without pyarrow in this process's forks: tables are for the long form."""
    for number in (0, 4, 6, 10):
        outcome = fuzz.command(fuzz.damaged(damage, number, 7), number, tmp_path / str(number))
        assert outcome.outcome in fuzz.GOOD, outcome.detail


def test_a_command_with_a_traceback_is_caught(damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "reading", open_door)
    monkeypatch.setattr(load_module, "reading", open_door)
    sample = fuzz.Sample("npz", {b"a.npz": b"PK"}, "a.npz")
    assert fuzz.command(sample, 0, tmp_path).outcome == "traceback"


def test_a_process_that_dies_costs_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process of the long form is started again behind the file that killed it."""
    script = tmp_path / "dies.py"
    script.write_text(
        "import json, os, sys\n"
        "first, last = map(int, sys.argv[-2:])\n"
        "for number in range(first, last):\n"
        "    if number == 3:\n"
        "        os.abort()\n"
        "    row = dict(number=number, form='npz', outcome='refused', detail='', seconds=0.0, megabytes=0.0)\n"
        "    print(json.dumps(row), flush=True)\n"
    )
    monkeypatch.setattr(fuzz, "__file__", os.fspath(script))
    found = list(fuzz.outcomes("worker", 0, 6, 0))
    assert [(o.number, o.outcome) for o in found if o.outcome != "refused"] == [(3, "crash")]
    assert len(found) == 6
    assert fuzz.summary(found)["failures"][0]["number"] == 3
