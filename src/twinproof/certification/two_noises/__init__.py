"""Laplace noise on the input and behind the first layer, both drawn anew in every pass (StoBatch, Phan et al. 2020).

``rates`` has what a change of the input costs, by every rule, and the proof; ``composition`` the papers' rules over S
mechanisms; ``radii`` turns bounds on scores into sizes; ``site`` makes such a network certifiable by ``twinproof.smooth``.
"""

from twinproof.certification.two_noises.composition import composed_epsilon, composed_size, robustness_size
from twinproof.certification.two_noises.radii import composition_radius, single_pass_radius
from twinproof.certification.two_noises.rates import Rates, rates
from twinproof.certification.two_noises.sensitivities import incoming_sums, outgoing_sums, paper_hidden_sensitivity

__all__ = [
    "Rates",
    "composed_epsilon",
    "composed_size",
    "composition_radius",
    "incoming_sums",
    "outgoing_sums",
    "paper_hidden_sensitivity",
    "rates",
    "robustness_size",
    "single_pass_radius",
]
