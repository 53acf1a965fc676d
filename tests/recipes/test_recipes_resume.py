"""What is refused when a run is continued, and what a start never touches."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recipe_fixtures import interrupt
from recipe_fixtures import on_one_thread as on_one_thread
from small_runs import (
    RECORDS,
    STAYS_PRIVATE,
    announced_steps,
    blobs,
    ledger_lines,
    model_bytes,
    released,
    tiny,
    with_other_record,
    write_blobs,
)

from twinproof.auditing.verify import verify_run
from twinproof.data.record import fingerprint
from twinproof.errors import ConfigError, RunError, UserError
from twinproof.privacy import plan as plan_module
from twinproof.privacy.ledger import Entry
from twinproof.recipes.train import train
from twinproof.runs import private_files
from twinproof.runs.layout import exclusive
from twinproof.runs.reading import StepLine, read_lines


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "LEDGER_BLOCK", 2)


def interrupted(settings: dict[str, Any], root: Path) -> Path:
    interrupt(settings, root, steps=6)
    return root


def _tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return tiny(write_blobs(tmp_path / "data"))


@pytest.fixture
def root(settings: dict[str, Any], tmp_path: Path) -> Path:
    return interrupted(settings, tmp_path / "run")


def test_an_interrupted_run_resumes_without_settings(settings: dict[str, Any], root: Path, tmp_path: Path) -> None:
    whole = train(settings, tmp_path / "whole")
    assert model_bytes(train(None, root, resume=True).root) == model_bytes(whole.root)
    assert released(root) == released(whole.root)


OTHER: list[dict[str, Any]] = [
    {"noise_multiplier": 21.0},
    {"steps": 7},
    {"clip_norm": 0.2},
    {"learning_rate": 0.1},
    {"seed": 4},
    {"records": RECORDS + 1},
    {"recipe": "dpcert-gaussian"},
    {"delta": 1e-5},
    {"performance": {"physical_batch": 3}},
    {"averaging": 0.5},
    {"schedule": "cosine"},
]


@pytest.mark.parametrize("change", OTHER, ids=lambda change: next(iter(change)))
def test_other_settings_are_refused(settings: dict[str, Any], root: Path, change: dict[str, Any]) -> None:
    before = _tree(root)
    with pytest.raises(RunError, match=f"not the settings(.|\n)*{next(iter(change))}"):
        train(settings | change, root, resume=True)
    assert _tree(root) == before


REVERSED = {name: value[::-1] for name, value in blobs().items()}


@pytest.mark.parametrize(
    "arrays", [with_other_record(0), with_other_record(RECORDS - 1), REVERSED], ids=["first", "last", "order"]
)
def test_the_same_noise_is_never_put_on_other_records(root: Path, tmp_path: Path, arrays: Any) -> None:
    write_blobs(tmp_path / "data", arrays)
    steps = announced_steps(root)
    with pytest.raises(RunError, match="training records are not the ones"):
        train(None, root, resume=True)
    assert announced_steps(root) == steps


def test_a_planted_fingerprint_of_the_labels_alone_would_let_other_records_in(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above can fail: with a fingerprint that is blind to the inputs the changed data pass."""
    blind: Callable[..., str] = lambda split, key: fingerprint(type(split)(split.inputs * 0, split.labels), key)  # noqa: E731
    monkeypatch.setattr(private_files, "fingerprint", blind)
    fresh = interrupted(tiny(tmp_path / "data" / "blobs.npz"), tmp_path / "fresh")
    arrays = with_other_record(0)
    arrays["y_train"][0] = 0
    write_blobs(tmp_path / "data", arrays)
    assert train(None, fresh, resume=True).record["state"] == "complete"


def _rehashed(lines: list[dict[str, Any]]) -> bytes:
    """A ledger with an unbroken chain over these lines, as a careful forger would write it."""
    content, previous = b"", "0" * 64
    for index, line in enumerate(lines):
        entry = Entry(index, line["kind"], line["body"], previous)
        content, previous = content + entry.line(), entry.hash
    return content


def edited(name: str, old: str, new: str) -> Callable[[Path], object]:
    """Something else in the place of ``old`` in the file ``name``."""

    def damage(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new))

    return damage


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(content)


def shortened(keep: int) -> Callable[[Path], object]:
    return lambda root: (root / "ledger.jsonl").write_bytes(_rehashed(ledger_lines(root)[:keep]))


KEY, LEDGER, CHECKPOINT = "private/key", "ledger.jsonl", "private/checkpoint.safetensors"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "edited settings": (
        edited("run.json", '"noise_multiplier": 20.0', '"noise_multiplier": 30.0'),
        "ledger was not opened for the settings",
    ),
    "no key": (lambda root: (root / KEY).unlink(), r"noise key(.|\n)*start a new run"),
    **{f"the key {content!r}": (written(KEY, content), "noise key") for content in (b"", b"not hexadecimal", b"00ff")},
    "an edited ledger": (edited(LEDGER, '"noise_multiplier":20.0', '"noise_multiplier":90.0'), "chain is broken"),
    "no ledger": (lambda root: (root / LEDGER).unlink(), "ledger is missing"),
    **{f"a ledger of {keep} lines": (shortened(keep), "ledger") for keep in (0, 1)},
    **{
        f"the checkpoint {content!r}": (written(CHECKPOINT, content), "checkpoint cannot be read")
        for content in (b"", b"garbage", bytes(64))
    },
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_run_is_refused(root: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(root)
    with pytest.raises(RunError, match=message):
        train(None, root, resume=True)


@pytest.mark.parametrize("steps", [5, 6])
def test_a_shortened_ledger_with_a_sound_chain_is_refused(settings: dict[str, Any], tmp_path: Path, steps: int) -> None:
    """It would announce too few steps; after the last step nothing would ever announce them again."""
    settings = settings | {"steps": 6, "performance": {"device": "cpu", "checkpoint_every": 1}}
    root = interrupted(settings, tmp_path / "run")
    lines = ledger_lines(root)
    (root / "ledger.jsonl").write_bytes(_rehashed(lines[: len(lines) - (steps - 4)]))
    with pytest.raises(RunError, match="older than the checkpoint"):
        train(None, root, resume=True)


@pytest.mark.parametrize("change", [{"learning_rate": 0.25}, {"seed": 9}, {"seed": None}], ids=str)
def test_a_foreign_checkpoint_is_refused(settings: dict[str, Any], tmp_path: Path, change: dict[str, Any]) -> None:
    """Of other settings, and of a run that differs in its key alone."""
    plain = settings | ({"seed": None} if change == {"seed": None} else {})
    root = interrupted(plain, tmp_path / "run")
    other = interrupted(plain | change, tmp_path / "other")
    shutil.copyfile(other / CHECKPOINT, root / CHECKPOINT)
    with pytest.raises(RunError, match="checkpoint belongs to another run"):
        train(None, root, resume=True)


def test_a_complete_run_is_left_as_it_is(settings: dict[str, Any], root: Path) -> None:
    train(None, root, resume=True)
    before = _tree(root)
    for again in (None, settings):
        assert train(again, root, resume=True).record["state"] == "complete"
        assert _tree(root) == before
    with pytest.raises(RunError, match=r"not the settings(.|\n)*steps"):
        train(settings | {"steps": 60}, root, resume=True)
    with pytest.raises(RunError, match="a run in this directory already"):
        train(settings, root)
    assert _tree(root) == before


def test_a_complete_run_of_a_recipe_without_privacy_takes_its_settings_again(settings: dict[str, Any], tmp_path: Path) -> None:
    plain = settings | {"recipe": "regular"}
    before = _tree(train(plain, tmp_path / "plain").root)
    train(plain, tmp_path / "plain", resume=True)
    assert _tree(tmp_path / "plain") == before


def test_resume_starts_a_run_that_is_not_there(settings: dict[str, Any], tmp_path: Path) -> None:
    assert verify_run(train(settings, tmp_path / "new" / "run", resume=True).root).ok


def test_nothing_to_resume_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing to resume"):
        train(None, tmp_path / "nowhere", resume=True)
    assert not (tmp_path / "nowhere").exists()


def test_the_secrets_go_when_training_ends(settings: dict[str, Any], root: Path) -> None:
    private = root / "private"
    assert {"key", "checkpoint.safetensors"} <= {path.name for path in private.iterdir()}
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((private / "key").stat().st_mode) == 0o600
    key = (private / "key").read_bytes()
    train(None, root, resume=True)
    assert {path.name for path in private.iterdir()} == STAYS_PRIVATE
    assert not any(key in content for content in _tree(root).values())


FOREIGN: dict[str, dict[str, str]] = {
    "a stranger": {"thesis.tex": "mine"},
    "a stranger beside our names": {"ledger.jsonl": "", "notes.txt": "mine"},
    "somebody's private folder": {"private/diary.txt": "mine"},
    "somebody's key": {"private/key": "mine", "private/diary.txt": "mine"},
    "somebody's nested folder": {"private/key/deep.txt": "mine"},
    "somebody's ledger": {"ledger.jsonl": "2026-01-01 bread 3.20\n"},
    "a folder of a file's name": {"ledger.jsonl/page.txt": "mine"},
    "a file named private": {"private": "mine"},
    "a model": {"model.safetensors": "mine"},
}


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("resume", [False, True])
def test_a_foreign_directory_is_never_touched(
    settings: dict[str, Any], tmp_path: Path, files: dict[str, str], resume: bool
) -> None:
    folder = tmp_path / "home"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = _tree(folder)
    with pytest.raises(RunError):
        train(settings, folder, resume=resume)
    assert _tree(folder) == before


BEGUN = ("checkpoint.safetensors", "diagnostics.jsonl", "passes.json")  # what only a run that draws has in private/


def test_a_begun_run_without_run_json_is_not_started_again(settings: dict[str, Any], root: Path) -> None:
    """Its ledger counts steps that were spent; starting anew in its place would forget them."""
    for name in ("run.json", "metrics.jsonl", *(f"private/{name}" for name in BEGUN)):
        (root / name).unlink()
    before = _tree(root)
    with pytest.raises(RunError, match="counts steps"):
        train(settings, root, resume=True)
    assert _tree(root) == before


def test_a_file_in_place_of_the_directory_is_an_error(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for resume in (False, True):
        with pytest.raises(RunError, match="not a directory"):
            train(settings, tmp_path / "file", resume=resume)
        with pytest.raises(RunError, match="directory cannot be made"):
            train(settings, tmp_path / "file" / "below", resume=resume)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": RECORDS + 1}, "larger than the data set"),
    ({"delta": 0.5}, "delta is too large"),
    ({"model": "tramer-boneh-cnn"}, "does not fit the input"),
    ({"model": "resnet"}, "no such network"),
    ({"clip_norm": 1e-200}, "clip_norm"),
    ({"data": {"source": "nowhere.npz"}}, "nothing at this path"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_writes_nothing(settings: dict[str, Any], tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(settings | change, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_absent_gpu_writes_nothing(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU"):
        train(settings | {"performance": {"device": "cuda"}}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_resumes_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_blobs(tmp_path / "data")
    monkeypatch.chdir(tmp_path / "data")
    root = interrupted(tiny("blobs.npz"), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert train(None, root, resume=True).record["config"]["data"]["source"] == "blobs.npz"


def test_a_run_that_another_process_works_on_is_not_touched(root: Path) -> None:
    before = _tree(root)
    with exclusive(root), pytest.raises(RunError, match="another process is working"):
        train(None, root, resume=True)
    assert _tree(root) == before


def test_steps_taken_again_are_diagnosed_once(root: Path) -> None:
    done = train(None, root, resume=True)
    steps = [line["step"] for line in read_lines(done.layout.private / "diagnostics.jsonl", StepLine)]
    assert steps == list(range(done.record["config"]["steps"]))
