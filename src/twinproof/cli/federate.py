"""``twinproof federate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinproof.cli.output import DataRoot, Device, Json, PublicFraction, Test
from twinproof.cli.train import assignments, given_flags, read_toml, say_what_is_public


def federate(
    out: Annotated[Path, typer.Option(help="New directory for the run.")],
    data: Annotated[
        str | None, typer.Option(help="A known data set (see `twinproof data`) or a path; digits if unset.")
    ] = None,
    test: Test = None,
    public_fraction: PublicFraction = None,
    parties: Annotated[int, typer.Option(help="Into how many parties of different sizes the records are dealt out.")] = 4,
    recipe: Annotated[str | None, typer.Option(help="A private one; see `twinproof recipes`.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon; sets the noise.")] = None,
    delta: Annotated[float | None, typer.Option(help="Target delta, far below 1/records.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Smoothing noise in input units ([0, 1]).")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings in a TOML file.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, as for train.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeatable, and therefore NOT private.")] = None,
    flower: Annotated[bool, typer.Option("--flower", help="Over Flower: twinproof[federated].")] = False,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds that a party has for a round.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")] = False,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Trains with parties that do not pool their records, here all on this machine.

    Deals out a data set, and trains as a federation of such parties would. Parties on machines of their own: docs/federated.md.

    Example: twinproof federate --data digits --parties 4 --epsilon 3 --delta 1e-4 --out runs/federated
    """
    from twinproof.cli.output import print_json, shown
    from twinproof.cli.summaries import show_training, training_answer
    from twinproof.data.load import load
    from twinproof.federated.local import federate_shares
    from twinproof.recipes.config import parse_train_config

    of_data = {"source": data, "test": test, "public_fraction": public_fraction}
    given = given_flags(of_data, device, recipe=recipe, epsilon=epsilon, delta=delta, sigma=sigma, seed=seed)
    settings = parse_train_config({"data": {"source": "digits"}}, read_toml(config), assignments(set_ or []), given)
    with shown() as bars:
        say_what_is_public(settings, bars)
        dataset = load(settings.data, root=data_root)
        run = federate_shares(
            settings, dataset, out, parties=parties, flower=flower, timeout=timeout, resume=resume, progress=bars
        )
    members = run.record["federation"]["parties"]
    if as_json:
        print_json({**training_answer(run), "parties": members})
        return
    show_training(run)
    typer.echo(f"{'parties':<8}  " + ", ".join(f"{member['name']} ({member['records']} records)" for member in members))
