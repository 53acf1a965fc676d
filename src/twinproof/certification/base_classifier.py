"""What the certifier demands of a network before it counts a single vote.

The proof speaks of independent draws of f(x + noise) for one fixed function f of one input. A network whose answer for one row
depends on the other rows of the batch is not such a function: its votes are not independent and a radius from them is void.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from twinproof.certification.lowering import Lowered, lowered
from twinproof.certification.row_trial import RowTrial, Watched, checked_scores, is_known, refuse_other
from twinproof.compute.threads import one_thread_inside
from twinproof.errors import ModelError
from twinproof.layers.module_state import own_copy, tensor_digests

# Rows of one forward pass: enough to fill the device, and so few numbers that a batch leaves room in its cache or memory.
_MOST_ROWS = {"cpu": 1000, "cuda": 65_536}
_MOST_NUMBERS = {"cpu": 2**20, "cuda": 2**26}
_FEWEST_ROWS = 32


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

    def finish(self) -> None:
        """After votes were counted: refuses a network that is no longer what it was before."""
        for module in self.network.modules():
            if isinstance(module, Watched):
                module.trial.finish()


def base_classifier(
    model: nn.Module, example: Tensor, rows: int, *, sigma: float = 0.25, form: str | None = None
) -> BaseClassifier:
    """``model``, in eval mode, in its fastest form for ``rows`` rows on the device of ``example``, or in the ``form`` named.

    ``example`` is a batch of one input in [0, 1], ``sigma`` the deviation of the noise. The form that is run is the one that
    is tried (``RowTrial``), before votes are counted and while they are.
    """
    own = unused_copy(model)
    # One thread inside, as when votes are counted: the form must not depend on the number of cores.
    with unchanged(own), one_thread_inside():
        classes = number_of_classes(own, example)
        network = lowered(own, tuple(example.shape[1:]), example.device, rows, form=form)
    made = watched(network, example, sigma, classes, None if own is model else unused_copy(model))
    return BaseClassifier(made, classes, network.arithmetic, network.form)


def unused_copy(model: nn.Module) -> nn.Module:
    """A copy of a network with code of its own, so that a trial does not change the user's; else ``model`` itself."""
    own = None if is_known(model) else own_copy(model)
    return model if own is None else own


@contextmanager
def unchanged(network: nn.Module) -> Iterator[None]:
    """Refuses a network whose parameters or buffers the calls inside have changed."""
    known = is_known(network)
    before = {} if known else tensor_digests(network)
    yield
    refuse_other(before, {} if known else tensor_digests(network), "another value after a forward pass")


def watched(network: Lowered, example: Tensor, sigma: float, classes: int, fresh: nn.Module | None) -> Lowered:
    """``network`` after its trial; one with code that is not torch's or ours is watched from then on (``Watched``).

    ``fresh`` is a copy of the model that was never called, where there is one.
    """
    trial = RowTrial(network.network, example, sigma, classes, fresh)
    trial.run()
    if not trial.known:
        network.network = Watched(trial)
    return network


def rows_per_forward(dimension: int, device: torch.device) -> int:
    """Rows of one forward pass where the caller does not say."""
    kind = "cuda" if device.type == "cuda" else "cpu"
    return max(_FEWEST_ROWS, min(_MOST_ROWS[kind], _MOST_NUMBERS[kind] // dimension))


def number_of_classes(model: nn.Module, example: Tensor) -> int:
    """The number of classes of ``model`` by one call; layers that normalise by batch statistics are refused by their name."""
    for path, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.running_mean is None or layer.running_var is None):
            raise ModelError(
                "a layer normalises with the statistics of the batch even in eval mode",
                where=path or type(model).__name__,
                got=f"{type(layer).__name__} without running statistics",
                wanted="a network that treats each input alone",
                fix="track_running_stats=True, or GroupNorm or LayerNorm",
            )
    try:
        return int(checked_scores(model, example).shape[1])
    except ValueError as error:  # what torch raises where statistics of a batch are asked of one row
        raise ModelError(
            "the network cannot be run on one input",
            where=type(model).__name__,
            got=error,
            wanted="a network that treats each input alone",
            fix="replace what needs several inputs, such as batch statistics",
        ) from error
