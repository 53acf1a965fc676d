"""The test set as `verify_run` takes it; new code imports it from ``twinproof_verify``."""

from twinproof_verify import Originals as Originals
