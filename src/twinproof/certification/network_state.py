"""What a network keeps, compared between the moment it was smoothed and the moment votes are counted.

Of a network with a noise layer the first modules are not called (``taken_apart``), and the others are called by themselves.
What is done to the network afterwards would not reach the votes: a module in another's place, a hook, another deviation.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from twinproof.errors import ModelError

# What torch itself keeps in a module; tensors are looked at one by one.
_TORCH = frozenset(vars(nn.Module())) - {"training"}
# Objects inside objects; deeper ones are rarely a network's own.
_DEEPEST = 6
# Where a copied layer keeps the path that it had.
_PATH = "_path_in_model"


def own_copy(network: nn.Module) -> nn.Module | None:
    """A copy that is nobody else's, whose layers know their path in ``network``; None where a module cannot be copied."""
    try:
        made = copy.deepcopy(network)
    except (TypeError, RuntimeError, ValueError, NotImplementedError):
        return None
    for path, module in made.named_modules():
        vars(module).setdefault(_PATH, path)
    return made


def paths_of(network: nn.Module) -> dict[nn.Module, str]:
    """The path of each layer in the network that it was copied from: rewriting a copy moves layers."""
    return {module: str(vars(module).get(_PATH, path)) for path, module in network.named_modules()}


def tensors_of(network: nn.Module) -> dict[str, str]:
    """A digest of each parameter and buffer."""
    return {
        f"{path}.{name}".lstrip("."): _digest(value)
        for module, path in paths_of(network).items()
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }


def kept_by(network: nn.Module) -> dict[str, str]:
    """A digest of everything that the modules hold: tensors, numbers, texts, and containers or objects of these.

    What code keeps outside of its modules (globals, closures) is not seen, nor the state of a generator: a network may draw.
    """
    found = tensors_of(network)
    for module, path in paths_of(network).items():
        if type(module).__module__.startswith("twinproof."):
            continue
        for name, value in vars(module).items():
            if name not in _TORCH:
                found.update(_parts(f"{path}.{name}".lstrip("."), value, _DEEPEST, set()))
    return found


def changed_state(layer: str, got: str) -> ModelError:
    """The refusal of a network that is not the same function in every call."""
    return ModelError(
        "the network changes while it is used in eval mode",
        where=layer,
        got=got,
        wanted="the same answer for the same input in every call",
        fix="keep nothing from one call to the next in eval mode (counters, running averages, caches that depend on inputs)",
    )


def refuse_other(before: Mapping[str, str], now: Mapping[str, str], got: str) -> None:
    """Refuses unless all of ``before`` is there and unchanged."""
    for name, digest in before.items():
        if now.get(name) != digest:
            raise changed_state(name, got)


def generators_of(network: nn.Module, device: torch.device) -> tuple[torch.Generator, ...]:
    """Torch's own generators, and those that modules hold."""
    own = [value for module in network.modules() for value in vars(module).values() if isinstance(value, torch.Generator)]
    return (torch.default_generator, *([_of_gpu(device)] if device.type == "cuda" else []), *own)


def _of_gpu(device: torch.device) -> torch.Generator:
    with torch.cuda.device(device):
        return torch.cuda.default_generators[torch.cuda.current_device()]


def foreign_generators() -> tuple[object, bytes]:
    """The states of Python's generator and NumPy's global one."""
    state = np.random.get_state(legacy=False)["state"]
    return random.getstate(), b"".join(np.asarray(value).tobytes() for value in state.values())


def _parts(name: str, value: object, depth: int, seen: set[int]) -> Iterator[tuple[str, str]]:
    if isinstance(value, Tensor | np.ndarray):
        yield name, _digest(value)
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        yield name, repr(value)
    elif depth and id(value) not in seen and not isinstance(value, torch.Generator):
        seen.add(id(value))
        held = list(_held(value))
        yield name, f"{len(held)} values"
        for key, inner in held:
            yield from _parts(f"{name}{key}", inner, depth - 1, seen)


def _held(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]" if isinstance(key, str | int) else "[...]", inner) for key, inner in value.items())
    elif isinstance(value, Set):
        yield from ((f"[{place}]", inner) for place, inner in enumerate(sorted(map(repr, value))))
    elif isinstance(value, Sequence | deque):
        yield from ((f"[{place}]", inner) for place, inner in enumerate(value))
    elif isinstance(value, nn.Module):
        yield from ((f".{key}", inner) for key, inner in (*value.named_parameters(), *value.named_buffers()))
    elif hasattr(value, "__dict__") and not callable(value):
        yield from ((f".{key}", inner) for key, inner in vars(value).items())


def _digest(value: Tensor | NDArray[Any]) -> str:
    if isinstance(value, Tensor):
        plain = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
        content = plain.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    else:
        content = np.ascontiguousarray(value).tobytes()
    return f"{tuple(value.shape)} {value.dtype} {blake2b(content, digest_size=16).hexdigest()}"


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
