"""Choosing the settings of Secure-SGD on MNIST, on training records only: the last 10,000 are held out for it.

    TWINPROOF_DATA=... python benchmarks/tune_securesgd.py --out results/tune-securesgd-mnist.json --processes 8

The test set is never looked at. What a choice among settings costs in privacy is not charged: these runs use MNIST's training
records, which are public here; whoever tunes on private records has to charge for it or tune on public ones.
Each line of the grid is trained once; accuracy is that of the smoothed classifier, clean and under PGD (linf 0.1, 10 steps; on
the network without its noise, as in the papers, and in expectation over it), and the share certified at three linf sizes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SIZES = (0.025, 0.05, 0.1)


def grid(epsilons: list[float]) -> Iterator[dict[str, Any]]:
    """The settings that are compared."""
    for epsilon in epsilons:
        small = epsilon < 0.5
        base = {"epsilon": epsilon, "epochs": 20 if small else 40, "batch_size": 4096 if small else 2048}
        base |= {"relative": 0.5, "learning_rate": 4.0}
        for rule in ("parseval", "project", "measure"):
            yield {**base, "weights": rule}
        yield {**base, "weights": "parseval", "relative": 0.35}
        yield {**base, "weights": "parseval", "learning_rate": 8.0}
        yield {**base, "weights": "parseval", "redistribution": "learned"}
        yield {**base, "weights": "parseval", "model": "small-cnn"}
        yield {**base, "weights": "parseval", "model": "mlp", "width": 4}
        for change in ({}, {"relative": 0.35}, {"relative": 0.7}, {"learning_rate": 8.0}, {"width": 2}):
            yield {**base, "place": "input", **change}


def settings_of(line: dict[str, Any]) -> dict[str, Any]:
    """The training settings of a line; ``relative`` is sigma times the root of the input's size, as for noise at the input."""
    from twinproof.privacy.mechanisms import calibrate

    unit = calibrate("heterogeneous-analytic", 4.0, 1e-5).sigma
    noise = {
        "place": line.get("place", "first-layer"),
        "redistribution": line.get("redistribution", "uniform"),
        "mechanism": "heterogeneous-analytic",
        "weights": line.get("weights", "measure"),
        "attack_bound": line["relative"] / 28 / unit,
    }
    changed = ("epsilon", "epochs", "batch_size", "learning_rate", "width", "model", "copies")
    plain: dict[str, Any] = {name: line[name] for name in changed if name in line}
    return {"recipe": "securesgd", "delta": 1e-5, "noise_layer": noise, **plain}


def one(job: tuple[dict[str, Any], int, int | None]) -> dict[str, Any]:
    """Trains and measures one line on held-out training records."""
    import torch

    from tune_house import HELD_OUT, held_out
    from tune_under_attack import Measure, measured
    from twinproof.attacks.search import pgd
    from twinproof.data.load import load
    from twinproof.data.record import DataConfig
    from twinproof.recipes.train import train

    line, limit, steps = job
    torch.set_num_threads(1)
    dataset = held_out(load(DataConfig(source="mnist")), HELD_OUT)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        changes = {} if steps is None else {"steps": steps}
        run = train({**settings_of(line), **changes}, Path(folder) / "run", dataset=dataset)
        trained = time.monotonic() - began
        found = measured(run, dataset, Measure(limit, SIZES, {"pgd": pgd(10)}))
    return {**line, **found, "train_seconds": round(trained, 1), "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    """Runs the grid and writes every finished line."""
    from tune_house import HELD_OUT
    from twinproof.compute.devices import describe_device, resolve_device
    from twinproof.files import write_json
    from twinproof.runs.layout import software_versions, utc_now

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.2, 2.0])
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=None, help="fewer steps, to try the script out")
    parser.add_argument("--only", type=int, default=None, help="so many lines of the grid, to try the script out")
    arguments = parser.parse_args()
    lines = list(grid(arguments.epsilon))[: arguments.only]
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(one, (line, arguments.limit, arguments.steps)) for line in lines]
        for job in as_completed(jobs):
            found.append(job.result())
            write_json(
                arguments.out,
                {
                    "lines": found,
                    "held_out": HELD_OUT,
                    "inputs": arguments.limit,
                    "device": describe_device(resolve_device("auto")),
                    "versions": software_versions(),
                    "date": utc_now(),
                },
            )


if __name__ == "__main__":
    main()
