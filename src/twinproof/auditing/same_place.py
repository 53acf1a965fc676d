"""Whether something is computed again where it was computed first: only there may the last bits be expected to agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

# Outputs that are closer than this share of the largest one may change places by rounding alone.
CLOSE = 2.0**-14
# The share of draws, or of inputs, whose answer may differ elsewhere.
ELSEWHERE = 0.01
# Copies of one input that are further apart than this share were answered at random.
_RANDOM = 1e-4


@dataclass(frozen=True)
class Place:
    """The device to compute on, and whether it is of the class, with the torch, that a record names."""

    device: torch.device
    same: bool

    @property
    def words(self) -> str:
        """For a person."""
        return "on the same device class and torch" if self.same else "on another device class or torch"

    @classmethod
    def of(cls, record: dict[str, Any], model: nn.Module) -> Place:
        """The device class of ``record`` where this machine has it, else the CPU.

        The same place needs the record's version of torch, and products in float32 there and here; which of the equal forms
        of a network was run does not matter beyond rounding.
        """
        import torch

        from twinproof.compute.devices import FLOAT32, arithmetic_of

        kind = str(record.get("device", "")).partition(":")[0]
        device = torch.device("cuda" if kind == "cuda" and torch.cuda.is_available() else "cpu")
        versions = record.get("versions")
        torch_there = versions.get("torch") if isinstance(versions, dict) else None
        plain = record.get("arithmetic", FLOAT32) == FLOAT32 and arithmetic_of(model, device) == FLOAT32
        exact_layer = record.get("shared_noise") is not True  # whose first layer has weights that are rounded a little
        return cls(device, kind == device.type and torch_there == torch.__version__ and plain and exact_layer)


def at_random(first: torch.Tensor, again: torch.Tensor) -> bool:
    """Whether copies of one row got different outputs, beside each other or when asked again, beyond what rounding does."""
    scale = max(1.0, float(first.abs().nan_to_num().max()))
    apart = (first - first[:1]).abs().maximum((first - again).abs()).nan_to_num()
    return float(apart.max()) > _RANDOM * scale
