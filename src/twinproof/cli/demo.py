"""``twinproof demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from twinproof.auditing.verify import verify_run
from twinproof.certification.run import CertifiedRun, certify
from twinproof.cli.attack import attacked_answer, show_attacked
from twinproof.cli.output import Device, Json, print_json, shown
from twinproof.cli.summaries import certified_answer, show_certified, show_training, show_verification, training_answer
from twinproof.errors import ConfigError, system_faults
from twinproof.evaluation.under_attack import AttackedRun, attack
from twinproof.recipes.demo import DEMO_ATTACKED, DEMO_ATTACKS, DEMO_JUDGING, DEMO_SAMPLING, DEMO_SETTINGS
from twinproof.recipes.train import train
from twinproof.reporting.run import ReportFiles, write_report
from twinproof.runs.run import Run, load_run_data
from twinproof_verify import Originals, Verification


@system_faults("run `twinproof demo` again: it starts in a new folder")
def demo(
    out: Annotated[Path, typer.Option(help="New directory for the run.")] = Path("demo-run"),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Runs the main job on embedded data.

    Trains with privacy, certifies, attacks, verifies and writes the report. Needs no arguments.

    Example: twinproof demo
    """
    root, device = _free_directory(out), device or "auto"
    settings: dict[str, Any] = {**DEMO_SETTINGS, "performance": {"device": device}}
    with shown() as bars:
        bars.say("these settings were tuned on the same public digits; tuning on private records would cost privacy too")
        bars.say(f"training {settings['recipe']} on {settings['data']['source']} under epsilon {settings['epsilon']}")
        run = train(settings, root, progress=bars)
        dataset = load_run_data(run)
        certified = certify(run, dataset, sampling=DEMO_SAMPLING, device=device, progress=bars)
        attacked = attack(
            run, dataset, plan=DEMO_ATTACKS, sampling=DEMO_JUDGING, limit=DEMO_ATTACKED, device=device, progress=bars
        )
    verification = verify_run(root, originals=Originals(dataset.test.inputs, dataset.test.labels))
    files = write_report(root, dataset=dataset, verification=verification.as_dict())
    _tell(run, certified, attacked, verification, files, as_json=as_json)
    if not verification.ok or attacked.results["crossing"]:
        raise typer.Exit(1)


def _tell(
    run: Run,
    certified: CertifiedRun,
    attacked: AttackedRun,
    verification: Verification,
    files: ReportFiles,
    *,
    as_json: bool,
) -> None:
    for warning in attacked.results["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        answer = {**training_answer(run), "certified": certified_answer(certified), "attacked": attacked_answer(attacked)}
        print_json({**answer, "verified": verification.ok, "report": str(files.html)})
        return
    show_training(run)
    show_certified(certified)
    typer.echo("")
    show_attacked(attacked)
    typer.echo("")
    show_verification(verification)
    typer.echo(f"\nopen the report: {files.html.resolve()}")


def _free_directory(out: Path) -> Path:
    """``out``, or the first of out-2, out-3... that does not exist, so that an earlier demo is never overwritten."""
    candidate, number = out if out.name else out.resolve(), 2
    if not candidate.name:
        raise ConfigError("this directory cannot be used", where="--out", got=str(out), wanted="a new directory")
    out = candidate
    while candidate.exists():
        candidate, number = out.with_name(f"{out.name}-{number}"), number + 1
    return candidate
