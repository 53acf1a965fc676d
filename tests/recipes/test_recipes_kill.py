"""A run that is killed, anywhere and as often as one likes, resumes to the same bits and never counts too little.

The first half forks a child with everything imported and kills it just before each of its file operations in turn (Python's
audit events show every one of them, whoever does it). The second half kills the command itself at random moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from recipe_fixtures import on_one_thread as on_one_thread
from safetensors import safe_open
from small_runs import STAYS_PRIVATE, announced_steps, ledger_lines, model_bytes, released, run_json, tiny, write_blobs

from quiet_fork import fork
from twinproof.auditing.verify import verify_run
from twinproof.privacy import plan as plan_module
from twinproof.privacy import step_randomness as randomness_module
from twinproof.privacy.accounting import Event, PoissonGaussianEvent, epsilon_pld, epsilon_rdp, spending
from twinproof.privacy.ledger import Ledger
from twinproof.recipes import finish, redistribution
from twinproof.recipes import finish as reporter
from twinproof.recipes.train import train
from twinproof.runs.private_files import load_seconds
from twinproof.training import loop

_CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}
_FAILED = 70
honest_append = Ledger.append

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


class Death:
    """Kills its process just before the ``moment``-th change under ``root``; ``torn`` leaves the file half written first."""

    def __init__(self, root: Path, moment: int, *, torn: bool) -> None:
        self._root = str(root)
        self._left = moment
        self._torn = torn
        self._dying = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._dying or event not in _CHANGES or not str(arguments[0]).startswith(self._root):
            return
        mode = arguments[1] if event == "open" else None
        if isinstance(mode, str) and not set(mode) & set("wax+"):
            return
        tearable = event == "os.rename" or (isinstance(mode, str) and "a" in mode)
        if self._torn and not tearable:
            return
        self._left -= 1
        if self._left < 0:
            self._dying = True
            if self._torn:
                self._tear(event, Path(os.fsdecode(arguments[0])))
            os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def _tear(event: str, path: Path) -> None:
        if event == "os.rename":
            os.truncate(path, path.stat().st_size // 2)
        else:
            with open(path, "ab") as handle:
                handle.write(b'{"body":{"hal')


def killed_run(
    settings: dict[str, Any],
    root: Path,
    moment: int,
    *,
    torn: bool = False,
    drawn: Path | None = None,
    read: Path | None = None,
) -> bool:
    """Trains in a child that dies at ``moment``; False if it finished before.

    ``drawn`` receives a byte for each draw, ``read`` one for each time that records are read for r.
    """
    child = fork()
    if child == 0:
        code = 0
        try:
            if drawn is not None:
                _count_calls(randomness_module, "poisson_sample", drawn)
            if read is not None:
                _count_calls(redistribution, "influences", read)
            sys.addaudithook(Death(root, moment, torn=torn))
            train(settings, root, resume=True)
        except BaseException:  # noqa: BLE001 (a forked child must never return into the test runner)
            traceback.print_exc()
            code = _FAILED
        os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed by itself"
    return False


def _count_calls(module: ModuleType, name: str, path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    honest = vars(module)[name]

    def counted(*arguments: Any, **named: Any) -> Any:
        os.write(handle, b".")
        return honest(*arguments, **named)

    vars(module)[name] = counted


def announced_r(root: Path) -> int:
    return sum(line["body"].get("purpose") == "redistribution" for line in ledger_lines(root))


def remembered(account: Callable[[Sequence[Event], float], Any]) -> Callable[[Sequence[Event], float], Any]:
    """An accountant that answers each question once: hundreds of runs here ask the same three."""
    answers: dict[Any, Any] = {}

    def answer(events: Sequence[Event], delta: float) -> Any:
        question = (tuple(events), delta)
        if question not in answers:
            answers[question] = account(events, delta)
        return answers[question]

    return answer


known_epsilon = remembered(epsilon_rdp)


def counts_too_little(root: Path, drawn: int) -> bool:
    """Whether the ledger on the disk accounts for less than the draws that were really made."""
    body = {"sample_rate": 20 / 90, "noise_multiplier": 20.0}
    counted = PoissonGaussianEvent(**body, steps=announced_steps(root))
    truth = PoissonGaussianEvent(**body, steps=drawn)
    return announced_steps(root) < drawn or known_epsilon([counted], 1e-4) < known_epsilon([truth], 1e-4)


def differences(root: Path, whole: Path) -> list[str]:
    """What a mended run has that an uninterrupted one has not, or has differently."""
    wrong = [f"{name} differs" for name, text in released(whole).items() if released(root).get(name) != text]
    wrong += [f"{name} is new" for name in released(root) if name not in released(whole)]
    wrong += [f"private/{path.name} is left" for path in (root / "private").iterdir() if path.name not in STAYS_PRIVATE]
    wrong += [str(problem) for problem in verify_run(root).problems]
    return wrong


@pytest.fixture(autouse=True)
def quick_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger lines of two steps, so that a run of six has several moments of announcing; accounting done once."""
    monkeypatch.setattr(plan_module, "LEDGER_BLOCK", 2)
    monkeypatch.setattr(reporter, "epsilon_pld", remembered(epsilon_pld))
    monkeypatch.setattr(finish, "spending", remembered(spending))


@pytest.fixture
def whole(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    settings = tiny(write_blobs(tmp_path / "data"))
    return settings, train(settings, tmp_path / "whole").root


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("torn", "at_least"), [(False, 45), (True, 18)])
def test_a_kill_before_any_file_operation_is_mended(
    torn: bool, at_least: int, stride: int, whole: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    settings, uninterrupted = whole
    moment = 0
    while True:
        root, drawn = tmp_path / f"run{moment}", tmp_path / f"drawn{moment}"
        if not killed_run(settings, root, moment, torn=torn, drawn=drawn):
            break
        taken = len(drawn.read_bytes())
        assert not counts_too_little(root, taken), f"moment {moment}: {taken} draws, {announced_steps(root)} announced"
        known = (root / "run.json").is_file()
        train(None if known and moment % 2 else settings, root, resume=True)
        assert differences(root, uninterrupted) == [], f"moment {moment}"
        moment += stride
    assert moment >= at_least, "the hook sees too few file operations"


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_private_r_is_announced_before_it_is_read_and_paid_for_once(stride: int, tmp_path: Path) -> None:
    """Killed before file operations all along: whoever has read records for r has it in the ledger, once, and ends with it."""
    noise = {"redistribution": "training"}
    settings = tiny(write_blobs(tmp_path / "data"), recipe="securesgd", steps=2, noise_layer=noise)
    uninterrupted = train(settings, tmp_path / "whole").root
    moment, read = 0, 0
    while True:
        root, drawn = tmp_path / f"run{moment}", tmp_path / f"read{moment}"
        if not killed_run(settings, root, moment, read=drawn):
            break
        times = len(drawn.read_bytes())
        assert times == 0 or announced_r(root) == 1, f"moment {moment}"
        read += times
        train(settings, root, resume=True)
        assert announced_r(root) == 1
        assert differences(root, uninterrupted) == [], f"moment {moment}"
        moment += stride
    assert moment >= 30, "the hook sees too few file operations"
    assert read >= 16 / stride, "too few kills came after r was read"


def test_a_run_killed_at_every_resumption_still_ends_with_the_same_bits(
    whole: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    settings, uninterrupted = whole
    generator = random.Random(11)
    kills = 0
    while killed_run(settings, tmp_path / "run", generator.randrange(2, 30)):
        kills += 1
        assert kills < 100, "no progress between kills"
    assert kills >= 3
    assert differences(tmp_path / "run", uninterrupted) == []


class LateLedger:
    """The planted bug: announcements reach the disk only after the steps that they announce."""

    def __init__(self) -> None:
        self._held: list[dict[str, Any]] = []

    def append(self, ledger: Ledger, kind: str, body: dict[str, Any]) -> None:
        for late in self._held:
            honest_append(ledger, "poisson-gaussian", late)
        self._held = [body] if kind == "poisson-gaussian" else []
        if kind != "poisson-gaussian":
            honest_append(ledger, kind, body)


def test_a_ledger_that_is_written_after_the_step_is_caught(
    whole: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = LateLedger()
    monkeypatch.setattr(Ledger, "append", lambda self, kind, body: late.append(self, kind, body))
    caught = 0
    for moment in range(15, 45):
        root, drawn = tmp_path / f"run{moment}", tmp_path / f"drawn{moment}"
        if killed_run(whole[0], root, moment, drawn=drawn):
            caught += counts_too_little(root, len(drawn.read_bytes()))
    assert caught >= 10


def test_a_checkpoint_that_forgets_the_momentum_is_caught(
    whole: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, uninterrupted = whole
    monkeypatch.setattr(loop, "_optimizer_tensors", lambda model, optimizer: {})
    root = tmp_path / "run"
    assert killed_run(settings, root, 34)
    with safe_open(root / "private" / "checkpoint.safetensors", framework="pt") as handle:
        assert 0 < int(handle.metadata()["step"]) < settings["steps"], "the kill must fall between two checkpoints"
    train(settings, root, resume=True)
    assert "model.safetensors differs" in differences(root, uninterrupted)


class Command:
    """``twinproof train`` as a process of its own, on the embedded digits."""

    steps = 400

    def __init__(self, root: Path) -> None:
        self.root = root

    def start(self, *, settings: bool = True) -> subprocess.Popen[bytes]:
        pairs = {
            "model": "mlp",
            "noise_multiplier": 20,
            "steps": self.steps,
            "batch_size": 64,
            "performance.checkpoint_every": 20,
            "performance.report_every": 400,
        }
        flags = ["--data", "digits", "--recipe", "dpsgd", "--delta", "1e-4", "--seed", "5", "--device", "cpu"]
        flags += [part for key, value in pairs.items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "twinproof", "train", "--out", str(self.root), "--resume", "--json"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [*command, *(flags if settings else [])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )

    def finish(self, *, settings: bool = True) -> float:
        """Runs to the end; returns the seconds it took."""
        began = time.monotonic()
        process = self.start(settings=settings)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err.decode()
        assert json.loads(out)["status"] == "none"
        return time.monotonic() - began

    def killed(self, stage: str, delay: float) -> bool:
        """Whether SIGKILL, ``delay`` seconds after this process reached ``stage``, found it still running."""
        sign = {"start": None, "loop": self.root / "metrics.jsonl", "end": self.root / "model.safetensors"}[stage]
        before = _written(sign)
        process = self.start()
        while process.poll() is None and sign is not None and _written(sign) == before:
            time.sleep(0.002)
        try:
            process.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return process.returncode == -signal.SIGKILL

    def taken(self) -> int:
        """Steps that the owner's files prove to have been taken."""
        private = self.root / "private"
        steps = [0]
        if (private / "checkpoint.safetensors").is_file():
            with safe_open(private / "checkpoint.safetensors", framework="pt") as handle:
                steps.append(int(handle.metadata()["step"]))
        if (private / "diagnostics.jsonl").is_file():
            steps += [json.loads(line)["step"] + 1 for line in (private / "diagnostics.jsonl").read_bytes().splitlines()]
        return max(steps)


def _written(path: Path | None) -> int:
    return path.stat().st_mtime_ns if path is not None and path.is_file() else 0


def _kill_and_compare(folder: Path, stages: Sequence[str], *, seed: int) -> int:
    """Kills once in each of ``stages``, resuming in between; a run that got to its end is compared, then a new one begins."""
    uninterrupted = Command(folder / "whole")
    seconds = uninterrupted.finish()
    longest = {"start": 0.6 * seconds, "loop": load_seconds(uninterrupted.root / "private") or 0.0, "end": 0.05}
    generator = random.Random(seed)
    run, number, inside, landed = Command(folder / "run0"), 0, 0, 0
    for stage in stages:
        landed += run.killed(stage, generator.uniform(0, longest[stage]))
        state = run_json(run.root)["state"] if (run.root / "run.json").is_file() else "before"
        inside += state == "training"
        assert announced_steps(run.root) >= run.taken()
        if state == "complete":
            run.finish()  # deletes the secrets, if the kill came before that
            assert differences(run.root, uninterrupted.root) == []
            number += 1
            run = Command(folder / f"run{number}")
    run.finish(settings=not (run.root / "run.json").is_file())
    assert differences(run.root, uninterrupted.root) == []
    assert model_bytes(run.root) == model_bytes(uninterrupted.root)
    assert inside > 0, "no kill fell into the training"
    return landed


@pytest.mark.slow
def test_the_command_survives_sigkill_at_random_moments(tmp_path: Path) -> None:
    assert _kill_and_compare(tmp_path, ("start", "loop", "end"), seed=2) >= 2, "too many kills came too late"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # fifty starts of the command, each of which a busy machine stretches
def test_the_command_survives_fifty_kills(tmp_path: Path) -> None:
    stages = random.Random(4).choices(("start", "loop", "end"), weights=(1, 3, 1), k=50)
    assert _kill_and_compare(tmp_path, stages, seed=3) >= 25, "too many kills came too late"
