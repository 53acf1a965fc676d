"""What a network keeps: its tensors bit for bit, its Python objects, and the generators that it draws from.

Values are compared, not identities: a copy of a module has the same state as the module.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Where a copied layer keeps the path that it had.
_PATH = "_path_in_model"


def bits(value: Tensor) -> Tensor:
    """The same memory read as integers, so that NaN equals NaN and 0.0 differs from -0.0."""
    detached = value.detach()
    if detached.is_complex():
        detached = torch.view_as_real(detached.resolve_conj())
    if detached.dtype == torch.bool:
        return detached.to(torch.uint8)
    return detached.contiguous().view(_INTEGERS[detached.element_size()])


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def all_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by name; one that has two names has both."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts every module in eval mode, and afterwards (also after an error) back to the mode that it had."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training  # not train(), which would overrule modules that the owner froze


def own_copy(network: nn.Module) -> nn.Module | None:
    """A deep copy whose layers know their path in ``network``; None where a module cannot be copied."""
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


def tensor_digests(network: nn.Module) -> dict[str, str]:
    return {
        f"{path}.{name}".lstrip("."): digest
        for module, path in paths_of(network).items()
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        if (digest := _contents(value)) is not None
    }


def generators_of(network: nn.Module, device: torch.device) -> tuple[torch.Generator, ...]:
    """Torch's own generators, and those that modules hold."""
    own = [value for module in network.modules() for value in vars(module).values() if isinstance(value, torch.Generator)]
    return (torch.default_generator, *([_gpu_generator(device)] if device.type == "cuda" else []), *own)


def _gpu_generator(device: torch.device) -> torch.Generator:
    with torch.cuda.device(device):
        return torch.cuda.default_generators[torch.cuda.current_device()]


def foreign_generators() -> tuple[tuple[object, ...], str]:
    """The states of Python's generator and NumPy's global one, the normal number that it keeps back included."""
    state = np.random.get_state(legacy=False)
    values = (*state["state"].values(), state["has_gauss"], state["gauss"])
    return random.getstate(), repr([value.tobytes() if isinstance(value, np.ndarray) else value for value in values])


# Their code keeps nothing about records, and walking it would take long.
_LIBRARIES = {"torch", "numpy", "twinproof", "scipy", *sys.stdlib_module_names}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, torch.dtype, torch.device, torch.Size, range)
_MOST = 200_000  # values; what keeps more is described by their number


@dataclass(frozen=True)
class KeptState:
    """Digests by place: ``own`` of values in the modules themselves, ``shared`` of values that a copy would share."""

    own: Mapping[str, str]
    shared: Mapping[str, str]

    @classmethod
    def of(cls, model: nn.Module, *, shared: bool = True) -> KeptState:
        """The present state of ``model`` without its parameters, buffers and mode; ``shared`` False looks at modules alone."""
        walk = _Walk(skipped={id(value) for value in all_tensors(model).values()}, classes=shared)
        for module, path in paths_of(model).items():
            walk.module(path or type(module).__name__, module)
        for kind in {type(module) for module in model.modules()}:
            walk.kind(kind)
        return cls(walk.own, walk.shared)


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(place for place in one.keys() | other.keys() if one.get(place) != other.get(place))


@dataclass
class _Walk:
    skipped: set[int]
    classes: bool
    own: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    _seen: dict[int, object] = field(default_factory=dict)  # holds what it has seen, so that no id is used twice

    def module(self, path: str, module: nn.Module) -> None:
        """What one module keeps: its submodules are walked by themselves."""
        self._seen[id(module)] = module
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"):
                self.value(f"{path}.{name}", value, self.own)

    def kind(self, kind: type) -> None:
        """What a class of the user's keeps, and what its functions can reach."""
        if not self.classes:
            return
        for base in kind.__mro__:
            if _is_library(base.__module__) or id(base) in self._seen:
                continue
            self._seen[id(base)] = base
            for name, value in vars(base).items():
                if not name.startswith("__") or isinstance(value, FunctionType):
                    self.value(f"{base.__qualname__}.{name}", value, self.shared)

    def value(self, place: str, value: object, into: dict[str, str]) -> None:
        """Notes one value, and what it holds."""
        if isinstance(value, _PLAIN):
            into[place] = repr(value)
            return
        if id(value) in self.skipped or id(value) in self._seen or len(into) > _MOST:
            return
        self._seen[id(value)] = value
        if (digest := _contents(value)) is not None:
            into[place] = digest
        elif isinstance(value, FunctionType):
            self._function(place, value)
        elif callable(cached := getattr(value, "cache_info", None)):
            into[place] = f"a cache of {cached().currsize}"
            self.value(f"{place}.__wrapped__", getattr(value, "__wrapped__", None), into)
        elif isinstance(value, MethodType | partial | staticmethod | classmethod | property):
            for name in ("__func__", "__self__", "func", "args", "keywords", "fget"):
                self.value(f"{place}.{name}", getattr(value, name, None), into)
        elif isinstance(value, Mapping):
            into[place] = f"{len(value)} entries"
            for key, held in value.items():
                self.value(f"{place}[{key!r:.40}]", held, into)
        elif isinstance(value, list | tuple | deque | AbstractSet):
            into[place] = f"{len(value)} entries"
            ordered = sorted(value, key=repr) if isinstance(value, AbstractSet) else value
            for index, held in enumerate(ordered):
                self.value(f"{place}[{index}]", held, into)
        elif isinstance(value, type):
            self.kind(value)
        else:
            self._object(place, value, into)

    def _object(self, place: str, value: object, into: dict[str, str]) -> None:
        kind = type(value)
        walked = isinstance(value, nn.Module | SimpleNamespace)
        if isinstance(value, ModuleType) or (_is_library(kind.__module__) and not walked):
            return
        into[place] = kind.__qualname__
        self.kind(kind)
        for name, held in getattr(value, "__dict__", {}).items():
            self.value(f"{place}.{name}", held, into)
        for slot in (name for base in kind.__mro__ for name in getattr(base, "__slots__", ())):
            self.value(f"{place}.{slot}", getattr(value, str(slot), None), into)

    def _function(self, place: str, function: FunctionType) -> None:
        """What a function of the user's can reach between its calls: closure, defaults, attributes, globals it names."""
        if not self.classes or _is_library(function.__module__ or ""):
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__" and not _is_empty(cell):
                self.value(f"{name} in {function.__qualname__}", cell.cell_contents, self.shared)
        for name, held in (("defaults", function.__defaults__), ("kwdefaults", function.__kwdefaults__)):
            self.value(f"{name} of {function.__qualname__}", held, self.shared)
        for name, held in vars(function).items():
            self.value(f"{function.__qualname__}.{name}", held, self.shared)
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__ and not isinstance(function.__globals__[name], ModuleType):
                self.value(f"global {name} in {function.__module__}", function.__globals__[name], self.shared)


def _is_empty(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (asking is the only way to know)
    except ValueError:
        return True
    return False


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*(_names(one) for one in inner))


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES and not module.startswith("__main__")


def _contents(value: object) -> str | None:
    """A digest of a value that holds numbers of its own; None for everything else."""
    if isinstance(value, Tensor):
        if value.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(value):
            return f"tensor {tuple(value.shape)}"
        dense = value.detach() if value.layout == torch.strided else value.detach().to_dense()
        plain = bits(dense).cpu().flatten().view(torch.uint8) if dense.numel() else dense.cpu()
        return _digest(plain.numpy().tobytes(), f"{value.dtype}{tuple(value.shape)}")
    if isinstance(value, torch.Generator):
        return _digest(value.get_state().numpy().tobytes(), "torch.Generator")
    if isinstance(value, np.ndarray):
        return _digest(value.tobytes() if value.dtype != object else repr(value).encode(), f"{value.dtype}{value.shape}")
    if isinstance(value, np.random.Generator | np.random.RandomState):
        state = value.bit_generator.state if isinstance(value, np.random.Generator) else value.get_state()
        return _digest(repr(state).encode(), "numpy generator")
    if isinstance(value, random.Random):
        return _digest(repr(value.getstate()).encode(), "random.Random")
    if isinstance(value, bytearray | itertools.count | MappingProxyType):
        return repr(value)
    return None


def _digest(content: bytes, label: str) -> str:
    return f"{label} {hashlib.sha256(content).hexdigest()[:32]}"
