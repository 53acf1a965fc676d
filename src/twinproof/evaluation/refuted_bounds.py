"""Whether the bound behind some radii is known to be false: attacks that succeed inside them are then no surprise."""

from __future__ import annotations

from twinproof.certification.bounds import find_bound, status_of
from twinproof.errors import ConfigError
from twinproof.guarantee import Status
from twinproof.layers.noise import Law
from twinproof.runs.attacks import AttackSettings
from twinproof.runs.certificates import CertificateSettings


def already_refuted(settings: CertificateSettings | AttackSettings) -> bool:
    """Whether radii made with these settings were refuted before anybody attacked them.

    It is the bound that decides, and not the status in ``run.json``: that may be refuted by an audit, which is a surprise.
    """
    try:
        return status_of(find_bound(settings.bound, Law(settings.law))) is Status.REFUTED
    except (ConfigError, ValueError):
        return False  # a bound or a law that nobody knows: `verify` names it, and nothing is expected of it
