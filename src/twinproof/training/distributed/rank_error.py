"""The error of ranks that part: one went away, or they do not agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twinproof.errors import RunError

GO_ON = "start the same command again (train with --resume); what is on the disk is whole"


class RankError(RunError):
    """Ranks cannot go on together.

    ``lost`` are ranks of which nothing is heard any more; ``told`` says that rank 0 tells it: one message is enough.
    """

    lost: tuple[int, ...] = ()
    told: bool = False

    def told_elsewhere(self) -> RankError:
        """The same error, on a rank that keeps quiet about it."""
        self.told = True
        return self


def stopped(rank: int, fields: Mapping[str, str]) -> RankError:
    """The error with which a rank has stopped, for the others."""
    inside = fields.get("where", "")
    where = inside if inside.startswith("rank ") else f"rank {rank}" + (f", {inside}" if inside else "")
    rest = {name: fields.get(name, "") for name in ("got", "wanted", "fix")}
    return RankError(fields.get("what", ""), where=where, **rest)


def gone(ranks: Sequence[int]) -> RankError:
    """Nothing is heard of these ranks any more."""
    error = RankError(
        "a rank has gone without a word",
        where=", ".join(f"rank {rank}" for rank in ranks),
        got="no sign of life: it was killed, or its machine is gone",
        wanted="all ranks of the run",
        fix=GO_ON,
    )
    error.lost = tuple(ranks)
    return error


def broken() -> RankError:
    """All ranks are there, and yet the work was cut."""
    return RankError(
        "the ranks were parted",
        got="a connection that broke, or a launcher that stopped the run",
        wanted="all ranks until the end",
        fix=GO_ON,
    )
