"""``twinproof federate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinproof.cli.output import DataRoot, Device, Json, PublicFraction, Test, print_json, print_rows, shown
from twinproof.cli.summaries import training_answer, training_rows
from twinproof.cli.train import (
    Config,
    Delta,
    Epsilon,
    Resume,
    Seed,
    Set,
    Sigma,
    announce_public_records,
    assignments,
    given_flags,
    read_toml,
)
from twinproof.data.load import load
from twinproof.federated.local import federate_shares
from twinproof.recipes.config import parse_train_config


def federate(
    out: Annotated[Path, typer.Option(help="New directory for the run.")],
    data: Annotated[
        str | None, typer.Option(help="A known data set (see `twinproof data`) or a path.", show_default="digits")
    ] = None,
    test: Test = None,
    public_fraction: PublicFraction = None,
    parties: Annotated[int, typer.Option(help="Number of parties; their shares of the records differ in size.")] = 4,
    recipe: Annotated[
        str | None, typer.Option(help="A private one; see `twinproof recipes`.", show_default="dpcert-gaussian")
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    sigma: Sigma = None,
    config: Config = None,
    set_: Set = None,
    seed: Seed = None,
    flower: Annotated[bool, typer.Option("--flower", help="Run over Flower; needs twinproof[federated].")] = False,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds that a party has for a round.")] = None,
    resume: Resume = False,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Trains over parties that do not pool records.

    Divides a data set among parties on this machine and trains as a federation. For parties on their own machines see
    docs/federated.md.

    Example: twinproof federate --data digits --parties 4 --epsilon 3 --delta 1e-4 --out runs/federated
    """
    of_data = {"source": data, "test": test, "public_fraction": public_fraction}
    given = given_flags(of_data, device, recipe=recipe, epsilon=epsilon, delta=delta, sigma=sigma, seed=seed)
    settings = parse_train_config({"data": {"source": "digits"}}, read_toml(config), assignments(set_ or []), given)
    with shown() as bars:
        announce_public_records(settings, bars)
        dataset = load(settings.data, root=data_root)
        run = federate_shares(
            settings, dataset, out, parties=parties, flower=flower, timeout=timeout, resume=resume, progress=bars
        )
    members = run.record["federation"]["parties"]
    if as_json:
        print_json({**training_answer(run), "parties": members})
        return
    shares = ", ".join(f"{member['name']} ({member['records']} records)" for member in members)
    print_rows([*training_rows(run), ("parties", shares)])
