"""Checks a run of twinproof from its files: numpy, scipy and dp-accounting, no torch, and nothing of twinproof itself."""

from __future__ import annotations

from twinproof_verify.evidence import Originals
from twinproof_verify.findings import Check, Problem, Verification, VerifyError
from twinproof_verify.inspection import verify

__version__ = "0.1.0"
__all__ = ["Check", "Originals", "Problem", "Verification", "VerifyError", "verify"]
