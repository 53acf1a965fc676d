"""``twinproof epsilon`` and ``twinproof sigma``: accounting and calibration as calculators."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from twinproof.cli.options import Json


class Mechanism(StrEnum):
    """Mechanisms that ``sigma`` can calibrate."""

    ANALYTIC = "analytic"
    DPSGD = "dpsgd"


def epsilon(
    noise_multiplier: Annotated[float, typer.Option(help="Noise deviation over clipping norm.")],
    delta: Annotated[float, typer.Option(help="Delta at which epsilon is read off.")],
    sample_rate: Annotated[float, typer.Option(help="Probability with which a step takes each record.")] = 1.0,
    steps: Annotated[int, typer.Option(help="How many steps.")] = 1,
    as_json: Json = False,
) -> None:
    """Calculates the epsilon of DP-SGD.

    Poisson sampling, add-or-remove-one neighbours; rounded up.

    Example: twinproof epsilon --noise-multiplier 1.1 --sample-rate 0.0042667 --steps 2350 --delta 1e-5
    """
    from twinproof.cli.output import print_json, print_rows
    from twinproof.privacy.accounting import PoissonGaussianEvent, spending
    from twinproof.rounding import format_up

    spent = spending([PoissonGaussianEvent(sample_rate, noise_multiplier, steps)], delta)
    if as_json:
        print_json({"epsilon": spent.epsilon, "epsilon_rdp": spent.epsilon_rdp, "delta": delta})
    else:
        print_rows([("epsilon (PLD)", format_up(spent.epsilon)), ("epsilon (RDP)", format_up(spent.epsilon_rdp))])


def sigma(
    epsilon: Annotated[float, typer.Option(help="Target epsilon.")],
    delta: Annotated[float, typer.Option(help="Target delta.")],
    mechanism: Annotated[Mechanism, typer.Option(help="One Gaussian release, or DP-SGD.")] = Mechanism.ANALYTIC,
    sensitivity: Annotated[float, typer.Option(help="l2 sensitivity (the clipping norm, for dpsgd).")] = 1.0,
    sample_rate: Annotated[float | None, typer.Option(help="For dpsgd.")] = None,
    steps: Annotated[int | None, typer.Option(help="For dpsgd.")] = None,
    as_json: Json = False,
) -> None:
    """Calculates the noise for a target epsilon.

    The smallest that keeps (epsilon, delta); rounded up.

    Example: twinproof sigma --mechanism analytic --epsilon 1 --delta 1e-5 --sensitivity 1
    """
    from twinproof.cli.output import print_json, print_rows
    from twinproof.errors import ConfigError
    from twinproof.privacy.calibration import calibrate_noise_multiplier
    from twinproof.privacy.mechanisms.analytic_gaussian import analytic_gaussian_sigma
    from twinproof.rounding import format_up, round_up

    if mechanism is Mechanism.ANALYTIC:
        if sample_rate is not None or steps is not None:
            raise ConfigError(
                "these options belong to DP-SGD",
                where="--sample-rate, --steps",
                got=f"--mechanism {mechanism}",
                wanted="--mechanism dpsgd, or neither option",
            )
        value = round_up(analytic_gaussian_sigma(epsilon, delta, sensitivity), 9)
    else:
        if sample_rate is None or steps is None:
            raise ConfigError(
                "DP-SGD needs to know its sampling", where="--sample-rate, --steps", got="not both", wanted="both options"
            )
        multiplier = calibrate_noise_multiplier(epsilon, delta, sample_rate=sample_rate, steps=steps)
        value = round_up(multiplier * sensitivity, 9)
    if as_json:
        print_json(
            {"sigma": value, "mechanism": str(mechanism), "epsilon": epsilon, "delta": delta, "sensitivity": sensitivity}
        )
    else:
        print_rows([("sigma", format_up(value, 9))])
