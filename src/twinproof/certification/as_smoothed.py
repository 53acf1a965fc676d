"""The network as it was when it was smoothed: modules that a certificate leaves out must still be the ones it speaks of.

Of a network with a noise layer the first modules are not called (``taken_apart``), and the others are called by themselves.
What is done to the network afterwards would not reach the votes: a module in another's place, a hook, another deviation.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from twinproof.errors import ModelError


class AsSmoothed:
    """What ``model`` is made of, and the numbers of its ``front``: the modules that exact arithmetic stands for.

    Guarantees
        ``refuse_changes`` returns only if every module of the network is the same object of the same class in the same place,
        the front has the parameters and buffers that it had, bit by bit, and no hook or replaced ``forward`` on the front (or
        on the network itself) would be left out. What code of one's own keeps outside modules and buffers is not seen.
    """

    def __init__(self, model: nn.Module, front: Iterable[nn.Module]) -> None:
        self._model, self._front = model, tuple(front)
        self._places = _places(model)
        self._numbers = [{name: value.detach().clone() for name, value in _numbers(part)} for part in self._front]

    def refuse_changes(self) -> None:
        """ModelError that names the first thing that is not as it was."""
        now = _places(self._model)
        for path in sorted(now.keys() | self._places.keys()):
            if now.get(path) != self._places.get(path):
                raise _changed(path or type(self._model).__name__, "another module, or one more or less")
        for part, kept in zip(self._front, self._numbers, strict=True):
            found = dict(_numbers(part))
            if found.keys() != kept.keys() or not all(_same(value, kept[name]) for name, value in found.items()):
                raise _changed(type(part).__name__, "other weights before the noise, or other scales or deviation of it")
            for inner in part.modules():
                _refuse_hooks(inner)
        _refuse_hooks(self._model)


def refuse_global_hooks() -> None:
    """Refuses hooks that torch calls for every module: forms of a network that fuse modules would not call them."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise ModelError(
            "a hook would be left out of what is certified",
            where="torch.nn.modules.module",
            got="a forward hook for all modules",
            wanted="a network that does what its modules say",
            fix="remove the hook while certifying",
        )


def _places(model: nn.Module) -> dict[str, tuple[nn.Module, type[nn.Module]]]:
    # The modules themselves, not their ids: an id may be given to a new module when the old one is gone.
    return {path: (part, type(part)) for path, part in model.named_modules(remove_duplicate=False)}


def _numbers(part: nn.Module) -> list[tuple[str, Tensor]]:
    return [*part.named_parameters(), *part.named_buffers()]


def _same(now: Tensor, then: Tensor) -> bool:
    # A network may have been moved to another device since: its numbers are the same.
    return now.dtype == then.dtype and torch.equal(now.detach().to(then.device), then)


def _refuse_hooks(part: nn.Module) -> None:
    if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
        raise _changed(type(part).__name__, "a forward hook, or a replaced forward")


def _changed(where: str, got: str) -> ModelError:
    return ModelError(
        "the network was changed after it was smoothed",
        where=where,
        got=got,
        wanted="the network of the moment at which it was smoothed",
        fix="smooth the network again, without hooks",
    )
