"""DP-Gaussian of DP-CERT on MNIST: three sigmas, three seeds, all 10,000 test images, against the published ACR.

    TWINPROOF_DATA=... python benchmarks/dpcert_mnist.py --out results/dpcert-gaussian-mnist.json

Settings are those behind the paper's Table 2 (SGD, momentum 0.9, learning rate 0.5, expected batch 512, 40 epochs, clipping
norm 0.1, noise multiplier 1.23, two noisy copies beside the original). Runs have a seed so that they can be repeated; a
seeded run carries no privacy guarantee, and the epsilon written here is what the same plan costs with a secret key.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

PUBLISHED = {0.25: {"acc": 0.9813, "acr": 0.735}, 0.5: {"acc": 0.9774, "acr": 1.246}, 1.0: {"acc": 0.9633, "acr": 1.262}}
SETTINGS: dict[str, Any] = {
    "data": {"source": "mnist"},
    "recipe": "dpcert-gaussian",
    "noise_multiplier": 1.23,
    "delta": 1e-5,
    "clip_norm": 0.1,
    "batch_size": 512,
    "epochs": 40,
    "learning_rate": 0.5,
    "momentum": 0.9,
    "copies": 2,
}
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


def one_run(job: tuple[float, int, dict[str, Any], int | None]) -> dict[str, Any]:
    """Trains, certifies and summarises one (sigma, seed)."""
    from twinproof.certification.method import Sampling
    from twinproof.certification.run import certify
    from twinproof.evaluation.certified import summarize
    from twinproof.keys import Key
    from twinproof.recipes.train import train
    from twinproof.runs.run import load_run_data

    sigma, seed, changes, limit = job
    with tempfile.TemporaryDirectory() as folder:
        run = train({**SETTINGS, "sigma": sigma, "seed": seed, **changes}, Path(folder) / "run")
        certified = certify(
            run, load_run_data(run), sampling=Sampling(100, 10_000, 0.001), limit=limit, key=Key.from_seed(seed)
        )
        summary = summarize(certified.certificates, certified.settings, radii=RADII).as_dict()
        return {
            "sigma": sigma,
            "seed": seed,
            "accuracy": run.record["accuracy"]["value"],
            "acr": summary["acr"],
            "acr_interval": [summary["intervals"]["acr"]["low"], summary["intervals"]["acr"]["high"]],
            "certified_accuracy": summary["certified_accuracy"],
            "smoothed_accuracy": summary["smoothed_accuracy"],
            "abstained": summary["abstained"],
            "epsilon_of_the_plan": run.record["privacy"]["epsilon"],
            "epsilon_rdp_of_the_plan": run.record["privacy"]["epsilon_rdp"],
            "train_seconds": run.record["seconds"],
            "certify_seconds": certified.settings.made.seconds,
            "device": run.record["device"],
            "versions": run.record["versions"],
            "date": run.record["created"],
        }


def main() -> None:
    """Runs the grid and writes the results after every finished run."""
    from twinproof.files import write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="runs at a time on the one device")
    parser.add_argument("--steps", type=int, default=None, help="fewer steps, to try the script out")
    parser.add_argument("--limit", type=int, default=None, help="fewer images, to try the script out")
    arguments = parser.parse_args()
    changes = {} if arguments.steps is None else {"steps": arguments.steps}
    # Finished runs are kept: a second call goes on where the first one stopped.
    rows: list[dict[str, Any]] = json.loads(arguments.out.read_text())["runs"] if arguments.out.exists() else []
    done = {(row["sigma"], row["seed"]) for row in rows}
    grid = [(sigma, seed) for seed in range(arguments.seeds) for sigma in PUBLISHED if (sigma, seed) not in done]
    jobs = [(sigma, seed, changes, arguments.limit) for sigma, seed in grid]
    began = time.monotonic()
    with ProcessPoolExecutor(arguments.processes) as pool:
        for row in pool.map(one_run, jobs):
            rows.append(row)
            print(f"{time.monotonic() - began:.0f} s  sigma {row['sigma']} seed {row['seed']} acr {row['acr']}", flush=True)
            write_json(arguments.out, {"settings": SETTINGS, "runs": rows, "summary": summary_of(rows)})


def summary_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean over seeds beside the published number."""
    table = []
    for sigma, published in PUBLISHED.items():
        acrs = [row["acr"] for row in rows if row["sigma"] == sigma]
        if acrs:
            mean = statistics.mean(acrs)
            table.append(
                {
                    "sigma": sigma,
                    "seeds": len(acrs),
                    "acr_mean": round(mean, 6),
                    "acr_least": min(acrs),
                    "acr_most": max(acrs),
                    "acr_published": published["acr"],
                    "difference": round(mean - published["acr"], 6),
                }
            )
    return table


if __name__ == "__main__":
    main()
