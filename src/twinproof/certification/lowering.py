"""The same network, faster at inference: chosen among few equal forms by measuring, and never trusted without comparing.

Guarantees
    - ``lowered`` gives the scores of the model up to float rounding: each form is compared with the model on random inputs and
      one that differs is not used. What cannot be rewritten (hooks, other number types, unknown layers) runs as it is.
    - The form is all that the answer's bits depend on, for one device, batch and library: whoever passes the ``form`` of an
      earlier call gets the same network again, so that an interrupted certification ends with the same bytes.
    - The user's model is not changed; torch's settings are left as they were found.

    None of this is needed for a certificate to be true: it speaks of the function that is evaluated, whatever that is.
    It is needed for that function to be the user's network. docs/decisions/0007-equivalent-networks-and-shared-noise.md
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twinproof.certification.layer_list import layers_in_order, runs_as_written, shapes_before
from twinproof.certification.network_state import own_copy
from twinproof.certification.remaining_noise import draws_noise, repeatable
from twinproof.certification.rewriting import for_cpu, with_dense_convolutions
from twinproof.certification.row_threads import one_thread_inside
from twinproof.errors import ConfigError
from twinproof.layers.modes import evaluation_mode
from twinproof.layers.precision import FLOAT32, TF32, arithmetic_of
from twinproof.randomness import Key

AS_GIVEN = "as given"
CHANNELS_LAST = "channels last, sliced pools"
DENSE = "dense convolutions"
_FORMS = {"cpu": (CHANNELS_LAST,), "cuda": (DENSE,)}
# Differences of scores relative to the largest one: rounding errors lie a hundred times below, a wrong layer far above.
_TOLERANCE = {FLOAT32: 1e-4, TF32: 5e-3}
_COMPARED_ROWS = 4
# Rewritten networks on a CPU run in pieces of this many rows, so that maps stay in the cache.
_PIECE = 128
# The most rows, and the seconds per form, when measuring: enough to see a difference of some percent, short for the user.
_TIMED_ROWS = {"cpu": 128, "cuda": 65_536}
_SECONDS = {"cpu": 0.04, "cuda": 0.02}
_GROWTH = 8
_REPEATS = 5
# Another form is taken only if it needs less than this share of the time: a choice that noise decides serves nobody.
_WORTH_IT = 0.9
_SEED = 20_260_101
_KEY = Key.from_seed(_SEED)


class Lowered(nn.Module):
    """A network in eval mode in the form named ``form``, computing in ``arithmetic`` ('float32' or 'tf32')."""

    def __init__(self, network: nn.Module, form: str, arithmetic: str, piece: int | None = None) -> None:
        super().__init__()
        self.network = network
        self.form = form
        self.arithmetic = arithmetic
        self.piece = piece
        self.training = False  # not eval(), which would reach into a network that could not be copied

    def forward(self, x: Tensor) -> Tensor:
        """The network's scores, ``piece`` rows at a time where that is set."""
        if self.piece is None or len(x) <= self.piece:
            scores: Tensor = self.network(x)
            return scores
        return torch.cat([self.network(x[first : first + self.piece]) for first in range(0, len(x), self.piece)])


def lowered(
    model: nn.Module,
    shape: tuple[int, ...],
    device: torch.device,
    rows: int,
    *,
    form: str | None = None,
    overwrite: bool = False,
) -> Lowered:
    """``model``, which lies on ``device``, in the form that is fastest there for batches of ``rows`` inputs of ``shape``.

    ``form`` asks for exactly that form instead; one that this network does not have is refused. With ``overwrite`` the result
    may write over its input, where the caller needs it no more.
    """
    task = _Task(model, shape, device, arithmetic_of(model, device), overwrite)
    with evaluation_mode(model), torch.no_grad():
        if form == AS_GIVEN:
            return task.as_given()
        if form is None:
            made = [task.checked(name) for name in _FORMS.get(device.type, ())]
            return task.fastest([task.as_given(), *(found for found in made if found is not None)], rows)
        found = task.checked(form)
        if found is None:
            raise ConfigError(
                "this network does not have that form",
                where="form",
                got=form,
                wanted=", ".join((AS_GIVEN, *_FORMS.get(device.type, ()))),
                fix="certify on the machine where the certification began, or start it anew",
            )
        return found


def _own_copy(model: nn.Module) -> nn.Module | None:
    """A copy in eval mode that is nobody else's; None where a module cannot be copied."""
    own = own_copy(model)
    try:
        return None if own is None else own.eval().requires_grad_(False)
    except RuntimeError:  # a compiled module
        return None


@dataclass(frozen=True)
class _Task:
    """A network that is wanted in other forms, and where."""

    model: nn.Module
    shape: tuple[int, ...]
    device: torch.device
    arithmetic: str
    overwrite: bool

    def as_given(self) -> Lowered:
        own = _own_copy(self.model)
        return Lowered(self.model if own is None else own, AS_GIVEN, self.arithmetic)

    def checked(self, form: str) -> Lowered | None:
        """The form of the model, if there is one and it gives the model's scores."""
        network = self._rewritten(form)
        if network is None or not self._agrees(network):
            return None
        return Lowered(network, form, self.arithmetic, _PIECE if self.device.type == "cpu" else None)

    def _rewritten(self, form: str) -> nn.Module | None:
        if form not in _FORMS.get(self.device.type, ()) or not runs_as_written(self.model):
            return None
        numbers = [tensor for tensor in (*self.model.parameters(), *self.model.buffers()) if tensor.is_floating_point()]
        if any(tensor.device.type != self.device.type or tensor.dtype != torch.float32 for tensor in numbers):
            return None
        own = _own_copy(self.model)
        layers = [] if own is None else layers_in_order(own)
        if not layers:
            return None
        shapes = shapes_before(layers, torch.zeros((1, *self.shape), device=self.device))
        if form == DENSE:
            return with_dense_convolutions(layers, shapes)
        return for_cpu(layers, shapes, overwrite=self.overwrite)

    def _agrees(self, network: nn.Module) -> bool:
        generator = torch.Generator().manual_seed(_SEED)
        # Inputs lie in [0, 1]; with noise also far outside it.
        for low, high in ((0, 1), (-4, 5)):
            inputs = low + (high - low) * torch.rand((_COMPARED_ROWS, *self.shape), generator=generator).to(self.device)
            kept = inputs.clone()
            wanted, got = self._scores(self.model, inputs), self._scores(network, inputs)
            if not (torch.equal(inputs, kept) or self.overwrite) or wanted.shape != got.shape:
                return False
            # A comparison with NaN is false, so that scores that are not finite agree with nothing.
            if not bool(((got - wanted).abs() <= _TOLERANCE[self.arithmetic] * float(wanted.abs().max())).all()):
                return False
        return True

    def _scores(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """What ``network`` answers; what layers of ours draw meanwhile is the same in every form."""
        with repeatable(self.device, _KEY, "compare") if draws_noise(network) else nullcontext():
            scores: Tensor = network(inputs)
        return scores

    def fastest(self, forms: list[Lowered], rows: int) -> Lowered:
        """The first of ``forms``, unless another one is clearly faster."""
        if len(forms) == 1:
            return forms[0]
        kind = self.device.type
        generator = torch.Generator(self.device).manual_seed(_SEED)
        inputs = torch.rand((min(rows, _TIMED_ROWS[kind]), *self.shape), device=self.device, generator=generator)
        # On a CPU batches are shared out among threads, and each is worked on by one: so it is measured.
        with one_thread_inside():
            some = _affordable(forms[0], inputs)
            seconds = [_seconds(form, some) for form in forms]
        best = min(range(len(forms)), key=seconds.__getitem__)
        return forms[best if seconds[best] < _WORTH_IT * seconds[0] else 0]


def _affordable(network: nn.Module, inputs: Tensor) -> Tensor:
    """As many inputs as the time for measuring allows, found by growing: a GPU needs no longer for 1,000 rows than for 1."""
    rows = 1
    while rows < len(inputs) and _GROWTH * _seconds(network, inputs[:rows], repeats=1) < _SECONDS[inputs.device.type]:
        rows = min(_GROWTH * rows, len(inputs))
    return inputs[:rows]


def _seconds(network: nn.Module, inputs: Tensor, repeats: int = _REPEATS) -> float:
    """The shortest of a few runs, after one that warms up; a slow one is not repeated for long."""
    device, best, spent = inputs.device, float("inf"), 0.0
    network(inputs)
    for _ in range(repeats):
        _finish(device)
        began = time.perf_counter()
        network(inputs)
        _finish(device)
        seconds = time.perf_counter() - began
        best, spent = min(best, seconds), spent + seconds
        if spent > _SECONDS[device.type]:
            break
    return best


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
