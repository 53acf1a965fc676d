"""Objectives of StoBatch as polynomials in the parameters, by their coefficients: plain sums over records.

Both are Taylor polynomials around 0 of the cross-entropy of a sigmoid, softplus(z) - y z, with softplus(z) = ln 2 + z/2 + z^2/8
- z^4/192 + ... . How far they are from it: ``training.taylor_loss``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False)
class OutputPolynomial:
    """sum_k constant_k + linear_k w_k + w_k' quadratic w_k, for the weights w_k of each class; all of float64.

    ``constant`` is the sum over classes, ``linear`` (classes, features), ``quadratic`` (features, features), symmetric and the
    same for every class: it does not depend on labels.
    """

    constant: Tensor
    linear: Tensor
    quadratic: Tensor

    def value(self, weights: Tensor) -> Tensor:
        """The objective at ``weights`` (classes, features)."""
        return self.constant + (self.linear * weights).sum() + ((weights @ self.quadratic) * weights).sum()

    def monomials(self) -> Tensor:
        """The coefficient of every monomial w_ka and w_ka w_kb, a <= b, of every class, as one vector; without the constant."""
        classes, features = self.linear.shape
        rows, columns = torch.triu_indices(features, features)
        doubled = torch.where(rows == columns, 1.0, 2.0).to(self.quadratic.dtype)
        return torch.cat((self.linear.flatten(), (self.quadratic[rows, columns] * doubled).repeat(classes)))


@dataclass(frozen=True, eq=False)
class ReconstructionPolynomial:
    """constant + sum_jb linear_jb theta_jb, for the weights theta (inputs, hidden) of a tied auto-encoder; float64.

    Hidden units count as given numbers, as in the paper. They are functions of theta as well: the coefficients hold for the
    theta at which they were computed, and reading records again at the next one is another release.
    """

    constant: Tensor
    linear: Tensor

    def value(self, weights: Tensor) -> Tensor:
        """The objective at ``weights`` (inputs, hidden)."""
        return self.constant + (self.linear * weights).sum()


def output_polynomial(features: Tensor, labels: Tensor, classes: int) -> OutputPolynomial:
    """Second-order cross-entropy of every class: the sum over records (records, features) with labels (records,).

    One record adds, for each class k with y_k = 1 for its label and 0 otherwise, ln 2 + (1/2 - y_k) z_k + z_k^2 / 8 with
    z_k = w_k' features: the coefficients (1/2 - y_k) features and features features' / 8.
    """
    check_labels(labels, len(features), classes)
    values = features.to(torch.float64)
    signs = 0.5 - one_hot(labels, classes)
    constant = torch.tensor(len(values) * classes * math.log(2), dtype=torch.float64)
    return OutputPolynomial(constant, signs.T @ values, values.T @ values / 8)


def reconstruction_polynomial(inputs: Tensor, hidden: Tensor) -> ReconstructionPolynomial:
    """First-order reconstruction objective: the sum over records of inputs (records, d) and hidden units (records, beta).

    One record adds, for each input j, ln 2 + (1/2 - x_j) theta_j' h: the coefficients (1/2 - x_j) h_b.
    """
    if inputs.ndim != 2 or hidden.ndim != 2 or len(inputs) != len(hidden):
        got = f"{tuple(inputs.shape)} and {tuple(hidden.shape)}"
        wanted = "(records, inputs) and (records, hidden)"
        raise ConfigError("inputs and hidden units do not fit together", where="hidden", got=got, wanted=wanted)
    shifted = 0.5 - inputs.to(torch.float64)
    constant = torch.tensor(inputs.numel() * math.log(2), dtype=torch.float64)
    return ReconstructionPolynomial(constant, shifted.T @ hidden.to(torch.float64))


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """(records, classes) of float64: 1 at each record's label."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)).to(torch.float64)


def check_labels(labels: Tensor, records: int, classes: int) -> None:
    """Refuses labels that do not belong to the records or to a class."""
    if labels.shape != (records,) or labels.dtype.is_floating_point:
        got = f"{labels.dtype} {tuple(labels.shape)}"
        raise DataError("labels do not fit the records", where="labels", got=got, wanted=f"{records} whole numbers")
    if records and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        got = f"{int(labels.min())} to {int(labels.max())}"
        raise DataError("a label belongs to no class", where="labels", got=got, wanted=f"0 to {classes - 1}")
