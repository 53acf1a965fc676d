"""Taylor polynomials of the sigmoid's cross-entropy as losses of one record, as StoBatch trains on them.

Around 0, softplus(z) = z/2 + ln(2 cosh(z/2)) = ln 2 + z/2 + z^2/8 - z^4/192 + ... . Coefficients of the same polynomials, for
noise on them: ``privacy.functional.polynomials``. Under DP-SGD they are losses like any other: clipping bounds each record.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from twinproof.errors import ConfigError


def taylor_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Second order, summed over classes, mean over copies: ``logits`` (copies, classes), ``label`` a scalar. A ``RecordLoss``.

    For each class ln 2 + (1/2 - y) z + z^2/8, with y = 1 for the label and 0 otherwise: a parabola with its minimum at
    z = 2 for the label and z = -2 for the others, so that logits do not grow without end.

    Guarantees
        Never below the exact loss softplus(z) - y z, and above it by at most z^4/192 for each class, whatever z is: 0.0053 at
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

    Guarantees
        The same objective from another start: a network whose last biases are higher by 2 - 4/M has the same loss by
        ``taylor_cross_entropy``, and gives the same class. M is public, and nothing else is looked at.
    """
    return taylor_cross_entropy(logits + (4 / logits.shape[-1] - 2), label)


def taylor_reconstruction(reconstruction: Tensor, inputs: Tensor) -> Tensor:
    """First order, summed over inputs, mean over copies: both (copies, *shape); ``reconstruction`` holds logits of the inputs.

    For each input ln 2 + (1/2 - x) z. It is linear in z and has no minimum: weights that make z large are held by something
    else (a penalty, clipping, few steps). Inputs are in [0, 1], or in [-1, 1] as the paper has them, where x below 0 is no
    probability and the exact loss has no minimum either.

    Guarantees
        Never above the exact loss softplus(z) - x z, and below it by at most z^2/8 for each input, whatever z and x are: the
        difference is ln cosh(z/2).
    """
    if reconstruction.shape != inputs.shape or inputs.ndim < 2:
        got = f"{tuple(reconstruction.shape)} for inputs {tuple(inputs.shape)}"
        wanted = "one logit for each input, (copies, *shape) both"
        raise ConfigError("the reconstruction does not fit the inputs", where="reconstruction", got=got, wanted=wanted)
    return (math.log(2) + (0.5 - inputs) * reconstruction).flatten(1).sum(1).mean()


def taylor_reconstruction_rows(reconstruction: Tensor, inputs: Tensor) -> Tensor:
    """Second order, *mean* over inputs, one number for each row: both (rows, *shape) -> (rows,).

    For each input ln 2 + (1/2 - x) z + z^2/8: ``taylor_reconstruction`` with the next term of the same series. That one is
    linear in z, and with tied weights z grows with their square, so that it falls without end as they grow; with this term it
    is a parabola with its minimum at z = 4x - 2. The mean keeps its weight beside a classification loss the same for inputs
    of any size.

    Guarantees
        Never below ln 2 - 2 (x - 1/2)^2 averaged over inputs, whatever z is. Never below the exact loss softplus(z) - x z, and
        above it by at most z^4/192 for each input (``taylor_cross_entropy``).
    """
    return (math.log(2) + (0.5 - inputs) * reconstruction + reconstruction.square() / 8).flatten(1).mean(1)
