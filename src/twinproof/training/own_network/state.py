"""What a network keeps: its tensors bit for bit, and its Python objects.

Values are compared, not identities: a copy of a module has the same state as the module.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.training.loop import GradientSource
from twinproof.training.per_example.paths import RecordGradients

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SEED = 20_261_117
_MOST_AT_ONCE = 1 << 22


def bits(value: Tensor) -> Tensor:
    """The same memory read as integers, so that NaN equals NaN and 0.0 differs from -0.0."""
    detached = value.detach()
    if detached.is_complex():
        detached = torch.view_as_real(detached)
    if detached.dtype == torch.bool:
        return detached.to(torch.uint8)
    return detached.contiguous().view(_INTEGERS[detached.element_size()])


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def all_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by name; one that has two names has both."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def row_digests(gradients: RecordGradients) -> dict[str, Tensor]:
    """One number (m,) for each parameter and record that changes with every bit of that gradient.

    Zeros of both signs count as one, and so do all NaN: neither makes a difference to a sum of finite gradients.
    """
    return {name: _digest(value.instantiate()) for name, value in gradients.by_name.items()}


def _digest(values: Tensor) -> Tensor:
    flat = values.detach().reshape(values.shape[0], -1)
    columns = max(1, _MOST_AT_ONCE // max(1, flat.shape[0]))
    total = torch.zeros(flat.shape[0], dtype=torch.int64, device=flat.device)
    generator = torch.Generator().manual_seed(_SEED)
    for block in torch.split(flat, columns, dim=1):
        plain = torch.where(block.isnan(), torch.nan, block + 0.0)
        weights = torch.randint(-(2**62), 2**62, (block.shape[1],), generator=generator) * 2 + 1
        total += (bits(plain).to(torch.int64) * weights.to(flat.device)).sum(1)
    return total


def first_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor], rows: Tensor | Sequence[int]) -> str:
    """The parameter and row at which two tables of digests differ; empty if nowhere among ``rows``."""
    for name, digests in one.items():
        differing = (digests != other[name])[rows].nonzero()
        if len(differing):
            return f"{name} in {len(differing)} of {len(rows)} rows"
    return ""


# Their code keeps nothing about records, and walking it would take long.
_LIBRARIES = {"torch", "numpy", "twinproof", "scipy", *sys.stdlib_module_names}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, torch.dtype, torch.device, torch.Size, range)
_MOST = 200_000  # values that are looked at; of more only the number counts


@dataclass(frozen=True)
class KeptState:
    """Digests by place: ``own`` of values in the modules themselves, ``shared`` of values that a copy would share."""

    own: Mapping[str, str]
    shared: Mapping[str, str]

    @classmethod
    def of(cls, model: nn.Module) -> KeptState:
        """The present state of ``model``. Its parameters, buffers and mode are left out."""
        walk = _Walk(skipped={id(value) for value in all_tensors(model).values()})
        for path, module in model.named_modules():
            walk.module(path or type(module).__name__, module)
        for kind in {type(module) for module in model.modules()}:
            walk.kind(kind)
        return cls(walk.own, walk.shared)


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The places whose values differ."""
    return sorted(place for place in one.keys() | other.keys() if one.get(place) != other.get(place))


@dataclass
class _Walk:
    skipped: set[int]
    own: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    _seen: dict[int, object] = field(default_factory=dict)  # holds what it has seen, so that no number is used twice

    def module(self, path: str, module: nn.Module) -> None:
        """What one module keeps: its submodules are walked by themselves."""
        self._seen[id(module)] = module
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"):
                self.value(f"{path}.{name}", value, self.own)

    def kind(self, kind: type) -> None:
        """What a class of the owner's keeps, and what its functions can reach."""
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
        if isinstance(value, ModuleType) or (_is_library(kind.__module__) and not isinstance(value, nn.Module)):
            return
        into[place] = kind.__qualname__
        self.kind(kind)
        for name, held in getattr(value, "__dict__", {}).items():
            self.value(f"{place}.{name}", held, into)
        for slot in (name for base in kind.__mro__ for name in getattr(base, "__slots__", ())):
            self.value(f"{place}.{slot}", getattr(value, str(slot), None), into)

    def _function(self, place: str, function: FunctionType) -> None:
        """What a function of the owner's can reach between its calls: closure, defaults, attributes, globals it names."""
        if _is_library(function.__module__ or ""):
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
        if value.is_sparse or value.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(value):
            return f"tensor {tuple(value.shape)}"
        held = value.detach().cpu().contiguous().flatten().view(torch.uint8) if value.numel() else value.detach().cpu()
        return _value_digest(held.numpy().tobytes(), f"{value.dtype}{tuple(value.shape)}")
    if isinstance(value, torch.Generator):
        return _value_digest(value.get_state().numpy().tobytes(), "torch.Generator")
    if isinstance(value, np.ndarray):
        return _value_digest(value.tobytes() if value.dtype != object else repr(value).encode(), f"{value.dtype}{value.shape}")
    if isinstance(value, np.random.Generator | np.random.RandomState):
        state = value.bit_generator.state if isinstance(value, np.random.Generator) else value.get_state()
        return _value_digest(repr(state).encode(), "numpy generator")
    if isinstance(value, random.Random):
        return _value_digest(repr(value.getstate()).encode(), "random.Random")
    if isinstance(value, bytearray | itertools.count | MappingProxyType):
        return repr(value)
    return None


def _value_digest(content: bytes, label: str) -> str:
    return f"{label} {hashlib.sha256(content).hexdigest()[:16]}"


def changed_tensor(name: str, how: str = "its value changed outside an update") -> ModelError:
    """The error for a tensor that something else than an update changed."""
    return ModelError(
        "the network changes a tensor of its own, which would then hold values of the training records without noise",
        where=name,
        got=how,
        wanted="parameters and buffers that only the noisy updates change",
        fix="keep no statistics of the records in the model; what must be learned is a parameter that the optimiser trains",
    )


class TensorWatch:
    """Watches the tensors of a model through a whole training.

    ``start`` is the network as it was before the first step of the run; ``moves`` names frozen tensors that this package
    itself moves after an update (the deviation of a noise layer).

    Guarantees
        Between one update and the next no parameter or buffer changed by one bit; at the end every
        buffer and every frozen parameter has the bits that it began with, those of ``moves`` aside. On a GPU nothing waits:
        what was seen is read when ``check`` is called, which must be before anything is released.
    """

    def __init__(self, model: nn.Module, start: nn.Module, moves: Iterable[str] = ()) -> None:
        self._model = model
        self._tensors, begun = all_tensors(model), all_tensors(start)
        trained = {name for name, value in self._tensors.items() if value.requires_grad}
        self._moving = trained | set(moves)
        self._kept = {
            name: (value if name in self._moving else begun[name]).detach().clone() for name, value in self._tensors.items()
        }
        device = next(model.parameters()).device
        self._changed = {name: torch.zeros((), dtype=torch.bool, device=value.device) for name, value in self._kept.items()}
        self._lazy = device.type == "cuda"

    def updated(self) -> None:
        """To be called after an update, and after what this package does to the weights then."""
        with torch.no_grad():
            for name in self._moving:
                self._kept[name].copy_(self._tensors[name])

    def compare(self) -> None:
        """Compares every tensor with what it was after the last update; on a CPU ends in an error at once."""
        now = all_tensors(self._model)
        for name in self._kept.keys() | now.keys():
            if now.get(name) is not self._tensors.get(name):
                other = "another tensor stands in its place" if name in self._kept else "it was not there before"
                raise changed_tensor(name, other if name in now else "it is gone")
        for name, value in self._kept.items():
            if self._lazy:
                self._changed[name] |= (bits(self._tensors[name]) != bits(value)).any()
            elif not torch.equal(bits(self._tensors[name]), bits(value)):
                raise changed_tensor(name)

    def check(self) -> None:
        """ModelError if any comparison so far has found a change."""
        for name, changed in self._changed.items():
            if bool(changed):
                raise changed_tensor(name)


class UnchangedTensors(TensorWatch):
    """Watches a model that nothing at all may change."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, model)
        self._names = sorted(model.state_dict())

    def check(self) -> None:
        """ModelError unless the model has the same tensors under the same names with the same bits."""
        self.compare()
        super().check()
        check_state_dict(self._model)
        if sorted(self._model.state_dict()) != self._names:
            raise changed_tensor("state_dict()", "other names than before")


class WatchedSource(GradientSource):
    """The gradients of ``source``; ends in an error where the model's tensors are not those of the last update.

    ``around`` is entered for each step: what else is to be looked at while its gradients are made.
    """

    def __init__(
        self, source: GradientSource, watch: TensorWatch, around: Callable[[int], AbstractContextManager[None]]
    ) -> None:
        self._source = source
        self.pass_size = source.pass_size
        self._watch = watch
        self._around = around

    def gradient(self, step: int) -> dict[str, Tensor]:
        """See :class:`GradientSource`."""
        with self._around(step):
            found = self._source.gradient(step)
        self._watch.compare()
        self.last = self._source.last
        return found


def check_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The weights to release: the state dict, if it holds the model's parameters and lasting buffers and nothing else.

    Guarantees
        Every entry has the bits of the tensor of that name, so that no hook can add to what is released.
    """
    state, tensors = model.state_dict(), all_tensors(model)
    for name, value in state.items():
        if name not in tensors:
            raise ModelError(
                "the network's state holds more than its parameters and buffers",
                where=name,
                got=type(value).__name__,
                wanted="nothing from a state_dict hook or get_extra_state, which could carry training records out",
            )
        if not isinstance(value, Tensor) or not same_bits(value, tensors[name]):
            raise changed_tensor(name, "state_dict() gives another value than the model has")
    for name in dict(model.named_parameters(remove_duplicate=False)):
        if name not in state:
            raise changed_tensor(name, "state_dict() leaves it out")
    return dict(state)
