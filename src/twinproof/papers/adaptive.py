"""Accuracy under attacks that see the noise they are up against: what the papers' protocol leaves out.

Their attacks are made on the network without its noise, which can be a different function from the one that answers. Here PGD
climbs the mean probability over the noise, from several starts, and the strongest point is kept.
"""

from __future__ import annotations

import torch

from twinproof.attacks.objective import Plain, without_noise
from twinproof.attacks.run import predicted_labels, run_attack
from twinproof.attacks.search import pgd
from twinproof.attacks.threat import Threat
from twinproof.certification.method import Method, Sampling
from twinproof.certification.run import smoothed_for_run
from twinproof.compute.devices import resolve_device
from twinproof.data.record import Dataset
from twinproof.evaluation.attack_results import stored_inside
from twinproof.evaluation.protocols import smoothed_objective
from twinproof.keys import Key
from twinproof.papers.under_attack import UnderAttack
from twinproof.runs.run import Run

# At the attacked inputs only the class is asked for, by n0 draws; a certificate there is not.
_NO_CERTIFICATE = 100


def adaptive_accuracy(run: Run, dataset: Dataset, measurement: UnderAttack, *, device: str = "auto") -> dict[str, float]:
    """The share of right answers at each of ``measurement.adaptive_sizes``, by size as text.

    A model that answers without noise is attacked as it answers. Right is, as everywhere in the papers' accuracy, what most of
    n0 draws vote for, or what the network without noise answers.
    """
    target, key = resolve_device(device), Key.from_system()
    smoothed = smoothed_for_run(run, dataset, target, method=Method(norm=measurement.norm))
    stored = torch.from_numpy(dataset.test.inputs[: measurement.limit].astype("int64")).to(target)
    labels = torch.from_numpy(dataset.test.labels[: measurement.limit]).to(target)
    inputs = stored.to(torch.float32) / dataset.levels
    objective = (
        smoothed_objective(smoothed, measurement.adaptive_draws)
        if measurement.certified
        else Plain(without_noise(run.model(target)))
    )
    attack = pgd(measurement.adaptive_steps, restarts=measurement.adaptive_restarts)
    shares = {}
    for size in measurement.adaptive_sizes:
        found = run_attack(attack, objective, inputs, labels, threat=Threat(measurement.norm, size), key=key)
        if measurement.certified:
            reached = stored_inside(found.inputs, stored, dataset.levels, measurement.norm, size)
            sampling = Sampling(measurement.n0, _NO_CERTIFICATE, measurement.alpha)
            given = torch.tensor([one.top for one in smoothed.certify(reached, sampling=sampling)], device=target)
        else:
            given = predicted_labels(objective, found.inputs, key=key)
        shares[f"{size:.12g}"] = float((given == labels).double().mean())
    return shares
