"""How accurate the methods of a figure are: without attack, under the papers' attacks, under one that sees the noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twinproof.papers import gather
from twinproof.papers.cell_store import Measured
from twinproof.papers.comparison import estimate_text
from twinproof.papers.findings import Table
from twinproof.papers.methods import METHODS
from twinproof.papers.statistics import over_repetitions


def level_table(done: Sequence[Measured], methods: Sequence[str], sizes: Sequence[float]) -> Table:
    """A row for each method and measure, a column for each budget; sizes in the papers' scale."""
    budgets = gather.budgets_of(done)
    measures = dict(_measures(done, sizes))
    rows = tuple(
        (
            METHODS[method].label,
            words,
            *(estimate_text(over_repetitions(gather.values(done, method, read, epsilon))) for epsilon in budgets),
        )
        for method in methods
        for words, read in measures.items()
    )
    return Table("Accuracy (%)", ("method", "measure", *(f"epsilon {epsilon:g}" for epsilon in budgets)), rows)


def _measures(done: Sequence[Measured], sizes: Sequence[float]) -> Iterator[tuple[str, gather.Reading]]:
    yield "no attack", gather.clean
    for size in sizes:
        under = [gather.conventional(attack, size) for attack in gather.attacks_of(done)]
        yield f"size {size:g}: mean over the papers' attacks", gather.mean_of(under)
        if gather.has_adaptive(done, size):
            yield f"size {size:g}: PGD that sees the noise", gather.adaptive(size)
