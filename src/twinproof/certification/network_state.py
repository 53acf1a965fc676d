"""What a network keeps: the numbers of its tensors, what its Python objects hold, and the generators that it draws from."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
