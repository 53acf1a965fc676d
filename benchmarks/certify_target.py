"""Deciding "is the radius at least r?" against full certification, on MNIST: cost and verdicts, in one run.

    TWINPROOF_DATA=... python benchmarks/certify_target.py --out results/certify-target-mnist.json

Trains DP-Gaussian once (sigma 0.5, the paper's settings, seed 0), certifies the test set with a fixed number of draws and
again for each target radius with the same key, and writes draws, seconds and how many verdicts differ.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from dpcert_mnist import SETTINGS
from twinproof.certification.method import Sampling
from twinproof.certification.run import certify
from twinproof.files import write_json
from twinproof.keys import Key
from twinproof.recipes.train import train
from twinproof.runs.records import Certificate
from twinproof.runs.run import load_run_data


def verdicts(certificates: list[Certificate], radius: float) -> set[int]:
    """The inputs whose certified radius is at least ``radius``."""
    return {certificate.index for certificate in certificates if certificate.radius >= radius}


def main() -> None:
    """Measures every target against the fixed-n certification of the same inputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--targets", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--steps", type=int, default=None, help="fewer training steps, to try the script out")
    arguments = parser.parse_args()
    changes = {} if arguments.steps is None else {"steps": arguments.steps}
    key, rows = Key.from_seed(0), []
    with tempfile.TemporaryDirectory() as folder:
        run = train({**SETTINGS, "sigma": 0.5, "seed": 0, **changes}, Path(folder) / "run")
        dataset = load_run_data(run)
        results: dict[float | None, tuple[list[Certificate], float]] = {}
        for target in (None, *arguments.targets):
            began = time.monotonic()
            sampling = Sampling(100, 10_000, 0.001, target_radius=target)
            done = certify(run, dataset, sampling=sampling, limit=arguments.limit, key=key, overwrite=True)
            results[target] = (done.certificates, time.monotonic() - began)
        device, versions, date = done.settings.made.device, done.settings.made.versions, done.settings.made.created
    full, full_seconds = results[None]
    for target in arguments.targets:
        certificates, seconds = results[target]
        rows.append(row_of(target, full, full_seconds, certificates, seconds))
        print(rows[-1], flush=True)
    write_json(arguments.out, {"rows": rows, "inputs": len(full), "device": device, "versions": versions, "date": date})


def row_of(
    target: float, full: list[Certificate], full_seconds: float, certificates: list[Certificate], seconds: float
) -> dict[str, Any]:
    """One target beside the fixed-n certification."""
    mean = sum(certificate.draws for certificate in certificates) / len(certificates)
    fixed, sequential = verdicts(full, target), verdicts(certificates, target)
    return {
        "target_radius": target,
        "mean_draws": round(mean, 1),
        "draws_saved_factor": round((100 + 10_000) / (100 + mean), 2),
        "seconds_full": round(full_seconds, 2),
        "seconds_target": round(seconds, 2),
        "time_saved_factor": round(full_seconds / seconds, 2),
        "certified_full": len(fixed),
        "certified_target": len(sequential),
        "lost": len(fixed - sequential),
        "gained": len(sequential - fixed),
    }


if __name__ == "__main__":
    main()
