"""Training by two processes against one, each with one thread, by turns in one run.

    python benchmarks/distributed_cpu.py --out results/distributed-cpu.json

Every turn trains the same private run (random images, the small MNIST network, noisy copies) once for each number of
processes. What counts is the time from the end of the first step to the end of the last, with sampling, exchange, noise, ledger
and update; starting, loading and the report at the end are left out. Beside the time stands how much of a core rank 0 used:
their ratio tells how fast it would be on a machine that nobody else keeps busy. The weights of all runs are compared.
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

from twinproof.data.arrays import from_arrays
from twinproof.files import sha256_file, write_json
from twinproof.progress import Silent
from twinproof.recipes.train import train
from twinproof.runs.environment import software_versions, utc_now
from twinproof.training.distributed.join import join
from twinproof.training.distributed.process_ranks import launched
from twinproof.training.distributed.ranks import ALONE

RECORDS, SIDE, CLASSES = 20_000, 28, 10
TAKEN = "taken.json"


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


class Clock(Silent):
    """Remembers when each step ended, and how much of a core had been used by then."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def advance(self, units: int = 1) -> None:
        """A step has ended."""
        self.marks.append((time.perf_counter(), time.process_time()))

    def taken(self) -> dict[str, float]:
        """From the first mark to the last."""
        (began, unused), (ended, used) = self.marks[0], self.marks[-1]
        return {"seconds": round(ended - began, 3), "cpu_seconds": round(used - unused, 3)}


def work(arguments: argparse.Namespace) -> None:
    """What each process does: its part of one run."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", RECORDS), ("test", 64)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, 1, SIDE, SIDE), dtype=np.uint8)
        arrays[f"y_{part}"] = (np.arange(count) % CLASSES).astype(np.int64)
    dataset = from_arrays("random-images", arrays)
    clock = Clock()
    with join() if launched() else nullcontext(ALONE) as ranks:
        train(settings(arguments), arguments.work, dataset=dataset, progress=clock, ranks=ranks)
    if ranks.is_first:
        write_json(arguments.work / TAKEN, clock.taken())


def steps_by(world: int, root: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """What the steps of one run take with ``world`` processes of one thread each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sizes = [f"--{name}={getattr(arguments, name)}" for name in ("steps", "batch", "copies")]
    started = []
    for rank in range(world):
        where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranked = {} if world == 1 else {name: str(value) for name, value in where.items()}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **ranked}
        started.append(subprocess.Popen([sys.executable, __file__, "--work", str(root), *sizes], env=environment))
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit("a process failed; its message is above")
    return dict(json.loads((root / TAKEN).read_text()))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All turns, and how many times as fast the median turn is."""
    turns: list[dict[str, dict[str, float]]] = []
    weights = set()
    for _ in range(arguments.turns):
        turn = {}
        for name, world in (("one", 1), ("many", arguments.processes)):
            with tempfile.TemporaryDirectory() as folder:
                turn[name] = steps_by(world, Path(folder) / "run", arguments)
                weights.add(sha256_file(Path(folder) / "run" / "model.safetensors"))
        turns.append(turn)
        print(turn, {name: round(ratio(turn, name), 2) for name in ("seconds", "cpu_seconds")}, flush=True)
    times, cores = ([ratio(turn, name) for turn in turns] for name in ("seconds", "cpu_seconds"))
    return {
        "processes": arguments.processes,
        "times_as_fast": round(statistics.median(times), 3),
        "least": round(min(times), 3),
        "most": round(max(times), 3),
        "less_of_a_core": round(statistics.median(cores), 3),
        "rows": turns,
        "same_weights": len(weights) == 1,
    }


def ratio(turn: dict[str, dict[str, float]], name: str) -> float:
    """One process over many."""
    return turn["one"][name] / turn["many"][name]


def main() -> None:
    """Measures, or with ``--work`` does one process's part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--copies", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments)
        return
    found = measure(arguments)
    shape = {name: getattr(arguments, name) for name in ("steps", "batch", "copies", "turns")}
    load = [round(value, 2) for value in os.getloadavg()]
    record = {**found, **shape, "cores": os.cpu_count(), "load": load, "versions": software_versions(), "date": utc_now()}
    print(f"{found['processes']} processes: {found['times_as_fast']} times one process")
    if arguments.out is not None:
        write_json(arguments.out, record)


if __name__ == "__main__":
    main()
