"""Answers that several verbs print: about training, certification and verification, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from twinproof.certification.interval_run import IntervalCertifiedRun
from twinproof.certification.run import CertifiedRun
from twinproof.cli.output import print_rows
from twinproof.evaluation.certified import LINF_RADII, default_radii, radius_name, summarize
from twinproof.guarantee import PROMISING, WEAK_EPSILON, WEAK_WORDS, format_down, format_up
from twinproof.runs.layout import ANSWER, refuse_missing
from twinproof.runs.records import values_of
from twinproof.runs.run import Run
from twinproof_verify import Verification

# How radii were made, as certificates.json names it.
_METHOD = (
    *("noise.law", "noise.place", "method.bound", "method.statistic", "method.confidence", "method.runner_up"),
    *("noise.operator_norm", "noise.slack", "sampling.shared_noise", "network.form", "network.arithmetic"),
)


def training_answer(run: Run) -> dict[str, Any]:
    """The answer of ``train --json``; epsilon and delta are null where the status is ``none`` or ``refuted``."""
    # Beside any other status (r unpaid, a known seed) an epsilon would still be read as a promise.
    promised = run.guarantee.status in PROMISING
    refuse_missing(run.root, run.record, ANSWER)
    privacy = (run.record.get("privacy") or {}) if promised else {}
    return {
        "run": str(run.root),
        "epsilon": privacy.get("epsilon"),
        "epsilon_rdp": privacy.get("epsilon_rdp"),
        "delta": privacy.get("delta"),
        "status": str(run.guarantee.status),
        "reason": run.guarantee.reason,
        "warning": WEAK_WORDS if (privacy.get("epsilon") or 0) >= WEAK_EPSILON else "",
        "accuracy": run.record["accuracy"]["value"],
        "accuracy_interval": [run.record["accuracy"]["low"], run.record["accuracy"]["high"]],
        "seconds": run.training_seconds,
    }


def training_rows(run: Run) -> list[tuple[str, str]]:
    refuse_missing(run.root, run.record, ANSWER)
    accuracy, guarantee = run.record["accuracy"], run.guarantee
    rows = [
        ("run", str(run.root)),
        ("privacy", f"{guarantee.status}: {guarantee.promise}"),
        ("accuracy", f"{accuracy['value']:.4f}  (95 % interval {accuracy['low']:.4f} to {accuracy['high']:.4f})"),
        ("next", f"twinproof certify {run.root}"),
    ]
    if guarantee.reason:
        rows.insert(2, ("reason", guarantee.reason))
    return rows


def show_training(run: Run) -> None:
    print_rows(training_rows(run))


def certified_answer(result: CertifiedRun, at: Sequence[float] = ()) -> dict[str, Any]:
    """The answer of ``certify --json``; certified accuracy is given ``at`` these radii, too.

    With a target radius, certified accuracy is given up to the target. At the target it is decided; below it the few draws
    give lower bounds, as for ``acr`` and ``smoothed_accuracy``, and an upper bound for ``abstained``.
    """
    settings, certificates, target = result.settings, result.certificates, result.settings.sampling.target_radius
    radii = default_radii(settings.decided_radius)
    radii += sorted({*at, *(() if target is None else (target,))} - {*radii})
    reached = None if target is None else sum(made.radius >= target for made in certificates) / len(certificates)
    return {
        "name": result.name,
        **summarize(certificates, settings, radii=radii).as_dict(),
        "images_per_second": result.images_per_second,
        "largest_radius": settings.largest_radius,
        "target_radius": target,
        "decided": reached,
        "mean_draws": sum(made.draws for made in certificates) / len(certificates),
        **values_of(settings, *_METHOD),
    }


def interval_answer(result: IntervalCertifiedRun, at: Sequence[float] = ()) -> dict[str, Any]:
    """The answer of ``certify --json`` for interval bounds: nothing was drawn, so that ``n`` and ``alpha`` are null."""
    settings = result.settings
    return {
        "name": result.name,
        **summarize(result.certificates, settings, radii=sorted({*LINF_RADII, *at})).as_dict(),
        "images_per_second": result.images_per_second,
        "largest_radius": settings.largest_radius,
        "target_radius": None,
        **values_of(settings, "method.bound", "step", "network.form", "network.arithmetic"),
    }


def show_intervals(result: IntervalCertifiedRun, at: Sequence[float] = ()) -> None:
    """Prints the result of a certification by interval bounds."""
    settings, answer = result.settings, interval_answer(result, at)
    low, high = answer["intervals"]["acr"]["low"], answer["intervals"]["acr"]["high"]
    rows = [
        ("inputs", f"{settings.inputs}, with certainty"),
        ("average radius", f"{format_down(answer['acr'], 4)}  (95 % interval {format_down(low, 4)} to {format_up(high, 4)})"),
        ("accuracy", f"{answer['smoothed_accuracy']:.4f}"),
        *((f"certified at {radius}", f"{share:.4f}") for radius, share in answer["certified_accuracy"].items()),
        ("radii", f"{settings.method.norm}, bound {settings.method.bound}"),
        ("holds for", f"the network itself in {settings.network.arithmetic} or float64, by sums of products in any order"),
    ]
    print_rows(rows)


def show_certified(result: CertifiedRun, at: Sequence[float] = ()) -> None:
    """Prints the result of certification; with a target radius what was decided, and what is only bounded."""
    settings, answer = result.settings, certified_answer(result, at)
    target = None if settings.sampling.target_radius is None else radius_name(settings.sampling.target_radius)
    at_least, at_most = ("", "") if target is None else ("at least ", "at most ")
    low, high = answer["intervals"]["acr"]["low"], answer["intervals"]["acr"]["high"]
    given = " given this noise" if settings.sampling.shared_noise else ""
    interval = f"95 % interval{given} {format_down(low, 4)} to {format_up(high, 4)}"
    rows = [("inputs", f"{settings.inputs} at sigma {settings.noise.sigma:g}, n {answer['n']}, alpha {answer['alpha']:g}")]
    if target is not None:
        interval = "a lower bound: drawing stopped at the target"
        rows += [
            ("target radius", f"{target}: certified for {answer['decided']:.4f} of the inputs, right or wrong"),
            ("draws", f"{answer['mean_draws']:.1f} per input on average, of {answer['n']} at most"),
        ]
    rows += [
        ("average radius", f"{at_least}{format_down(answer['acr'], 4)}  ({interval})"),
        ("smoothed accuracy", f"{at_least}{answer['smoothed_accuracy']:.4f}"),
    ]
    for radius, share in answer["certified_accuracy"].items():
        rows.append((f"certified at {radius}", f"{'' if radius == target else at_least}{share:.4f}"))
    print_rows([*rows, ("abstained", f"{at_most}{answer['abstained']:.4f}"), *_how(result)])


def _how(result: CertifiedRun) -> list[tuple[str, str]]:
    """How the radii were made, in which form the network ran, and what limits the certificates."""
    settings, method, noise = result.settings, result.settings.method, result.settings.noise
    evidence = f"{method.statistic}, {method.confidence}, {method.runner_up}"
    rows = [
        ("radii", f"{method.norm}, bound {method.bound} ({evidence})"),
        ("smoothing", f"{noise.law} noise at {noise.place}, operator norm {format_up(noise.operator_norm)}"),
        ("network as run", f"{settings.network.form}; {settings.network.arithmetic}"),
    ]
    if method.bound == "published":
        rows.append(("warning", "this bound is refuted: its radii are a paper's claim, and nothing is promised"))
    if settings.sampling.shared_noise:
        rows.append(("noise", "shared by all inputs: each certificate holds by itself, but they may fail together"))
    return rows


def show_verification(result: Verification) -> None:
    for check in result.checks:
        typer.echo(f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.detail}")
    for problem in result.problems:
        typer.echo(f"problem  {problem.file}: {problem.what}; got {problem.got}, wanted {problem.wanted}")
    if result.not_checked:
        typer.echo(f"not checked: {'; '.join(result.not_checked)}")
    typer.echo("everything that was checked is right" if result.ok else f"{len(result.problems)} problems")
