"""Names that figures and tables share."""

from __future__ import annotations

from collections.abc import Mapping

ATTACK_NAMES: Mapping[str, str] = {"fgsm": "FGSM", "ifgsm": "I-FGSM", "mim": "MIM", "pgd": "PGD (Madry)"}
SIZE_AXIS = "linf size, inputs in [-1, 1]"
EPSILON_AXIS = "epsilon"
