"""What verbs say about a run, for people and for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from twinproof.cli.output import print_rows
from twinproof.guarantee import PROMISING, WEAK_EPSILON, WEAK_WORDS
from twinproof.rounding import format_down, format_up

if TYPE_CHECKING:
    from twinproof.auditing.verification import Verification
    from twinproof.certification.run import CertifiedRun
    from twinproof.runs.run import Run


# How radii were made, as certificates.json names it.
_METHOD = (
    *("noise.law", "noise.place", "method.bound", "method.statistic", "method.confidence", "method.runner_up"),
    *("noise.operator_norm", "noise.slack", "sampling.shared_noise", "network.form", "network.arithmetic"),
)


def training_answer(run: Run) -> dict[str, Any]:
    """The answer of ``train --json``; epsilon and delta are null where the status is ``none`` or ``refuted``."""
    from twinproof.runs.layout import ANSWER, refuse_missing

    # An epsilon that is no promise (r unpaid, a known seed) would be read as one, whatever stands beside it.
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


def show_training(run: Run) -> None:
    """The result of training as a short table."""
    from twinproof.runs.layout import ANSWER, refuse_missing

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
    print_rows(rows)


def certified_answer(result: CertifiedRun) -> dict[str, Any]:
    """The answer of ``certify --json``.

    With a target radius, certified accuracy is given up to the target only. It is decided at the target; below it, as for
    ``acr`` and ``smoothed_accuracy``, the few draws give lower bounds, and an upper one for ``abstained``.
    """
    from twinproof.evaluation.certified import default_radii, summarize
    from twinproof.runs.records import values_of

    settings, certificates, target = result.settings, result.certificates, result.settings.sampling.target_radius
    radii = default_radii(settings.decided_radius)
    if target is not None and target not in radii:
        radii.append(target)
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


def show_certified(result: CertifiedRun) -> None:
    """The result of certification as a short table."""
    answer = certified_answer(result)
    low, high = answer["intervals"]["acr"]["low"], answer["intervals"]["acr"]["high"]
    if answer["target_radius"] is not None:
        show_decided(result, answer)
        return
    rows = [
        (
            "inputs",
            f"{result.settings.inputs} at sigma {result.settings.noise.sigma:g}, n {answer['n']}, alpha {answer['alpha']:g}",
        ),
        (
            "average radius",
            f"{format_down(answer['acr'], 4)}  ({_interval(result)} {format_down(low, 4)} to {format_up(high, 4)})",
        ),
        ("smoothed accuracy", f"{answer['smoothed_accuracy']:.4f}"),
        *((f"certified at {radius}", f"{share:.4f}") for radius, share in answer["certified_accuracy"].items()),
        ("abstained", f"{answer['abstained']:.4f}"),
        *_how(result),
    ]
    print_rows(rows)


def show_decided(result: CertifiedRun, answer: dict[str, Any]) -> None:
    """The result of a certification with a target radius: what it decided, and what is only bounded."""
    from twinproof.evaluation.certified import radius_name

    target = radius_name(answer["target_radius"])
    rows = [
        ("inputs", f"{result.settings.inputs} at sigma {result.settings.noise.sigma:g}, alpha {answer['alpha']:g}"),
        ("target radius", f"{target}: certified for {answer['decided']:.4f} of the inputs, right or wrong"),
        ("draws", f"{answer['mean_draws']:.1f} for each input in the mean, of {answer['n']} at most"),
        *(
            (f"certified at {radius}", f"{share:.4f}" if radius == target else f"at least {share:.4f}")
            for radius, share in answer["certified_accuracy"].items()
        ),
        ("average radius", f"at least {format_down(answer['acr'], 4)}  (a lower bound: drawing stopped at the target)"),
        ("smoothed accuracy", f"at least {answer['smoothed_accuracy']:.4f}"),
        ("abstained", f"at most {answer['abstained']:.4f}"),
        *_how(result),
    ]
    print_rows(rows)


def _interval(result: CertifiedRun) -> str:
    return "95 % interval given this noise" if result.settings.sampling.shared_noise else "95 % interval"


def _how(result: CertifiedRun) -> list[tuple[str, str]]:
    """How radii were made, in which form the network ran, and what shared noise means for the certificates."""
    settings, method, noise = result.settings, result.settings.method, result.settings.noise
    evidence = f"{method.statistic}, {method.confidence}, {method.runner_up}"
    rows = [
        ("radii", f"{method.norm}, bound {method.bound} ({evidence})"),
        ("smoothing", f"{noise.law} noise at {noise.place}, operator norm {format_up(noise.operator_norm)}"),
        ("network as run", f"{settings.network.form}; {settings.network.arithmetic}"),
    ]
    if method.bound == "published":
        rows.append(("warning", "this bound is refuted: its radii are what a paper claims, and promise nothing"))
    if settings.sampling.shared_noise:
        rows.append(("noise", "shared by all inputs: each certificate alone holds as it says, but they may fail together"))
    return rows


def show_verification(result: Verification) -> None:
    """Checks and problems, one line each."""
    for check in result.checks:
        typer.echo(f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.detail}")
    for problem in result.problems:
        typer.echo(f"problem  {problem.file}: {problem.what}; got {problem.got}, wanted {problem.wanted}")
    if result.not_checked:
        typer.echo(f"not checked: {'; '.join(result.not_checked)}")
    typer.echo("everything that was checked is right" if result.ok else f"{len(result.problems)} problems")
