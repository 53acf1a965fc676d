"""One parameter's gradients of m records, in the representation that is cheapest for the layer.

The gradients of one pass of a large network take tens or hundreds of megabytes, and an allocator gives such sizes back to the
system when they are freed. Allocating them again costs a page fault for each 4 KiB, more than the arithmetic that fills them.

Clipping needs two things of a batch of gradients: each record's norm, and a weighted sum over the records. A linear layer can
give both from its inputs and errors without ever forming m matrices; a convolution usually forms them. What the training
loop sees is the same either way.

Precision
    Gradients are in the model's dtype. Norms and sums are taken in float64, because privacy rests on them: float32
    ``vector_norm`` under-states long norms (by 1.4e-3 at 25 million entries on a CPU), and a norm that is too small lets a
    record contribute more than the clipping bound. In float64 the sum of float32 gradients is right to about 1e-12.

Guarantees
    For gradients in float32 or lower precision, ``squared_norms()`` is never below the exact squared norm of what
    ``weighted_sum`` adds up. Proof: a float64 sum of n terms errs by at most n * 2**-53 times the sum of their absolute
    values, in any order; each representation adds more than that bound to its result.
"""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof.compute.devices import kernels_run

# Below it the allocator itself keeps freed memory; above it are the sizes worth keeping.
_SMALLEST = 1 << 20
_ALIGNMENT = 64  # that of torch's own memory: matrix products may round differently at other places


class _Slab:
    """Bytes that are lent to one tensor at a time; free again when nothing shares that tensor's memory any more."""

    def __init__(self, size: int) -> None:
        raw = np.empty(size + _ALIGNMENT, dtype=np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        self._bytes: NDArray[np.uint8] = raw[start : start + size]
        self._borrower: weakref.ref[NDArray[np.uint8]] | None = None

    @property
    def size(self) -> int:
        return int(self._bytes.size)

    @property
    def idle(self) -> bool:
        return self._borrower is None or self._borrower() is None

    def lend(self, count: int) -> Tensor:
        """``count`` bytes. The tensor's storage, which all its views share, keeps the array alive."""
        array = self._bytes[:count]
        self._borrower = weakref.ref(array)
        return torch.from_numpy(array)


class Scratch:
    """Lends memory for large tensors on a CPU and keeps what comes back.

    Two tensors that are alive at the same time never share memory, also across threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: list[_Slab] = []

    def empty(self, shape: Sequence[int], like: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor with unset entries on the device of ``like``, and in its dtype if none is given."""
        dtype = dtype or like.dtype
        count = math.prod(shape) * dtype.itemsize
        if like.device.type != "cpu" or count < _SMALLEST:
            return like.new_empty(shape, dtype=dtype)
        with self._lock:
            lent = self._slab(count).lend(count)
        return lent.view(dtype).view(tuple(shape))

    def release(self) -> None:
        """Frees the memory that is not in use."""
        with self._lock:
            self._slabs = [slab for slab in self._slabs if not slab.idle]

    def _slab(self, count: int) -> _Slab:
        """The smallest idle slab that fits; otherwise a new one, in the place of an idle one that is too small."""
        idle = sorted((slab for slab in self._slabs if slab.idle), key=lambda slab: slab.size)
        fitting = next((slab for slab in idle if count <= slab.size), None)
        if fitting is not None:
            return fitting
        if idle:
            self._slabs.remove(idle[-1])
        made = _Slab(count)
        self._slabs.append(made)
        return made


SCRATCH = Scratch()
"""The one of this process."""


def kernels_serve(flat: Tensor) -> bool:
    """Whether the kernels take this matrix: float32, rows one after the other, on a GPU."""
    return flat.is_cuda and flat.dtype == torch.float32 and flat.is_contiguous() and kernels_run(flat.device)


def row_squares(flat: Tensor) -> Tensor:
    """The sum of squares of each row, in float64."""
    from twinproof.training.per_example import sum_kernels

    # Triton launches on the current GPU, which need not be the one of the tensors.
    with torch.cuda.device(flat.device):
        return sum_kernels.row_squares(flat)


def weighted_rows(flat: Tensor, weights: Tensor) -> Tensor:
    """The sum over rows of weight times row, in float64; rows of weight 0 are left out, NaN too."""
    from twinproof.training.per_example import sum_kernels

    with torch.cuda.device(flat.device):
        return sum_kernels.weighted_rows(flat, weights)


_EPS = 2.0**-52  # twice the unit roundoff of float64, so that bounds of first order also cover the second
_SPARE_TERMS = 8  # the few operations around a sum (square root, squares, this correction itself)
# Elements of float64 scratch: two MiB on a CPU, to stay near the core; half a GiB on a GPU, where few kernels count more.
_BLOCK_ELEMENTS = {"cpu": 1 << 18, "other": 1 << 26}
_PARTS = (64, 32, 16, 8, 4, 2)
_SMALL_ELEMENTS = 1 << 16


def rounded_up(squares: Tensor, terms: int) -> Tensor:
    """A float64 sum of ``terms`` non-negative terms, raised by more than its rounding error can have lowered it."""
    return squares * (1.0 + (terms + _SPARE_TERMS) * _EPS)


class PerExampleGradient(ABC):
    """The gradients of m records with respect to one parameter."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Squared Euclidean norm of each record's gradient: (m,) float64, never below the exact value."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over records of weight times gradient, for weights (m,) float64: float64, in the parameter's shape.

        A record of weight 0 adds exactly nothing, even if its gradient is NaN or infinite.
        """

    @abstractmethod
    def instantiate(self) -> Tensor:
        """All gradients as one tensor (m, *shape) in the model's dtype; for tests and oracles."""


@dataclass(frozen=True, eq=False)
class Instantiated(PerExampleGradient):
    """Gradients that are formed: ``values`` (m, *shape)."""

    values: Tensor

    def squared_norms(self) -> Tensor:
        flat = _flat(self.values)
        if kernels_serve(flat):
            return rounded_up(row_squares(flat), flat.shape[1])
        norms = [torch.linalg.vector_norm(block, dim=1, dtype=torch.float64) for block in _blocks_for_norms(flat)]
        squares = norms[0].square() if len(norms) == 1 else torch.stack(norms).square().sum(0)
        return rounded_up(squares, flat.shape[1])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """See :class:`PerExampleGradient`. Some entries of all records at a time: each is added up once and stored once."""
        flat = _flat(self.values)
        if kernels_serve(flat):
            return weighted_rows(flat, weights).view(self.values.shape[1:])

        def total(values: Tensor) -> Tensor:
            sums = [weights @ block for block in _float64_blocks(values)]
            return sums[0] if len(sums) == 1 else torch.cat(sums)

        return _finite(total, flat, weights=weights).view(self.values.shape[1:])

    def instantiate(self) -> Tensor:
        return self.values


@dataclass(frozen=True, eq=False)
class LinearFactors(PerExampleGradient):
    """Gradients of a weight (out, in) as sums over t of outer products of ``errors`` (m, T, out) and ``inputs`` (m, T, in).

    The norm is the Gram (ghost) norm: the sum over t and s of (e_t . e_s)(x_t . x_s).
    """

    inputs: Tensor
    errors: Tensor

    def squared_norms(self) -> Tensor:
        """See :class:`PerExampleGradient`.

        The terms of the Gram norm have both signs, so that its error is relative to (sum of |e_t||x_t|)**2, which can be far
        above the result; the bound that is added is in that unit.
        """
        if self.inputs.shape[1] == 1:  # one outer product: its norm is the product of the norms
            inputs, errors = Instantiated(self.inputs[:, 0]), Instantiated(self.errors[:, 0])
            return rounded_up(inputs.squared_norms() * errors.squared_norms(), 1)
        gram_inputs, gram_errors = _gram(self.inputs), _gram(self.errors)
        total = (gram_inputs * gram_errors).sum((1, 2)).clamp(min=0)
        lengths = (gram_inputs.diagonal(dim1=1, dim2=2) * gram_errors.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
        terms = self.inputs.shape[2] + self.errors.shape[2] + self.inputs.shape[1] ** 2
        return total + (terms + _SPARE_TERMS) * _EPS * lengths.square()

    def weighted_sum(self, weights: Tensor) -> Tensor:

        def total(inputs: Tensor, errors: Tensor) -> Tensor:
            weighted = (errors.to(torch.float64) * weights[:, None, None]).flatten(0, 1)
            return _product_in_parts(weighted, inputs.to(torch.float64).flatten(0, 1))

        return _finite(total, self.inputs, self.errors, weights=weights)

    def instantiate(self) -> Tensor:
        shape = (self.errors.shape[0], self.errors.shape[2], self.inputs.shape[2])
        return torch.bmm(self.errors.transpose(1, 2), self.inputs, out=SCRATCH.empty(shape, self.errors))


@dataclass(frozen=True, eq=False)
class EmbeddingFactors(PerExampleGradient):
    """Gradients of a table (rows, dim): ``errors`` (m, T, dim) belong to the table rows ``ids`` (m, T), which may repeat."""

    ids: Tensor
    errors: Tensor
    rows: int

    def squared_norms(self) -> Tensor:
        """See :class:`PerExampleGradient`. Errors of equal ids are added before they are squared."""
        tokens = self.ids.shape[1]
        errors = self.errors.to(torch.float64)
        norms = torch.linalg.vector_norm(self._summed_by_id(errors), dim=(1, 2))
        slack = tokens * _EPS * torch.linalg.vector_norm(errors, dim=2).sum(1)  # of the sums, whose terms may cancel
        return rounded_up((norms + slack).square(), tokens * errors.shape[2])

    def weighted_sum(self, weights: Tensor) -> Tensor:

        def total(errors: Tensor) -> Tensor:
            weighted = errors.to(torch.float64) * weights[:, None, None]
            sums = weighted.new_zeros(self.rows, weighted.shape[2])
            return sums.index_put_((self.ids.flatten(),), weighted.flatten(0, 1), accumulate=True)

        return _finite(total, self.errors, weights=weights)

    def instantiate(self) -> Tensor:
        records, _, dim = self.errors.shape
        values = self.errors.new_zeros(records, self.rows, dim)
        return values.index_put_((_record_numbers(self.ids), self.ids), self.errors, accumulate=True)

    def _summed_by_id(self, errors: Tensor) -> Tensor:
        """(m, T, dim): in slot j of a record, the sum over the j-th distinct id. No table of all rows, no wait for a device.

        ``index_put_`` and not ``index_add_``, which adds in a varying order on a GPU.
        """
        order = self.ids.argsort(dim=1, stable=True)
        ordered = self.ids.gather(1, order)
        slots = torch.zeros_like(ordered)
        slots[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
        sums = torch.zeros_like(errors)
        ordered_errors = errors.gather(1, order[:, :, None].expand_as(errors))
        return sums.index_put_((_record_numbers(self.ids), slots), ordered_errors, accumulate=True)


@dataclass(frozen=True, eq=False)
class Rearranged(PerExampleGradient):
    """Another representation seen in the parameter's own shape: viewed as ``shape``, then its axes in the order ``axes``.

    A convolution is fastest with its weight in another order; only the sum, which is one parameter large, is put in place.
    """

    inner: PerExampleGradient
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def squared_norms(self) -> Tensor:
        return self.inner.squared_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.inner.weighted_sum(weights).reshape(self.shape).permute(self.axes)

    def instantiate(self) -> Tensor:
        values = self.inner.instantiate()
        return values.reshape(values.shape[0], *self.shape).permute(0, *(axis + 1 for axis in self.axes))


def zero_gradient(parameter: Tensor, records: int) -> Instantiated:
    """The gradient of a parameter that took no part; one number of memory for any number of records."""
    return Instantiated(parameter.new_zeros(()).expand(records, *parameter.shape))


def _flat(values: Tensor) -> Tensor:
    """(m, everything else); the size is given, since -1 cannot be resolved for zero records."""
    return values.reshape(values.shape[0], math.prod(values.shape[1:]))


def _blocks(flat: Tensor) -> Sequence[Tensor]:
    """``flat`` cut along its entries so that a float64 copy of one part is small; at least one part, also of no entries."""
    limit = _BLOCK_ELEMENTS["cpu" if flat.device.type == "cpu" else "other"]
    return torch.split(flat, max(1, limit // max(1, flat.shape[0])), dim=1)


def _float64_blocks(flat: Tensor) -> Iterator[Tensor]:
    """The parts in float64, all in the same memory: each must be used up before the next is asked for."""
    if flat.numel() <= _SMALL_ELEMENTS:  # a bias: where there is little to convert, every operation counts
        yield flat.to(torch.float64)
        return
    blocks = _blocks(flat)
    memory = SCRATCH.empty((blocks[0].numel(),), flat, dtype=torch.float64)
    for block in blocks:
        yield memory[: block.numel()].view(block.shape).copy_(block)


def _blocks_for_norms(flat: Tensor) -> Iterable[Tensor]:
    """The parts as a norm in float64 takes them: on a GPU its kernel converts by itself, on a CPU in fresh memory each time."""
    return _float64_blocks(flat) if flat.device.type == "cpu" else _blocks(flat)


def _gram(factors: Tensor) -> Tensor:
    """Inner products in float64 of a record's T vectors: (m, T, T)."""
    factors = factors.to(torch.float64)
    return torch.bmm(factors, factors.transpose(1, 2))


def _finite(total: Callable[..., Tensor], *values: Tensor, weights: Tensor) -> Tensor:
    """``total(*values)``, to which records of weight 0 add nothing.

    Zero times NaN is NaN, so such records' values are set to zero first. On a CPU, where looking is free, only if the result
    shows that it is needed; a GPU is not asked, since the answer would have to be waited for.
    """
    if weights.device.type == "cpu":
        result = total(*values)
        if bool(torch.isfinite(result).all()):
            return result
    out = weights == 0
    return total(*(value.masked_fill(out.view(-1, *(1 for _ in value.shape[1:])), 0) for value in values))


def _product_in_parts(left: Tensor, right: Tensor) -> Tensor:
    """left^T @ right over many rows; on a GPU in parts side by side, since one small product would leave most of it idle."""
    rows = left.shape[0]
    parts = 1 if left.device.type == "cpu" else next((count for count in _PARTS if rows % count == 0), 1)
    if parts == 1:
        return left.T @ right
    return torch.bmm(left.view(parts, -1, left.shape[1]).transpose(1, 2), right.view(parts, -1, right.shape[1])).sum(0)


def _record_numbers(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[0], device=ids.device)[:, None].expand_as(ids)


# Entries of a gradient that is worth copying to save the kernels it would need by itself.
_SMALL = 1024


@dataclass(frozen=True, eq=False)
class Group:
    """Gradients of one parameter, or of several small ones side by side: ``names`` in their order, with their ``shapes``."""

    gradient: PerExampleGradient
    names: Sequence[str]
    shapes: Sequence[torch.Size] = ()

    def parts(self, total: Tensor) -> dict[str, Tensor]:
        """What belongs to each parameter of a sum over records."""
        if not self.shapes:
            return {self.names[0]: total}
        pieces = torch.split(total, [math.prod(shape) for shape in self.shapes])
        return {name: piece.view(shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}


def grouped(by_name: Mapping[str, PerExampleGradient]) -> list[Group]:
    """Every parameter by itself; on a GPU the small ones that are formed share one group."""
    small = {
        name: value.values for name, value in by_name.items() if isinstance(value, Instantiated) and _is_small(value.values)
    }
    if len(small) < 2:
        return [Group(value, [name]) for name, value in by_name.items()]
    together = Instantiated(torch.cat([values.flatten(1) for values in small.values()], dim=1))
    large = [Group(value, [name]) for name, value in by_name.items() if name not in small]
    return [*large, Group(together, list(small), [values.shape[1:] for values in small.values()])]


def _is_small(values: Tensor) -> bool:
    return values.is_cuda and math.prod(values.shape[1:]) <= _SMALL
