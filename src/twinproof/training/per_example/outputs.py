"""What a network and a loss must return, checked where it is used."""

from __future__ import annotations

from torch import Tensor

from twinproof.errors import ModelError


def checked_logits(logits: object, rows: int) -> Tensor:
    """The network's output if it is one row of logits for each row of input."""
    if isinstance(logits, Tensor) and logits.dim() == 2 and logits.shape[0] == rows:
        return logits
    raise ModelError(
        "the network does not return one row of logits for each input",
        where="output of the network",
        got=f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__,
        wanted=f"a tensor of shape ({rows}, classes)",
    )


def checked_loss(loss: object) -> Tensor:
    """The loss of one record if it is a scalar."""
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return loss
    raise ModelError(
        "the loss of one record is not a scalar",
        where="output of the loss",
        got=f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__,
        wanted="a tensor of shape ()",
        fix="take the mean over the record's copies",
    )
