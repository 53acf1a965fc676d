"""A run, read back: its records, its promises, its network."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from twinproof.checks import parse_settings
from twinproof.data.load import load
from twinproof.data.record import DataConfig, Dataset, Scaling
from twinproof.errors import ConfigError, RunError, UserError
from twinproof.extensions import where_to_get
from twinproof.files import sha256_file
from twinproof.guarantee import PROMISING, Guarantee, Kind, Status
from twinproof.layers.networks import build_run_network
from twinproof.runs.layout import COMPLETE, DATA, FORMAT, GUARANTEES, NETWORK, RunLayout, read_run_json, refuse_missing
from twinproof.runs.private_files import load_seconds, load_source
from twinproof.runs.reading import broken
from twinproof.runs.records import CERTIFICATES, evidence

_OWN = "own:"


def own_network_name(network: nn.Module) -> str:
    """The name under which a caller's own network is written down."""
    return f"{_OWN}{type(network).__qualname__}"


def is_own_network(name: str) -> bool:
    """Whether a run's network is the caller's own, so that its code is not here."""
    return name.startswith(_OWN)


@dataclass(frozen=True)
class Run:
    """A complete run directory; ``network`` is needed to load the weights of a run with a network of your own."""

    root: Path
    record: dict[str, Any]
    network: nn.Module | None = None

    @classmethod
    def open(cls, root: str | Path, network: nn.Module | None = None) -> Run:
        """Opens a finished run; an unfinished one is an error that says how to go on."""
        root = Path(root)
        record = read_run_json(root)
        if record.get("state") != COMPLETE:
            raise RunError(
                "the run is not finished",
                where=str(root),
                got=f"state {record.get('state')!r}",
                wanted="a complete run",
                fix=f"twinproof train --out {root} --resume",
            )
        refuse_missing(root, record, NETWORK)
        return cls(root, record, network)

    def __repr__(self) -> str:
        spent = "" if self.epsilon is None or self.guarantee.status not in PROMISING else f", epsilon {self.epsilon:g}"
        return f"Run({str(self.root)!r}, {self.record['config'].get('recipe')}, privacy {self.guarantee.status}{spent})"

    @property
    def layout(self) -> RunLayout:
        """Where its files lie."""
        return RunLayout(self.root)

    @property
    def guarantee(self) -> Guarantee:
        """What is promised about the training records."""
        refuse_missing(self.root, self.record, GUARANTEES)
        return self._guarantee(Kind.PRIVACY, self.record["guarantees"]["privacy"])

    @property
    def robustness(self) -> dict[str, Guarantee]:
        """What is promised about predictions now, by the name of the certification; empty before the first."""
        record = read_run_json(self.root, GUARANTEES)
        found: dict[str, Any] = record["guarantees"]["robustness"]
        if record["format"] != FORMAT:
            found = dict.fromkeys(evidence(self.root, CERTIFICATES), found)
        return {name: self._guarantee(Kind.ROBUSTNESS, promise) for name, promise in found.items()}

    @property
    def epsilon(self) -> float | None:
        """Epsilon of the run, rounded up; None for a recipe without privacy."""
        privacy = self.record.get("privacy")
        return None if privacy is None else float(privacy["epsilon"])

    @property
    def training_seconds(self) -> float | None:
        """How long the last session of training took, for the owner: None where the run came without its private folder."""
        # Runs of earlier versions have it in run.json.
        kept = load_seconds(self.layout.private)
        seconds = self.record.get("seconds") if kept is None else kept
        return None if seconds is None else float(seconds)

    @property
    def model_sha256(self) -> str:
        """Digest of the weights as they lie on the disk now."""
        if not self.layout.model.is_file():
            raise RunError(
                "the weights of this run are missing", where=str(self.layout.model), got="no file", wanted="model.safetensors"
            )
        return sha256_file(self.layout.model)

    def model(self, device: torch.device | str = "cpu") -> nn.Module:
        """The trained network in eval mode; its weights must be the ones the run recorded."""
        expected = str(self.record.get("files", {}).get(self.layout.model.name, {}).get("sha256", "no digest"))
        if self.model_sha256 != expected:
            raise RunError(
                "the weights are not the ones this run made",
                where=str(self.layout.model),
                got=self.model_sha256[:12],
                wanted=expected[:12],
                fix="restore model.safetensors; `twinproof verify` shows everything that changed",
            )
        model = self._untrained()
        try:
            model.load_state_dict(load_file(self.layout.model))
        except (SafetensorError, RuntimeError) as error:
            fix = where_to_get(str(self.record["config"].get("variant"))) or ""
            raise RunError("the weights do not fit the network", where=str(self.layout.model), got=error, fix=fix) from error
        return model.to(device).eval()

    def refuse_other_data(self, dataset: Dataset) -> None:
        """Refuses a data set whose public description is not the run's."""
        refuse_missing(self.root, self.record, DATA)
        expected = self.record["data"]
        for name, got, wanted in (
            ("shape", list(dataset.shape), expected["shape"]),
            ("classes", list(dataset.classes), expected["classes"]),
            ("levels", dataset.levels, expected["levels"]),
            ("test records", len(dataset.test), expected["test_records"]),
        ):
            if got != wanted:
                raise RunError(
                    "this is not the data of the run",
                    where=f"{name} of {dataset.name}",
                    got=got,
                    wanted=str(wanted),
                    fix="name the data that the run was trained on (--data)",
                )

    def _untrained(self) -> nn.Module:
        config, data = self.record["config"], self.record["data"]
        own = self._own_network(config["model"]) if is_own_network(config["model"]) else None
        try:
            return build_run_network(config, tuple(data["shape"]), len(data["classes"]), own)
        except (UserError, KeyError, TypeError, ValueError) as error:
            if config.get("noise_layer") is None:
                raise
            raise RunError(
                "the noise layer of this run cannot be built",
                where=f"{self.layout.run_json}, config.noise_layer",
                got=error,
                wanted="the settings that the run was made with, and its network",
            ) from error

    def _own_network(self, name: str) -> nn.Module:
        if self.network is None:
            raise RunError(
                "this run has a network of your own, whose code is not in the run",
                where=str(self.root),
                got=name,
                wanted="the module it was trained from",
                fix="in Python: Run.open(path, network=your_module)",
            )
        return copy.deepcopy(self.network)

    def _guarantee(self, kind: Kind, record: dict[str, Any]) -> Guarantee:
        try:
            return Guarantee(
                kind,
                Status(record["status"]),
                record["promise"],
                theorem=record["theorem"],
                assumptions=tuple(record["assumptions"]),
                reason=record["reason"],
                values=tuple(record["values"].items()),
            )
        except KeyError as error:
            raise broken(
                self.layout.run_json, f"key guarantees.{kind}.{error.args[0]}", "nothing", "the format of docs/formats/run.md"
            ) from error


FORMER_FRACTION = "test_fraction"  # in runs of format 1: set aside where there was no test part, without being asked for
_NOT_OF_DATA = ("public_data", FORMER_FRACTION)


def load_again(data: DataConfig, record: dict[str, Any], data_root: Path | None) -> Dataset:
    """The data of the run that ``record`` (run.json) describes: its bounds are used again, nothing is estimated or spent."""
    scaling, former = record["data"].get("scaling"), record["config"]["data"].get(FORMER_FRACTION)
    bounds = None if scaling is None else Scaling.from_dict(scaling)
    return load(data, root=data_root, scaling=bounds, public_fraction=former)


def load_run_data(run: Run, *, source: str | None = None, data_root: Path | None = None) -> Dataset:
    """The run's data set: from ``source`` if given, else from where the owner's private folder says it lies."""
    refuse_missing(run.root, run.record, DATA)
    stored = load_source(run.layout.private) or run.record["config"]["data"]
    try:
        settings = parse_settings(DataConfig, {name: stored[name] for name in stored if name not in _NOT_OF_DATA})
    except ConfigError as error:
        raise RunError(
            "the data settings of this run cannot be used",
            where=f"run.json, config.data (or private/source.json): {error.where}",
            got=error.got,
            wanted=error.wanted,
            fix="restore the files",
        ) from error
    dataset = load_again(settings if source is None else settings.model_copy(update={"source": source}), run.record, data_root)
    run.refuse_other_data(dataset)
    return dataset
