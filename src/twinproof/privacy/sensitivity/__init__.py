"""How far a layer's output can move when its input moves: operator norms that are never below the truth.

``twinproof.privacy.sensitivity.operator_norm`` is the entrance. Why the bounds hold and how tight they are:
docs/decisions/0010-operator-norms.md.
"""
