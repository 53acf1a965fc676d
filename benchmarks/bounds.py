"""Every bound in every norm, on the same weights and draws: how long its radii are, and whether attacks contradict them.

    TWINPROOF_DATA=... python benchmarks/bounds.py --data mnist --out results/bounds-mnist.json --processes 6
    python benchmarks/bounds.py --data digits --limit 400 --wanted 20 --n 1000 --steps 5 --out results/bounds-digits.json

Trains one run (``--recipe``, noise after the first layer, seed 0), certifies a copy of it for each norm and bound with one key,
checks that the tight radius is never below the one of HGM on any input, attacks the certificates at 0.99 of their radius and
verifies every copy. ``published`` is Eq. 10 as printed with the sensitivity of one feature map: a claim, beside what holds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

NORMS = ("l2", "linf", "l1")
BOUNDS = ("tight", "hgm-complement", "hgm", "pixeldp", "published")
TRAINING: dict[str, dict[str, Any]] = {
    "mnist": {"data": {"source": "mnist"}, "epochs": 10, "batch_size": 256},
    "digits": {"data": {"source": "digits"}, "epochs": 40},
}
# Enough to find what is wrong by a little (radii 1.2 times too long), and a quarter of the default's time.
BUDGET = {"steps": 50, "draws": 16, "restarts": 2, "directions": 8, "rounds": 8, "votes": 5000}


def one(job: tuple[Path, str, str, int, int, int, dict[str, int]]) -> dict[str, Any]:
    """Certifies, attacks and verifies one copy of the run."""
    import torch

    from twinproof.auditing.audit import audit as audit_run
    from twinproof.auditing.certificate_search import AttackBudget
    from twinproof.auditing.verify import verify_run
    from twinproof.certification.method import Method, Sampling
    from twinproof.certification.run import certify
    from twinproof.keys import Key
    from twinproof.runs.run import Run, load_run_data

    trained, norm, bound, limit, n, wanted, budget = job
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(shutil.copytree(trained, Path(folder) / "run"))
        run = Run.open(root)
        dataset = load_run_data(run)
        made = certify(
            run,
            dataset,
            sampling=Sampling(100, n, 0.001),
            method=Method(norm=norm, bound=bound),
            limit=limit,
            key=Key.from_seed(0),
        )
        radii = [certificate.radius for certificate in made.certificates]
        # Attacks take the certificates in order: so many inputs hold the number of certified ones that is wanted.
        certified = [at for at, radius in enumerate(radii) if radius > 0][:wanted]
        audit = audit_run(
            Run.open(root),
            dataset,
            budget=AttackBudget(**budget),
            limit=certified[-1] + 1 if certified else None,
            key=Key.from_seed(1),
        )
        verified = verify_run(root)
    verdict = audit.verdict
    return {
        "norm": norm,
        "bound": bound,
        "radii": radii,
        "operator_norm": made.settings.noise.operator_norm,
        "operator_norm_method": made.settings.noise.operator_norm_method,
        "slack": made.settings.noise.slack,
        "sigma": made.settings.noise.sigma,
        "largest_radius": made.settings.largest_radius,
        "correct": sum(certificate.correct for certificate in made.certificates),
        "audit": None if verdict is None else {**asdict(verdict), "verdict": verdict.words},
        "audit_seconds": audit.settings.made.seconds,
        "verified": verified.ok,
        "problems": [str(problem) for problem in verified.problems],
        "device": made.settings.made.device,
        "versions": made.settings.made.versions,
        "date": made.settings.made.created,
    }


def compared(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means instead of lists, after the check that the bounds are in order on every single input."""
    radii = {(line["norm"], line["bound"]): line["radii"] for line in found}
    lines = []
    for line in found:
        tight = radii[line["norm"], "tight"]
        own = line.pop("radii")
        order = sum(a < b for a, b in zip(tight, own, strict=True))
        lines.append(
            {
                **line,
                "inputs": len(own),
                "certified": sum(radius > 0 for radius in own),
                "mean_radius": statistics.fmean(own),
                "of_tight": statistics.fmean(own) / statistics.fmean(tight) if any(tight) else None,
                "inputs_above_tight": order,
            }
        )
    return lines


def main() -> None:
    """Trains, runs all pairs, checks and writes."""
    from twinproof.files import write_json
    from twinproof.recipes.train import train

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", choices=sorted(TRAINING), default="mnist")
    parser.add_argument("--recipe", default="hgm-pixeldp")
    parser.add_argument("--limit", type=int, default=1200, help="inputs that are certified")
    parser.add_argument("--wanted", type=int, default=1000, help="certificates that are attacked, of each norm and bound")
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--training-steps", type=int, default=None, help="fewer steps, to try the script out")
    parser.add_argument("--steps", type=int, default=BUDGET["steps"], help="of each ascent")
    arguments = parser.parse_args()
    changes = {} if arguments.training_steps is None else {"steps": arguments.training_steps}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        run = train({**TRAINING[arguments.data], "recipe": arguments.recipe, "seed": 0, **changes}, root)
        budget = {**BUDGET, "steps": arguments.steps}
        shared = (arguments.limit, arguments.n, arguments.wanted, budget)
        jobs = [(root, norm, bound, *shared) for norm in NORMS for bound in BOUNDS]
        with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
            lines = compared(list(pool.map(one, jobs)))
        accuracy = run.record["accuracy"]["value"]
    write_json(
        arguments.out,
        {
            "data": arguments.data,
            "recipe": arguments.recipe,
            "accuracy": accuracy,
            "n": arguments.n,
            "alpha": 0.001,
            "budget": budget,
            "lines": lines,
        },
    )


if __name__ == "__main__":
    main()
