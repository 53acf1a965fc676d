"""``twinproof certify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinproof.auditing.certificate_verdict import audits_of
from twinproof.certification import run as certification
from twinproof.certification.method import Method, Sampling, default_confidence
from twinproof.certification.run import CertifiedRun
from twinproof.cli.output import DataPlace, DataRoot, Device, Json, Name, Overwrite, RunPath, print_json
from twinproof.cli.ranks import bars_of, launched_ranks
from twinproof.cli.summaries import certified_answer, show_certified
from twinproof.evaluation.attack_record import attacks_of
from twinproof.runs.run import Run, load_run_data


def certify(
    run: RunPath,
    norm: Annotated[
        str | None, typer.Option(help="Norm: l1, l2 or linf.", show_default="that of the run's noise layer, else l2")
    ] = None,
    bound: Annotated[
        str,
        typer.Option(
            help="Robustness bound: best (the longest that is proven), tight, pure-epsilon, hgm, hgm-complement, pixeldp, "
            "composition or published (a paper's claim, refuted)."
        ),
    ] = "best",
    statistic: Annotated[str, typer.Option(help="What is averaged over the noise: votes or scores.")] = "votes",
    confidence: Annotated[
        str | None,
        typer.Option(
            help="clopper-pearson (votes), hoeffding or empirical-bernstein.", show_default="the best for the statistic"
        ),
    ] = None,
    runner_up: Annotated[
        str, typer.Option(help="Bound of the other classes: complement (of the first) or union.")
    ] = "complement",
    n: Annotated[int, typer.Option(help="Noise draws that bound the probability of the class.")] = 10_000,
    n0: Annotated[int, typer.Option(help="Noise draws that choose the class.")] = 100,
    alpha: Annotated[float, typer.Option(help="Failure probability for each input.")] = 0.001,
    sigma: Annotated[float | None, typer.Option(help="Deviation of the noise at inference.", show_default="the run's")] = None,
    target_radius: Annotated[
        float | None,
        typer.Option(help="Only decide whether each radius is at least this; stops drawing as soon as that is known."),
    ] = None,
    shared_noise: Annotated[
        bool,
        typer.Option("--shared-noise", help="Faster: the inputs share their noise, so their certificates may fail together."),
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Only so many inputs of the test set.", show_default="all")] = None,
    name: Name = None,
    overwrite: Overwrite = False,
    data: DataPlace = None,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Certifies the test set of a run.

    By randomized smoothing: each answer gets a radius within which no perturbation changes it. The noise is that of the
    network's noise layer, at the input or behind the first layer, or Gaussian noise at the input if it has none.

    Example: twinproof certify runs/mnist --n 10000 --alpha 0.001

    Example: twinproof certify runs/mnist --target-radius 0.25

    Example: twinproof certify runs/securesgd --norm linf --bound hgm

    Example: twinproof certify runs/mnist --statistic scores --confidence empirical-bernstein --runner-up union
    """
    with launched_ranks(as_json=as_json) as ranks:
        opened = Run.open(run)
        chosen, confidence = norm or certification.norm_of_run(opened), confidence or default_confidence(statistic)
        with bars_of(ranks) as bars:
            result = certification.certify(
                opened,
                load_run_data(opened, source=data, data_root=data_root),
                sampling=Sampling(n0, n, alpha, target_radius, shared_noise),
                method=Method(chosen, bound, statistic, confidence, runner_up),
                sigma=sigma,
                limit=limit,
                device=device or "auto",
                name=name,
                overwrite=overwrite,
                progress=bars,
                ranks=ranks,
            )
    if ranks.is_first:
        _tell(run, result, as_json=as_json, overwrite=overwrite)


def _tell(run: Path, result: CertifiedRun, *, as_json: bool, overwrite: bool) -> None:
    if as_json:
        print_json({"run": str(run), **certified_answer(result)})
        return
    show_certified(result)
    if not overwrite:
        return
    # verify refuses results about other certificates, so say how to renew them.
    if attacked := [one.name for one in attacks_of(run).values() if one.settings.certificates in (None, result.name)]:
        typer.echo(
            f"note: attacks {', '.join(attacked)} were compared with the previous certificates; attack again to renew them"
        )
    if audited := [one.name for one in audits_of(run).values() if one.settings.of == result.name]:
        typer.echo(f"note: audits {', '.join(audited)} are about the previous certificates; renew them with --overwrite")
