"""Sensitivities as StoBatch states them (Phan et al., ICML 2020, Lemmas 2 and 4): to follow the paper, never to promise with.

Status of what rests on them: refuted. Nothing that makes a promise may use this file. Each function says what it forgets;
tests/privacy/functional/test_functional_sensitivity.py exceeds it with actual records.
"""

from __future__ import annotations

from twinproof.errors import ConfigError


def paper_delta_r(inputs: int, hidden: int) -> int:
    """Lemma 2: Delta_R = d (beta + 2) for inputs and hidden units in [-1, 1] (MNIST: 25 x (14^2 + 2) = 4950).

    What it forgets
        - It counts h_b / 2 and x_j as coefficients of their own. The objective holds their products (1/2 - x_j) h_b, whose sum
          over j and b reaches 1.5 d beta for one record more and 3 d beta for one replaced: above d (beta + 2) from 5 hidden
          units on, and from 2.
        - With a convolution d is one patch and beta one feature map: a record moves all maps at once (32 on MNIST).
        - h = theta' x depends on the parameters: data enter through sum_i x_i x_i', which gets no noise of its own.
        - The noise it scales is one draw for every record, batch and step, so that differences of records are free of it.
    """
    return _positive("inputs", inputs) * (_positive("hidden units", hidden) + 2)


def paper_delta_l2(features: int) -> int:
    """Lemma 4: Delta_L2 = 2 |h_pi| for the coefficients h y_k of the labels, features in [-1, 1] (2 x 256 everywhere).

    What it forgets
        - It is true, for one record replaced, of the sums of h y_k alone. The rest of the polynomial (h / 2 for every class
          and h h' / 8) is called post-processing of a layer whose own release is refuted; with it, a record moves the
          coefficients by K (A/2 + A^2/8), A = |h_pi|.
        - The noise it scales has |h_pi| entries for K |h_pi| coefficients: differences of two classes get none.
        - Each step reads the labels again under the same draw, so that differences of steps get none.
    """
    return 2 * _positive("features", features)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"the number of {name} cannot be used", where=name, got=value, wanted="at least 1")
    return value
