"""The network and the examples that are measured: what is refused, and how the network is run meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import softplus

from twinproof import checks
from twinproof.attacks.objective import scores_of, untouched
from twinproof.attacks.run import check_labels, refuse_nan
from twinproof.compute.devices import matrix_products
from twinproof.errors import DataError, ModelError
from twinproof.evaluation.protocols import answers_at_random
from twinproof.layers.noise import silenced

# exp of it is still a float64.
_NEVER_A_LINE = 500.0


@contextmanager
def measuring(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode, noise layers silent, no gradients for parameters, no TF32; afterwards everything is as it was.

    TF32 has ten bits: its rounding would drown the differences that curvature and Lipschitz constants are made of.
    """
    with untouched(model), silenced(model):
        if device.type != "cuda":
            yield
            return
        flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with flags, matrix_products(False):
            yield


def device_of(model: nn.Module, inputs: Tensor) -> torch.device:
    """Where the network lies; a network without parameters runs where its inputs are."""
    parameter = next(model.parameters(), None)
    return inputs.device if parameter is None else parameter.device


def check_subject(model: nn.Module, inputs: Tensor, batch_size: int | None) -> torch.device:
    """Refuses what cannot be measured; gives the device on which the rest runs."""
    if batch_size is not None:
        checks.whole(1, batch=batch_size)
    if inputs.dtype not in (torch.float32, torch.float64) or inputs.ndim < 2 or inputs.numel() == 0:
        raise DataError(
            "inputs cannot be measured",
            where="inputs",
            got=f"{inputs.dtype} of shape {tuple(inputs.shape)}",
            wanted="a batch (examples, *shape) of at least one float32 or float64 example",
        )
    if not bool(inputs.isfinite().all()):
        raise DataError("inputs are not finite", where="inputs", got="NaN or infinity", wanted="finite numbers")
    device = device_of(model, inputs)
    with silenced(model):
        if answers_at_random(model, inputs[:1].to(device)):
            raise ModelError(
                "the network answers at random, so that its slopes are not defined",
                where=type(model).__name__,
                got="different scores for the same input in eval mode",
                wanted="a network whose only randomness is in noise layers",
                fix="use twinproof's noise layers, which are silenced here",
            )
    return device


def true_class_losses(scores: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each row by itself, (rows,) in float64: -log softmax(scores)[label].

    Value, slope and curvature keep their leading digits however sure the network is of the true class. The textbook form
    has the slope p - 1 there, which is a rounded zero from p = 1 - 1e-16 on (and in float32 from 1 - 6e-8 on); here it is
    the sigmoid of minus the margin, a small number by itself. Metrics are shown on a logarithmic scale, where that matters.
    """
    wide = scores.double()
    chosen = labels[:, None]
    others = wide.scatter(1, chosen, float("-inf")).logsumexp(dim=1)
    # log(1 + exp(-margin)). By default softplus is a straight line from 20 on; logsigmoid's second derivative forms 1 - p.
    return softplus(others - wide.gather(1, chosen)[:, 0], threshold=_NEVER_A_LINE)


def row_losses(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """``true_class_losses`` of the network at ``inputs``, with their graph; a NaN is refused."""
    scores = scores_of(model, inputs)
    check_labels(labels, len(inputs), scores.shape[1])
    losses = true_class_losses(scores, labels)
    refuse_nan(model, losses.detach())
    return losses


def lengths(rows: Tensor, order: float = 2.0) -> Tensor:
    """The norm of each row over all of its coordinates, (rows,), added up in float64."""
    length: Tensor = torch.linalg.vector_norm(rows.double().flatten(1), ord=order, dim=1)
    return length


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """(rows,) as (rows, 1, 1...), to multiply with ``like``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


ON_CPU = 256
MOST = 16_384
"""On a GPU; with so many rows of the smallest network, starting an operation takes less time than computing it."""
# What one measurement may take of the memory that is free: up to 16 models are measured on one GPU at a time.
_SHARE = 1 / 16
# A Hessian's graph holds up to three and a half times what a forward pass keeps, and a product has intermediate results too.
_GRAPHS = 8
# Vectors, images and slopes in float64 that live at the same time.
_VECTORS = 12
_FLOAT64 = 8


def rows_at_once(model: nn.Module, inputs: Tensor, device: torch.device, asked: int | None) -> int:
    """As many as ``asked`` for; None leaves it to the device that ``model`` lies on.

    On a GPU that follows the memory that is free, and with it the last digits of what is measured.
    """
    if asked is not None:
        return asked
    if device.type != "cuda":
        return ON_CPU
    free, _ = torch.cuda.mem_get_info(device)
    return rows_that_fit(free, bytes_of_row(model, inputs[:1]))


def rows_that_fit(free: int, each: int) -> int:
    """How many rows of ``each`` bytes a fair share of ``free`` bytes holds; at least 1, at most ``MOST``."""
    return max(1, min(MOST, int(_SHARE * free / max(1, each))))


def bytes_of_row(model: nn.Module, row: Tensor) -> int:
    """What measuring one more example takes at most, about, from what a forward pass of ``row`` (1, *shape) keeps."""
    here = row.detach().to(device_of(model, row))
    few, more = (_kept_bytes(model, torch.cat([here] * count)) for count in (1, 3))
    return _GRAPHS * max(0, more - few) // 2 + _VECTORS * _FLOAT64 * row.numel()


def in_batches(examples: int, batch_size: int) -> Iterator[slice]:
    return (slice(start, min(start + batch_size, examples)) for start in range(0, examples, batch_size))


def _kept_bytes(model: nn.Module, rows: Tensor) -> int:
    """Bytes that autograd keeps of a forward pass, every storage once; weights among them, whatever the number of rows."""
    kept: dict[int, Tensor] = {}  # the tensors too: the place of one that is gone could be that of the next

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        model(rows.requires_grad_())
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def penultimate(model: nn.Module) -> nn.Sequential:
    """All of a Sequential but its last linear layer: what it gives is what that layer is given."""
    modules = _layers(model)
    if not modules or not isinstance(modules[-1], nn.Linear):
        raise ModelError(
            "the penultimate layer cannot be found",
            where=type(model).__name__,
            got=f"a network that ends with {type(modules[-1]).__name__}" if modules else "a network that is no Sequential",
            wanted="a Sequential whose last module is a Linear layer",
            fix="write the network as a Sequential, or measure the logits only",
        )
    features = nn.Sequential(*modules[:-1])
    features.training = model.training  # not train(), which would overrule the modules' own modes
    return features


def _layers(model: nn.Module) -> list[nn.Module]:
    """The modules in the order in which they run, Sequentials within it opened up; none where that is not known."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        return []
    opened: list[nn.Module] = []
    for module in model:
        opened += _layers(module) or [module]
    return opened
