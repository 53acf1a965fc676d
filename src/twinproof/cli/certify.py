"""``twinproof certify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinproof.auditing.certificate_verdict import CertificateAudit, audits_of
from twinproof.auditing.interval_verdict import IntervalAudit, interval_audits_of
from twinproof.certification import run as certification
from twinproof.certification.interval_run import IntervalCertifiedRun
from twinproof.certification.method import INTERVAL, Method, Sampling, default_confidence
from twinproof.certification.run import CertifiedRun
from twinproof.checks import not_negative
from twinproof.cli.output import DataPlace, DataRoot, Device, Json, Name, Overwrite, RunPath, given_options, print_json
from twinproof.cli.ranks import bars_of, launched_ranks
from twinproof.cli.summaries import certified_answer, interval_answer, show_certified, show_intervals
from twinproof.errors import ConfigError
from twinproof.evaluation.attack_record import attacks_of
from twinproof.privacy.linear_maps import Norm
from twinproof.runs.run import Run, load_run_data

# Options about draws: interval bounds make none.
_OF_SMOOTHING = ("statistic", "confidence", "runner_up", "n", "n0", "alpha", "sigma", "target_radius", "shared_noise")
_Norm = Annotated[
    str | None,
    typer.Option(help="Norm: l1, l2 or linf.", show_default="linf for interval, that of the run's noise layer, else l2"),
]
_Bound = Annotated[
    str | None,
    typer.Option(
        help="Robustness bound: interval (without noise, for networks of ReLU and pooling), or of smoothing: best (the longest "
        "that is proven), tight, pure-epsilon, hgm, hgm-complement, pixeldp, composition or published (a paper's claim, "
        "refuted).",
        show_default="interval for runs of that recipe, else best",
    ),
]
_Confidence = Annotated[
    str | None,
    typer.Option(help="clopper-pearson (votes), hoeffding or empirical-bernstein.", show_default="the best for the statistic"),
]
_Target = Annotated[
    float | None,
    typer.Option(help="Only decide whether each radius is at least this; stops drawing as soon as that is known."),
]
_Shared = Annotated[
    bool,
    typer.Option("--shared-noise", help="Faster: the inputs share their noise, so their certificates may fail together."),
]
_At = Annotated[list[float] | None, typer.Option(help="Give certified accuracy at this radius, too; may be repeated.")]


def certify(
    context: typer.Context,
    run: RunPath,
    norm: _Norm = None,
    bound: _Bound = None,
    statistic: Annotated[str, typer.Option(help="What is averaged over the noise: votes or scores.")] = "votes",
    confidence: _Confidence = None,
    runner_up: Annotated[
        str, typer.Option(help="Bound of the other classes: complement (of the first) or union.")
    ] = "complement",
    n: Annotated[int, typer.Option(help="Noise draws that bound the probability of the class.")] = 10_000,
    n0: Annotated[int, typer.Option(help="Noise draws that choose the class.")] = 100,
    alpha: Annotated[float, typer.Option(help="Failure probability for each input.")] = 0.001,
    sigma: Annotated[float | None, typer.Option(help="Deviation of the noise at inference.", show_default="the run's")] = None,
    target_radius: _Target = None,
    shared_noise: _Shared = False,
    limit: Annotated[int | None, typer.Option(help="Only so many inputs of the test set.", show_default="all")] = None,
    at: _At = None,
    name: Name = None,
    overwrite: Overwrite = False,
    data: DataPlace = None,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Certifies the test set of a run: each answer gets a radius within which no perturbation changes it.

    By randomized smoothing, the noise is that of the network's noise layer, at the input or behind the first layer, or Gaussian
    noise at the input if it has none. By interval bounds, it is the network itself that is certified, in linf and with
    certainty.

    Example: twinproof certify runs/mnist --n 10000 --alpha 0.001

    Example: twinproof certify runs/mnist --target-radius 0.25

    Example: twinproof certify runs/securesgd --norm linf --bound hgm

    Example: twinproof certify runs/mnist --statistic scores --confidence empirical-bernstein --runner-up union

    Example: twinproof certify runs/interval --bound interval --at 0.15
    """
    radii = [_radius(one) for one in at or ()]
    with launched_ranks(as_json=as_json) as ranks:
        opened = Run.open(run)
        bound = bound or certification.default_bound(opened)
        deterministic = bound == INTERVAL
        if deterministic:
            _refuse_draws(context)
        with bars_of(ranks) as bars:
            dataset = load_run_data(opened, source=data, data_root=data_root)
            result = certification.certify(
                opened,
                dataset,
                sampling=None if deterministic else Sampling(n0, n, alpha, target_radius, shared_noise),
                method=Method(
                    norm or (Norm.LINF if deterministic else certification.norm_of_run(opened)),
                    bound,
                    statistic,
                    confidence or default_confidence(statistic),
                    runner_up,
                ),
                sigma=sigma,
                limit=limit,
                name=name,
                overwrite=overwrite,
                device=device or "auto",
                progress=bars,
                ranks=ranks,
            )
    if ranks.is_first:
        _tell(run, result, radii, as_json=as_json, overwrite=overwrite)


def _radius(value: float) -> float:
    not_negative(at=value)
    return value


def _refuse_draws(context: typer.Context) -> None:
    """Options that say something of draws, even where they repeat a default."""
    if given := given_options(context, _OF_SMOOTHING):
        raise ConfigError(
            "interval bounds draw nothing, so that these options have no meaning",
            where="bound",
            got=f"interval with {', '.join(given)}",
            wanted="the options without them",
            fix="leave them out; or --bound tight, which certifies by randomized smoothing",
        )


def _tell(run: Path, result: CertifiedRun | IntervalCertifiedRun, at: list[float], *, as_json: bool, overwrite: bool) -> None:
    if as_json:
        answer = interval_answer(result, at) if isinstance(result, IntervalCertifiedRun) else certified_answer(result, at)
        print_json({"run": str(run), **answer})
        return
    if isinstance(result, IntervalCertifiedRun):
        show_intervals(result, at)
    else:
        show_certified(result, at)
    if not overwrite:
        return
    # verify refuses results about other certificates, so say how to renew them.
    if attacked := [one.name for one in attacks_of(run).values() if one.settings.certificates in (None, result.name)]:
        typer.echo(
            f"note: attacks {', '.join(attacked)} were compared with the previous certificates; attack again to renew them"
        )
    audits: list[CertificateAudit | IntervalAudit] = [*audits_of(run).values(), *interval_audits_of(run).values()]
    if audited := [one.name for one in audits if one.settings.of == result.name]:
        typer.echo(f"note: audits {', '.join(audited)} are about the previous certificates; renew them with --overwrite")
