"""``twinproof attack``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from twinproof.attacks.search import attack_names
from twinproof.auditing.interval_audit import contradicted
from twinproof.auditing.interval_verdict import IntervalFlip
from twinproof.certification.method import Sampling
from twinproof.cli.output import (
    Certificates,
    DataPlace,
    DataRoot,
    Device,
    Json,
    Name,
    Overwrite,
    RunPath,
    print_json,
    print_rows,
)
from twinproof.cli.ranks import bars_of, launched_ranks
from twinproof.errors import ConfigError
from twinproof.evaluation import under_attack
from twinproof.evaluation.attack_results import headline
from twinproof.evaluation.certified import already_refuted
from twinproof.evaluation.protocols import AttackPlan, Protocol, size_name
from twinproof.evaluation.under_attack import AttackedRun
from twinproof.keys import Key
from twinproof.runs.records import values_of
from twinproof.runs.run import Run, load_run_data

_SHOWN = (
    *("plan.norm", "plan.attacks", "plan.protocols", "inputs", "noise.sigma", "sampling.n", "sampling.alpha"),
    *("method.bound", "noise.law", "noise.place"),
)


def attacked_answer(result: AttackedRun) -> dict[str, Any]:
    """The answer of ``attack --json``; ``accuracy`` and ``certified_accuracy`` map a size, as text, to a share of the inputs.

    ``accuracy`` is the smoothed classifier's accuracy under the strongest attacks; an abstention is not correct.
    ``certified_accuracy`` is the accuracy that no attack of that size can go below, unless the bound of the certificates is
    known to be false: ``already_refuted`` says so, and a ``crossing`` is then expected.
    """
    settings, sizes = result.settings, result.results["sizes"]
    return {
        "name": result.name,
        "certificates": settings.certificates,
        "accuracy": {size_name(one["size"]): headline(one) for one in sizes},
        "certified_accuracy": {size_name(one["size"]): one["certified"]["value"] for one in sizes},
        "clean_accuracy": result.results["clean"]["smoothed"]["value"],
        "crossing": result.results["crossing"],
        "already_refuted": already_refuted(settings),
        **values_of(settings, *_SHOWN),
        "certificate_norm": settings.method.norm,
        "results": result.results,
    }


def show_attacked(result: AttackedRun) -> None:
    settings, clean, asked = result.settings, result.results["clean"], result.settings.sampling
    plan, method = settings.plan, settings.method
    print_rows(
        [
            ("inputs", f"{settings.inputs} of the test set; attacks {', '.join(plan.attacks)} in {plan.norm}"),
            ("classifier", f"smoothed at sigma {settings.noise.sigma:g}, n {asked.n}, alpha {asked.alpha:g}"),
            ("radii", f"{method.norm}, {method.bound} bound{_claim(result)}"),
            ("without attack", f"smoothed {clean['smoothed']['value']:.4f}, network {clean['network']['value']:.4f}"),
        ]
    )
    header, rows = _table(result)
    typer.echo("\nadaptive: adaptive attacks, worst case of each input; papers': the papers' protocol, lowest accuracy")
    print_rows(rows, header=header)
    typer.echo(f"\n{meaning(result)}")


def _claim(result: AttackedRun) -> str:
    return " (claimed, refuted)" if already_refuted(result.settings) else ""


def _table(result: AttackedRun) -> tuple[list[str], list[list[str]]]:
    protocols = result.settings.plan.protocols
    adaptive, papers = ("adaptive" in protocols), ("paper" in protocols)
    header = ["size", "claimed, refuted" if _claim(result) else "certified"]
    header += ["adaptive: smoothed", "95 % interval", "abstained", "network"] if adaptive else []
    header += ["papers': network", "smoothed", "certified there"] if papers else []
    rows = []
    for one in result.results["sizes"]:
        row = [size_name(one["size"]), f"{one['certified']['value']:.4f}"]
        if adaptive:
            worst = one["adaptive"]["worst"]
            smoothed = worst["smoothed"]
            row += [f"{smoothed['value']:.4f}", f"{smoothed['low']:.4f} to {smoothed['high']:.4f}"]
            row += [f"{worst[name]['value']:.4f}" for name in ("abstained", "network")]
        if papers:
            row += [f"{one['paper']['lowest'][name]:.4f}" for name in ("network", "smoothed", "certified")]
        rows.append(row)
    return header, rows


def meaning(result: AttackedRun) -> str:
    sizes = result.results["sizes"]
    one = sizes[(len(sizes) - 1) // 2]
    where = f"{result.settings.plan.norm} size {size_name(one['size'])}"
    stay = "were claimed (and that claim is refuted)" if _claim(result) else "are certified"
    sentence = (
        f"At {where} the strongest attacks leave {_percent(headline(one))} of the answers correct; "
        f"{_percent(one['certified']['value'])} {stay} to stay what they are under any attack of that size"
    )
    if "difference" in one:
        sentence += f"; the papers' attacks alone would have left {_percent(one['paper']['lowest']['smoothed'])}"
    return sentence + "."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


_ALL = "all"
_BOTH = "both"


def attack(
    run: RunPath,
    attacks: Annotated[
        list[str] | None,
        typer.Option("--attack", help="fgsm, ifgsm, mim, pgd or all; may be repeated.", show_default="fgsm and pgd"),
    ] = None,
    norm: Annotated[str | None, typer.Option(help="l2, linf or l1.", show_default="that of the certificates or run")] = None,
    size: Annotated[
        list[float] | None,
        typer.Option(help="In input units ([0, 1]); may be repeated.", show_default="0.25 to 1 for l2, 0.05 to 0.3 for linf"),
    ] = None,
    protocol: Annotated[str, typer.Option(help="paper, adaptive or both.")] = _BOTH,
    steps: Annotated[int, typer.Option(help="Steps of the adaptive attacks.")] = 20,
    step_size: Annotated[float | None, typer.Option(help="Of the adaptive attacks, in input units.")] = None,
    restarts: Annotated[int, typer.Option(help="Random starts of the adaptive pgd; the strongest point is kept.")] = 1,
    draws: Annotated[int, typer.Option(help="Noise draws per gradient of the adaptive attacks.")] = 8,
    paper_steps: Annotated[int, typer.Option(help="Steps of the papers' attacks, each of length size / steps.")] = 10,
    targeted: Annotated[bool, typer.Option("--targeted", help="Aim at a class: add --target-class or --target-rule.")] = False,
    target_class: Annotated[int | None, typer.Option(help="Number of the class to aim at.")] = None,
    target_rule: Annotated[str | None, typer.Option(help="next or least-likely.")] = None,
    n: Annotated[int, typer.Option(help="Noise draws for each answer of the smoothed classifier.")] = 1000,
    n0: Annotated[int, typer.Option(help="Noise draws that choose its class.")] = 100,
    alpha: Annotated[float, typer.Option(help="Failure probability of each answer.")] = 0.001,
    limit: Annotated[int, typer.Option(help="Only so many inputs of the test set.")] = 500,
    seed: Annotated[int | None, typer.Option(help="Makes the attacks repeatable.")] = None,
    certificates: Certificates = None,
    name: Name = None,
    overwrite: Overwrite = False,
    data: DataPlace = None,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Attacks the test set of a run.

    Shows the accuracy under the papers' attacks and under adaptive ones, beside the certified accuracy. The same command
    continues interrupted attacks. Exits with 1 if an attack contradicts a certificate whose bound is not known to be false.

    Example: twinproof attack runs/mnist --norm l2 --size 0.5 --size 1 --restarts 5 --draws 32
    """
    with launched_ranks(as_json=as_json) as ranks:
        opened = Run.open(run)
        plan = AttackPlan(
            norm=norm or under_attack.default_norm(opened, certificates),
            sizes=tuple(size or ()),
            attacks=_named(attacks, attack_names()) or AttackPlan.attacks,
            protocols=tuple(Protocol) if protocol == _BOTH else (protocol,),
            steps=steps,
            step_size=step_size,
            restarts=restarts,
            draws=draws,
            paper_steps=paper_steps,
            aim=_aim(targeted, target_class, target_rule),
        )
        with bars_of(ranks) as bars:
            result = under_attack.attack(
                opened,
                load_run_data(opened, source=data, data_root=data_root),
                plan=plan,
                sampling=Sampling(n0, n, alpha),
                limit=limit,
                certificates=certificates,
                device=device or "auto",
                name=name,
                overwrite=overwrite,
                key=None if seed is None else Key.from_seed(seed),
                progress=bars,
                ranks=ranks,
            )
    if ranks.is_first:
        _tell(run, result, contradicted(opened, result.lines), as_json=as_json)


def _tell(run: Path, result: AttackedRun, flips: tuple[IntervalFlip, ...], *, as_json: bool) -> None:
    for warning in result.results["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        print_json({"run": str(run), **attacked_answer(result), "interval_flips": [asdict(one) for one in flips]})
    else:
        show_attacked(result)
    for one in flips:
        typer.echo(
            f"DEFECT: input {one.index}: the network answers {one.answer} instead of {one.prediction} at {one.distance!r}, "
            f"inside the radius {one.radius!r} of its interval bounds (or it ran in an arithmetic that these do not cover)",
            err=True,
        )
    if flips or (result.results["crossing"] and not already_refuted(result.settings)):
        raise typer.Exit(1)


def _named(given: list[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """The attacks by name, with ``all`` for the known ones; unknown names stay in, so that they are refused."""
    names = given or []
    return (*known, *(name for name in names if name not in (_ALL, *known))) if _ALL in names else tuple(names)


def _aim(targeted: bool, target_class: int | None, target_rule: str | None) -> str | None:
    given = [option for option in (target_class, target_rule) if option is not None]
    if not targeted and not given:
        return None
    if not targeted or len(given) != 1:
        raise ConfigError(
            "a targeted attack needs exactly one target option",
            where="--targeted, --target-class, --target-rule",
            got=f"targeted {targeted}, class {target_class}, rule {target_rule}",
            wanted="--targeted with either --target-class N or --target-rule next|least-likely",
        )
    return target_rule if target_class is None else f"class:{target_class}"
