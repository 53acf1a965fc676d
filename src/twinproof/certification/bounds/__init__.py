"""From draws to radii: confidence bounds on expected scores, and robustness bounds that turn them into a distance.

One file for each bound; ``find_bound`` and ``find_confidence`` know all of them by name.
"""

from twinproof.certification.bounds.bound import RobustnessBound
from twinproof.certification.bounds.catalogue import bound_names, find_bound, status_of
from twinproof.certification.bounds.confidence import Confidence, RunnerUp, after_tau
from twinproof.certification.bounds.evidence import Evidence
from twinproof.certification.bounds.mean_confidence import CONFIDENCE_NAMES, find_confidence
from twinproof.certification.bounds.verified_testing import is_robust, largest_size

__all__ = [
    "CONFIDENCE_NAMES",
    "Confidence",
    "Evidence",
    "RobustnessBound",
    "RunnerUp",
    "after_tau",
    "bound_names",
    "find_bound",
    "find_confidence",
    "is_robust",
    "largest_size",
    "status_of",
]
