"""Training steps and certification by two versions of the library, turn by turn in one run on one machine.

    git worktree add ../before 12d5acf
    python benchmarks/before_after.py --before ../before/src --out results/before-after.json

Every turn is a process of its own that trains and certifies on MNIST (on the embedded digits where there is none) through
the public functions. The ratio of the medians is what counts; the least and the largest ratio of two neighbouring turns show
how far the machine can be trusted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TASKS = {
    "dpsgd": {"recipe": "dpsgd", "model": "tramer-boneh-cnn", "batch_size": 512},
    "dpcert-gaussian": {"recipe": "dpcert-gaussian", "model": "tramer-boneh-cnn", "batch_size": 512},
    "mlp": {"recipe": "dpsgd", "model": "mlp", "batch_size": 256},
}
DIGITS = {"model": "mlp", "batch_size": 128}


class Clock:
    """A progress that notes when each unit was done."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.units: list[int] = []

    def start(self, stage: str, total: int, done: int = 0) -> None:
        """A new stage."""
        self.times, self.units = [time.perf_counter()], [0]

    def advance(self, units: int = 1) -> None:
        """Some units more."""
        self.times.append(time.perf_counter())
        self.units.append(units)

    def say(self, text: str) -> None:
        """Nothing."""

    def seconds_per_unit(self) -> float:
        """Over the later two thirds: the first third warms up, and recordings are made there."""
        begin = len(self.times) // 3
        return (self.times[-1] - self.times[begin]) / sum(self.units[begin + 1 :])


def measure(device: str, steps: int, images: int) -> dict[str, float]:
    """One turn, with the library that this process imports."""
    import twinproof as tp

    mnist = (Path(os.environ.get("TWINPROOF_DATA", ".")) / "mnist").is_dir()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, task in TASKS.items():
            settings: dict[str, Any] = {"data": {"source": "mnist" if mnist else "digits"}, "steps": steps, "seed": 1, **task}
            settings |= {"noise_multiplier": 1.0, "delta": 1e-5} | ({} if mnist else DIGITS)
            settings["performance"] = {"device": device, "checkpoint_every": 10**6, "report_every": 10**6}
            clock = Clock()
            run = tp.train(settings, Path(folder) / name, progress=clock)
            found[f"step of {name}"] = clock.seconds_per_unit()
        certify = getattr(tp, "certify", None)
        if not callable(certify):  # in earlier versions a package
            certify = tp.certify_run
        sampling = tp.Sampling(n0=100, n=10_000)
        certify(run, tp.load_run_data(run), sampling=sampling, limit=images, device=device, progress=clock)
        found["certified image"] = clock.seconds_per_unit()
    return found


def turn(source: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """One turn in a process of its own, with the library in ``source``."""
    command = [sys.executable, __file__, "--turn", "--device", arguments.device]
    command += ["--steps", str(arguments.steps), "--images", str(arguments.images)]
    path = os.pathsep.join([str(source.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(before: list[dict[str, float]], after: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """By what is measured: seconds of both, and how many times as long it takes now."""
    rows = {}
    for name in before[0]:
        old, new = [turn[name] for turn in before], [turn[name] for turn in after]
        ratios = [a / b for b, a in zip(old, new, strict=True)]
        rows[name] = {"before": statistics.median(old), "after": statistics.median(new)}
        rows[name] |= {"ratio": statistics.median(new) / statistics.median(old), "least": min(ratios), "most": max(ratios)}
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="folder `src` of the earlier version")
    parser.add_argument("--after", type=Path, default=Path(__file__).resolve().parents[1] / "src")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.turn:
        print(json.dumps(measure(arguments.device, arguments.steps, arguments.images)))
        return
    if arguments.before is None or not arguments.before.is_dir():
        parser.error("--before must name the folder `src` of the earlier version")
    before: list[dict[str, float]] = []
    after: list[dict[str, float]] = []
    for number in range(arguments.turns):
        # Which one goes first changes, so that a machine that slows down favours neither.
        for earlier in (True, False) if number % 2 == 0 else (False, True):
            (before if earlier else after).append(turn(arguments.before if earlier else arguments.after, arguments))
    rows = compare(before, after)
    for name, row in rows.items():
        print(f"{name}: {row['ratio']:.3f} times as long ({row['least']:.3f} to {row['most']:.3f})")
    if arguments.out is not None:
        import torch

        name = torch.cuda.get_device_name() if torch.cuda.is_available() and arguments.device != "cpu" else "cpu"
        made = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "device": name, "torch": torch.__version__}
        arguments.out.write_text(json.dumps({"made": made, "turns": arguments.turns, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
