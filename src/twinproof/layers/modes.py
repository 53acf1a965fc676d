"""Running a network in eval mode and leaving it as it was found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts every module in eval mode and, whatever happens inside, each one back to the mode it had by itself."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training  # not train(), which would overrule modules that the owner froze one by one
