"""What ``twinproof attack`` says, for people and for machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from twinproof.cli.output import print_json, print_rows

if TYPE_CHECKING:
    from twinproof.evaluation.under_attack import AttackedRun

_PROTOCOL_COLUMNS = {
    "adaptive": ("smoothed", "95 % interval", "abstained", "network"),
    "paper": ("network", "smoothed", "certified there"),
}
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
    from twinproof.evaluation.refuted_bounds import already_refuted
    from twinproof.runs.attacks import size_name

    settings, sizes = result.settings, result.results["sizes"]
    shown = ("norm", "attacks", "protocols", "inputs", "sigma", "n", "alpha", "certificate_norm", "bound", "law", "place")
    return {
        "accuracy": {size_name(one["size"]): headline(one) for one in sizes},
        "certified_accuracy": {size_name(one["size"]): one["certified"]["value"] for one in sizes},
        "clean_accuracy": result.results["clean"]["smoothed"]["value"],
        "crossing": result.results["crossing"],
        "already_refuted": already_refuted(settings),
        **{name: getattr(settings, name) for name in shown},
        "results": result.results,
    }


def show_attacked(result: AttackedRun) -> None:
    """Both protocols side by side, the certified line beside them, and what it means."""
    settings, results = result.settings, result.results
    clean = results["clean"]
    print_rows(
        [
            ("inputs", f"{settings.inputs} of the test set; attacks {', '.join(settings.attacks)} in {settings.norm}"),
            ("asked", f"smoothed classifier at sigma {settings.sigma:g}, n {settings.n}, alpha {settings.alpha:g}"),
            ("radii", f"{settings.certificate_norm}, {settings.bound} bound{_claim(result)}"),
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
    from twinproof.evaluation.refuted_bounds import already_refuted

    return " (claimed, refuted)" if already_refuted(result.settings) else ""


def _rows(result: AttackedRun) -> list[list[str]]:
    from twinproof.runs.attacks import size_name

    protocols = [name for name in _PROTOCOL_COLUMNS if name in result.settings.protocols]
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
    from twinproof.runs.attacks import size_name

    sizes = result.results["sizes"]
    one = sizes[(len(sizes) - 1) // 2]
    where = f"{result.settings.norm} size {size_name(one['size'])}"
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
