"""Looking into a forward pass from outside: which layer draws how many random numbers, and where two passes part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from twinproof.certification.network_state import paths_of

Hook = Callable[[str, object], None]


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, ``numbers`` counts the random numbers that each layer of ``network`` draws from ``generators``.

    An operation counts where it moves one of the generators on: a dropout that is switched off does not. A generator that a
    network makes and seeds anew in each pass is none of them: it draws the same numbers every time.
    """

    def __init__(self, network: nn.Module, generators: Sequence[torch.Generator]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers: Counter[str] = Counter()
        self._network, self._generators, self._layers = network, generators, [""]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation, and looks at the generators before and after where it may draw."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = [generator.get_state() for generator in self._generators]
        made = func(*args, **(kwargs or {}))
        if any(not torch.equal(one.get_state(), state) for one, state in zip(self._generators, before, strict=True)):
            first = made[0] if isinstance(made, tuple | list) else made
            self.numbers[self._layers[-1]] += first.numel() if isinstance(first, Tensor) else 1
        return made

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Counts inside, and knows the layer that is at work."""
        with inside_layers(self._network, lambda path, given: self._layers.append(path), self._leave), self:
            yield

    def _leave(self, path: str, made: object) -> None:
        self._layers.pop()


@contextmanager
def inside_layers(network: nn.Module, enter: Hook, leave: Hook) -> Iterator[None]:
    """Inside, ``enter`` and ``leave`` are called around every module of ``network``, with its path and its arguments or answer.

    Hooks for all modules, so that none is put on the network's own.
    """
    paths = paths_of(network)

    def entered(module: nn.Module, given: object) -> None:
        if module in paths:
            enter(paths[module], given)

    def left(module: nn.Module, given: object, made: object) -> None:
        if module in paths:
            leave(paths[module], made)

    handles = [register_module_forward_pre_hook(entered), register_module_forward_hook(left)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_difference(
    network: nn.Module, runs: Sequence[Callable[[], object]], kept: Tensor, same: Callable[[Tensor, Tensor], bool]
) -> str:
    """The layer in which two runs of one batch size part, by the rows ``kept``; "" for the network's own code.

    Where a layer gets other numbers already, the code around it is to blame.
    """
    one, two = (_seen(network, run, kept) for run in runs)
    for (path, kind, here), (_, _, there) in zip(one, two, strict=False):
        if not same(here, there):
            return path if kind == "answer" else path.rpartition(".")[0]
    return ""


def _seen(network: nn.Module, run: Callable[[], object], kept: Tensor) -> list[tuple[str, str, Tensor]]:
    found: list[tuple[str, str, Tensor]] = []
    last = int(kept.max())

    def note(kind: str, path: str, held: object) -> None:
        for value in held if isinstance(held, tuple) else (held,):
            if path and isinstance(value, Tensor) and value.ndim and len(value) > last:
                found.append((path, kind, value[kept].detach().to(torch.float64, copy=True)))

    with inside_layers(network, partial(note, "argument"), partial(note, "answer")):
        run()
    return found
