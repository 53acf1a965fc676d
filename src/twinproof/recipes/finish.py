"""Progress of a run, its last moments (weights, the end of the ledger and of the secrets), and what it promises."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from twinproof.data.record import Dataset
from twinproof.errors import RunError
from twinproof.evaluation.accuracy import clean_accuracy
from twinproof.extensions import ASSUMED_REASON, Plugin, permitted
from twinproof.files import append_line, canonical_json, sha256_file, write_atomic
from twinproof.guarantee import Guarantee, Kind, Status, format_up, guessing_words, round_up
from twinproof.layers.noise_placement import RedistributionKind
from twinproof.privacy.accounting import PoissonGaussianEvent, Spending, epsilon_pld, spending
from twinproof.privacy.ledger import Ledger
from twinproof.recipes.config import ResolvedConfig, TrainConfig
from twinproof.recipes.noise_layer import NoiseLayerConfig
from twinproof.recipes.recipe import SOUND
from twinproof.recipes.registry import privacy_status
from twinproof.recipes.resolve import plan_of, spent_on_data, spent_on_redistribution
from twinproof.runs import private_files
from twinproof.runs.layout import COMPLETE, FORMAT, RunLayout, file_digests, read_run_json, utc_now, write_run_json
from twinproof.runs.reading import MetricsLine, read_lines
from twinproof.training.loop import CHECKPOINT_FILE, check_state_dict
from twinproof.training.passes import DeviceRecords
from twinproof.training.sources import StepDiagnostics


def finish_run(
    root: Path,
    config: ResolvedConfig,
    dataset: Dataset,
    ledger: Ledger,
    model: nn.Module,
    *,
    seconds: float,
    assumptions: tuple[str, ...] = (),
) -> None:
    """Completes a run; if it is killed here, resuming from the last checkpoint repeats it.

    ``assumptions`` are added to those of a promise. No released file says when training ended: with ``created`` it would tell
    how long the steps took, and so how many records they drew.
    """
    layout = RunLayout(root)
    weights = {name: value.detach().cpu().contiguous() for name, value in check_state_dict(model).items()}
    write_atomic(layout.model, save(weights))
    spent = spending(ledger.events(), config.delta) if config.counted else None
    if not ledger.closed:
        ledger.append(
            "close",
            {
                "steps": ledger.reserved_steps,
                "model_sha256": sha256_file(layout.model),
                "epsilon": None if spent is None else spent.epsilon,
                "epsilon_rdp": None if spent is None else spent.epsilon_rdp,
            },
        )
    record = read_run_json(root)
    device = next(model.parameters()).device
    test = DeviceRecords(dataset.test, dataset.levels, device)
    accuracy = clean_accuracy(model, test.inputs(slice(None)), test.labels)
    plugins = [Plugin(**one) for one in record.get("plugins", [])]
    privacy = privacy_guarantee(config, dataset, spent, own_network_assumptions(record), plugins)
    if privacy.assumptions:
        privacy = replace(privacy, assumptions=(*privacy.assumptions, *assumptions))
    record |= {
        "state": COMPLETE,
        "guarantees": {
            "privacy": privacy.as_dict(),
            "robustness": {} if record["format"] == FORMAT else not_yet_certified(config.sigma).as_dict(),
        },
        "privacy": _privacy_block(config, spent),
        "accuracy": accuracy.as_dict(),
        "files": file_digests(root, (layout.model.name, layout.ledger.name, layout.metrics.name)),
    }
    private_files.save_times(layout.private, finished=utc_now(), seconds=seconds)
    write_run_json(root, record)
    private_files.forget_training_secrets(layout.private, CHECKPOINT_FILE)


def _privacy_block(config: ResolvedConfig, spent: Spending | None) -> dict[str, Any] | None:
    if spent is None:
        return None
    plan = plan_of(config)
    return {
        "epsilon": spent.epsilon,
        "epsilon_rdp": spent.epsilon_rdp,
        "delta": spent.delta,
        "noise_multiplier": plan.noise_multiplier,
        "sample_rate": plan.sample_rate,
        "steps": plan.steps,
        "clip_norm": plan.clip_norm,
        "divisor": plan.divisor,
    }


_LINES = 20


class Reporter:
    """Writes ``metrics.jsonl`` (test set only) and ``private/diagnostics.jsonl``."""

    def __init__(self, layout: RunLayout, config: ResolvedConfig, dataset: Dataset, device: torch.device) -> None:
        self._layout = layout
        self._config = config
        self._dataset = dataset
        self._steps = config.steps
        self._every = config.performance.report_every or math.ceil(self._steps / _LINES)
        test = DeviceRecords(dataset.test, dataset.levels, device)
        self._inputs, self._labels = test.inputs(slice(None)), test.labels
        self._pending: list[StepDiagnostics] = []

    def due(self, done: int) -> bool:
        """Whether a line is due after ``done`` steps."""
        return done % self._every == 0 or done == self._steps

    def rewind(self, step: int) -> None:
        """Forgets lines after the checkpoint that training goes on from; they will be written again."""
        kept = [line for line in self._lines() if line["step"] <= step]
        write_atomic(self._layout.metrics, "".join(canonical_json(line) + "\n" for line in kept).encode())
        private_files.rewind_diagnostics(self._layout.private, step)

    def reported(self, step: int) -> bool:
        """Whether there is a line about ``step``."""
        return any(line["step"] == step for line in self._lines())

    def _lines(self) -> list[dict[str, Any]]:
        return read_lines(self._layout.metrics, MetricsLine)

    def report(self, model: nn.Module, done: int) -> None:
        """Adds a line about the test set, which is public, and the privacy spent, which depends on the plan alone."""
        accuracy = clean_accuracy(model, self._inputs, self._labels)
        line = {
            "step": done,
            "epoch": done * self._config.sample_rate,
            "epsilon": self._spent(done),
            "test_accuracy": accuracy.correct / accuracy.total,
            "test_loss": accuracy.loss,
        }
        if not math.isfinite(accuracy.loss):
            raise RunError(
                "training has diverged",
                where=f"step {done}",
                got=f"a loss of {accuracy.loss} on the test set",
                wanted="finite weights",
                fix="start a new run with a smaller learning_rate",
            )
        append_line(self._layout.metrics, canonical_json(line))

    def diagnose(self, seen: StepDiagnostics) -> None:
        """Remembers what a step saw of the training records, for the owner."""
        self._pending.append(seen)

    def flush(self) -> None:
        """Writes the remembered lines into ``private/``."""
        for seen in self._pending:
            private_files.append_diagnostics(self._layout.private, seen.as_dict())
        self._pending.clear()

    def _spent(self, done: int) -> float | None:
        config = self._config
        if config.noise_multiplier is None:
            return None
        event = PoissonGaussianEvent(config.sample_rate, config.noise_multiplier, done)
        before = [*spent_on_data(self._dataset), *spent_on_redistribution(config)]
        return round_up(epsilon_pld([*before, event], config.delta))


_THEOREM = (
    "Poisson-subsampled Gaussian mechanism, composed over all steps by privacy loss distributions "
    "(Abadi et al. 2016; Doroshenko et al. 2022); cross-checked by Renyi accounting (Mironov 2017)"
)
_ASSUMPTIONS = (
    "Neighbours differ in one training record, which one of them replaces by nothing: the number of records is public. If a "
    "person has several records, the promise is weaker.",
    "The number of training records, the class names, the input's shape and the test set are public.",
    "The noise key came from the operating system's entropy, was kept secret and was deleted when training ended.",
    "Only the files outside private/ are released; training time and memory use are not observed by the adversary.",
    "Not counted: what was spent by choosing settings or initial weights by looking at these records, or by other runs.",
    "Secret bits come from SHAKE-256, on a GPU from ChaCha20 under keys from it; both are taken as pseudorandom functions.",
    "Gaussian draws are made in float64 by inversion and rounded to a grid; their law is taken as exactly Gaussian.",
    "A record's gradient is computed alike in every row of a pass: bit for bit on a CPU, up to float rounding on a GPU.",
    # It belongs to rows of a pass, so that a record less moves it from record to record: known noise would not be covered.
    "Noise on copies of a record and inside the network comes from torch's generators, in states that the key decides for each "
    "pass; it is taken as truly random and unknown to the adversary.",
)

_OWN_NETWORK = (
    "The network is the owner's own: its code was not read. That it treats every record alone was tried at the run's pass "
    "size, before and during training."
)
OWN_NETWORK_ASSUMPTIONS = {
    "gpu-rounding": (
        "On the GPU the gradient of one record was the same in every row only up to float rounding. That this rounding says "
        "nothing about another record is assumed."
    ),
    "kept-state": (
        "The network keeps values in Python between passes. That they act on no later gradient was tried at some steps and is "
        "assumed for the others."
    ),
}
"""What could not be shown about an owner's own network, by the codes in ``run.json["own_network"]["assumptions"]``."""

_ASSUMED_REASON = "the network is the owner's own, and not everything about it could be shown: see the last assumptions"
_PUBLISHED_REASON = "the recipe was carried out by its paper's formulas; only the sound variant is called proven"
_NOTHING = "Nothing is promised about the training records."
_REFUTED_PROMISE = "Nothing is promised about the training records: the published variant does not keep its own promise."
_REFUTED_REASON = (
    "the redistribution vector r is a deterministic function of the training records, it is part of the released model, and "
    "no noise was added to it: two data sets that differ in one record give different r, which tells them apart with certainty"
)


def privacy_guarantee(
    config: TrainConfig,
    dataset: Dataset,
    spent: Spending | None,
    own_network: Sequence[str] | None = None,
    plugins: Sequence[Plugin] = (),
) -> Guarantee:
    """What the run promises about its training records.

    ``own_network`` holds the codes of what could not be shown about an owner's own network; None for a built-in one.
    ``plugins`` is what the run uses from outside of this package.

    Guarantees
        Status ``proven`` is given only to a private recipe whose noise nobody can reproduce and whose redistribution vector
        is public or paid for. A known seed, or no privacy mechanism at all, gives ``none`` with the reason; a redistribution
        vector that nothing pays for, or steps that no plan can count, give ``refuted``, and no epsilon. Any other published
        variant gives ``published``. A code of ``own_network``, or one of ``plugins``, turns ``proven`` into ``assumed``.
    """
    variant = config.spec.variant(config.variant)
    claimed = privacy_status(config.spec) if config.variant == SOUND else permitted(variant.status)
    if variant.refutation:
        return Guarantee(Kind.PRIVACY, Status.REFUTED, _REFUTED_PROMISE, reason=variant.refutation)
    if spent is None:
        return Guarantee(Kind.PRIVACY, Status.NONE, _NOTHING, reason="the recipe trains without a privacy mechanism")
    noise = config.noise_layer
    if noise is not None and noise.redistribution is RedistributionKind.TRAINING and variant.unpaid_shares:
        return Guarantee(Kind.PRIVACY, Status.REFUTED, _REFUTED_PROMISE, reason=_REFUTED_REASON)
    if config.seed is not None:
        return Guarantee(Kind.PRIVACY, Status.NONE, _NOTHING, reason="noise is reproducible from a known seed")
    if claimed in (Status.REFUTED, Status.NONE):
        return Guarantee(Kind.PRIVACY, claimed, _NOTHING, reason="the recipe itself promises nothing")
    promise = (
        f"({format_up(spent.epsilon, 4)}, {spent.delta!r})-differential privacy, for one training record replaced by nothing. "
        f"{guessing_words(spent.epsilon, spent.delta)}"
    )
    scaling = () if dataset.scaling is None else (_scaling_assumption(dataset.scaling.source),)
    shares = () if noise is None else (_redistribution_assumption(noise),)
    own = () if own_network is None else (_OWN_NETWORK, *(OWN_NETWORK_ASSUMPTIONS[code] for code in own_network))
    status = permitted(claimed) if own_network or plugins else claimed
    outside = tuple(plugin.assumption for plugin in plugins) if status is Status.ASSUMED else ()
    assumed = ASSUMED_REASON if outside else _ASSUMED_REASON
    reason = {Status.PUBLISHED: _PUBLISHED_REASON, Status.ASSUMED: assumed}.get(status, "")
    return Guarantee(
        Kind.PRIVACY,
        status,
        promise,
        theorem=_THEOREM,
        assumptions=(*_ASSUMPTIONS, *scaling, *shares, *own, *outside),
        reason=reason,
        values=(("epsilon", spent.epsilon), ("epsilon_rdp", spent.epsilon_rdp), ("delta", spent.delta)),
    )


def _redistribution_assumption(noise: NoiseLayerConfig) -> str:
    if noise.redistribution is RedistributionKind.PUBLIC and noise.public_data is None:
        return (
            "The layer noise's redistribution r comes from the test set, which is public, and random weights; the accuracy on "
            "the test set is therefore slightly optimistic."
        )
    return {
        RedistributionKind.UNIFORM: "The layer noise has equal shares r: nothing about the records enters it.",
        RedistributionKind.RANDOM: "The layer noise's redistribution r is drawn at random, independently of the records.",
        RedistributionKind.PUBLIC: (
            "The layer noise's redistribution r comes from other, public data, none of which is a training record, and random "
            "weights."
        ),
        RedistributionKind.TRAINING: (
            "The layer noise's redistribution r was estimated from the training records privately, at random weights; "
            "the ledger counts it."
        ),
        RedistributionKind.LEARNED: "The layer noise's redistribution r is a weight: the same private steps trained it.",
    }[noise.redistribution]


def _scaling_assumption(source: str) -> str:
    return {
        "declared": "The declared feature ranges were not chosen by looking at the training records.",
        "test": "The feature ranges come from the test set, which is public.",
        "private": "The feature ranges were estimated from the training records privately; the ledger counts it.",
    }[source]


def not_yet_certified(sigma: float) -> Guarantee:
    """The robustness promise of a run of format 1 or 2 before certification: none."""
    return Guarantee(
        Kind.ROBUSTNESS,
        Status.NONE,
        "No prediction has been certified yet.",
        reason="run `twinproof certify` on this run",
        values=(("sigma", sigma),),
    )


_FIELD = "own_network"


def describe_own_network(codes: Iterable[str]) -> dict[str, Any]:
    """The entry of ``run.json`` for a run that trains an owner's own network privately."""
    return {_FIELD: {"assumptions": sorted(set(codes))}}


def own_network_assumptions(record: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The codes of what could not be shown about the run's own network; None for a built-in network."""
    entry = record.get(_FIELD)
    if entry is None:
        return None
    codes = entry.get("assumptions") if isinstance(entry, Mapping) else None
    if not isinstance(codes, list) or any(code not in OWN_NETWORK_ASSUMPTIONS for code in codes):
        raise RunError(
            "what was found out about the network cannot be read",
            where=f"run.json, {_FIELD}",
            got=entry,
            wanted=f"a list of assumptions, each one of: {', '.join(OWN_NETWORK_ASSUMPTIONS)}",
            fix="restore run.json, or start a new run",
        )
    return tuple(codes)


def note_own_network(root: Path, codes: Iterable[str]) -> None:
    """Adds codes to those in ``run.json``: an assumption stays, also if a later session can do without."""
    record = read_run_json(root)
    entry = describe_own_network([*(own_network_assumptions(record) or ()), *codes])
    if record.get(_FIELD) != entry[_FIELD]:
        write_run_json(root, record | entry)
