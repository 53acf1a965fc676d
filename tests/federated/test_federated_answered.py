"""What a party remembers of its answers, in memory and on the disk."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from twinproof.errors import RunError
from twinproof.federated import answered as answered_module
from twinproof.federated.answered import AnsweredSteps

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
