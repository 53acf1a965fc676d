"""One ledger for all ranks: rank 0 writes, the others follow in memory and check every line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinproof.privacy.ledger import Entry, Ledger
from twinproof.training.distributed.ranks import Ranks


class SharedLedger(Ledger):
    """The ledger as one rank has it.

    Guarantees
        ``append`` returns on no rank before rank 0 has the entry on the disk, and on none where the heads of the chains
        differ: what a rank draws afterwards is counted, by all of them alike.
    """

    def __init__(self, path: Path, entries: list[Entry], ranks: Ranks) -> None:
        super().__init__(path, entries)
        self._ranks = ranks
        self._agree()

    def append(self, kind: str, body: dict[str, Any]) -> None:
        """See :class:`Ledger`."""
        if self._ranks.is_first:
            super().append(kind, body)
        else:
            self.entries.append(Entry(len(self.entries), kind, body, self._last_hash))
        self._agree()

    def _agree(self) -> None:
        self._ranks.agree("the ledger", f"{len(self.entries)} lines, head {self._last_hash[:32]}")
