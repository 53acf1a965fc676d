"""Whether models and bounds promise what their labels say: asked of the cells, never of the name of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twinproof.errors import CheckFailed
from twinproof.guarantee import Status
from twinproof.papers.cell_store import Measured
from twinproof.papers.methods import METHODS, MethodOfPaper


def promised(method: MethodOfPaper) -> Status:
    """The status of privacy that the label of a method tells the reader."""
    if method.published:
        return Status.REFUTED
    return Status.PROVEN if method.private else Status.NONE


def check_promises(done: Sequence[Measured]) -> None:
    """Refuses cells whose runs have another privacy status than their label says.

    Guarantees
        A line or row that is not labelled "no privacy" and belongs to a private method comes from runs whose epsilon is proven
        and printed; one that is labelled so from runs that promise none and print none.
    """
    for one in done:
        status, epsilon = str(one.numbers["privacy_status"]), one.numbers["epsilon"]
        wanted = promised(METHODS[one.cell.method])
        if status != wanted or (epsilon is not None) != (wanted is Status.PROVEN):
            raise CheckFailed(
                "a model does not promise what its label says",
                where=one.cell.name,
                got=f"status {status}, epsilon {epsilon}",
                wanted=f"status {wanted}, {'an epsilon' if wanted is Status.PROVEN else 'no epsilon'}",
            )


def check_bounds(done: Sequence[Measured], labelled: Mapping[str, Mapping[str, Status]]) -> None:
    """Refuses cells in which a bound has another status than its label says: ``labelled`` is method -> bound -> status."""
    for one in done:
        for bound, wanted in labelled[one.cell.method].items():
            status = one.numbers["bound_status"].get(bound)
            if status != wanted:
                raise CheckFailed(
                    "a bound is not worth what its label says",
                    where=f"{one.cell.name}, bound {bound}",
                    got=status or "no such bound",
                    wanted=str(wanted),
                )
