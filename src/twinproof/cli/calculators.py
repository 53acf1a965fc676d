"""``twinproof epsilon`` and ``twinproof sigma``: accounting and calibration as calculators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from twinproof import checks
from twinproof.cli.output import Json, print_json, print_rows
from twinproof.errors import ConfigError
from twinproof.guarantee import format_up, guessing_words, round_down, round_up
from twinproof.privacy.accounting import PoissonGaussianEvent, calibrate_noise_multiplier, spending
from twinproof.privacy.mechanisms import Laplace, calibrate
from twinproof.privacy.redistribution import Redistribution, parse_redistribution

# Significant digits of an answer: sigma is as often a thousandth as a thousand.
_SIGNIFICANT = 12


class Mechanism(StrEnum):
    """Mechanisms that ``sigma`` can calibrate: those of the catalogue, the papers' name of one of them, and DP-SGD."""

    CLASSIC = "classic"
    EXTENDED = "extended"
    HETEROGENEOUS = "heterogeneous"
    HGM = "hgm"
    ANALYTIC = "analytic"
    HETEROGENEOUS_ANALYTIC = "heterogeneous-analytic"
    LAPLACE = "laplace"
    DPSGD = "dpsgd"


_HETEROGENEOUS = (Mechanism.HETEROGENEOUS, Mechanism.HGM, Mechanism.HETEROGENEOUS_ANALYTIC)


def epsilon(
    noise_multiplier: Annotated[float, typer.Option(help="Deviation of the noise over the clipping norm.")],
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")],
    sample_rate: Annotated[float, typer.Option(help="Probability with which a step takes each record.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Number of steps.")] = 1,
    as_json: Json = False,
) -> None:
    """Calculates the epsilon of DP-SGD.

    With Poisson sampling, for neighbours that differ in one record, which one of them replaces by nothing (the number of
    records is public). Adding or removing one record at a fixed sampling rate costs the same. Rounded up.

    Example: twinproof epsilon --noise-multiplier 1.1 --sample-rate 0.0042667 --steps 2350 --delta 1e-5
    """
    spent = spending([PoissonGaussianEvent(sample_rate, noise_multiplier, steps)], delta)
    if as_json:
        print_json({"epsilon": spent.epsilon, "epsilon_rdp": spent.epsilon_rdp, "delta": delta})
    else:
        rows = [("epsilon (PLD)", format_up(spent.epsilon)), ("epsilon (RDP)", format_up(spent.epsilon_rdp))]
        print_rows([*rows, ("meaning", guessing_words(spent.epsilon, delta))])


def sigma(
    epsilon: Annotated[float, typer.Option(help="Target epsilon.")],
    delta: Annotated[float | None, typer.Option(help="Target delta; optional for laplace only.", show_default="0")] = None,
    mechanism: Annotated[
        Mechanism, typer.Option(help="A mechanism for one release (hgm is heterogeneous), or dpsgd.")
    ] = Mechanism.ANALYTIC,
    sensitivity: Annotated[
        float,
        typer.Option(
            help="In l2; for laplace in l1; for heterogeneous that of the query over sqrt(K r); for dpsgd the clipping norm."
        ),
    ] = 1.0,
    r: Annotated[
        str | None,
        typer.Option("--r", help="Shares for heterogeneous: 0.2,0.3,0.5, or a file of numbers.", show_default="equal"),
    ] = None,
    dimension: Annotated[int | None, typer.Option(help="Number of outputs, for heterogeneous.")] = None,
    sample_rate: Annotated[float | None, typer.Option(help="For dpsgd.")] = None,
    steps: Annotated[int | None, typer.Option(help="For dpsgd.")] = None,
    as_json: Json = False,
) -> None:
    """Calculates the noise for a target epsilon.

    The smallest noise that the mechanism's theorem allows, rounded up, and the exact epsilon and delta of that noise.

    Example: twinproof sigma --mechanism analytic --epsilon 1 --delta 1e-5 --sensitivity 1
    """
    _check_options(mechanism, {"--r": r, "--dimension": dimension}, {"--sample-rate": sample_rate, "--steps": steps})
    if delta is None and mechanism is not Mechanism.LAPLACE:
        raise ConfigError(
            "Gaussian noise needs a delta",
            where="--delta",
            got="nothing",
            wanted="0 < delta < 1, far below one over the number of records",
            fix="add for example --delta 1e-5; only laplace allows delta 0",
        )
    target = delta or 0.0
    if mechanism is Mechanism.DPSGD:
        answer = _dpsgd(epsilon, target, sensitivity, sample_rate, steps)
    else:
        answer = _single_release(mechanism, epsilon, target, sensitivity, _redistribution(r, dimension))
    answer = {"mechanism": str(mechanism), "epsilon": epsilon, "delta": target, "sensitivity": sensitivity, **answer}
    if as_json:
        print_json(answer)
    else:
        print_rows(_rows(answer))


def _check_options(mechanism: Mechanism, shares: Mapping[str, object], sampling: Mapping[str, object]) -> None:
    dpsgd, heterogeneous = mechanism is Mechanism.DPSGD, mechanism in _HETEROGENEOUS
    for options, fits, owner in ((shares, heterogeneous, "a heterogeneous mechanism"), (sampling, dpsgd, "DP-SGD (dpsgd)")):
        given = [name for name, value in options.items() if value is not None]
        if given and not fits:
            raise ConfigError(
                f"this option is only for {owner}",
                where=", ".join(given),
                got=f"--mechanism {mechanism}",
                wanted=f"{owner}, or no such option",
            )
    if dpsgd and None in sampling.values():
        raise ConfigError("DP-SGD needs its sampling", where="--sample-rate, --steps", got="not both", wanted="both options")


def _redistribution(r: str | None, dimension: int | None) -> Redistribution | None:
    if r is None:
        return None if dimension is None else Redistribution.uniform(dimension)
    shares = parse_redistribution(r)
    if dimension is not None:
        shares.check_dimension(dimension)
    return shares


def _dpsgd(epsilon: float, delta: float, sensitivity: float, sample_rate: float | None, steps: int | None) -> dict[str, Any]:
    checks.positive(sensitivity=sensitivity)
    multiplier = calibrate_noise_multiplier(epsilon, delta, sample_rate=sample_rate or 0.0, steps=steps or 0)
    return {"sigma": _up(multiplier * sensitivity)}


def _single_release(
    mechanism: Mechanism, epsilon: float, delta: float, sensitivity: float, redistribution: Redistribution | None
) -> dict[str, Any]:
    """The noise, rounded up, and the exact cost of the rounded noise."""
    name = Mechanism.HETEROGENEOUS if mechanism is Mechanism.HGM else mechanism
    found = calibrate(name, epsilon, delta, sensitivity, redistribution)
    shown = replace(found, scale=_up(found.scale)) if isinstance(found, Laplace) else replace(found, sigma=_up(found.sigma))
    answer: dict[str, Any] = {"sigma": _up(shown.sigma)}
    if isinstance(shown, Laplace):
        answer["scale"] = shown.scale
    elif shown.redistribution is not None:
        covered = shown.redistribution.covered_l2_sensitivity(sensitivity)
        answer["dimension"] = shown.redistribution.dimension
        answer["deviations"] = [_up(deviation) for deviation in shown.deviations().tolist()]
        answer["covered_l2_sensitivity"] = round_down(covered, _places(covered))
    answer["exact_delta"] = _up(shown.delta_at(epsilon), 6)
    answer["exact_epsilon"] = _up(shown.epsilon_at(delta))
    return answer | {"theorem": shown.theorem}


def _places(value: float, significant: int = _SIGNIFICANT) -> int:
    """Decimal places that show so many significant digits of a number."""
    return significant - 1 - math.floor(math.log10(value)) if value > 0 else significant


def _up(value: float, significant: int = _SIGNIFICANT) -> float:
    return round_up(value, _places(value, significant))


def _rows(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("sigma", format_up(answer["sigma"], max(9, _places(answer["sigma"], 9))))]
    if "scale" in answer:
        rows.append(("scale", f"{answer['scale']:.12g}  (sigma is sqrt(2) times the scale)"))
    if len(answer.get("deviations", ())) > 1:
        least, most = min(answer["deviations"]), max(answer["deviations"])
        rows += [
            ("noise by output", f"{least:.12g} to {most:.12g}  ({answer['dimension']} outputs, sigma sqrt(K r))"),
            ("covers", f"any query of plain l2 sensitivity up to {answer['covered_l2_sensitivity']:.12g}"),
        ]
    if "theorem" in answer:
        rows += [
            ("exact delta", f"{answer['exact_delta']:.6g} at epsilon {answer['epsilon']:.12g}"),
            ("exact epsilon", f"{answer['exact_epsilon']:.12g} at delta {answer['delta']:.12g}"),
            ("theorem", answer["theorem"]),
        ]
    return rows
