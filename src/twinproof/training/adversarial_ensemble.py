"""One adversarial copy of a record for each attack of an ensemble (StoBatch, Phan et al., ICML 2020, Algorithm 1, lines 6-11).

I-FGSM, MIM and PGD in linf, against the class that the network itself predicts for the record, of a size that is drawn anew for
each training step. The papers' batches hold one attack for each third of *other* records; here every record is attacked by all
of them, which makes the copies a function of that record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from twinproof.errors import ConfigError
from twinproof.layers.modes import evaluation_mode
from twinproof.layers.noise import silenced
from twinproof.randomness import Key
from twinproof.training.moved_copies import MovedCopies
from twinproof.training.per_example.failures import naming_the_operation
from twinproof.training.per_example.path import PerExamplePath
from twinproof.training.per_example.repeatable import repeatable_convolutions


@dataclass(frozen=True)
class Attack:
    """One attack: how much of the gradients seen before stays (MIM), and whether it starts anywhere in the ball (PGD)."""

    name: str
    decay: float = 0.0
    random_start: bool = False


ATTACKS = (Attack("ifgsm"), Attack("mim", decay=1.0), Attack("pgd", random_start=True))
"""The ensemble of the paper, in the order of the adversarial copies."""

_SIZE = "attack size"
# Where nobody gives a key: sizes need not be secret, they have to be independent of the records.
_ANYBODYS = Key.from_seed(0)


@dataclass(frozen=True)
class Ensemble:
    """Attacks of at most ``size`` in linf and input units, of ``steps`` steps along the sign of the gradient.

    The size of a training step is uniform on (0, ``size``]. A step of an attack has length ``stride`` * size / steps: 1 is the
    paper's, whose I-FGSM then just reaches the size.
    """

    size: float
    steps: int
    stride: float = 1.0

    def __post_init__(self) -> None:
        if not (self.size > 0 and math.isfinite(self.size) and self.steps >= 1 and 0 < self.stride < math.inf):
            wanted = "a finite size above 0, at least 1 step, a stride above 0"
            raise ConfigError("these attacks cannot be made", where="Ensemble", got=self, wanted=wanted)

    def size_at(self, step: int, key: Key | None) -> float:
        """The size of training step ``step``: from the key's stream of its own, nothing that the records decide."""
        word = int((key or _ANYBODYS).words(_SIZE, step, count=1)[0])
        return self.size * ((word + 1) / 2**64)

    def on(self, model: nn.Module, inner: PerExamplePath, *, originals: bool) -> AdversarialEnsemble:
        """See :class:`Movement`; the benign copies always stay."""
        return AdversarialEnsemble(model, inner, self)


class AdversarialEnsemble(MovedCopies):
    """A path that replaces the last copies of each record by its attacked ones, then lets ``inner`` take the gradients.

    All copies it is given are the record itself, in [0, 1]; the last ``len(ATTACKS)`` are attacked. The network looks as in
    evaluation, with its noise layers silenced, as in the authors' program; the class to leave is the one that it then predicts
    for the record. The paper predicts it anew at each step of an attack, which turns round one that has succeeded.

    Guarantees
        A record's adversarial copies are a function of the network, that record, the step's size and numbers drawn for that
        record: the attacks are mapped over records, each by itself. The label is not looked at. No coordinate moves by more
        than the size, up to float rounding, or leaves [0, 1]; one whose slope is zero or not finite stays. No gradient of a
        parameter is formed. The host waits for nothing: the size lies on the device.
    """

    def __init__(self, model: nn.Module, inner: PerExamplePath, ensemble: Ensemble) -> None:
        self.model = model
        self.inner = inner
        self.ensemble = ensemble
        device = next(model.parameters()).device
        self._size = torch.tensor(ensemble.size, device=device)
        self._decay = torch.tensor([attack.decay for attack in ATTACKS], device=device)
        self._random = torch.tensor([float(attack.random_start) for attack in ATTACKS], device=device)

    def begin(self, step: int, key: Key | None = None) -> None:
        """Sets the size of a training step, in place: a recording reads it there."""
        self._size.fill_(self.ensemble.size_at(step, key))

    def moved(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The benign copies as they are, and behind them one adversarial copy for each attack."""
        if inputs.shape[0] == 0:
            return inputs
        with (
            evaluation_mode(self.model),
            silenced(self.model),
            torch.no_grad(),
            repeatable_convolutions(inputs.device),
            naming_the_operation("a record's attacks"),
        ):
            crafted: Tensor = vmap(self._crafted, randomness="different")(inputs[:, 0])
        return torch.cat([inputs[:, : -len(ATTACKS)], crafted], dim=1)

    def _crafted(self, record: Tensor) -> Tensor:
        """The adversarial copies of one record (*shape): (attacks, *shape)."""
        axes = (-1, *(1 for _ in record.shape))
        size, decay = self._size.to(record.dtype), self._decay.to(record.dtype).view(axes)
        length = self.ensemble.stride * size / self.ensemble.steps
        label = self.model(record.unsqueeze(0)).argmax(dim=1).expand(len(ATTACKS))
        start = torch.rand((len(ATTACKS), *record.shape), dtype=record.dtype, device=record.device) * 2 - 1
        points = (record + size * self._random.to(record.dtype).view(axes) * start).clamp(0, 1)
        gathered = torch.zeros_like(points)
        for _ in range(self.ensemble.steps):
            gathered = decay * gathered + _unit_l1(self._slopes(points, label))
            points = points + length * gathered.sign()
            points = torch.minimum(torch.maximum(points, record - size), record + size).clamp(0, 1)
        return points

    def _slopes(self, points: Tensor, label: Tensor) -> Tensor:
        """The gradient of each point's loss; rows of one record, which the network does not mix."""

        def loss(rows: Tensor) -> Tensor:
            return cross_entropy(self.model(rows), label, reduction="sum")

        slopes: Tensor = grad(loss)(points)
        return slopes


def _unit_l1(slopes: Tensor) -> Tensor:
    """Each point's slope at l1 length 1; zero where it is zero or not finite."""
    finite = torch.where(torch.isfinite(slopes), slopes, torch.zeros_like(slopes))
    axes = tuple(range(1, slopes.dim()))
    # Divided by the largest entry first: sums of the tiny gradients of a sure prediction would underflow.
    tiny = torch.finfo(slopes.dtype).tiny
    scaled = finite / finite.abs().amax(dim=axes, keepdim=True).clamp_min(tiny)
    return scaled / scaled.abs().sum(dim=axes, keepdim=True).clamp_min(tiny)
