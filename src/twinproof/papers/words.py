"""Names and sentences that figures and tables share."""

from __future__ import annotations

from collections.abc import Mapping

ATTACK_NAMES: Mapping[str, str] = {"fgsm": "FGSM", "ifgsm": "I-FGSM", "mim": "MIM", "pgd": "PGD (Madry)"}
SIZE_AXIS = "linf size, inputs in [-1, 1]"
EPSILON_AXIS = "epsilon"
ANSWERS = "methods with noise answer with the class that most of their draws vote for"
ADAPTIVE = (
    "sound measure of accuracy: under PGD in expectation over the noise, which the papers did not try; an attack, no promise"
)
REFUTED_LINES = (
    "as published (no privacy): the paper's own training, whose privacy is refuted; its epsilon is the paper's claim, nothing "
    "promises it"
)
