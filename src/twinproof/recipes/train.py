"""Training a run: data, settings, network, plan, loop and files on disk; a run killed at any moment can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from twinproof.compute.devices import Captured, describe_device, resolve_device
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.errors import RunError, system_faults
from twinproof.extensions import Plugin
from twinproof.files import make_folder
from twinproof.keys import Key
from twinproof.privacy.ledger import Ledger
from twinproof.progress import Progress, Silent
from twinproof.recipes.config import ResolvedConfig, TrainConfig, located, parse_train_config, public_config, restore_config
from twinproof.recipes.finish import Reporter, describe_own_network, finish_run
from twinproof.recipes.network import (
    ChosenPath,
    Own,
    constraint_of,
    gradient_source,
    initial_network,
    optimizer_of,
    run_network,
)
from twinproof.recipes.own_network import OwnTraining, OwnTrial, try_network
from twinproof.recipes.redistribution import PublicRecords, public_records, redistribute, refuse_network
from twinproof.recipes.registry import recipe_plugins
from twinproof.recipes.resolve import (
    REDISTRIBUTION,
    check_test_part,
    plan_of,
    refuse_more_records,
    resolve,
    spent_on_data,
    spent_on_redistribution,
)
from twinproof.recipes.resumption import (
    PassesOfRun,
    RunState,
    agree_on_data,
    clear_abandoned_start,
    describe_prior,
    kept_to,
    load_ledger,
    refuse_older_ledger,
    refuse_other_passes,
    refuse_other_prior,
    refuse_other_settings,
    refuse_started,
)
from twinproof.runs import private_files
from twinproof.runs.layout import (
    COMPLETE,
    TRAINING,
    RunLayout,
    config_digest,
    create_private_folder,
    exclusive,
    read_run_json,
    software_versions,
    utc_now,
    write_run_json,
)
from twinproof.runs.run import Run, load_again
from twinproof.training.loop import (
    CHECKPOINT_FILE,
    SharedLedger,
    WeightAverage,
    agree_on_weights,
    load_checkpoint,
    rate_of,
    run_loop,
    save_checkpoint,
)
from twinproof.training.per_example.fast import rule_plugins
from twinproof.training.sources import GradientSource


@dataclass(frozen=True, kw_only=True)
class Session:
    """An unfinished run with all that is needed to train it to its end; a federation overrides where gradients come from."""

    root: Path
    config: ResolvedConfig
    dataset: Dataset
    key: Key
    ledger: Ledger
    digest: str  # of the settings in run.json
    own: Own
    public: PublicRecords | None = None
    ranks: Ranks = ALONE
    passes: PassesOfRun | None = None  # of a run that is resumed
    tried: OwnTrial | None = None  # what this process knows about the caller's network already

    unit: ClassVar[str] = "training"
    assumptions: ClassVar[tuple[str, ...]] = ()  # that its promise needs beside those of any run

    @property
    def private(self) -> Path:
        """The run's private folder."""
        return RunLayout(self.root).private

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return resolve_device(self.config.performance.device)

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints."""
        return self.config.performance.checkpoint_every

    @property
    def purpose(self) -> str:
        """The purpose for which the run's key names its checkpoints, so that only they are resumed from."""
        return f"checkpoint of settings {self.digest}"

    def source(self, model: nn.Module, ledger: Ledger, chosen: ChosenPath | None, progress: Progress) -> GradientSource:
        """Where the gradient of each step comes from."""
        return gradient_source(self.config, self.dataset, self.key, ledger, model, ranks=self.ranks, chosen=chosen)

    def train(self, progress: Progress) -> None:
        """Takes the steps that are left, and completes the run."""
        config, device, ranks = self.config, self.device, self.ranks
        ranks.check_device(device)
        agree_on_data(ranks, self.dataset, self.key)
        ledger = self.ledger if ranks is ALONE else SharedLedger(RunLayout(self.root).ledger, self.ledger.entries, ranks)
        model = initial_network(config, self.own, self.dataset, self.key).to(device).train()
        optimizer = optimizer_of(config, model)
        counted = config.counted
        watch = None
        if counted and self.own.network is not None:
            watch = OwnTraining(self.root, config, self.own, self.dataset, self.key, model, ranks, self.tried)
        source = self.source(model, ledger, None if watch is None else watch.chosen, progress)
        passes = PassesOfRun.of(source, model, device)
        refuse_other_passes(self.passes, passes)
        average = WeightAverage(model, config.averaging) if config.averaging else None
        released = nullcontext if average is None else average.in_place
        binding = self.key.stream(self.purpose, length=32).hex()
        first = load_checkpoint(self.private, model, optimizer, binding=binding, average=average)
        constraint = constraint_of(config, self.dataset.shape)
        # The few hundred small kernels that it starts on a GPU are recorded once.
        hold = None if constraint is None else Captured(lambda: constraint.apply(model), device)
        if first == 0:
            if config.noise_layer is not None or self.own.network is not None:  # which may have noise in a place of its own
                redistribute(config, model, self.dataset, self.public, self.key, ledger)
            if hold is not None:
                hold()
        if counted:
            refuse_older_ledger(ledger, first)
        agree_on_weights(ranks, model, f"before step {first + 1}")
        reporter = Reporter(RunLayout(self.root), config, self.dataset, device)
        if ranks.is_first:
            reporter.rewind(first)
            if passes is not None:
                private_files.save_passes(self.private, passes.model_dump())  # on the disk before a step draws
        steps = source if watch is None else watch.begin(source, first)
        progress.start(self.unit, config.steps, first)
        began = time.monotonic()

        def report(done: int) -> None:
            if reporter.due(done):
                with released():
                    reporter.report(model, done)

        if ranks.is_first and first and not reporter.reported(first):
            report(first)  # a kill came between checkpoint and report

        def after_step(done: int) -> None:
            if hold is not None:
                hold()
            if watch is not None:
                watch.updated()
            progress.advance()
            # Nobody sees anything of a step before its checkpoint: taken again, it has the same noise and maybe another sum.
            kept = done % self.checkpoint_every == 0 or reporter.due(done)
            if kept and watch is not None:
                watch.check()
            if kept or done == first + 1:
                agree_on_weights(ranks, model, f"after step {done}")
            if not ranks.is_first:
                return
            if steps.last is not None:
                reporter.diagnose(steps.last)
            if kept:
                reporter.flush()
                save_checkpoint(self.private, model, optimizer, step=done, binding=binding, average=average)
            report(done)

        rate = rate_of(config.schedule, config.learning_rate, config.steps)
        run_loop(model, optimizer, steps, first=first, steps=config.steps, after_step=after_step, rate=rate, average=average)
        if watch is not None:
            watch.finish()
        if ranks.is_first:
            with released():
                seconds = time.monotonic() - began
                finish_run(self.root, config, self.dataset, self.ledger, model, seconds=seconds, assumptions=self.assumptions)
        ranks.wait()


def begin_run(
    root: Path,
    config: ResolvedConfig,
    dataset: Dataset,
    key: Key,
    *,
    device: str,
    pooled: bool = True,
    rules: Sequence[Plugin] = (),
    **sections: Any,
) -> Ledger:
    """Writes the first files of a run and opens its ledger; ``run.json`` comes last. ``pooled``: the records are here.

    ``rules`` says where layer rules from outside of this package come from.
    """
    layout, stored = RunLayout(root), public_config(config)
    if any(root.iterdir()):
        clear_abandoned_start(layout)
    create_private_folder(layout.private)
    private_files.save_source(layout.private, located(config))
    if pooled:
        private_files.save_fingerprint(layout.private, dataset.train)
    private_files.save_key(layout.private, key)
    counted = config.counted
    ledger = Ledger.create(layout.ledger, config_sha256=config_digest(stored), delta=config.delta if counted else None)
    for purpose, events in (("feature ranges", spent_on_data(dataset)), (REDISTRIBUTION, spent_on_redistribution(config))):
        for event in events if counted else ():
            ledger.append("gaussian", {"noise_multiplier": event.noise_multiplier, "purpose": purpose})
    record = {
        "state": TRAINING,
        "created": utc_now(),
        "config": stored,
        "recipe": config.recipe,
        "data": {**dataset.public_description(), "records": config.records},
        "guarantees": {"robustness": {}},
        "versions": software_versions(),
        "device": device,
    }
    plugins = [plugin.as_dict() for plugin in (*recipe_plugins(config.recipe, config.variant), *rules)]
    outside = {"plugins": plugins} if plugins else {}
    write_run_json(root, {**record, **describe_prior(config), **outside, **sections})
    return ledger


@system_faults("run the same command again with --resume (from Python: resume=True)")
def train(
    settings: Mapping[str, Any] | TrainConfig | None,
    out: Path | str,
    *,
    resume: bool = False,
    dataset: Dataset | None = None,
    network: nn.Module | None = None,
    data_root: Path | None = None,
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> Run:
    """Trains a run into the directory ``out``; with ``resume`` continues one that was interrupted (or starts it).

    ``dataset`` is used instead of loading what the settings name. ``network`` is your own module, instead of one by name: a
    copy of it is trained, from the weights it has, which must not come from the training records. Both must be given again
    to resume. With several ``ranks`` (docs/distributed.md) all call this alike, and see one directory; rank 0 writes.

    Guarantees
        - Every privacy-spending step is in the ledger, on the disk, before its records are drawn.
        - A run killed at any moment and resumed on the same CPU with the same number of threads ends with the same bits.
        - Outside ``private/`` nothing depends on the training records except through the plan.
        - With several ranks the plan, and so the promise, is that of one: noise is added once, steps are announced once.
        - A ``network`` of your own is tried at the size of the run's passes and watched at every step (docs/own-networks.md):
          what changes its tensors or lets records meet is refused; what could not be shown gives the status ``assumed``.
    """
    root, own = Path(out), Own(dataset, network)
    config = parse_train_config(own.named(settings)) if isinstance(settings, Mapping) else settings
    if not ranks.is_first:
        if (state := RunState.received(ranks)) is not None:  # what rank 0 broadcasts, on data that each rank loads itself
            _session(root, state, own, data_root, ranks, config).train(Silent())
        return Run.open(root, network)
    if root.exists() and not root.is_dir():
        raise RunError("this is not a directory", where=str(root), got="a file", wanted="a new or empty directory for the run")
    if not resume:
        refuse_started(root)
    record = read_run_json(root) if RunLayout(root).run_json.is_file() else None
    if record is not None and record.get("state") == COMPLETE:
        if config is not None:
            refuse_other_settings(root, config, record["config"])
        private_files.forget_training_secrets(RunLayout(root).private, CHECKPOINT_FILE)
        RunState.broadcast_complete(ranks)
        return Run.open(root, network)
    begin, tried = None, None
    if record is None:
        if config is None:
            raise RunError("there is nothing to resume", where=str(root), got="no run.json", wanted="an interrupted run")
        begin, own, tried = _prepared(root, config, own, data_root, ranks)
        make_folder(root, "the run")
    with exclusive(root):
        if begin is not None:
            begin()
        state = RunState.read(root)
        session = replace(_session(root, state, own, data_root, ranks, config if record else None), tried=tried)
        if begin is None:
            private_files.check_fingerprint(session.private, session.dataset.train)
        state.broadcast(ranks)
        session.train(progress or Silent())
    return Run.open(root, network)


def _prepared(
    root: Path, config: TrainConfig, own: Own, data_root: Path | None, ranks: Ranks
) -> tuple[Callable[[], Ledger], Own, OwnTrial | None]:
    """What begins a new run, all of whose settings have been checked, with its data and what a trial found out."""
    device = resolve_device(config.performance.device)
    key = Key.from_system() if config.seed is None else Key.from_seed(config.seed)
    dataset = own.dataset or load(config.data, root=data_root, key=key)
    check_test_part(dataset)
    resolved = resolve(config, dataset)
    refuse_more_records(resolved, dataset)
    network = run_network(resolved, own, dataset)
    if resolved.noise_layer is not None:
        public_records(resolved, dataset, data_root)
        refuse_network(resolved, network)
    if (steps := resolved.spec.variant(resolved.variant).steps) is not None:
        steps.check(network)
    if (constraint := constraint_of(resolved, dataset.shape)) is not None:
        constraint.apply(network)  # what it cannot hold is refused now
    tried, sections = None, {}
    if resolved.counted:
        plan_of(resolved)
        if resolved.spec.view is not None:
            resolved.spec.view(network)  # one that cannot be looked at in this way is refused now
        if own.network is not None:  # ours pass the trial of the per-example path; it can take many seconds
            tried = try_network(resolved, own, dataset, key, device, ranks)
            sections = {"rules": rule_plugins(own.network), **describe_own_network(tried.codes)}
    where = describe_device(device) + ("" if ranks.world == 1 else f", {ranks.world} ranks")
    return partial(begin_run, root, resolved, dataset, key, device=where, **sections), replace(own, dataset=dataset), tried


def _session(root: Path, state: RunState, own: Own, data_root: Path | None, ranks: Ranks, given: TrainConfig | None) -> Session:
    """The session of a run that has begun; ``given`` are settings that must be its own."""
    record, layout = state.record, RunLayout(root)
    config = kept_to(restore_config(record["config"], state.source), record["device"], state.passes)
    dataset = own.dataset or load_again(config.data, record, data_root)
    refuse_other_prior(config, record)
    digest = config_digest(record["config"])
    ledger = load_ledger(layout, digest)
    if given is not None:
        refuse_other_settings(root, resolve(given, dataset), record["config"])
    return Session(
        root=root,
        config=config,
        dataset=dataset,
        key=state.key,
        ledger=ledger,
        digest=digest,
        own=own,
        public=None if config.noise_layer is None else public_records(config, dataset, data_root),
        ranks=ranks,
        passes=state.passes,
    )
