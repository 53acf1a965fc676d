"""The system fails while a verb works: exit code 3, one message, nothing torn, and the work goes on once the fault is gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import twinproof as tp
from disk_faults import VANISHED, DiskFault, fill, small_disk
from twinproof.auditing.verify import verify_run
from twinproof.cli import demo as demo_verb
from twinproof.cli.main import run
from twinproof.errors import SystemFault
from twinproof.keys import Key

KEYS = ["what", "where", "got", "wanted", "fix"]
WORDS = {"full": "the disk is full", "read-only": "read-only", "denied": "permission denied", VANISHED: "has vanished"}
SETTINGS = ["--data", "digits", "--recipe", "dpsgd", "--delta", "1e-4", "--seed", "5", "--device", "cpu"]
for pair in ("model=mlp", "noise_multiplier=20", "steps=6", "batch_size=64", "performance.checkpoint_every=2"):
    SETTINGS += ["--set", pair]


class Verb(NamedTuple):
    """A verb that writes: its options for a place, what it leaves there, and the option to continue with."""

    name: str
    options: str
    leaves: tuple[str, ...]
    needs_run: bool = True
    resume: tuple[str, ...] = ()

    def command(self, root: Path) -> list[str]:
        place = [str(root)] if self.needs_run else ["--out", str(root)]
        settings = SETTINGS if self.resume else []
        name, *first = self.name.split()
        return [name, *first, *place, *self.options.split(), *settings]


VERBS = {
    verb.name.split()[0]: verb
    for verb in (
        Verb("train", "", ("model.safetensors", "ledger.jsonl", "metrics.jsonl"), False, ("--resume",)),
        Verb("federate", "--parties 2", ("model.safetensors", "metrics.jsonl"), False, ("--resume",)),
        Verb("certify", "--n 40 --n0 10 --limit 20 --device cpu", ("certificates/l2/certificates.csv",)),
        Verb(
            "attack",
            "--limit 8 --steps 2 --n 40 --size 0.5 --seed 1 --device cpu",
            ("attacks/l2/attacks.csv", "attacks/l2/attacks.safetensors"),
        ),
        Verb("audit", "--steps 2 --draws 2 --restarts 1 --votes 100 --seed 7", ()),
        Verb("report", "", ("report.html", "report.json")),
        Verb("reproduce hgm-fig1", "", ("hgm-fig1/table.md", "hgm-fig1/figure.svg"), False),
    )
}


@pytest.fixture(scope="module", autouse=True)
def same_draws() -> Iterator[None]:
    """A command draws its keys from the system: here all draw the same, so that their results can be compared."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Key, "from_system", lambda: Key.from_seed(3))
        yield


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with certificates of 12 inputs; ``certify`` replaces them by those of 20."""
    root = tmp_path_factory.mktemp("faults") / "run"
    certify = ["certify", str(root), "--n", "40", "--n0", "10", "--limit", "12", "--device", "cpu"]
    for command in (["train", "--out", str(root), *SETTINGS], certify):
        with pytest.raises(SystemExit) as ended:
            run([*command, "--json"])
        assert ended.value.code == 0
    return root


def _place(verb: Verb, certified: Path, folder: Path) -> Path:
    root = folder / "run"
    if verb.needs_run:
        shutil.copytree(certified, root)
        if verb.name == "certify":
            (root / "certificates/l2/certificates.json").unlink()
    return root


@pytest.fixture(scope="module")
def whole(certified: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Verb], tuple[Path, int]]:
    """What each verb leaves without a fault, and how many changes of files it takes; made once."""
    made: dict[str, tuple[Path, int]] = {}

    def whole(verb: Verb) -> tuple[Path, int]:
        if verb.name not in made:
            root = _place(verb, certified, tmp_path_factory.mktemp(verb.name))
            with DiskFault(root) as counted, pytest.raises(SystemExit) as ended:
                run([*verb.command(root), "--json"])
            assert ended.value.code == 0
            made[verb.name] = root, counted.changes
        return made[verb.name]

    return whole


def _contents(root: Path, verb: Verb) -> dict[str, bytes]:
    found = {name: (root / name).read_bytes() for name in verb.leaves}
    if verb.name == "audit":
        audit = json.loads((root / "audits/l2.json").read_text())["certificates"]
        found["audit.json"] = json.dumps([audit["attacked"], audit["verdict"]]).encode()
    return found


def _parts(root: Path) -> list[Path]:
    return list(root.rglob("*.part"))


# A verb treats all codes of the system alike: where the time is short, two stand for the others.
QUICK = ("train", "certify", "federate", "reproduce")
_CASES = [(name, kind) for name in VERBS for kind in WORDS if kind in ("read-only", VANISHED) or name in QUICK]


@pytest.mark.parametrize(("name", "kind"), _CASES)
def test_a_fault_in_the_middle_is_told_once_and_the_work_goes_on(
    name: str, kind: str, call: Any, certified: Path, whole: Any, tmp_path: Path
) -> None:
    verb = VERBS[name]
    reference, changes = whole(verb)
    root = _place(verb, certified, tmp_path)
    with DiskFault(root, kind, moment=changes // 2):
        answer = call(*verb.command(root), "--json")
    assert answer.code == 3, answer.err
    error = answer.json()["error"]
    assert list(error) == KEYS
    assert WORDS[kind] in error["what"]
    assert str(tmp_path) in error["where"]
    assert all(error.values()), error
    assert "again" in error["fix"]
    assert ("--resume" in error["fix"]) == bool(verb.resume)
    assert "Traceback" not in answer.err
    assert kind == VANISHED or _parts(root) == []
    again = call(*verb.command(root), *verb.resume, "--json")
    assert again.code == 0, again.err
    assert _contents(root, verb) == _contents(reference, verb)
    if (root / "run.json").is_file():
        assert verify_run(root).ok


@pytest.mark.parametrize("name", ["train", "certify"])
def test_people_read_one_message(name: str, call: Any, certified: Path, tmp_path: Path) -> None:
    root = _place(VERBS[name], certified, tmp_path)
    with DiskFault(root, "full", moment=5):
        answer = call(*VERBS[name].command(root))
    assert (answer.code, answer.out) == (3, "")
    told = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert told == ["error: the disk is full"]
    assert answer.err.count("fix: ") == 1


@pytest.mark.parametrize("name", [name for name, verb in VERBS.items() if verb.needs_run or name == "train"])
def test_a_disk_that_is_truly_full(name: str, call: Any, certified: Path, whole: Any, tmp_path: Path) -> None:
    verb = VERBS[name]
    with small_disk(tmp_path / "disk", "8m") as disk:
        root = _place(verb, certified, disk)
        ballast = fill(disk, leave=4096)
        answer = call(*verb.command(root), "--json")
        assert answer.code == 3, answer.err
        assert answer.json()["error"]["what"] == "the disk is full"
        assert _parts(root) == []
        ballast.unlink()
        assert call(*verb.command(root), *verb.resume, "--json").code == 0
        assert _contents(root, verb) == _contents(whole(verb)[0], verb)


def test_the_demo_starts_in_a_new_folder(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"data": {"source": "digits"}, "recipe": "regular", "model": "mlp", "steps": 3}
    monkeypatch.setattr(demo_verb, "DEMO_SETTINGS", {**small, "epsilon": None})
    with DiskFault(tmp_path, "full", moment=12):
        answer = call("demo", "--out", tmp_path / "demo", "--json")
    assert answer.code == 3
    assert "run `twinproof demo` again" in answer.json()["error"]["fix"]


def test_python_raises_a_system_fault(tmp_path: Path) -> None:
    settings = {"data": {"source": "digits"}, "recipe": "regular", "model": "mlp", "steps": 3, "seed": 1}
    with DiskFault(tmp_path / "run", "full", moment=12), pytest.raises(SystemFault, match="disk is full") as raised:
        tp.train(settings, tmp_path / "run")
    assert raised.value.where.startswith(str(tmp_path))
    assert "resume=True" in raised.value.fix
    assert tp.train(settings, tmp_path / "run", resume=True).record["state"] == "complete"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")])
def test_a_lack_of_memory_is_the_systems_fault(
    error: Exception, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("twinproof.recipes.train.run_loop", fail)
    answer = call("train", "--out", tmp_path / "run", *SETTINGS, "--json")
    assert answer.code == 3
    assert answer.json()["error"]["what"] == "the memory is full"
    monkeypatch.undo()
    assert call("train", "--out", tmp_path / "run", "--resume", "--json").code == 0


def test_an_answer_that_cannot_be_written_has_an_exit_code(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("twinproof.cli.output.typer.echo", full)
    assert call("recipes", "--json").code == 3


def test_a_bug_is_not_called_a_fault_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted opposite: an error of our own must stay a traceback."""

    def bug(*_: object, **__: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("twinproof.recipes.train.run_loop", bug)
    with pytest.raises(RuntimeError, match="shapes"):
        run(["train", "--out", str(tmp_path / "run"), *SETTINGS])


def test_a_writer_that_leaves_its_part_is_caught(call: Any, certified: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The planted bug: the half-written file stays beside the old one."""
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    root = _place(VERBS["report"], certified, tmp_path)
    with DiskFault(root, "full", moment=1):
        assert call("report", root, "--json").code == 3
    assert _parts(root) != []


def test_the_answer_is_json_alone(call: Any, tmp_path: Path) -> None:
    with DiskFault(tmp_path, "read-only"):
        answer = call("train", "--out", tmp_path / "run", *SETTINGS, "--json")
    assert (answer.code, list(json.loads(answer.out))) == (3, ["error"])
