"""Buffers of a private model must not move: they would carry the records' values past the noise into the released model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from twinproof.errors import ModelError


def changed_buffers(names: Iterable[str]) -> ModelError:
    """The error for buffers that a forward pass changed."""
    return ModelError(
        "the forward pass changes a buffer, which would then hold values of the training records without noise",
        where=", ".join(sorted(names)),
        got="a buffer that changes in forward",
        wanted="buffers that stay as they are",
        fix="drop the running statistics, or make the value a parameter so that it is trained with privacy",
    )


@contextmanager
def watched_buffers(model: nn.Module) -> Iterator[None]:
    """Raises ModelError where a buffer was replaced or written to inside the block."""
    before = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}
    yield
    after = dict(model.named_buffers())
    changed = [
        name for name, (buffer, version) in before.items() if after.get(name) is not buffer or buffer._version != version
    ]
    changed += [name for name in after if name not in before]
    if changed:
        raise changed_buffers(changed)


@contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Puts every buffer back as it was, also after an error: a trial must leave no trace in the user's model."""
    before = {name: (buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        for name, (buffer, value) in before.items():
            if not torch.equal(buffer, value):
                with torch.no_grad():
                    buffer.copy_(value)
            _put_back(model, name, buffer)


def _put_back(model: nn.Module, name: str, buffer: Tensor) -> None:
    path, _, local = name.rpartition(".")
    model.get_submodule(path)._buffers[local] = buffer
