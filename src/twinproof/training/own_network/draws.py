"""Random numbers that a network draws in one pass, and giving each record's numbers to another row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

# Each draws inside and hands out something else than the numbers: they cannot be moved to another row.
_NOT_PLAIN = ("native_dropout", "rrelu", "attention")


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every random number that torch draws inside; with ``take``, row i gets the numbers drawn for row ``take[i]``.

    The first axis of what is drawn must count the ``records`` (each may have several rows). ``shared`` names draws with fewer
    numbers than records, which some records must have in common; ``unplaced`` those that belong to no row in an obvious way.
    """

    def __init__(self, records: int, take: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.records = records
        self.take = take
        self.happened = False
        self.shared: list[str] = []
        self.unplaced: list[str] = []

    def __torch_dispatch__(
        self, func: OpOverload[Any, Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operation."""
        found = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.happened = True
            self._place(str(func), found)
        return found

    def _place(self, name: str, drawn: object) -> None:
        if isinstance(drawn, Tensor) and drawn.numel() < self.records:
            self.shared.append(f"{name} of shape {tuple(drawn.shape)}")
        elif not isinstance(drawn, Tensor) or any(word in name for word in _NOT_PLAIN):
            self.unplaced.append(name)
        elif drawn.dim() == 0 or drawn.shape[0] % self.records:
            self.unplaced.append(f"{name} of shape {tuple(drawn.shape)}")
        elif self.take is not None:
            by_record = drawn.reshape(self.records, -1)
            drawn.copy_(by_record[self.take.to(drawn.device)].view(drawn.shape))
