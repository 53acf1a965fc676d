"""Damaged data files through every loader: each ends in a data set or in one error, in bounded time and memory.

    python benchmarks/fuzz_data.py --files 100000 --seed 0 --out results/fuzz-data.json
    python benchmarks/fuzz_data.py --seed 0 --show 4711        # one file again, with its traceback

Files are loaded inside a few processes, so that a crash costs one file; ``--commands`` of them go through ``twinproof train``
as well, each in a process of its own. Exits with 1 on anything else than a data set or an error of ours, on more than 20
seconds or 2 GB for a file, and on a command that ends with a traceback or another code than 0 and 2.
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
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("OMP_NUM_THREADS", "1")

from damaged_files import CIFAR10_RECORDS, FORMS, Damage, Sample
from twinproof.data import load as own_files
from twinproof.data.images import read_cifar10
from twinproof.data.load import load
from twinproof.data.record import parse_data_config
from twinproof.errors import UserError

SECONDS = 20.0
BYTES = 2 * 10**9
ADDRESS_SPACE = 12 * 2**30
GOOD = ("loaded", "refused")
PUBLIC_FRACTION = 0.3


@dataclass(frozen=True)
class Outcome:
    """How one file ended; ``megabytes`` is the largest memory of its process so far."""

    number: int
    form: str
    outcome: str
    detail: str
    seconds: float
    megabytes: float


class _TooSlow(BaseException):
    """Raised by the clock; no loader can take it for bad data."""


def damaged(damage: Damage, number: int, seed: int) -> Sample:
    """File ``number`` of the series that ``seed`` begins."""
    return damage.sample(FORMS[number % len(FORMS)], random.Random(f"{seed}/{number}"))


def small_cifar10() -> None:
    """CIFAR-10's files are 30 MB each; damaged ones of a few records say as much."""
    vars(own_files)["read_cifar10"] = partial(read_cifar10, records=CIFAR10_RECORDS)


def try_file(sample: Sample, number: int, folder: Path) -> Outcome:
    """Loads one damaged data set as ``tp.data.load`` does."""
    shutil.rmtree(folder, ignore_errors=True)
    sample.write(folder)
    start, before = time.perf_counter(), _peak()
    detail = ""
    previous = signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(parse_data_config({"source": str(folder / sample.source), **sample.settings}), public_fraction=PUBLIC_FRACTION)
        outcome = "loaded"
    except UserError as error:
        outcome, detail = "refused", error.what
    except _TooSlow:
        outcome = "slow"
    except MemoryError:
        outcome = "large"
    except Exception:  # noqa: BLE001 (which types may come is the question)
        outcome, detail = "traceback", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    seconds = time.perf_counter() - start
    peak = _peak()
    if outcome in GOOD and seconds > SECONDS:
        outcome = "slow"
    if outcome in GOOD and peak > max(BYTES, before):
        outcome = "large"
    return Outcome(number, sample.form, outcome, detail, round(seconds, 3), round(peak / 1e6, 1))


def _peak() -> int:
    """The largest memory of this process so far; Linux counts what its parent had when it was started."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _ring(*_: object) -> NoReturn:
    raise _TooSlow


def work(first: int, last: int, seed: int) -> None:
    """Loads files ``first`` to ``last`` (exclusive) and prints a line of JSON for each; ends after one that took too much."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    small_cifar10()
    damage = Damage()
    with tempfile.TemporaryDirectory() as place:
        for number in range(first, last):
            outcome = try_file(damaged(damage, number, seed), number, Path(place) / "data")
            print(json.dumps(asdict(outcome)), flush=True)
            if outcome.outcome == "large":
                return


def command(sample: Sample, number: int, folder: Path) -> Outcome:
    """Trains for one step on a damaged data set by the command line, in a forked process."""
    start = time.perf_counter()
    sample.write(folder / "data")
    child = os.fork()
    if child == 0:
        _run_command(sample, folder)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    _, status, usage = os.wait4(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    code = os.waitstatus_to_exitcode(status)
    said = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
    outcome = {0: "loaded", 2: "refused", -signal.SIGKILL: "slow"}.get(code, "traceback")
    errors = sum(line.startswith("error:") for line in said.splitlines())
    if "Traceback" in said or (outcome == "refused" and errors != 1):
        outcome = "traceback"
    detail = said if outcome == "traceback" else ""
    return Outcome(number, sample.form, outcome, detail, round(time.perf_counter() - start, 3), round(usage.ru_maxrss / 1e3, 1))


def _run_command(sample: Sample, folder: Path) -> NoReturn:
    from twinproof.cli.main import run

    code: Any = 1
    with open(folder / "stderr", "w", errors="backslashreplace") as err, open(folder / "stdout", "w") as out:
        sys.stdout, sys.stderr = out, err
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        small_cifar10()
        settings = {"model": "mlp", "steps": 1, "batch_size": 4, "performance.device": "cpu"}
        settings |= {f"data.{name}": _toml(value) for name, value in sample.settings.items()}
        if sample.form in ("csv", "parquet") or b"a.npz" in sample.files:
            settings["data.public_fraction"] = PUBLIC_FRACTION
        arguments = [
            "train",
            "--data",
            str(folder / "data" / sample.source),
            "--recipe",
            "regular",
            "--out",
            str(folder / "run"),
        ]
        try:
            run([*arguments, *(word for name, value in settings.items() for word in ("--set", f"{name}={value}"))])
        except SystemExit as end:
            code = end.code
        except BaseException:  # noqa: BLE001 (what Python itself would print)
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _toml(value: object) -> str:
    return '{"*"=[0.0,1.0]}' if isinstance(value, dict) else str(value)


def work_commands(first: int, last: int, seed: int) -> None:
    """The same for the command line."""
    import twinproof.recipes.train  # noqa: F401 (loaded once, before the forks)

    damage = Damage()
    for number in range(first, last):
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(asdict(command(damaged(damage, number, seed), number, Path(place)))), flush=True)


def outcomes(kind: str, first: int, last: int, seed: int) -> Iterator[Outcome]:
    """All outcomes of a range, from a process that is started again after a crash, one file further."""
    while first < last:
        line = [sys.executable, __file__, "--seed", str(seed), f"--{kind}", str(first), str(last)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
            if process.stdout is None:
                raise RuntimeError("the process has no output")
            for text in process.stdout:
                outcome = Outcome(**json.loads(text))
                first = outcome.number + 1
                yield outcome
        if first < last and process.returncode != 0:
            yield Outcome(first, FORMS[first % len(FORMS)], "crash", f"exit code {process.returncode}", 0.0, 0.0)
            first += 1


def summary(found: list[Outcome]) -> dict[str, Any]:
    """Counts, the slowest and the largest, and what went wrong."""
    counts: dict[str, dict[str, int]] = {form: dict(Counter(o.outcome for o in found if o.form == form)) for form in FORMS}
    return {
        "files": len(found),
        "outcomes": dict(Counter(o.outcome for o in found)),
        "by_form": counts,
        "slowest_seconds": max((o.seconds for o in found), default=0.0),
        "largest_megabytes": max((o.megabytes for o in found), default=0.0),
        "refusals": dict(Counter(o.detail for o in found if o.outcome == "refused" and o.detail).most_common()),
        "failures": [asdict(o) for o in found if o.outcome not in GOOD][:50],
    }


def show(number: int, seed: int) -> None:
    """Loads one file again and prints what happens."""
    small_cifar10()
    sample = damaged(Damage(), number, seed)
    with tempfile.TemporaryDirectory() as place:
        outcome = try_file(sample, number, Path(place) / "data")
    print({name: content[:400] for name, content in sample.files.items()}, sample.settings)
    print(outcome.outcome, outcome.seconds, outcome.megabytes, outcome.detail, sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--commands", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=int, metavar="NUMBER")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--command-worker", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker[0], given.worker[1], given.seed)
        return 0
    if given.command_worker:
        work_commands(given.command_worker[0], given.command_worker[1], given.seed)
        return 0
    if given.show is not None:
        show(given.show, given.seed)
        return 0
    return _measure(given.files, given.commands, given.seed, given.out)


def _measure(files: int, commands: int, seed: int, out: Path | None) -> int:
    from twinproof.compute.devices import describe_device, resolve_device
    from twinproof.files import write_json
    from twinproof.runs.layout import utc_now

    start = time.perf_counter()
    loaded = summary(list(outcomes("worker", 0, files, seed)))
    # Numbers of their own: files that the loaders have not seen yet.
    commanded = summary(list(outcomes("command-worker", files, files + commands, seed)))
    result = {
        "command": f"python benchmarks/fuzz_data.py --files {files} --commands {commands} --seed {seed}",
        "made": utc_now(),
        "device": describe_device(resolve_device("cpu")),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in ("numpy", "pillow", "pyarrow")},
        "seconds": round(time.perf_counter() - start, 1),
        "limits": {"seconds": SECONDS, "bytes": BYTES},
        "loaders": loaded,
        "command_line": commanded,
    }
    if out is not None:
        write_json(out, result)
    print(json.dumps(result, indent=2))
    return 1 if loaded["failures"] or commanded["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
