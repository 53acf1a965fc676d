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
    from twinproof.auditing.audit import audit
    from twinproof.auditing.certificate_search import AttackBudget
    from twinproof.auditing.verify import verify_run as verify
    from twinproof.certification.method import Method, Sampling
    from twinproof.certification.run import certify, smoothed_for_run
    from twinproof.certification.smoothed import SmoothedClassifier, smooth
    from twinproof.evaluation.protocols import AttackPlan
    from twinproof.evaluation.under_attack import attack
    from twinproof.recipes.train import train
    from twinproof.reporting.run import report_run as report
    from twinproof.runs.run import Run, load_run_data

    open = Run.open  # noqa: A001 (the public name)

__version__ = "0.1.0"

# Where each public name is defined, and what it is called there.
_PLACES = {
    "AttackBudget": "twinproof.auditing.certificate_search.AttackBudget",
    "AttackPlan": "twinproof.evaluation.protocols.AttackPlan",
    "Method": "twinproof.certification.method.Method",
    "Run": "twinproof.runs.run.Run",
    "Sampling": "twinproof.certification.method.Sampling",
    "SmoothedClassifier": "twinproof.certification.smoothed.SmoothedClassifier",
    "attack": "twinproof.evaluation.under_attack.attack",
    "audit": "twinproof.auditing.audit.audit",
    "certify": "twinproof.certification.run.certify",
    "load_run_data": "twinproof.runs.run.load_run_data",
    "report": "twinproof.reporting.run.report_run",
    "smooth": "twinproof.certification.smoothed.smooth",
    "smoothed_for_run": "twinproof.certification.run.smoothed_for_run",
    "train": "twinproof.recipes.train.train",
    "verify": "twinproof.auditing.verify.verify_run",
}
__all__ = [
    "AttackBudget",
    "AttackPlan",
    "Method",
    "Run",
    "Sampling",
    "SmoothedClassifier",
    "attack",
    "audit",
    "certify",
    "data",
    "load_run_data",
    "open",
    "report",
    "smooth",
    "smoothed_for_run",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    """The public name, imported from its room."""
    if name == "data":
        return import_module("twinproof.data")
    if name == "open":
        return __getattr__("Run").open
    if name not in _PLACES:
        raise AttributeError(f"module 'twinproof' has no attribute {name!r}")
    module, _, inside = _PLACES[name].rpartition(".")
    return getattr(import_module(module), inside)


def __dir__() -> list[str]:
    """Public names, for completion."""
    return [*__all__, "__version__"]
