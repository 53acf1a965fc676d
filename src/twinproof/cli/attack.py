"""``twinproof attack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinproof.cli.options import DataRoot, Device, Json, RunPath
from twinproof.cli.ranks import bars_of, launched_ranks
from twinproof.errors import ConfigError

if TYPE_CHECKING:
    from twinproof.evaluation.under_attack import AttackedRun

_ALL = "all"
_BOTH = "both"


def attack(
    run: RunPath,
    attacks: Annotated[
        list[str] | None, typer.Option("--attack", help="fgsm, ifgsm, mim, pgd or all; may be repeated. Default: fgsm and pgd.")
    ] = None,
    norm: Annotated[str | None, typer.Option(help="l2, linf or l1; default: that of the certificates, else the run's.")] = None,
    size: Annotated[
        list[float] | None,
        typer.Option(help="In input units ([0, 1]); may be repeated. Default: 0.25 to 1 (l2), 0.05 to 0.3 (linf)."),
    ] = None,
    protocol: Annotated[str, typer.Option(help="paper, adaptive or both.")] = _BOTH,
    steps: Annotated[int, typer.Option(help="Steps of the adaptive attacks.")] = 20,
    step_size: Annotated[float | None, typer.Option(help="Of the adaptive attacks, in input units.")] = None,
    restarts: Annotated[int, typer.Option(help="Random starts of the adaptive pgd; the strongest point is kept.")] = 1,
    draws: Annotated[int, typer.Option(help="Noise draws for each gradient of the adaptive attacks.")] = 8,
    paper_steps: Annotated[int, typer.Option(help="Steps of the papers' attacks, each of size / steps.")] = 10,
    targeted: Annotated[bool, typer.Option("--targeted", help="Aim at a class; needs one of the next two.")] = False,
    target_class: Annotated[int | None, typer.Option(help="The class to aim at, by its number.")] = None,
    target_rule: Annotated[str | None, typer.Option(help="next or least-likely.")] = None,
    n: Annotated[int, typer.Option(help="Draws behind each answer of the smoothed classifier.")] = 1000,
    n0: Annotated[int, typer.Option(help="Draws that choose its class.")] = 100,
    alpha: Annotated[float, typer.Option(help="Failure probability of each answer.")] = 0.001,
    limit: Annotated[int, typer.Option(help="Only the first inputs of the test set.")] = 500,
    seed: Annotated[int | None, typer.Option(help="Makes the attacks repeatable.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace attacks with other settings.")] = False,
    data: Annotated[str | None, typer.Option(help="Where the data lie, if they moved.")] = None,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Attacks the test set of a run.

    Accuracy that is left, by the papers' protocol and by ours (adaptive, in expectation over the noise), above the line that
    the certificates prove. The same command goes on with interrupted attacks. Exits with 1 if certificates are contradicted
    whose bound was not known to be false.

    Example: twinproof attack runs/mnist --norm l2 --size 0.5 --size 1 --restarts 5 --draws 32
    """
    from twinproof.attacks.attack import attack_names
    from twinproof.certification.smoothed import Sampling
    from twinproof.evaluation.protocols import AttackPlan, Protocol
    from twinproof.evaluation.under_attack import attack_run, default_norm
    from twinproof.randomness import Key
    from twinproof.recipes.run_data import load_run_data
    from twinproof.runs.run import Run

    with launched_ranks(as_json=as_json) as ranks:
        opened = Run.open(run)
        plan = AttackPlan(
            norm=norm or default_norm(opened),
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
            dataset = load_run_data(opened, source=data, data_root=data_root)
            result = attack_run(
                opened,
                dataset,
                plan=plan,
                sampling=Sampling(n0, n, alpha),
                limit=limit,
                device=device or "auto",
                overwrite=overwrite,
                key=None if seed is None else Key.from_seed(seed),
                progress=bars,
                ranks=ranks,
            )
    if ranks.is_first:
        _tell(run, result, as_json=as_json)


def _tell(run: Path, result: AttackedRun, *, as_json: bool) -> None:
    from twinproof.cli.attack_summary import tell_attacked
    from twinproof.evaluation.refuted_bounds import already_refuted

    tell_attacked(run, result, as_json=as_json)
    if result.results["crossing"] and not already_refuted(result.settings):
        raise typer.Exit(1)


def _named(given: list[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """The attacks by name; ``all`` stands for the known ones, and takes no unknown name along unseen."""
    names = given or []
    return (*known, *(name for name in names if name not in (_ALL, *known))) if _ALL in names else tuple(names)


def _aim(targeted: bool, target_class: int | None, target_rule: str | None) -> str | None:
    given = [option for option in (target_class, target_rule) if option is not None]
    if not targeted and not given:
        return None
    if not targeted or len(given) != 1:
        raise ConfigError(
            "a targeted attack needs one way to find its targets",
            where="--targeted, --target-class, --target-rule",
            got=f"targeted {targeted}, class {target_class}, rule {target_rule}",
            wanted="--targeted with either --target-class N or --target-rule next|least-likely",
        )
    return target_rule if target_class is None else f"class:{target_class}"
