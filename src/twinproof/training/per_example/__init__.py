"""Per-example gradients with copies: a fast path by layer, a vmap path for any module, and the choice between them.

Importing the package registers the handlers of the supported layers.
"""

from twinproof.training.per_example import layers
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.fast import FastPath, handles
from twinproof.training.per_example.gradients import EmbeddingFactors, Instantiated, LinearFactors, PerExampleGradient
from twinproof.training.per_example.paths import PerExamplePath, RecordGradients, RecordLoss, VmapPath

__all__ = [
    "EmbeddingFactors",
    "FastPath",
    "Instantiated",
    "LinearFactors",
    "PerExampleGradient",
    "PerExamplePath",
    "RecordGradients",
    "RecordLoss",
    "VmapPath",
    "choose_path",
    "handles",
    "layers",
]
