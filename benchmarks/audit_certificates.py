"""Attacking the certificates of DP-Gaussian (DP-CERT) on MNIST: 1,000 true ones, and the same with their radii doubled.

    TWINPROOF_DATA=... python benchmarks/audit_certificates.py --out results/audit-certificates-mnist.json

Trains one run (sigma 0.5, the paper's settings, seed 0), or opens the one that ``--run`` names, certifies the first test images
with n = 10,000 at alpha = 0.001 and attacks every certificate. The planted lie is a copy of the run whose certificates claim
twice the radius, with consistent digests: an audit that did not refute it would be worth nothing.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpcert_mnist import SETTINGS, short_lived_run
from twinproof.auditing.audit import audit
from twinproof.auditing.certificate_search import AttackBudget
from twinproof.auditing.certificate_verdict import CertificateAudit
from twinproof.certification.method import Sampling
from twinproof.certification.run import certify
from twinproof.data.record import Dataset
from twinproof.files import write_json
from twinproof.guarantee import round_down
from twinproof.keys import Key
from twinproof.runs.layout import update_run_json
from twinproof.runs.records import format_certificates, read_certificates
from twinproof.runs.run import Run, load_run_data


def main() -> None:
    """Trains or opens, certifies, attacks, plants the lie, attacks again, and writes both verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path, default=None, help="a finished run instead of training one; it is copied")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--training-steps", type=int, default=None, help="fewer steps, to try the script out")
    parser.add_argument("--steps", type=int, default=AttackBudget().steps)
    parser.add_argument("--draws", type=int, default=AttackBudget().draws)
    parser.add_argument("--restarts", type=int, default=AttackBudget().restarts)
    parser.add_argument("--votes", type=int, default=AttackBudget().votes)
    arguments = parser.parse_args()
    budget = AttackBudget(arguments.steps, arguments.draws, arguments.restarts, votes=arguments.votes)
    with short_lived_run(arguments.run, arguments.training_steps) as root:
        dataset = load_run_data(Run.open(root))
        sampling = Sampling(100, 10_000, 0.001)
        certified = certify(
            Run.open(root), dataset, sampling=sampling, limit=arguments.limit, key=Key.from_seed(0), overwrite=True
        )
        planted = double_radii(Path(shutil.copytree(root, root.with_name("planted"))))
        true, doubled = (attacked(where, dataset, budget) for where in (root, planted))
        accuracy = Run.open(root).record["accuracy"]["value"]
    settings = true.settings
    write_json(
        arguments.out,
        {
            "recipe": SETTINGS["recipe"],
            "sigma": certified.settings.noise.sigma,
            "n": certified.settings.sampling.n,
            "accuracy": accuracy,
            "budget": asdict(budget),
            "true": summary(true),
            "radii_doubled": summary(doubled),
            "device": settings.made.device,
            "versions": settings.made.versions,
            "date": settings.made.created,
        },
    )


def attacked(root: Path, dataset: Dataset, budget: AttackBudget) -> CertificateAudit:
    """An audit with a seed, so that it can be repeated; earlier ones of a copied run are replaced."""
    return audit(Run.open(root), dataset, budget=budget, key=Key.from_seed(1), overwrite=True)


def double_radii(root: Path) -> Path:
    """The planted lie."""
    path = root / "certificates" / "l2" / "certificates.csv"
    lines = [replace(one, radius=2 * one.radius) for one in read_certificates(path)]
    path.write_bytes(format_certificates(lines))
    update_run_json(root, files=("certificates/l2/certificates.csv",))
    return root


def summary(audit: CertificateAudit) -> dict[str, Any]:
    """The verdict, how the closest flips are spread, which search found them, and the time per certificate."""
    ratios = sorted(one.flip.ratio for one in audit.attacked if one.flip is not None)
    found_by = [one.flip.found_by for one in audit.attacked if one.flip is not None]
    verdict = {} if audit.verdict is None else {**asdict(audit.verdict), "verdict": audit.verdict.words}
    deciles = statistics.quantiles(ratios, n=10, method="inclusive") if len(ratios) > 1 else ratios
    return {
        **verdict,
        "ratio_deciles": [round_down(ratio) for ratio in deciles],
        "found_by": {name: found_by.count(name) for name in sorted(set(found_by))},
        "seconds": audit.settings.made.seconds,
        "seconds_per_certificate": round(audit.settings.made.seconds / max(1, len(audit.attacked)), 4),
    }


if __name__ == "__main__":
    main()
