"""Work on a run: resumed to the byte, refused without harm, bound only when it is complete, one process at a time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interruption import StopAfter
from rank_processes import quick_to_part, run_ranks
from twinproof.certification.method import CertificateSettings, read_certificate_settings
from twinproof.compute.ranks import Ranks
from twinproof.data.record import Split
from twinproof.errors import ConfigError, RunError
from twinproof.files import sha256_file
from twinproof.guarantee import Guarantee, Kind, Status
from twinproof.keys import Key
from twinproof.runs import work
from twinproof.runs.layout import exclusive, read_run_json, update_run_json, write_run_json
from twinproof.runs.records import ATTACKS, AUDITS, CERTIFICATES, WORKING, check_name, default_name, evidence, json_file
from twinproof.runs.work import How, Place, Work, begun
from work_settings import CERTIFICATES as FINISHED
from work_settings import changed

SETTINGS = replace(FINISHED, state=WORKING)
RECORDS = Split(np.zeros((5, 2), dtype=np.uint8), np.zeros(5, dtype=np.int64))
OTHER_RECORDS = Split(np.ones((5, 2), dtype=np.uint8), np.zeros(5, dtype=np.int64))
SIZES = {"0.txt": 2, "2.txt": 2, "4.txt": 1}
KEY = Key(bytes.fromhex(SETTINGS.key))
PROMISE = Guarantee(Kind.ROBUSTNESS, Status.PROVEN, "a promise")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a").write_text("kept")
    record = {"state": "complete", "guarantees": {"privacy": {"status": "none"}, "robustness": {}}}
    write_run_json(folder, {**record, "files": {"a": {"sha256": sha256_file(folder / "a")}}})
    return folder


def do(
    root: Path, settings: CertificateSettings = SETTINGS, *, kind: str = CERTIFICATES, records: Split = RECORDS, **how: Any
) -> Work[CertificateSettings]:
    """Work whose content is the key and the deviation of its settings, three batches."""
    place = Place(root, kind, how.pop("name", "l2"))

    def prepare(earlier: CertificateSettings | None, key: Key) -> CertificateSettings:
        return replace(settings, key=key.secret.hex())

    with begun(
        place, CertificateSettings, prepare, read_certificate_settings, records=records, how=How(**{"key": KEY, **how})
    ) as made:
        if not made.complete:
            asked = made.settings
            content = [
                content
                for _, content in made.batches(
                    "working", SIZES, lambda name: f"{name} {asked.key} {asked.noise.sigma}\n".encode()
                )
            ]
            done = made.completed(asked, 1.0)
            files = {"certificates.csv": b"".join(content), f"{kind}.json": json_file(done.as_dict())}
            made.finish(files, {place.name: PROMISE})
    return made


def content_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_finished_work_is_bound_with_its_promise_and_made_once(root: Path) -> None:
    assert do(root).made == 5
    record = read_run_json(root)
    names = ["a", "certificates/l2/certificates.csv", "certificates/l2/certificates.json"]
    assert record["files"] == {name: {"sha256": sha256_file(root / name)} for name in names}
    assert record["guarantees"] == {"privacy": {"status": "none"}, "robustness": {"l2": PROMISE.as_dict()}}
    assert not (root / "private" / "work").exists()
    assert (root / "private").stat().st_mode & 0o777 == 0o700
    before = content_of(root)
    again = do(root, key=None)
    assert (again.complete, again.made) == (True, 0)
    assert again.settings.state == "complete"
    assert content_of(root) == before


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_interrupted_work_is_resumed_to_the_same_bytes(root: Path, tmp_path: Path, batches: int) -> None:
    whole = Path(shutil.copytree(root, tmp_path / "whole"))
    do(whole)
    before = content_of(root)
    with pytest.raises(KeyboardInterrupt):
        do(root, progress=StopAfter(batches))
    assert {name: text for name, text in content_of(root).items() if not name.startswith("private/work/")} == before
    progress = StopAfter(-1)
    resumed = do(root, key=None, progress=progress)
    done = sum(list(SIZES.values())[:batches])
    assert (progress.started, resumed.made) == (("working", 5, done), 5 - done)
    assert content_of(root)["certificates/l2/certificates.csv"] == content_of(whole)["certificates/l2/certificates.csv"]


SAME: list[dict[str, Any]] = [{}, {"created": "2027-01-01T00:00:00Z"}, {"seconds": 3.0}, {"device": "cpu: x86_64, 8 threads"}]
ELSEWHERE: list[dict[str, Any]] = [
    {"device": "cuda: a GPU"},
    {"versions": {"torch": "2.11.0"}},
    {"arithmetic": "tf32"},
    {"form": "dense convolutions"},
]
OTHER: list[dict[str, Any]] = [
    {"sigma": 0.5},
    {"model_sha256": "1" * 64},
    {"n": 200},
    {"n0": 20},
    {"alpha": 0.01},
    {"inputs": 6},
    {"levels": 16},
    {"grid": 0.25},
    {"dimension": 5},
    {"tau": 2e-9},
    {"shared_noise": True},
    {"norm": "l1"},
    {"key": "cd" * 32},
]


@pytest.mark.parametrize(
    ("finished", "changes", "goes_on"),
    [
        *((finished, changes, True) for finished in (False, True) for changes in SAME),
        *((finished, changes, finished) for finished in (False, True) for changes in ELSEWHERE),
        *((finished, changes, False) for finished in (False, True) for changes in OTHER),
    ],
    ids=str,
)
def test_only_the_same_work_is_taken_up(root: Path, finished: bool, changes: dict[str, Any], goes_on: bool) -> None:
    """What is unfinished goes on only where its votes were drawn; what is finished stands wherever it was made."""
    if finished:
        do(root)
    else:
        with pytest.raises(KeyboardInterrupt):
            do(root, progress=StopAfter(1))
    before, wanted = content_of(root), changed(SETTINGS, **changes)
    key = Key(bytes.fromhex(wanted.key))
    if goes_on:
        assert do(root, wanted, key=key).settings.made.created == SETTINGS.made.created
        return
    with pytest.raises(RunError, match="other settings") as refused:
        do(root, wanted, key=key)
    assert next(iter(changes)) in refused.value.wanted
    assert "--overwrite" in refused.value.fix
    assert content_of(root) == before
    do(root, wanted, key=key, overwrite=True)
    assert read_certificate_settings(root / "certificates/l2/certificates.json").key == wanted.key


def test_other_test_records_are_refused_while_batches_are_missing(root: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        do(root, progress=StopAfter(1))
    before = content_of(root)
    with pytest.raises(RunError, match="test records are not the ones"):
        do(root, records=OTHER_RECORDS)
    assert content_of(root) == before


class Interruption(BaseException):
    """A kill, at a place of the test's choice."""


def interrupt(monkeypatch: pytest.MonkeyPatch, name: str, call: int) -> None:
    real: Callable[..., Any] = getattr(work, name)
    calls = iter(range(1, 100))

    def interrupted(*given: Any, **named: Any) -> Any:
        if next(calls) == call:
            raise Interruption
        return real(*given, **named)

    monkeypatch.setattr(work, name, interrupted)


def promises_what_it_binds(root: Path) -> bool:
    """Whether a promise comes with the digests of what is there."""
    record = read_run_json(root)
    files = {name: entry for name, entry in record["files"].items() if name.startswith("certificates/l2/")}
    same = len(files) == 2 and all(entry == {"sha256": sha256_file(root / name)} for name, entry in files.items())
    return same or "l2" not in record["guarantees"]["robustness"]


STEPS = [("_remove", 1), ("write_json", 1), ("write_atomic", 1), ("write_atomic", 3), ("write_atomic", 4), ("write_atomic", 5)]
STEPS += [("write_run_json", 1), ("write_run_json", 2), ("_remove", 2)]


@pytest.mark.parametrize(("name", "call"), STEPS)
def test_overwriting_killed_at_any_step_never_mixes_old_and_new(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    do(root, changed(SETTINGS, sigma=1.0))
    with monkeypatch.context() as patched:
        interrupt(patched, name, call)
        with pytest.raises(Interruption):
            do(root, overwrite=True)
    assert promises_what_it_binds(root)
    do(root, overwrite=(name, call) in STEPS[:2])  # before the new work had begun, the old one stands
    lines = (root / "certificates/l2/certificates.csv").read_text().splitlines()
    assert lines == [f"{batch} {SETTINGS.key} 0.25" for batch in SIZES]
    assert promises_what_it_binds(root)
    assert not (root / "private" / "work").exists()


def test_planted_writing_over_what_is_bound_is_caught(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    do(root, changed(SETTINGS, sigma=1.0))
    with monkeypatch.context() as patched:
        patched.setattr(Place, "bound", lambda place: {})
        interrupt(patched, "write_atomic", 5)
        with pytest.raises(Interruption):
            do(root, overwrite=True)
    assert not promises_what_it_binds(root)


def test_what_somebody_changed_is_not_bound_again(root: Path) -> None:
    do(root)
    path, bound = root / "certificates/l2/certificates.csv", read_run_json(root)["files"]
    path.write_text("changed")
    do(root)
    assert read_run_json(root)["files"] == bound


def test_names_stand_beside_each_other(root: Path) -> None:
    do(root)
    do(root, changed(SETTINGS, sigma=0.5), name="wide")
    assert evidence(root, CERTIFICATES).keys() == {"l2", "wide"}
    wide = (root / "certificates/wide/certificates.csv").read_bytes()
    do(root, changed(SETTINGS, sigma=2.0), overwrite=True)
    assert (root / "certificates/wide/certificates.csv").read_bytes() == wide
    assert read_run_json(root)["guarantees"]["robustness"].keys() == {"l2", "wide"}
    assert Place(root, AUDITS, "wide").settings == root / "audits" / "wide.json"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "x" * 61, "ä", "a b"])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(ConfigError, match="name cannot be used"):
        check_name(name)


def test_default_names() -> None:
    assert [default_name("l2", "tight", "tight"), default_name("l2", "best", "best")] == ["l2", "l2"]
    assert check_name(default_name("linf", "hgm-complement", "tight")) == "linf-hgm-complement"
    assert default_name("l1", "tight", "best") == "l1-tight"


def test_broken_settings_are_named_and_overwritten(root: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        do(root, progress=StopAfter(1))
    (root / "private/work/certificates/l2/settings.json").write_text("{")
    with pytest.raises(RunError, match=r"settings\.json is broken"):
        do(root)
    assert do(root, overwrite=True).made == 5


FORMER = {"format": 2, "state": "complete", "guarantees": {"privacy": {"status": "none"}, "robustness": {"status": "none"}}}


@pytest.mark.parametrize(
    ("number", "held", "kind", "overwrite", "refused"),
    [
        (2, (), CERTIFICATES, False, ""),
        (2, (), ATTACKS, False, ""),
        (2, ("certificates.json", "attacks.csv"), CERTIFICATES, True, ""),
        (2, ("certificates.json",), CERTIFICATES, False, "certify --overwrite"),
        (2, ("certificates.json",), ATTACKS, True, "certify --overwrite"),
        (1, (), CERTIFICATES, True, "train again"),
    ],
)
def test_runs_of_earlier_formats(
    root: Path, number: int, held: tuple[str, ...], kind: str, overwrite: bool, refused: str
) -> None:
    for name in held:
        (root / name).write_text("{}")
    files = {name: {"sha256": "0" * 64} for name in ("a", *held)}
    write_run_json(root, {**FORMER, "format": number, "files": files})
    before = content_of(root)
    if refused:
        with pytest.raises(RunError, match="earlier format") as error:
            do(root, kind=kind, overwrite=overwrite)
        assert refused in error.value.fix
        assert content_of(root) == before
        return
    do(root, kind=kind, overwrite=overwrite)
    record = read_run_json(root)
    assert (record["format"], record["guarantees"]["robustness"].keys()) == (3, {"l2"})
    assert not any((root / name).exists() or name in record["files"] for name in held)
    assert "a" in record["files"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ranks_share_the_batches_and_agree_first(root: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(root, tmp_path / "alone"))
    do(alone)

    def share(ranks: Ranks) -> int:
        return do(root, ranks=ranks).made

    with quick_to_part():
        ends = run_ranks(2, lambda ranks: do(root, changed(SETTINGS, n=100 + ranks.rank), ranks=ranks).made)
        assert ends[0].error is not None
        assert ends[0].error["what"] == "the ranks do not agree on the settings of the certificates"
        assert not (root / "private").exists(), "what was refused has touched nothing"
    assert [ended.value for ended in run_ranks(2, share)] == [5, 5]
    name = "certificates/l2/certificates.csv"
    assert (root / name).read_bytes() == (alone / name).read_bytes()
    assert [ended.value for ended in run_ranks(2, share)] == [0, 0]


HOLD = """
import sys, time
from pathlib import Path
from twinproof.runs.layout import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_another_process_is_refused_until_the_first_ends(root: Path) -> None:
    before = content_of(root)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(root)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another process is working"):
            do(root)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert content_of(root) == before, "a lock leaves nothing behind"
    with pytest.raises(ValueError, match="inside"), exclusive(root):
        raise ValueError("inside")
    do(root)


def test_a_broken_promise_is_not_read(root: Path) -> None:
    do(root)
    guarantees = json.loads(json.dumps(read_run_json(root)["guarantees"]))
    guarantees["robustness"]["l2"]["status"] = "certain"
    with pytest.raises(RunError, match=r"run\.json is broken"):
        update_run_json(root, guarantees=guarantees)
