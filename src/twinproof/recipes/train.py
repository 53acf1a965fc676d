"""Training a run: data, settings, network, plan, loop, records on disk; resumable after a kill at any moment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from twinproof.compute.devices import Captured, describe_device, resolve_device
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.errors import RunError, system_faults
from twinproof.files import make_folder
from twinproof.keys import Key
from twinproof.privacy.ledger import Ledger
from twinproof.progress import Progress, Silent
from twinproof.recipes.config import ResolvedConfig, TrainConfig, parse_train_config
from twinproof.recipes.finish import Reporter, finish_run
from twinproof.recipes.gradients import gradient_source, optimizer_of
from twinproof.recipes.noise_network import constraint_of, initial_network, run_network
from twinproof.recipes.own_network import Own, OwnTrial, describe_own_network
from twinproof.recipes.own_watch import OwnTraining, try_network
from twinproof.recipes.redistribution import PublicRecords, public_records, redistribute, refuse_network
from twinproof.recipes.registry import find_recipe
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
    agree_on_data,
    clear_stillborn,
    describe_prior,
    found_passes,
    kept_to,
    load_ledger,
    passes_of,
    refuse_older_ledger,
    refuse_other_passes,
    refuse_other_prior,
    refuse_other_settings,
    refuse_started,
    shared_ledger,
    tell,
    tell_complete,
    told,
)
from twinproof.recipes.run_data import load_again, located, public_config, restore_config
from twinproof.runs import private_files
from twinproof.runs.layout import (
    COMPLETE,
    STARTED,
    TRAINING,
    RunLayout,
    config_digest,
    exclusive,
    read_run_json,
    software_versions,
    utc_now,
    write_run_json,
)
from twinproof.runs.run import Run
from twinproof.training.checkpoint import FILE as CHECKPOINT_FILE
from twinproof.training.checkpoint import load_checkpoint, save_checkpoint
from twinproof.training.distributed import agree_on_weights
from twinproof.training.loop import WeightAverage, rate_of, run_loop


@dataclass(frozen=True)
class Job:
    """An unfinished run with everything it needs in memory."""

    root: Path
    config: ResolvedConfig
    own: Own
    dataset: Dataset
    public: PublicRecords | None
    key: Key
    ledger: Ledger
    digest: str
    created: str
    ranks: Ranks = ALONE
    passes: PassesOfRun | None = None  # of a run that goes on
    tried: OwnTrial | None = None  # what this process has found out about the caller's network already

    @property
    def layout(self) -> RunLayout:
        """Where its files lie."""
        return RunLayout(self.root)

    @property
    def binding(self) -> str:
        """What only a checkpoint of this run can carry: a digest of its settings under its own key."""
        return self.key.stream(f"checkpoint of settings {self.digest}", length=32).hex()


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
    root = Path(out)
    own = Own(dataset, network)
    config = parse_train_config(own.named(settings)) if isinstance(settings, Mapping) else settings
    if not ranks.is_first:
        _follow(root, config, own, data_root, ranks)
        return Run.open(root, network)
    if root.exists() and not root.is_dir():
        raise RunError("this is not a directory", where=str(root), got="a file", wanted="a new or empty directory for the run")
    started = RunLayout(root).run_json.is_file()
    if not resume:
        refuse_started(root)
    if started:
        record = read_run_json(root)
        if record.get("state") == COMPLETE:
            if config is not None:
                refuse_other_settings(root, config, record["config"])
            private_files.forget_training_secrets(RunLayout(root).private, CHECKPOINT_FILE)
            tell_complete(ranks)
            return Run.open(root, network)
        with exclusive(root):
            _lead(_continue_job(root, config, own, data_root), ranks, progress)
    else:
        if config is None:
            raise RunError("there is nothing to resume", where=str(root), got="no run.json", wanted="an interrupted run")
        prepared = _prepare(root, config, own, data_root, ranks)
        make_folder(root, "the run")
        with exclusive(root):
            _lead(_start_job(prepared, ranks), ranks, progress)
    return Run.open(root, network)


def _lead(job: Job, ranks: Ranks, progress: Progress | None) -> None:
    """Rank 0, or the only one."""
    tell(ranks, job.root, job.key, job.passes)
    _run(replace(job, ranks=ranks), progress or Silent())


def _follow(root: Path, given: TrainConfig | None, own: Own, data_root: Path | None, ranks: Ranks) -> None:
    """Any other rank: what rank 0 decided, with data of its own loading."""
    known = told(ranks)
    if known is None:
        return
    record = known.record
    config = kept_to(restore_config(record["config"], known.source), record["device"], known.passes)
    dataset = own.dataset or load_again(config.data, record, data_root)
    digest = config_digest(record["config"])
    if given is not None:
        refuse_other_settings(root, resolve(given, dataset), record["config"])
    public, ledger = public_records(config, dataset, data_root), load_ledger(RunLayout(root), digest)
    job = Job(root, config, own, dataset, public, known.key, ledger, digest, record["created"], ranks, known.passes)
    _run(job, Silent())


@dataclass(frozen=True)
class _Prepared:
    """A run that may start: everything about it was checked, and nothing is written yet."""

    root: Path
    config: ResolvedConfig
    own: Own
    dataset: Dataset
    public: PublicRecords | None
    key: Key
    device: str
    tried: OwnTrial | None = None  # an own network that is trained privately


def _prepare(root: Path, config: TrainConfig, own: Own, data_root: Path | None, ranks: Ranks) -> _Prepared:
    device = resolve_device(config.performance.device)
    key = Key.from_system() if config.seed is None else Key.from_seed(config.seed)
    dataset = own.dataset or load(config.data, root=data_root, key=key)
    check_test_part(dataset)
    resolved = resolve(config, dataset)
    refuse_more_records(resolved, dataset)
    public = public_records(resolved, dataset, data_root)
    network = run_network(resolved, own, dataset)
    refuse_network(resolved, network)
    if (constraint := constraint_of(resolved, dataset.shape)) is not None:
        constraint.apply(network)  # what it cannot hold is refused now
    tried = None
    if find_recipe(resolved.recipe).counted(resolved.variant):
        plan_of(resolved)
        if own.network is not None:  # ours pass the trial of the per-example path; it can take many seconds
            tried = try_network(resolved, own, dataset, key, device, ranks)
    return _Prepared(root, resolved, own, dataset, public, key, describe_device(device), tried)


def _start_job(prepared: _Prepared, ranks: Ranks) -> Job:
    root, resolved, dataset, key = prepared.root, prepared.config, prepared.dataset, prepared.key
    layout = RunLayout(root)
    if any(root.iterdir()):
        clear_stillborn(layout)
    private = find_recipe(resolved.recipe).counted(resolved.variant)
    private_files.create_private_folder(layout.private)
    private_files.save_source(layout.private, located(resolved))
    private_files.save_fingerprint(layout.private, dataset.train)
    private_files.save_key(layout.private, key)
    stored = public_config(resolved)
    digest = config_digest(stored)
    ledger = Ledger.create(layout.ledger, config_sha256=digest, delta=resolved.delta if private else None)
    if private:
        for event in spent_on_data(dataset):
            ledger.append("gaussian", {"noise_multiplier": event.noise_multiplier, "purpose": "feature ranges"})
        for event in spent_on_redistribution(resolved):
            ledger.append("gaussian", {"noise_multiplier": event.noise_multiplier, "purpose": REDISTRIBUTION})
    created = utc_now()
    write_run_json(
        root,
        {
            "state": TRAINING,
            "created": created,
            "config": stored,
            "recipe": resolved.recipe,
            "data": {**dataset.public_description(), "records": resolved.records},
            "guarantees": {"robustness": {}},
            "versions": software_versions(),
            "device": prepared.device if ranks.world == 1 else f"{prepared.device}, {ranks.world} ranks",
            **describe_prior(resolved),
            **({} if prepared.tried is None else describe_own_network(prepared.tried.codes)),
        },
    )
    job = Job(root, resolved, prepared.own, dataset, prepared.public, key, ledger, digest, created)
    return replace(job, tried=prepared.tried)


def _continue_job(root: Path, given: TrainConfig | None, own: Own, data_root: Path | None) -> Job:
    layout, record = RunLayout(root), read_run_json(root, STARTED)
    passes = passes_of(layout.private)
    config = kept_to(restore_config(record["config"], private_files.load_source(layout.private)), record["device"], passes)
    dataset = own.dataset or load_again(config.data, record, data_root)
    refuse_other_prior(config, record)
    digest = config_digest(record["config"])
    ledger = load_ledger(layout, digest)
    if given is not None:
        refuse_other_settings(root, resolve(given, dataset), record["config"])
    private_files.check_fingerprint(layout.private, dataset.train)
    public, key = public_records(config, dataset, data_root), private_files.load_key(layout.private)
    return Job(root, config, own, dataset, public, key, ledger, digest, record["created"], passes=passes)


def _run(job: Job, progress: Progress) -> None:
    config, steps, ranks = job.config, job.config.steps, job.ranks
    device = resolve_device(config.performance.device)
    ranks.check_device(device)
    agree_on_data(ranks, job.dataset, job.key)
    ledger = shared_ledger(ranks, job.ledger, job.layout.ledger)
    model = initial_network(config, job.own, job.dataset, job.key).to(device).train()
    optimizer = optimizer_of(config, model)
    own = _own_training(job, model)
    trial, watched = (None, None) if own is None else (own.trial, own.watched)
    source = gradient_source(config, job.dataset, job.key, ledger, model, device, ranks, trial, watched)
    passes = found_passes(source, model, device)
    refuse_other_passes(job.passes, passes)
    average = WeightAverage(model, config.averaging) if config.averaging else None
    released = nullcontext if average is None else average.in_place
    first = load_checkpoint(job.layout.private, model, optimizer, binding=job.binding, average=average)
    constraint = constraint_of(config, job.dataset.shape)
    # The few hundred small kernels that it starts on a GPU are recorded once.
    hold = None if constraint is None else Captured(lambda: constraint.apply(model), device)
    if first == 0:
        redistribute(config, model, job.dataset, job.public, job.key, ledger)
        if hold is not None:
            hold()
    if find_recipe(config.recipe).counted(config.variant):
        refuse_older_ledger(ledger, first)
    agree_on_weights(ranks, model, f"before step {first + 1}")
    reporter = Reporter(job.layout, job.config, job.dataset, device)
    if ranks.is_first:
        reporter.rewind(first)
        if passes is not None:
            private_files.save_passes(job.layout.private, passes.as_dict())  # on the disk before a step draws
    steps_of = source if own is None else own.begin(source, first)
    progress.start("training", steps, first)
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
        if own is not None:
            own.updated()
        progress.advance()
        # What anybody may see of a step is seen after its checkpoint: taken again with other passes, it would have the same
        # noise on another sum.
        kept = done % config.performance.checkpoint_every == 0 or reporter.due(done)
        if kept and own is not None:
            own.check()
        if kept or done == first + 1:
            agree_on_weights(ranks, model, f"after step {done}")
        if not ranks.is_first:
            return
        if steps_of.last is not None:
            reporter.diagnose(steps_of.last)
        if kept:
            reporter.flush()
            save_checkpoint(job.layout.private, model, optimizer, step=done, binding=job.binding, average=average)
        report(done)

    rate = rate_of(config.schedule, config.learning_rate, steps)
    run_loop(model, optimizer, steps_of, first=first, steps=steps, after_step=after_step, rate=rate, average=average)
    if own is not None:
        own.finish()
    if ranks.is_first:
        with released():
            finish_run(job.root, config, job.dataset, job.ledger, model, created=job.created, seconds=time.monotonic() - began)
    ranks.wait()


def _own_training(job: Job, model: nn.Module) -> OwnTraining | None:
    """The watch over the caller's own network, where a plan counts the steps."""
    if job.own.network is None or not find_recipe(job.config.recipe).counted(job.config.variant):
        return None
    return OwnTraining(job.root, job.config, job.own, job.dataset, job.key, model, job.ranks, job.tried)
