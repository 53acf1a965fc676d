"""Forks of tests wait for threads that are at work or ending, and for nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from quiet_fork import fork, wait_for_threads

TASKS = Path("/proc/self/task")
pytestmark = pytest.mark.skipif(not TASKS.exists(), reason="this system has no list of the threads of a process")


def _task(tasks: Path, name: str, state: str) -> None:
    (tasks / name).mkdir(exist_ok=True)
    (tasks / name / "stat").write_text(f"{name} (a ) name) {state} 1 2 3\n")


def test_a_thread_at_work_is_waited_for() -> None:
    ends = time.monotonic() + 0.3

    def work() -> None:
        while time.monotonic() < ends:
            hashlib.sha256(bytes(1 << 22))  # outside of Python's lock, as MKL's threads are

    threading.Thread(target=work).start()
    wait_for_threads()
    assert time.monotonic() >= ends


def test_a_sleeping_thread_is_not_waited_for() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    wait_for_threads()
    assert thread.is_alive()
    over.set()
    thread.join()


def test_a_thread_that_comes_or_goes_begins_the_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _task(tmp_path, "1", "S")
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            _task(tmp_path, "2", "S")
        if len(looks) == 4:
            _task(tmp_path, "2", "R")
        if len(looks) == 5:
            _task(tmp_path, "2", "S")

    monkeypatch.setattr("quiet_fork.time.sleep", sleep)
    wait_for_threads(tmp_path)
    assert len(looks) == 7, "two that sleep are seen from the sixth look on, and thrice"


def test_a_thread_that_has_ended_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _task(tmp_path, "1", "R")
    monkeypatch.setattr("quiet_fork.time.sleep", lambda _seconds: shutil.rmtree(tmp_path / "1"))
    wait_for_threads(tmp_path)


def test_threads_that_never_rest_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _task(tmp_path, "7", "R")
    monkeypatch.setattr("quiet_fork._LONGEST", 0.05)
    with pytest.raises(AssertionError, match=r"do not come to rest: \{'7': 'R'\}"):
        wait_for_threads(tmp_path)


def test_a_forked_child_is_one() -> None:
    child = fork()
    if child == 0:
        os._exit(7)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 7
