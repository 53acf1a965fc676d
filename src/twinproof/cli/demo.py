"""``twinproof demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from twinproof.cli.options import Device, Json


def demo(
    out: Annotated[Path, typer.Option(help="New directory for the run.")] = Path("demo-run"),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Runs the main job on embedded data.

    Trains privately, certifies, verifies and reports; needs no arguments.

    Example: twinproof demo
    """
    from twinproof.audit.verify import verify_run
    from twinproof.certify.run import certify_run
    from twinproof.cli.bars import Bars
    from twinproof.cli.output import print_json
    from twinproof.cli.summaries import certified_answer, show_certified, show_training, show_verification, training_answer
    from twinproof.recipes.demo import DEMO_SAMPLING, DEMO_SETTINGS
    from twinproof.recipes.run_data import load_run_data
    from twinproof.recipes.train import train
    from twinproof.report.run import report_run

    root = _free_directory(out)
    settings: dict[str, Any] = {**DEMO_SETTINGS, "performance": {"device": device or "auto"}}
    with Bars() as bars:
        bars.say("settings were chosen on these public digits; on private records that choice would cost privacy too")
        bars.say(f"training {settings['recipe']} on {settings['data']['source']} under epsilon {settings['epsilon']}")
        run = train(settings, root, progress=bars)
        dataset = load_run_data(run)
        certified = certify_run(run, dataset, sampling=DEMO_SAMPLING, device=device or "auto", progress=bars)
    files = report_run(root)
    verification = verify_run(root)
    if as_json:
        answer = {**training_answer(run), "certified": certified_answer(certified)}
        print_json({**answer, "verified": verification.ok, "report": str(files.html)})
    else:
        show_training(run)
        show_certified(certified)
        show_verification(verification)
        typer.echo(f"\nopen the report: {files.html.resolve()}")
    if not verification.ok:
        raise typer.Exit(1)


def _free_directory(out: Path) -> Path:
    """``out``, or the first of out-2, out-3... that is not there yet: an earlier demo is never overwritten."""
    candidate, number = out, 2
    while candidate.exists():
        candidate, number = out.with_name(f"{out.name}-{number}"), number + 1
    return candidate
