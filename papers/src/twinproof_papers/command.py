"""The verb ``twinproof reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinproof.cli.output import DataRoot, Device, Json, print_json
from twinproof.cli.ranks import bars_of, launched_ranks
from twinproof.errors import ConfigError
from twinproof_papers.catalogue import all_experiments
from twinproof_papers.experiment import Options
from twinproof_papers.reproduce import PAGE, PICTURE, Reproduced
from twinproof_papers.reproduce import reproduce as make
from twinproof_papers.results_file import FILE


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A table or figure; see --list.")] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Every table and figure of the papers, and which can run here.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for results; models are shared by the figures in it.")] = Path("reproduced"),
    seeds: Annotated[int, typer.Option(help="Repetitions: trainings from scratch, each with fresh secret randomness.")] = 3,
    limit: Annotated[int | None, typer.Option(help="Test images; by default the experiment's own number.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Of each training, instead of the experiment's own.")] = None,
    processes: Annotated[int, typer.Option(help="Models made at a time; a GPU has room for several small ones.")] = 1,
    methods: Annotated[
        list[str] | None, typer.Option(help="Rows of a table to make, comma-separated or repeated; by default all.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look on embedded data with small settings.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Make its models again instead of reusing them.")] = False,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Makes a paper's table or figure again.

    Published numbers beside ours, with intervals over repetitions and the papers' t-tests; published certificates beside sound
    ones. Models that are finished are kept: the same command goes on where it was interrupted.

    Example: twinproof reproduce hgm-fig3 --seeds 3 --out reproduced

    By several processes or GPUs, each of which makes whole models: torchrun --nproc-per-node 4 -m twinproof reproduce hgm-fig3
    """
    rows = tuple(row.strip() for given in methods or () for row in given.split(",") if row.strip())
    with launched_ranks(as_json=as_json) as ranks:
        if list_:
            if ranks.is_first:
                _tell_list(data_root, as_json=as_json)
            return
        if name is None:
            raise ConfigError(
                "nothing to reproduce was named", where="NAME", got="no name", wanted="a table or figure", fix="see --list"
            )
        options = Options(seeds, limit, epochs, quick, device or "auto", data_root, processes, rows)
        with bars_of(ranks) as bars:
            made = make(name, out, options, overwrite=overwrite, progress=bars, ranks=ranks)
    if ranks.is_first:
        _tell_made(made, as_json=as_json)


def _tell_list(data_root: Path | None, *, as_json: bool) -> None:
    entries = [experiment.as_dict(data_root) for experiment in all_experiments().values()]
    if as_json:
        print_json({"experiments": entries})
        return
    paper = ""
    for entry in entries:
        if entry["paper"] != paper:
            paper = entry["paper"]
            typer.echo(paper)
        typer.echo(f"  {entry['name']:<16} {'runs here' if entry['runs_here'] else 'no':<10} {entry['item']}: {entry['shows']}")
        if not entry["runs_here"]:
            typer.echo(f"  {'':<16} {'':<10} {entry['reason']}")


def _tell_made(made: Reproduced, *, as_json: bool) -> None:
    files = {key: str(made.folder / file) for key, file in (("results", FILE), ("figure", PICTURE), ("table", PAGE))}
    if as_json:
        short = ("name", "item", "command", "made_in", "comparison", "tests", "notes")
        print_json({**{key: made.results[key] for key in short}, "files": files})
        return
    typer.echo((made.folder / PAGE).read_text(encoding="utf-8"))
    for key, file in files.items():
        typer.echo(f"{key:<8} {file}")
