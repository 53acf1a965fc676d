"""``twinproof train``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from twinproof.cli.output import DataRoot, Device, Json, PublicFraction, Test, print_json
from twinproof.cli.ranks import bars_of, launched_ranks
from twinproof.cli.summaries import show_training, training_answer
from twinproof.data.assemble import GIVEN_AWAY
from twinproof.data.limits import SETTINGS_BYTES, read_regular
from twinproof.errors import ConfigError, DataError
from twinproof.progress import Progress
from twinproof.recipes.config import TrainConfig, parse_train_config
from twinproof.recipes.train import train as train_run

Epsilon = Annotated[float | None, typer.Option(help="Target epsilon; sets the noise.", show_default="3")]
Delta = Annotated[float | None, typer.Option(help="Target delta, far below 1/records.", show_default="1e-5")]
Sigma = Annotated[
    float | None,
    typer.Option(help="Smoothing noise in input units ([0, 1]); not with a noise layer.", show_default="0.25"),
]
Config = Annotated[Path | None, typer.Option(help="Settings in a TOML file.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any of `twinproof settings` as name=value, e.g. --set noise_layer.attack_bound=0.05."),
]
Seed = Annotated[int | None, typer.Option(help="Makes the run repeatable, and therefore NOT private.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")]


def train(
    out: Annotated[Path, typer.Option(help="New directory for the run.")],
    data: Annotated[str | None, typer.Option(help="A known data set (see `twinproof data`) or a path.")] = None,
    test: Test = None,
    public_fraction: PublicFraction = None,
    recipe: Annotated[str | None, typer.Option(help="See `twinproof recipes`.", show_default="dpcert-gaussian")] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    sigma: Sigma = None,
    config: Config = None,
    set_: Set = None,
    seed: Seed = None,
    resume: Resume = False,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Trains a model under a privacy plan.

    Writes a run directory with the weights, the privacy ledger, the progress on the test set and the guarantees.

    Example: twinproof train --data mnist --recipe dpcert-gaussian --epsilon 3 --delta 1e-5 --sigma 0.5 --out runs/mnist

    Example, own data: twinproof train --data patients.csv --test public.csv --set data.label=outcome --out runs/patients

    Example, several processes or GPUs: torchrun --nproc-per-node 4 -m twinproof train --data mnist --out runs/mnist
    """
    of_data = {"source": data, "test": test, "public_fraction": public_fraction}
    flags = given_flags(of_data, device, recipe=recipe, epsilon=epsilon, delta=delta, sigma=sigma, seed=seed)
    with launched_ranks(as_json=as_json) as ranks:
        layers = [read_toml(config), assignments(set_ or []), flags]
        settings = parse_train_config(*layers) if any(layers) else None
        if settings is None and not resume:
            raise ConfigError(
                "no data set is named", where="--data", got="nothing", wanted="a data set or a path", fix="e.g. --data digits"
            )
        with bars_of(ranks) as bars:
            announce_public_records(settings, bars)
            run = train_run(settings, out, resume=resume, data_root=data_root, progress=bars, ranks=ranks)
    if not ranks.is_first:
        return
    if as_json:
        print_json(training_answer(run))
    else:
        show_training(run)


def given_flags(data: dict[str, Any], device: str | None, **named: Any) -> dict[str, Any]:
    of_data = {key: str(value) if isinstance(value, Path) else value for key, value in data.items() if value is not None}
    performance = None if device is None else {"device": device}
    flags = {"data": of_data or None, **named, "performance": performance}
    return {key: value for key, value in flags.items() if value is not None}


def announce_public_records(settings: TrainConfig | None, progress: Progress) -> None:
    """Says what becomes public with a test part that the user chose."""
    if settings is None or (settings.data.test is None and settings.data.public_fraction is None):
        return
    which = settings.data.test or f"about {settings.data.public_fraction:.0%} of the records in {settings.data.source}"
    progress.say(f"public: {which}; {GIVEN_AWAY}")


def read_toml(path: Path | None) -> dict[str, Any]:
    """The settings in a TOML file; empty if no file is given."""
    if path is None:
        return {}
    try:
        return tomllib.loads(read_regular(path, SETTINGS_BYTES).decode())
    except (DataError, ValueError, RecursionError) as error:  # ValueError: neither UTF-8 nor TOML, or a number of 5,000 digits
        got = error.got if isinstance(error, DataError) else error
        raise ConfigError("the settings file cannot be read", where=str(path), got=got, wanted="a TOML file") from error


def assignments(items: list[str]) -> dict[str, Any]:
    """Turns key=value pairs into nested settings. Values are read as TOML, and as text if they are no valid TOML."""
    settings: dict[str, Any] = {}
    for item in items:
        key, separator, text = item.partition("=")
        *sections, last = key.split(".")
        if not separator or not all((*sections, last)):
            raise ConfigError("a setting has no name or value", where="--set", got=item, wanted="key=value")
        value, place = _value(text), cast(Any, settings)
        for section in sections:
            place = place.setdefault(section, {}) if isinstance(place, dict) else place
        if not isinstance(place, dict) or (last in place and isinstance(place[last], dict) != isinstance(value, dict)):
            raise ConfigError(
                "a setting is given both as a value and as a section",
                where="--set",
                got=" ".join(items),
                wanted=f"only one of the two for {'.'.join(sections) or key}",
            )
        place[last] = value
    return settings


def _value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return read["value"] if len(read) == 1 else text
