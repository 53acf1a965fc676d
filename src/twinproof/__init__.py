"""Classifiers that are differentially private and certifiably robust at once, with proofs anybody can check.

    import twinproof as tp

    run = tp.train({"data": {"source": "digits"}, "epsilon": 3.0, "delta": 1e-4}, "runs/digits")
    print(run.guarantee.promise)
    certificates = tp.smooth(run.model(), sigma=0.25, levels=16).certify(tp.data.load("digits").test.inputs[:10])

Names are loaded when they are first used, so that importing the package is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinproof.auditing.audit import audit_run as audit_run
    from twinproof.auditing.certificate_search import AttackBudget as AttackBudget
    from twinproof.auditing.verify import verify_run as verify_run
    from twinproof.certification.method import Method, Sampling
    from twinproof.certification.run import certify_run, smoothed_for_run
    from twinproof.certification.smoothed import SmoothedClassifier, smooth
    from twinproof.evaluation.protocols import AttackPlan
    from twinproof.evaluation.under_attack import attack_run
    from twinproof.recipes.run_data import load_run_data
    from twinproof.recipes.train import train
    from twinproof.reporting.run import report_run
    from twinproof.runs.run import Run

__version__ = "0.1.0"

# Rooms are named with nouns and verbs that functions would like to have (certify, report), and a package's attribute of that
# name is the room: so functions on runs say what they work on.
_PLACES = {
    "AttackBudget": "twinproof.auditing.certificate_search",
    "AttackPlan": "twinproof.evaluation.protocols",
    "Method": "twinproof.certification.method",
    "Run": "twinproof.runs.run",
    "Sampling": "twinproof.certification.method",
    "SmoothedClassifier": "twinproof.certification.smoothed",
    "attack_run": "twinproof.evaluation.under_attack",
    "audit_run": "twinproof.auditing.audit",
    "certify_run": "twinproof.certification.run",
    "load_run_data": "twinproof.recipes.run_data",
    "report_run": "twinproof.reporting.run",
    "smooth": "twinproof.certification.smoothed",
    "smoothed_for_run": "twinproof.certification.run",
    "train": "twinproof.recipes.train",
    "verify_run": "twinproof.auditing.verify",
}
__all__ = [
    "AttackBudget",
    "AttackPlan",
    "Method",
    "Run",
    "Sampling",
    "SmoothedClassifier",
    "attack_run",
    "audit_run",
    "certify_run",
    "data",
    "load_run_data",
    "report_run",
    "smooth",
    "smoothed_for_run",
    "train",
    "verify_run",
]


def __getattr__(name: str) -> Any:
    """The public name, imported from its room."""
    if name == "data":
        return import_module("twinproof.data")
    if name not in _PLACES:
        raise AttributeError(f"module 'twinproof' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    """Public names, for completion."""
    return [*__all__, "__version__"]
