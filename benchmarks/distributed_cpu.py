"""Training by two processes on two cores against one on one core, each with one thread, by turns in one run.

    python benchmarks/distributed_cpu.py --out results/distributed-cpu.json

Every turn trains the same private run (random images, the small MNIST network, noisy copies) once for each number of processes,
every other turn in the other order. Each process is held on a core of its own, the single one on each core in turn. What counts
is the time from the end of the first step to the end of the last, with sampling, exchange, noise, ledger and update; starting,
loading and the report at the end are left out. Beside the time by the clock stands the time on the core of every process: where
others keep the machine busy, one over the busiest of many tells what a quiet one would show, but for waits. The answer is the
median turn; ``quiet`` says whether the machine was idle before. The weights of all runs are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twinproof.compute.devices import describe_device
from twinproof.compute.process_ranks import join, launched
from twinproof.compute.ranks import ALONE
from twinproof.data.arrays import from_arrays
from twinproof.files import sha256_file, write_json
from twinproof.progress import Silent
from twinproof.recipes.train import train
from twinproof.runs.layout import software_versions, utc_now

RECORDS, SIDE, CLASSES = 20_000, 28, 10
TAKEN, TARGET = "taken.json", 1.6
# Of a core: what a machine that nobody uses may show as the mean load of the last minute.
IDLE = 0.3
SHAPE = ("steps", "batch", "copies", "turns")
Turn = dict[str, dict[str, Any]]


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """A run whose only report and checkpoint come with its last step."""
    return {
        "recipe": "dpcert-gaussian",
        "model": "tramer-boneh-cnn",
        "sigma": 0.5,
        "copies": arguments.copies,
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        "batch_size": arguments.batch,
        "steps": arguments.steps,
        "seed": 0,
        "performance": {"device": "cpu", "checkpoint_every": arguments.steps, "report_every": arguments.steps},
    }


def on_core(process: int) -> float:
    """Seconds that a process has been on a core, all of its threads together."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Clock(Silent):
    """Remembers when each step ended, and how long each of ``processes`` had been on a core by then."""

    def __init__(self, processes: list[int]) -> None:
        self._processes = processes
        self.marks: list[tuple[float, list[float]]] = []

    def advance(self, units: int = 1) -> None:
        """A step has ended."""
        self.marks.append((time.perf_counter(), [on_core(process) for process in self._processes]))

    def taken(self) -> dict[str, Any]:
        """From the first mark to the last; ``core_seconds`` by process."""
        (began, unused), (ended, used) = self.marks[0], self.marks[-1]
        cores = [round(after - before, 2) for before, after in zip(unused, used, strict=True)]
        return {"seconds": round(ended - began, 3), "core_seconds": cores}


def work(arguments: argparse.Namespace) -> None:
    """What each process does: its part of one run."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", RECORDS), ("test", 64)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, 1, SIDE, SIDE), dtype=np.uint8)
        arrays[f"y_{part}"] = (np.arange(count) % CLASSES).astype(np.int64)
    dataset = from_arrays("random-images", arrays)
    with join() if launched() else nullcontext(ALONE) as ranks:
        clock = Clock([int(found) for found in ranks.gathered(str(os.getpid()).encode())])
        train(settings(arguments), arguments.work, dataset=dataset, progress=clock, ranks=ranks)
    if ranks.is_first:
        write_json(arguments.work / TAKEN, clock.taken())


def steps_by(world: int, root: Path, first_core: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the steps of one run take with ``world`` processes of one thread, each on a core of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sizes = [f"--{name}={getattr(arguments, name)}" for name in ("steps", "batch", "copies")]
    cores, started = sorted(os.sched_getaffinity(0)), []
    for rank in range(world):
        where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranked = {} if world == 1 else {name: str(value) for name, value in where.items()}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **ranked}
        process = subprocess.Popen([sys.executable, __file__, "--work", str(root), *sizes], env=environment)
        # Long before it starts its first thread; all of them keep to it.
        os.sched_setaffinity(process.pid, {cores[(first_core + rank) % len(cores)]})
        started.append(process)
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit("a process failed; its message is above")
    return dict(json.loads((root / TAKEN).read_text()))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All turns, and how many times as fast many processes are."""
    turns: list[Turn] = []
    weights = set()
    for number in range(arguments.turns):
        turn: Turn = {}
        pairs = [("one", 1), ("many", arguments.processes)]
        for name, world in pairs if number % 2 == 0 else reversed(pairs):
            with tempfile.TemporaryDirectory() as folder:
                turn[name] = steps_by(world, Path(folder) / "run", number, arguments)
                weights.add(sha256_file(Path(folder) / "run" / "model.safetensors"))
        turns.append(turn)
        print(turn, round(by_clock(turn), 2), round(by_core(turn), 2), flush=True)
    return {**summary(turns), "same_weights": len(weights) == 1}


def summary(turns: list[Turn]) -> dict[str, Any]:
    """The medians over the turns, the spread, and the turns themselves."""
    times = [by_clock(turn) for turn in turns]
    return {
        "times_as_fast": round(statistics.median(times), 3),
        "least": round(min(times), 3),
        "most": round(max(times), 3),
        "by_core": round(statistics.median(by_core(turn) for turn in turns), 3),
        "target": TARGET,
        "reached": statistics.median(times) >= TARGET,
        "rows": turns,
    }


def by_clock(turn: Turn) -> float:
    """The time of one process over that of many."""
    return float(turn["one"]["seconds"] / turn["many"]["seconds"])


def by_core(turn: Turn) -> float:
    """The time on the core of one process over that of the busiest of many."""
    return float(turn["one"]["core_seconds"][0] / max(turn["many"]["core_seconds"]))


def main() -> None:
    """Measures, or with ``--work`` does one process's part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--copies", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments)
        return
    cores = len(os.sched_getaffinity(0))
    if cores < arguments.processes:
        raise SystemExit(f"there are {cores} cores for {arguments.processes} processes")
    load = round(os.getloadavg()[0], 2)
    if load > IDLE:
        print(f"the machine is not quiet (load {load}): times by the clock say little", flush=True)
    found = measure(arguments)
    record = {
        "processes": arguments.processes,
        **found,
        **{name: getattr(arguments, name) for name in SHAPE},
        "quiet": load <= IDLE,
        "load_before": load,
        "device": describe_device(torch.device("cpu")),
        "cores": cores,
        "versions": software_versions(),
        "date": utc_now(),
    }
    print(f"{arguments.processes} processes: {found['times_as_fast']} times one ({found['least']} to {found['most']})")
    if arguments.out is not None:
        write_json(arguments.out, record)


if __name__ == "__main__":
    main()
