"""Mutated runs through the reader of every verb: each must end in an answer or in one error, never in a traceback.

    python benchmarks/fuzz_runs.py --runs 10000 --seed 0 --out results/fuzz-runs.json

Valid runs (a complete one with certificates, attacks and an audit, an unfinished one, and the kept runs of format 1) are
changed: JSON by its structure, tables by their cells, weights by their header, any file by its bytes; files are lost, swapped,
or become folders, pipes and devices. Half of the time digests and the ledger's chain are made to fit again, so that what lies
behind those checks is reached. Each run goes through ``open``, ``report``, ``certify``, ``attack`` and ``audit`` up to the
point where they start to compute, ``train --resume`` up to its first step, and ``verify``; some go through the command line,
in a process of its own. Exits with 1 on any traceback, any run over 20 seconds, and any over 2 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import sklearn.datasets
import torch

import twinproof as tp
from run_mutations import mutate
from twinproof.auditing.certificate_search import AttackBudget
from twinproof.auditing.verify import verify_run
from twinproof.cli.summaries import training_answer
from twinproof.errors import OutOfMemory, TwinproofError
from twinproof.keys import Key
from twinproof.recipes import train as train_module
from twinproof.reporting.facts import load_facts
from twinproof.runs.layout import software_versions, utc_now
from twinproof.runs.work import Work
from twinproof_verify import epsilon

SECONDS, BYTES = 20, 2 * 10**9
ADDRESSES = 8 * 2**30
KEPT = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "format-1"
SETTINGS: dict[str, Any] = {
    "data": {"source": "digits"},
    "recipe": "dpsgd",
    "noise_multiplier": 20.0,
    "delta": 1e-4,
    "steps": 4,
    "batch_size": 64,
    "model": "mlp",
    "seed": 3,
    "performance": {"device": "cpu", "checkpoint_every": 2},
}
KEY = Key.from_seed(5)


class Started(Exception):
    """A verb has read everything and would now compute."""


class TooLong(Exception):
    """A reader took longer than ``SECONDS``."""


# --- the runs that are mutated -------------------------------------------------------------------------------------------


def make_seeds(folder: Path) -> dict[str, Path]:
    """The valid runs, by name."""
    whole = folder / "whole"
    run = tp.train(SETTINGS, whole)
    dataset = tp.load_run_data(run)
    tp.certify(run, dataset, sampling=tp.Sampling(n0=10, n=40), limit=8, device="cpu", key=KEY)
    plan = tp.AttackPlan(norm="l2", sizes=(0.5,), attacks=("fgsm",), steps=1, draws=1)
    tp.attack(run, dataset, plan=plan, sampling=tp.Sampling(n0=10, n=40), limit=4, device="cpu", key=KEY)
    budget = AttackBudget(steps=1, draws=1, restarts=1, votes=100)
    tp.audit(tp.Run.open(whole), dataset, budget=budget, device="cpu", key=Key.from_seed(6))
    unfinished = folder / "unfinished"
    with _stopped_at(train_module, "finish_run"):
        tp.train(SETTINGS, unfinished)
    seeds = {"whole": whole, "unfinished": unfinished}
    return seeds | {path.name: path for path in sorted(KEPT.iterdir())} if KEPT.is_dir() else seeds


@contextmanager
def _stopped_at(module: Any, name: str) -> Iterator[None]:
    """Inside, the function of that name raises ``Started``, which is what the block may end with."""

    def stop(*_: Any, **__: Any) -> Any:
        raise Started

    honest = getattr(module, name)
    setattr(module, name, stop)
    try:
        yield
    except Started:
        pass
    finally:
        setattr(module, name, honest)


# --- the readers ---------------------------------------------------------------------------------------------------------


def _certify(root: Path) -> None:
    run = tp.Run.open(root)
    with _stopped_at(Work, "batches"):
        tp.certify(run, tp.load_run_data(run), sampling=tp.Sampling(n0=10, n=40), limit=8, device="cpu", key=KEY)


def _attack(root: Path) -> None:
    run = tp.Run.open(root)
    plan = tp.AttackPlan(norm="l2", sizes=(0.5,), attacks=("fgsm",), steps=1, draws=1)
    with _stopped_at(Work, "batches"):
        tp.attack(run, tp.load_run_data(run), plan=plan, sampling=tp.Sampling(n0=10, n=40), limit=4, device="cpu", key=KEY)


def _audit(root: Path) -> None:
    run = tp.Run.open(root)
    budget = AttackBudget(steps=1, draws=1, restarts=1, votes=100)
    with _stopped_at(Work, "batches"):
        tp.audit(run, tp.load_run_data(run), budget=budget, device="cpu", key=Key.from_seed(6))


def _resume(root: Path) -> None:
    with _stopped_at(train_module, "run_loop"):
        tp.train(None, root, resume=True)


def _open(root: Path) -> None:
    run = tp.Run.open(root)
    for read in (lambda: run.guarantee, lambda: run.robustness, lambda: run.epsilon, lambda: run.training_seconds, run.model):
        read()
    training_answer(run)


def _report(root: Path) -> None:
    facts = load_facts(root)
    for certification in facts.certifications:
        certification.curve()
    for audit in facts.audits:
        audit.ratios()
    for attacks in facts.attacks:
        attacks.certified_line()


def _verify(root: Path) -> None:
    verify_run(root)


# Those that may write come last: what they leave is for nobody.
READERS: dict[str, Callable[[Path], None]] = {
    "verify": _verify,
    "open": _open,
    "report": _report,
    "certify": _certify,
    "attack": _attack,
    "audit": _audit,
    "resume": _resume,
}
COMMANDS = {
    "verify": "verify {root}",
    "report": "report {root}",
    # The same settings as the seed runs, so that the verb reads what is there and resumes it.
    "certify": "certify {root} --limit 8 --n 40 --n0 10 --device cpu",
    "attack": "attack {root} --limit 4 --steps 1 --draws 1 --n 40 --n0 10 --size 0.5 --attack fgsm --device cpu",
    "audit": "audit {root} --certificates --limit 8 --steps 1 --draws 1 --restarts 1 --votes 100 --device cpu",
    "resume": "train --out {root} --resume",
}


@dataclass
class Tally:
    """What came of the runs."""

    ends: dict[str, Counter[str]] = field(default_factory=dict)
    command_ends: dict[str, Counter[str]] = field(default_factory=dict)
    problems: list[dict[str, str]] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0

    def count(self, ends: dict[str, Counter[str]], verb: str, end: str) -> None:
        ends.setdefault(verb, Counter())[end] += 1

    def add(self, other: Tally) -> None:
        """Counts what another process has seen as well."""
        for mine, theirs in ((self.ends, other.ends), (self.command_ends, other.command_ends)):
            for verb, ends in theirs.items():
                mine.setdefault(verb, Counter()).update(ends)
        self.problems += other.problems
        self.slowest, self.largest = max(self.slowest, other.slowest), max(self.largest, other.largest)

    def problem(self, verb: str, case: str, what: str) -> None:
        self.problems.append({"verb": verb, "case": case, "what": what})

    def memory(self, verb: str, case: str, peak: int) -> None:
        """A process's peak never falls, and a child begins with its parent's memory: only what raises the peak is to blame."""
        if peak > max(BYTES, self.largest):
            self.problem(verb, case, f"{peak} bytes")
        self.largest = max(self.largest, peak)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_in_process(root: Path, verb: str, case: str, tally: Tally) -> None:
    """One reader on one run; whatever is raised that is not an error of ours is a problem."""
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        READERS[verb](root)
        end = "read"
    except OutOfMemory as error:
        end = "problem"
        tally.problem(verb, case, str(error))
    except TwinproofError as error:
        end = type(error).__name__
    except TooLong:
        end = "problem"
        tally.problem(verb, case, f"over {SECONDS} s")
    except Exception:  # noqa: BLE001 (this is what is looked for)
        end = "problem"
        tally.problem(verb, case, traceback.format_exc(limit=-6))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    tally.count(tally.ends, verb, end)
    tally.slowest = max(tally.slowest, time.monotonic() - began)
    tally.memory(verb, case, _peak())


def run_command(root: Path, verb: str, case: str, tally: Tally) -> None:
    """The command itself, in a child that has everything loaded; its exit code and what it prints are looked at."""
    words = [word.format(root=root) for word in COMMANDS[verb].split()] + ["--json"]
    out = root.with_name("command")
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        for handle in (1, 2):
            os.dup2(os.open(f"{out}.{handle}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        _run_command(words)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    printed = Path(f"{out}.2").read_text(errors="replace")
    tally.count(tally.command_ends, verb, str(code))
    if code not in (0, 1, 2) or "Traceback" in printed:
        tally.problem(f"command {verb}", case, f"exit code {code}: {printed[-1500:]}")
    tally.slowest = max(tally.slowest, time.monotonic() - began)
    tally.memory(f"command {verb}", case, usage.ru_maxrss * 1024)


def _run_command(words: list[str]) -> None:
    from twinproof.cli.main import run

    code = 70
    try:
        run(words)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 (a forked child must not return)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def fuzz(runs: int, commands: int, seed: int, *, processes: int = 1) -> Tally:
    """Mutates and reads ``runs`` runs, ``commands`` of them through the command line too, shared out to ``processes``."""
    with tempfile.TemporaryDirectory() as place, _nothing_twice():
        seeds = make_seeds(Path(place))
        every = max(1, runs // commands) if commands else 0
        shares = [(seeds, range(first, runs, processes), every, seed) for first in range(processes)]
        if processes == 1:
            return _share(*shares[0])
        with get_context("fork").Pool(processes) as pool:
            tallies = pool.starmap(_share, shares)
    total = tallies[0]
    for tally in tallies[1:]:
        total.add(tally)
    return total


@contextmanager
def _nothing_twice() -> Iterator[None]:
    """Inside, the embedded data are parsed once, and the accountants answer the same question once: neither reads a run."""
    digits, composed = sklearn.datasets.load_digits, epsilon._composed
    known: dict[Any, Any] = {}

    def remembered(mechanisms: Any, delta: float) -> Any:
        question = (tuple(mechanisms.items()), delta)
        if question not in known:
            known[question] = composed(mechanisms, delta)
        return known[question]

    sklearn.datasets.load_digits = cache(digits)
    epsilon._composed = remembered
    try:
        yield
    finally:
        sklearn.datasets.load_digits, epsilon._composed = digits, composed


def _share(seeds: dict[str, Path], numbers: range, every: int, seed: int) -> Tally:
    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    tally = Tally(largest=_peak())
    # The kept runs take seconds to verify: most runs are the small ones.
    names = ["whole"] * 30 + ["unfinished"] * 24 + [name for name in seeds if name not in ("whole", "unfinished")]
    with tempfile.TemporaryDirectory() as place:
        for number in numbers:
            dice = random.Random(f"{seed}/{number}")
            root, name = Path(place) / "run", dice.choice(names)
            shutil.copytree(seeds[name], root)
            case = f"seed {seed}, run {number}: {name}, {mutate(root, dice)}"
            if every and number % every == 0:
                copy = Path(place) / "for-command"
                shutil.copytree(root, copy, symlinks=True, copy_function=_copied)
                run_command(copy, list(COMMANDS)[number // every % len(COMMANDS)], case, tally)
                shutil.rmtree(copy)
            for verb in READERS:
                read_in_process(root, verb, case, tally)
            shutil.rmtree(root)
    signal.signal(signal.SIGALRM, before)
    return tally


def _copied(source: str, target: str) -> None:
    if stat.S_ISFIFO(os.lstat(source).st_mode):
        os.mkfifo(target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--commands", type=int, default=250, help="how many of them go through the command line too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))  # what runs away fails, and takes nobody along
    began = time.monotonic()
    tally = fuzz(given.runs, given.commands, given.seed, processes=given.processes)
    record = {
        "command": f"python benchmarks/fuzz_runs.py --runs {given.runs} --commands {given.commands} --seed {given.seed}",
        "runs": given.runs,
        "seed": given.seed,
        "in_process": {verb: dict(sorted(ends.items())) for verb, ends in tally.ends.items()},
        "command_line_exit_codes": {verb: dict(sorted(ends.items())) for verb, ends in tally.command_ends.items()},
        "problems": tally.problems,
        "slowest_seconds": round(tally.slowest, 2),
        "largest_bytes": tally.largest,
        "seconds": round(time.monotonic() - began, 1),
        "device": f"cpu: {platform.machine()}, {torch.get_num_threads()} threads",
        "versions": software_versions(),
        "date": utc_now(),
    }
    text = json.dumps(record, indent=2, ensure_ascii=True) + "\n"
    if given.out is not None:
        given.out.write_text(text)
    print(text)
    sys.exit(1 if tally.problems else 0)


if __name__ == "__main__":
    main()
