"""Cells made by several ranks: each takes the next model that nobody has, and in the end all know what became of every one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from twinproof.compute.devices import resolve_device
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.errors import ConfigError
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import CellStore
from twinproof.papers.effort import Effort
from twinproof.papers.outcome import Failure, Outcome

_UNSEEN = "another rank has made it, but it is not here: all ranks need to see one folder"


def shared_outcomes(
    cells: Sequence[Cell], store: CellStore, ranks: Ranks, make: Callable[[Cell], Outcome]
) -> Iterator[Outcome]:
    """The outcome of each cell, on every rank: of its own as they become ready, of the others' by the end.

    Rank 0 sees cells of the others earlier, between its own, so that it can tell how far the work is.

    Guarantees
        - Models are begun in the order of ``cells``, each by one rank alone: whoever is free takes the next.
        - A cell is kept by the rank that made it, as soon as it is ready: a rank that is lost takes no finished cell along.
    """
    models = by_run(cells, store)
    ranks.agree("the models to make", hashlib.sha256("\n".join(cell.name for cell in cells).encode()).hexdigest())
    waiting = {cell.name: cell for cell in cells}
    failed: dict[str, str] = {}
    for number in takewhile(lambda number: number < len(models), ranks.numbers()):
        for cell in models[number]:
            outcome = make(cell)
            del waiting[cell.name]
            if isinstance(outcome, Failure):
                failed[cell.name] = outcome.why
            yield outcome
        if ranks.is_first:
            for found in [found for cell in waiting.values() if (found := store.finished(cell)) is not None]:
                del waiting[found.cell.name]
                yield found
    told: dict[str, str] = {}
    for words in ranks.gathered(json.dumps(failed).encode()):
        told |= json.loads(words)
    for cell in waiting.values():
        yield store.finished(cell) or Failure(cell, told.get(cell.name, _UNSEEN))


def by_run(cells: Sequence[Cell], store: CellStore) -> list[list[Cell]]:
    """The cells of each model together, in the order in which models come first: two ranks must not work on one run."""
    models: dict[str, list[Cell]] = {}
    for cell in cells:
        models.setdefault(str(store.run_folder(cell)), []).append(cell)
    return list(models.values())


def check_effort(effort: Effort, ranks: Ranks) -> None:
    """Refuses several processes inside each of several ranks, and ranks that would share a GPU."""
    if ranks is ALONE:
        return
    if effort.processes > 1:
        raise ConfigError(
            "ranks make one model at a time each",
            where="processes",
            got=f"{effort.processes}, in each of {ranks.world} ranks",
            wanted="1 with torchrun",
            fix="leave --processes out, or do without torchrun",
        )
    ranks.check_device(resolve_device(effort.device))
