"""PixelDP: the text at hand is the readme of an implementation; it prints a formula and no table, figure or accuracy."""

from __future__ import annotations

from twinproof.papers.experiment import Experiment, Paper

PIXELDP = (
    Experiment(
        "pixeldp-readme",
        Paper.PIXELDP,
        "readme",
        "noise of a layer for attacks of l2 size L: sqrt(2 ln(1.25 / delta)) L / epsilon; no table and no figure",
        settings=(("norm", "l2"), ("epsilon", "at most 1"), ("attack bound L", "0.1")),
        obstacle="prints no numbers to compare with; its formula: `twinproof sigma --mechanism classic`, recipe `pixeldp`",
    ),
)
