"""What the certifier demands of a network before it counts a single vote.

The proof speaks of independent draws of f(x + noise) for one fixed function f of one input. A network whose answer for one row
depends on the other rows of the batch is no such function: its votes are not independent and any radius from them is void.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from twinproof.certify.remaining_noise import without_remaining_noise
from twinproof.certify.row_threads import one_thread_inside
from twinproof.errors import ModelError

# Batched and single rows differ by float rounding alone in an honest network; batch statistics differ by far more.
_TOLERANCE = 1e-2
# Rows of one forward pass: enough to fill the device, and so few numbers that a batch leaves room in its cache or memory.
_MOST_ROWS = {"cpu": 1000, "cuda": 65_536}
_MOST_NUMBERS = {"cpu": 2**20, "cuda": 2**26}
_FEWEST_ROWS = 32
# Batches in which the example is looked at: their rows, and its place. What mixes may leave the first rows alone, or act in
# blocks of rows; sizes without a common divisor let no block end where the batch does.
_PROBES = ((3, 0), (8, 5), (33, 32), (50, 17))


@dataclass(frozen=True)
class BaseClassifier:
    """The network that certificates are about, in the form in which it is run.

    ``arithmetic`` and ``form`` name what its last bits depend on besides the weights: the precision of its products, and
    which of the equivalent forms of its layers was chosen.
    """

    network: nn.Module
    classes: int
    arithmetic: str
    form: str


def base_classifier(model: nn.Module, example: Tensor, rows: int, *, form: str | None = None) -> BaseClassifier:
    """``model``, in eval mode, in its fastest form for ``rows`` rows on the device of ``example``, or in the ``form`` named.

    ``example`` is a batch of one input in [0, 1].

    Guarantees
        The form that is run is the one that is checked: it treats each row of a batch alone (``classes_of``).
    """
    from twinproof.certify.lowering import lowered

    classes_of(model, example)
    # One thread inside, as when votes are counted: the form must not depend on the number of cores.
    with one_thread_inside():
        network = lowered(model, tuple(example.shape[1:]), example.device, rows, form=form)
    return BaseClassifier(network, classes_of(network, example), network.arithmetic, network.form)


def rows_per_forward(dimension: int, device: torch.device) -> int:
    """Rows of one forward pass where the caller does not say."""
    kind = "cuda" if device.type == "cuda" else "cpu"
    return max(_FEWEST_ROWS, min(_MOST_ROWS[kind], _MOST_NUMBERS[kind] // dimension))


def classes_of(model: nn.Module, example: Tensor) -> int:
    """The number of classes of ``model``, in eval mode, after checking that it treats the rows of a batch alone.

    ``example`` is a batch of one input in [0, 1].

    Guarantees
        Refuses normalisation by batch statistics, outputs that are not (rows, classes), and a network that gives the example
        another answer when other rows stand beside it, few and many, before it and after it; noise that layers of ours draw
        is left out of that comparison. A network with randomness of its own in eval mode cannot be compared that way and
        passes: fresh randomness for each row does not harm the proof.
    """
    _refuse_batch_statistics(model)
    with without_remaining_noise(model):
        alone, again = _scores(model, example), _scores(model, example)
        if alone.shape[1] < 2:
            raise _wrong_output(model, alone, rows=1, wanted="(rows, classes) with at least 2 classes")
        if torch.equal(alone.nan_to_num(), again.nan_to_num()):
            for rows, place in _PROBES:
                scores = checked_scores(model, _among_others(example, rows, place), alone.shape[1])
                _refuse_mixing(model, alone, scores[place : place + 1])
    return int(alone.shape[1])


def checked_scores(model: nn.Module, batch: Tensor, classes: int) -> Tensor:
    """The scores of ``batch``; an output of another shape is refused, because it would be counted as other rows' votes."""
    scores = _scores(model, batch)
    if scores.shape[1] != classes:
        raise _wrong_output(model, scores, rows=len(batch), wanted=f"({len(batch)}, {classes})")
    return scores


def _scores(model: nn.Module, batch: Tensor) -> Tensor:
    scores = model(batch)
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[0] != batch.shape[0]:
        raise _wrong_output(model, scores, rows=len(batch), wanted="(rows, classes)")
    return scores


def _wrong_output(model: nn.Module, scores: object, *, rows: int, wanted: str) -> ModelError:
    got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
    return ModelError(
        "the network does not give one score per class", where=type(model).__name__, got=f"{got} for {rows} rows", wanted=wanted
    )


def _refuse_batch_statistics(model: nn.Module) -> None:
    for path, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.running_mean is None or layer.running_var is None):
            raise ModelError(
                "a layer normalises with the statistics of the batch even in eval mode",
                where=path or type(model).__name__,
                got=f"{type(layer).__name__} without running statistics",
                wanted="a network that treats each input alone",
                fix="track_running_stats=True, or GroupNorm or LayerNorm",
            )


def _among_others(example: Tensor, rows: int, place: int) -> Tensor:
    """A batch with the example at ``place``, its negative and zeros beside it, and paler and paler copies of both."""
    shades = torch.linspace(1, 0, rows, dtype=example.dtype, device=example.device).view(rows, *[1] * (example.ndim - 1))
    batch = shades * torch.where(torch.arange(rows, device=example.device).view_as(shades) % 2 == 0, 1 - example, example)
    batch[place] = example[0]
    return batch


def _refuse_mixing(model: nn.Module, alone: Tensor, beside: Tensor) -> None:
    known = alone.isfinite() & beside.isfinite()
    scale = max(1.0, float(alone[known].abs().max())) if bool(known.any()) else 1.0
    same = torch.equal(alone.isnan(), beside.isnan())
    if not (same and bool(((alone - beside)[known].abs() <= _TOLERANCE * scale).all())):
        raise ModelError(
            "the network's answer for one input depends on the other inputs of the batch",
            where=type(model).__name__,
            got="other scores for the same input in a larger batch",
            wanted="a network that treats each input alone",
            fix="replace what mixes inputs (batch statistics, attention over the batch, sums over dimension 0)",
        )
