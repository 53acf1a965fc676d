"""What a party remembers of its answers, in memory and on the disk."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from twinproof.errors import RunError
from twinproof.federated import party as answered_module
from twinproof.federated.party import AnsweredSteps

AGREEMENT = "ab" * 32


def memory(folder: Path | None, records: str = "mine") -> AnsweredSteps:
    return AnsweredSteps("north", AGREEMENT, records, folder)


def test_steps_only_go_up_and_weights_stay(tmp_path: Path) -> None:
    for found in (memory(None), memory(tmp_path / "memory")):
        for step, digest in ((0, "a"), (0, "a"), (4, "b")):
            found.take(step, digest)
        for step, digest in ((4, "c"), (3, "b"), (0, "a")):
            with pytest.raises(RunError, match=r"again with other weights(.|\n)*party north"):
                found.take(step, digest)
        found.take(4, "b")


def test_the_memory_outlives_the_process(tmp_path: Path) -> None:
    memory(tmp_path / "memory").take(4, "b")
    assert stat.S_IMODE((tmp_path / "memory").stat().st_mode) == 0o700
    with pytest.raises(RunError, match="again with other weights"):
        memory(tmp_path / "memory").take(4, "c")
    with pytest.raises(RunError, match="other records or another key"):
        memory(tmp_path / "memory", records="others")
    AnsweredSteps("north", "cd" * 32, "others", tmp_path / "memory").take(0, "c")


def test_two_parties_with_one_memory_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower may have an old process of a party beside a new one. Planted: a memory that is read once."""
    old, new = memory(tmp_path), memory(tmp_path)
    new.take(7, "x")
    for step, digest in ((7, "y"), (4, "y")):
        with pytest.raises(RunError, match="again with other weights"):
            old.take(step, digest)
    old.take(8, "z")
    with pytest.raises(RunError, match="again with other weights"):
        memory(tmp_path).take(7, "x")
    with monkeypatch.context() as planted:
        planted.setattr(AnsweredSteps, "_read", lambda self: None)
        new.take(8, "another")


def test_one_memory_for_two_sets_of_records_is_refused_at_the_answer(tmp_path: Path) -> None:
    mine, others = memory(tmp_path), memory(tmp_path, records="others")
    mine.take(0, "a")
    with pytest.raises(RunError, match="other records or another key"):
        others.take(1, "b")


def test_parties_that_answer_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """Of many that take one step, each for other weights, one may."""

    def taken(number: int) -> bool:
        try:
            memory(tmp_path).take(3, str(number))
        except RunError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(taken, range(40))) == 1


def test_a_memory_that_is_no_folder_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError, match="directory cannot be made"):
            memory(place)


def test_a_step_is_on_the_disk_before_it_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full: then nothing is answered, and nothing is taken for answered."""

    def full(path: Path, value: object) -> None:
        raise OSError("no space left")

    found = memory(tmp_path)
    monkeypatch.setattr(answered_module, "write_json", full)
    with pytest.raises(RunError, match=r"cannot write down what it answers(.|\n)*no space left"):
        found.take(0, "a")
    monkeypatch.undo()
    found.take(0, "b")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"records": "mine", "step": "x", "weights_sha256": ""}'])
def test_a_broken_memory_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / f"answered-{AGREEMENT}.json").write_text(content)
    with pytest.raises(RunError, match="cannot be read"):
        memory(tmp_path)
