"""``twinproof audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinproof.cli.output import DataPlace, DataRoot, Device, Json, RunPath, print_json, print_rows, shown
from twinproof.errors import ConfigError
from twinproof.rounding import format_down

if TYPE_CHECKING:
    from twinproof.runs.audits import CertificateAudit, Verdict


def audit(
    run: RunPath,
    certificates: Annotated[bool, typer.Option("--certificates", help="Attack every certificate of the run.")] = False,
    limit: Annotated[int | None, typer.Option(help="Only so many inputs of the test set.", show_default="all")] = None,
    steps: Annotated[int, typer.Option(help="Steps of each gradient ascent.")] = 100,
    draws: Annotated[int, typer.Option(help="Noise draws for each gradient.")] = 32,
    restarts: Annotated[int, typer.Option(help="Gradient ascents from random starts.")] = 3,
    votes: Annotated[int, typer.Option(help="Fresh draws that confirm a flip.")] = 10_000,
    seed: Annotated[int | None, typer.Option(help="Makes the audit repeatable.", show_default="system entropy")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an audit with other settings.")] = False,
    data: DataPlace = None,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Tries to refute a run.

    Searches within each certified radius for an input with another answer, and beyond it for the nearest one, in the norm of
    the certificates. Exits with 1 if more certificates fail than chance explains, unless their bound is known to be false.

    Example: twinproof audit runs/mnist --certificates --limit 1000
    """
    from twinproof.auditing.audit import audit_run
    from twinproof.auditing.certificate_search import AttackBudget
    from twinproof.auditing.certificate_verdict import nothing_inside
    from twinproof.evaluation.certified import already_refuted
    from twinproof.keys import Key
    from twinproof.recipes.run_data import load_run_data
    from twinproof.runs.certificates import read_settings
    from twinproof.runs.run import Run

    if not certificates:
        raise ConfigError(
            "nothing to audit was named",
            where="twinproof audit",
            got="nothing",
            wanted="--certificates",
            fix="add --certificates",
        )
    opened = Run.open(run)
    with shown() as bars:
        dataset = load_run_data(opened, source=data, data_root=data_root)
        result = audit_run(
            opened,
            dataset,
            budget=AttackBudget(steps=steps, draws=draws, restarts=restarts, votes=votes),
            limit=limit,
            device=device or "auto",
            key=None if seed is None else Key.from_seed(seed),
            overwrite=overwrite,
            progress=bars,
        )
    settings = read_settings(run)
    expected = settings is not None and already_refuted(settings)
    empty = nothing_inside(result.attacked, dataset.levels)
    if as_json:
        print_json({"run": str(run), **_answer(result, expected=expected), "nothing_inside": empty})
    else:
        _show(result, expected=expected, empty=empty)
    if result.verdict is not None and result.verdict.refuted and not expected:
        raise typer.Exit(1)


def _answer(result: CertificateAudit, *, expected: bool) -> dict[str, Any]:
    """The verdict with its numbers, and every certificate that was contradicted; all the others are in ``audit.json``.

    ``already_refuted`` says that the bound of the certificates is known to be false (``expected`` is what alpha explains).
    """
    record = result.as_dict()
    flipped = [one for one in record["attacked"] if one["verdict"] == "flipped"]
    settings = {name: record[name] for name in ("norm", "within", "outward", "votes", "device", "seconds")}
    return {**record["verdict"], **settings, "already_refuted": expected, "flipped": flipped}


def _show(result: CertificateAudit, *, expected: bool, empty: int) -> None:
    """Prints the verdict."""
    from twinproof.auditing.certificate_verdict import MARKOV, REFUTED_BELOW

    verdict, settings = result.verdict, result.settings
    if verdict is None:
        return
    held = verdict.attacked - verdict.flips - verdict.undecided
    rest = "" if verdict.attacked == verdict.inputs else ", the rest abstained"
    rows = [("attacked", f"{verdict.attacked} certificates of {verdict.inputs} inputs ({settings.norm}{rest})")]
    if verdict.attacked:
        rows += [
            ("answer changed", f"{verdict.flips} inside their radius"),
            ("answer held", f"{held}; too close to call with {settings.votes} votes: {verdict.undecided}"),
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
    """The probability of so many failures among true certificates."""
    if verdict.flips == 0:
        return "none was seen"
    return f"{verdict.flips} or more by chance: probability {verdict.probability:.2g} at most"
