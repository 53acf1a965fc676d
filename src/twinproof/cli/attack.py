"""``twinproof attack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinproof.cli.output import Certificates, DataRoot, Device, Json, Name, Overwrite, RunPath, print_json, print_rows
from twinproof.cli.ranks import bars_of, launched_ranks
from twinproof.errors import ConfigError

if TYPE_CHECKING:
    from twinproof.evaluation.under_attack import AttackedRun


_PROTOCOL_COLUMNS = {
    "adaptive": ("smoothed", "95 % interval", "abstained", "network"),
    "paper": ("network", "smoothed", "certified there"),
}
_SHOWN = (
    *("plan.norm", "plan.attacks", "plan.protocols", "inputs", "noise.sigma", "sampling.n", "sampling.alpha"),
    *("method.bound", "noise.law", "noise.place"),
)
_NAMES = {"adaptive": "adaptive attacks, worst case", "paper": "papers' protocol, lowest"}


def tell_attacked(run: Path, result: AttackedRun, *, as_json: bool) -> None:
    """The whole answer of the verb: warnings on stderr, then one object or a table on stdout."""
    for warning in result.results["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        print_json({"run": str(run), **attacked_answer(result)})
    else:
        show_attacked(result)


def attacked_answer(result: AttackedRun) -> dict[str, Any]:
    """The answer of ``attack --json``; ``accuracy`` and ``certified_accuracy`` go from a size, as text, to a share of inputs.

    ``accuracy`` is what the strongest attacks leave of the smoothed classifier's correct answers, an abstention being none;
    ``certified_accuracy`` is what no attack of that size can take away, on those of the inputs that are certified, unless the
    bound of the certificates is known to be false: ``already_refuted`` says so, and a ``crossing`` is then no surprise.
    """
    from twinproof.evaluation.attack_results import headline
    from twinproof.evaluation.certified import already_refuted
    from twinproof.evaluation.protocols import size_name
    from twinproof.runs.records import values_of

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
    """Both protocols side by side, the certified line beside them, and what it means."""
    settings, results, asked = result.settings, result.results, result.settings.sampling
    clean = results["clean"]
    print_rows(
        [
            (
                "inputs",
                f"{settings.inputs} of the test set; attacks {', '.join(settings.plan.attacks)} in {settings.plan.norm}",
            ),
            (
                "asked",
                f"smoothed classifier at sigma {settings.noise.sigma:g}, n {asked.n}, alpha {asked.alpha:g}",
            ),
            ("radii", f"{settings.method.norm}, {settings.method.bound} bound{_claim(result)}"),
            ("without attack", f"smoothed {clean['smoothed']['value']:.4f}, network {clean['network']['value']:.4f}"),
        ]
    )
    typer.echo("")
    for line in table(_rows(result)):
        typer.echo(line)
    typer.echo("")
    typer.echo(meaning(result))


def _claim(result: AttackedRun) -> str:
    """What must be said beside radii that are no promise; nothing otherwise."""
    from twinproof.evaluation.certified import already_refuted

    return " (claimed, refuted)" if already_refuted(result.settings) else ""


def _rows(result: AttackedRun) -> list[list[str]]:
    from twinproof.evaluation.protocols import size_name

    protocols = [name for name in _PROTOCOL_COLUMNS if name in result.settings.plan.protocols]
    above, below = ["", ""], ["size", "claimed, refuted" if _claim(result) else "certified"]
    for name in protocols:
        columns = _PROTOCOL_COLUMNS[name]
        above += [_NAMES[name], *[""] * (len(columns) - 1)]
        below += columns
    rows = [above, below]
    for one in result.results["sizes"]:
        row = [size_name(one["size"]), f"{one['certified']['value']:.4f}"]
        for name in protocols:
            row += _worst(one["adaptive"]["worst"]) if name == "adaptive" else _lowest(one["paper"]["lowest"])
        rows.append(row)
    return rows


def _worst(worst: dict[str, Any]) -> list[str]:
    smoothed = worst["smoothed"]
    return [
        f"{smoothed['value']:.4f}",
        f"{smoothed['low']:.4f} to {smoothed['high']:.4f}",
        f"{worst['abstained']['value']:.4f}",
        f"{worst['network']['value']:.4f}",
    ]


def _lowest(lowest: dict[str, float]) -> list[str]:
    return [f"{lowest[name]:.4f}" for name in ("network", "smoothed", "certified")]


def table(rows: list[list[str]]) -> list[str]:
    """Aligned columns; the first row names groups of columns and does not widen them."""
    widths = [max(len(row[column]) for row in rows[1:]) for column in range(len(rows[0]))]
    lines = [_grouped(rows[0], widths)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows[1:]]
    return lines


def _grouped(names: list[str], widths: list[int]) -> str:
    line, place = "", 0
    for name, width in zip(names, widths, strict=True):
        if name:
            line = f"{line.ljust(place)}{name}"
        place += width + 2
    return line


def meaning(result: AttackedRun) -> str:
    """One plain sentence about the middle size."""
    from twinproof.evaluation.attack_results import headline
    from twinproof.evaluation.protocols import size_name

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
    certificates: Certificates = None,
    name: Name = None,
    overwrite: Overwrite = False,
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
    from twinproof.attacks.search import METHODS
    from twinproof.certification.method import Sampling
    from twinproof.evaluation import under_attack
    from twinproof.evaluation.protocols import AttackPlan, Protocol
    from twinproof.keys import Key
    from twinproof.recipes.run_data import load_run_data
    from twinproof.runs.run import Run

    with launched_ranks(as_json=as_json) as ranks:
        opened = Run.open(run)
        plan = AttackPlan(
            norm=norm or under_attack.default_norm(opened, certificates),
            sizes=tuple(size or ()),
            attacks=_named(attacks, tuple(METHODS)) or AttackPlan.attacks,
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
        _tell(run, result, as_json=as_json)


def _tell(run: Path, result: AttackedRun, *, as_json: bool) -> None:
    from twinproof.evaluation.certified import already_refuted

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
