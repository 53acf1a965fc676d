"""What StoBatch trains on: an ensemble of attacks, Taylor losses, and an auto-encoder of the first layer.

I-FGSM, MIM and PGD in linf, against the class that the network predicts for the record, of a size drawn for each training
step. The papers' batches hold one attack for each third of *other* records; here every record is attacked by all
of them, which makes the copies a function of that record.

Around 0, softplus(z) = z/2 + ln(2 cosh(z/2)) = ln 2 + z/2 + z^2/8 - z^4/192 + ... . Coefficients of the same polynomials, for
noise on them: ``privacy.functional.polynomials``. Under DP-SGD they are losses like any other: clipping bounds each record.

The released network answers with logits and nothing else. In training it is looked at through a view of the same modules that
hands out one more column, what its reconstruction of the input costs, so that a loss of one record can count it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from twinproof.compute.devices import repeatable_convolutions
from twinproof.errors import ConfigError, ModelError
from twinproof.keys import Key
from twinproof.layers.module_state import evaluation_mode
from twinproof.layers.noise import silenced
from twinproof.layers.noise_constraint import Adjoint
from twinproof.layers.noise_placement import split_at_two_noises
from twinproof.training.copies import MovedCopies
from twinproof.training.per_example.paths import PerExamplePath, naming_the_operation


@dataclass(frozen=True)
class Attack:
    """One attack: how much of the gradients seen before stays (MIM), and whether it starts anywhere in the ball (PGD)."""

    name: str
    decay: float = 0.0
    random_start: bool = False


ATTACKS = (Attack("ifgsm"), Attack("mim", decay=1.0), Attack("pgd", random_start=True))
"""The ensemble of the paper, in the order of the adversarial copies."""

_SIZE = "attack size"


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

    def size_at(self, step: int, key: Key) -> float:
        """The size of training step ``step``: from the key's stream of its own, nothing that the records decide."""
        word = int(key.words(_SIZE, step, count=1)[0])
        return self.size * ((word + 1) / 2**64)

    def on(self, model: nn.Module, inner: PerExamplePath, *, originals: bool) -> AdversarialEnsemble:
        """See :class:`Movement`; the benign copies always stay."""
        return AdversarialEnsemble(model, inner, self)


class AdversarialEnsemble(MovedCopies):
    """A path that replaces the last copies of each record by its attacked ones, then lets ``inner`` take the gradients.

    All copies it is given are the record itself, in [0, 1]; the last ``len(ATTACKS)`` are attacked. The network looks as in
    evaluation, with its noise layers silenced, as in the authors' program; the class to leave is the one that it then predicts
    for the record. The paper predicts it again at each step of an attack, which undoes one that has succeeded.

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

    def begin(self, step: int, key: Key) -> None:
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


def taylor_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Second order, summed over classes, mean over copies: ``logits`` (copies, classes), ``label`` a scalar. A ``RecordLoss``.

    For each class ln 2 + (1/2 - y) z + z^2/8, with y = 1 for the label and 0 otherwise: a parabola with its minimum at
    z = 2 for the label and z = -2 for the others, so that logits do not grow without end.

    Never below the exact loss softplus(z) - y z, and above it by at most z^4/192 for each class, for any z: 0.0053 at
    |z| = 1, 0.0834 at |z| = 2. Proof: u - u^3/3 <= tanh u <= u for u >= 0, integrated, puts ln cosh u between
    u^2/2 - u^4/12 and u^2/2; u = z/2.
    """
    classes = torch.arange(logits.shape[-1], device=logits.device)
    target = (classes == label).to(logits.dtype)
    return (math.log(2) + (0.5 - target) * logits + logits.square() / 8).sum(-1).mean()


def balanced_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """``taylor_cross_entropy`` of logits + 4/M - 2, the one number that is best for all M classes alike. A ``RecordLoss``.

    At logits of 0 the paper's slope is 1/2 for every class and -1/2 for the label: what all records have in common, lower
    scores for all classes, is 1 - 2/M of its length. Clipped gradients go there first, and units saturate on the way. With
    the shift the common part is zero for balanced classes, and gradients begin with what tells the classes apart.

    The same objective from another start: a network whose last biases are higher by 2 - 4/M has the same loss by
    ``taylor_cross_entropy``, and gives the same class. M is public, and nothing else is looked at.
    """
    return taylor_cross_entropy(logits + (4 / logits.shape[-1] - 2), label)


def taylor_reconstruction_rows(reconstruction: Tensor, inputs: Tensor) -> Tensor:
    """Second order, *mean* over inputs, one number for each row: both (rows, *shape) -> (rows,).

    For each input ln 2 + (1/2 - x) z + z^2/8: the paper's reconstruction loss with the next term of the same series. The
    paper's is linear in z, and with tied weights z grows with their square, so that it falls without end as they grow; with
    this term it is a parabola with its minimum at z = 4x - 2. The mean keeps its weight beside a classification loss the same
    for inputs of any size.

    Guarantees
        Never below ln 2 - 2 (x - 1/2)^2 averaged over inputs, for any z. Never below the exact loss softplus(z) - x z, and
        above it by at most z^4/192 for each input (``taylor_cross_entropy``).
    """
    return (math.log(2) + (0.5 - inputs) * reconstruction + reconstruction.square() / 8).flatten(1).mean(1)


class ReconstructingView(nn.Module):
    """Rows of inputs -> their logits and, in the last column, the cost of their reconstruction.

    The input x gets its noise, the first layer theta gives h = theta' (x + e1) + b, which gets its own: the decoder is the
    transposed layer, theta (h + e2), and is compared with x (Eq. 5 of Phan et al. 2020). One draw of both noises serves the
    logits and the reconstruction.

    The modules are those of ``network`` under the same names, so that gradients belong to its parameters; it is not
    changed, and nothing is added to it. Rows do not meet.
    """

    columns = 1
    """Columns beside the logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        two = split_at_two_noises(network)
        if two is None or two.hidden.before is None:
            raise ModelError(
                "only a network with two noises is trained as an auto-encoder",
                where="network",
                got="fewer than two noise layers",
                wanted="noise on the input and behind the first layer (add_two_noises)",
            )
        for name, module in network.named_children():
            self.add_module(name, module)
        # Registered, so that whoever looks for uses of weights finds this one; it has no parameter of its own.
        self.tied_decoder = Adjoint(two.hidden.before)
        self._split = two  # a record and no module: nothing is registered twice
        self.training = network.training

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, *shape) -> (rows, classes + 1)."""
        hidden = self._split.hidden
        inputs, noisy = rows, self._split.input_noise(rows)
        if hidden.flattens:
            inputs, noisy = inputs.flatten(1), noisy.flatten(1)
        code = hidden.noise(self.tied_decoder.layer(noisy))
        logits: Tensor = hidden.after(code)
        cost = taylor_reconstruction_rows(self.tied_decoder(code, inputs), inputs)
        return torch.cat([logits, cost.unsqueeze(1)], dim=1)
