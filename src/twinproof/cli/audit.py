"""``twinproof audit``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from twinproof.auditing.audit import audit as audit_run
from twinproof.auditing.certificate_search import AttackBudget
from twinproof.auditing.certificate_verdict import MARKOV, REFUTED_BELOW, CertificateAudit, Verdict, nothing_inside
from twinproof.auditing.interval_audit import audit_intervals
from twinproof.auditing.interval_verdict import IntervalAudit, IntervalBudget
from twinproof.certification.interval_run import is_about_intervals
from twinproof.certification.method import certifications
from twinproof.cli.output import (
    Certificates,
    DataPlace,
    DataRoot,
    Device,
    Json,
    Name,
    Overwrite,
    RunPath,
    given_options,
    print_json,
    print_rows,
    shown,
)
from twinproof.errors import ConfigError
from twinproof.evaluation.certified import already_refuted
from twinproof.guarantee import format_down
from twinproof.keys import Key
from twinproof.runs.records import values_of
from twinproof.runs.run import Run, load_run_data

# Options about draws, which deterministic certificates do not have.
_OF_SMOOTHING = ("draws", "votes")


def audit(
    context: typer.Context,
    run: RunPath,
    certificates: Certificates = None,
    limit: Annotated[int | None, typer.Option(help="Only so many inputs of the test set.", show_default="all")] = None,
    steps: Annotated[int, typer.Option(help="Steps of each gradient ascent.")] = 100,
    draws: Annotated[int, typer.Option(help="Noise draws for each gradient.")] = 32,
    restarts: Annotated[int, typer.Option(help="Gradient ascents from random starts.")] = 3,
    votes: Annotated[int, typer.Option(help="Fresh draws that confirm a flip.")] = 10_000,
    seed: Annotated[int | None, typer.Option(help="Makes the audit repeatable.", show_default="system entropy")] = None,
    name: Name = None,
    overwrite: Overwrite = False,
    data: DataPlace = None,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Tries to refute the certificates of a run.

    Searches within each certified radius for an input with another answer, and beyond it for the nearest one, in the norm of
    the certificates. Exits with 1 if more certificates fail than chance explains, unless their bound is known to be false.
    Certificates by interval bounds claim certainty: the network itself is attacked, and one other answer is enough.

    Example: twinproof audit runs/mnist --limit 1000

    Example: twinproof audit runs/mnist --certificates linf-hgm
    """
    opened = Run.open(run)
    if is_about_intervals(run, certificates):
        if given := given_options(context, _OF_SMOOTHING):
            raise ConfigError(
                "these options have no meaning for certificates by interval bounds",
                where="certificates",
                got=", ".join(given),
                wanted="the options without them",
                fix="leave them out",
            )
        with shown() as bars:
            found = audit_intervals(
                opened,
                load_run_data(opened, source=data, data_root=data_root),
                budget=IntervalBudget(steps, restarts),
                limit=limit,
                certificates=certificates,
                device=device or "auto",
                name=name,
                key=None if seed is None else Key.from_seed(seed),
                overwrite=overwrite,
                progress=bars,
            )
        _tell_intervals(run, found, as_json=as_json)
        return
    with shown() as bars:
        dataset = load_run_data(opened, source=data, data_root=data_root)
        result = audit_run(
            opened,
            dataset,
            budget=AttackBudget(steps=steps, draws=draws, restarts=restarts, votes=votes),
            limit=limit,
            certificates=certificates,
            device=device or "auto",
            name=name,
            key=None if seed is None else Key.from_seed(seed),
            overwrite=overwrite,
            progress=bars,
        )
    expected = already_refuted(certifications(run)[result.settings.of].settings)
    empty = nothing_inside(result.attacked, dataset.levels)
    if as_json:
        print_json({"run": str(run), **_answer(result, expected=expected), "nothing_inside": empty})
    else:
        _show(result, expected=expected, empty=empty)
    if result.verdict is not None and result.verdict.refuted and not expected:
        raise typer.Exit(1)


def _tell_intervals(run: Path, found: IntervalAudit, *, as_json: bool) -> None:
    """Prints what attacks on the network found; exits with 1 if anything."""
    verdict, settings = found.verdict, found.settings
    if as_json:
        more = values_of(settings, "of", "norm", "budget.steps", "budget.restarts", "made.device", "made.seconds")
        flipped = [{key: value for key, value in asdict(one).items() if key != "point"} for one in found.flips]
        print_json({"run": str(run), "name": found.name, **asdict(verdict), **more, "flipped": flipped})
    else:
        rows = [
            ("attacked", f"{verdict.attacked} certificates by interval bounds of {verdict.inputs} inputs ({settings.norm})"),
            ("answer changed", f"{verdict.flips} inside their radius; each would be a defect"),
            *((f"input {one.index}", f"class {one.answer} at {one.distance!r} of {one.radius!r}") for one in found.flips[:20]),
            ("verdict", verdict.verdict),
        ]
        print_rows(rows)
    if verdict.refuted:
        raise typer.Exit(1)


def _answer(result: CertificateAudit, *, expected: bool) -> dict[str, Any]:
    """The verdict with its numbers, and every certificate that was contradicted; all the others are in the audit's file.

    ``already_refuted`` says that the bound of the certificates is known to be false (``expected`` is what alpha explains).
    """
    record = result.as_dict()
    flipped = [one for one in record["attacked"] if one["verdict"] == "flipped"]
    settings = values_of(result.settings, "of", "norm", "within", "outward", "budget.votes", "made.device", "made.seconds")
    return {"name": result.name, **record["verdict"], **settings, "already_refuted": expected, "flipped": flipped}


def _show(result: CertificateAudit, *, expected: bool, empty: int) -> None:
    verdict, settings = result.verdict, result.settings
    if verdict is None:
        return
    held = verdict.attacked - verdict.flips - verdict.undecided
    rest = "" if verdict.attacked == verdict.inputs else ", the rest abstained"
    rows = [("attacked", f"{verdict.attacked} certificates of {verdict.inputs} inputs ({settings.norm}{rest})")]
    if verdict.attacked:
        rows += [
            ("answer changed", f"{verdict.flips} inside their radius"),
            ("answer held", f"{held}; too close to call with {settings.budget.votes} votes: {verdict.undecided}"),
            ("what alpha explains", f"{verdict.expected:g} failures in the mean at most; {_chance(verdict)}"),
        ]
        if empty:
            rows.append(("nothing inside", f"{empty} have a radius of at most one level, which holds no other input"))
        if verdict.bound == MARKOV:
            rows.append(
                ("note", "with shared noise certificates may fail together; only the expected number of failures is bounded")
            )
        if verdict.closest is not None and verdict.median is not None:
            nearest = f"{format_down(verdict.closest, 3)} radii away, median {format_down(verdict.median, 3)}"
            rows.append(("closest change", f"{nearest}; none within {settings.outward:g} radii: {verdict.beyond_reach}"))
        else:
            rows.append(("closest change", f"none found within {settings.outward:g} radii"))
    if expected:
        rows.append(("note", "the bound of these certificates is known to be false: changes within their radii are expected"))
    rows.append(("verdict", verdict.words + (f" (chance below {REFUTED_BELOW:g})" if verdict.refuted else "")))
    print_rows(rows)


def _chance(verdict: Verdict) -> str:
    if verdict.flips == 0:
        return "none was seen"
    return f"{verdict.flips} or more by chance: probability {verdict.probability:.2g} at most"
