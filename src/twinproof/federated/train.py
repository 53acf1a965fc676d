"""Training a run with parties: the run on disk is a pooled run's, and ``verify``, ``certify`` and ``report`` take it as one."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from twinproof.compute.devices import describe_device
from twinproof.data.record import Dataset
from twinproof.errors import system_faults
from twinproof.federated.agreement import Agreement, describe, public_part, refuse_other_agreement, write_assumptions
from twinproof.federated.coordinator import FederatedGradients, Round, RoundLog
from twinproof.federated.messages import Parties
from twinproof.files import make_folder
from twinproof.keys import Key
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import PrivateExecution
from twinproof.progress import Progress, Silent
from twinproof.recipes.finish import Reporter, finish_run
from twinproof.recipes.gradients import optimizer_of
from twinproof.recipes.noise_network import constraint_of, initial_network
from twinproof.recipes.own_network import Own
from twinproof.recipes.redistribution import public_records, redistribute
from twinproof.recipes.resumption import (
    clear_stillborn,
    describe_prior,
    load_ledger,
    refuse_older_ledger,
    refuse_other_prior,
    refuse_started,
)
from twinproof.recipes.run_data import located, public_config
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
from twinproof.training.loop import WeightAverage, rate_of, run_loop
from twinproof.training.per_example.paths import trainable_parameters

_CPU = torch.device("cpu")  # the coordinator only adds up; parties compute where their settings say


@dataclass(frozen=True)
class _Job:
    """An unfinished run of the coordinator."""

    root: Path
    agreement: Agreement
    public: Dataset
    key: Key
    ledger: Ledger
    created: str
    fewest: int

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.root)

    @property
    def binding(self) -> str:
        """What only a checkpoint of this run can carry."""
        return self.key.stream(f"checkpoint of federation {self.agreement.sha256}", length=32).hex()


@system_faults("run the same command again with --resume (from Python: resume=True)")
def federate(
    agreement: Agreement,
    parties: Parties,
    public: Dataset,
    out: Path | str,
    *,
    resume: bool = False,
    fewest: int = 1,
    progress: Progress | None = None,
) -> Run:
    """Coordinates a run into the directory ``out``; with ``resume`` continues one that was interrupted (or starts it).

    ``public`` is the data set without its training records; of one that has them only the test part is looked at. A round
    with fewer than ``fewest`` usable answers stops the run.

    Guarantees
        - Epsilon is that of a pooled run under the same plan, for every record of every party: a record is one party's, is
          drawn by it with the plan's rate, and moves the sum of all parties by at most the clipping norm.
        - The weights after a step are on the disk before a party sees them, and a resumed run goes on from there: no two
          versions of one step's weights, which share their noise, ever leave the coordinator.
        - The coordinator keeps no update: outside ``private/`` nothing depends on one except through the plan.
    """
    root, public = Path(out), public_part(public)
    started = RunLayout(root).run_json.is_file()
    if not resume:
        refuse_started(root)
    make_folder(root, "the run")
    with exclusive(root):
        if started:
            refuse_other_agreement(root, agreement)
        if not started or read_run_json(root).get("state") != COMPLETE:
            job = _continue_job(root, agreement, public, fewest) if started else _start_job(root, agreement, public, fewest)
            _run(job, parties, progress or Silent())
        write_assumptions(root)
        private_files.forget_training_secrets(RunLayout(root).private, CHECKPOINT_FILE)
    return Run.open(root)


def _start_job(root: Path, agreement: Agreement, public: Dataset, fewest: int) -> _Job:
    layout, config = RunLayout(root), agreement.config
    if any(root.iterdir()):
        clear_stillborn(layout)
    key = Key.from_system() if config.seed is None else Key.from_seed(config.seed)
    private_files.create_private_folder(layout.private)
    private_files.save_source(layout.private, located(config))
    private_files.save_key(layout.private, key)
    stored, created = public_config(config), utc_now()
    ledger = Ledger.create(layout.ledger, config_sha256=config_digest(stored), delta=config.delta)
    record: dict[str, Any] = {
        "state": TRAINING,
        "created": created,
        "config": stored,
        "recipe": config.recipe,
        "data": {**public.public_description(), "records": config.records},
        "guarantees": {"robustness": {}},
        "federation": describe(agreement),
        "versions": software_versions(),
        "device": f"{describe_device(_CPU)}, {len(agreement.parties)} parties",
        **describe_prior(config),
    }
    write_run_json(root, record)
    return _Job(root, agreement, public, key, ledger, created, fewest)


def _continue_job(root: Path, agreement: Agreement, public: Dataset, fewest: int) -> _Job:
    layout, record = RunLayout(root), read_run_json(root, STARTED)
    refuse_other_prior(agreement.config, record)
    ledger = load_ledger(layout, config_digest(record["config"]))
    key = private_files.load_key(layout.private)
    return _Job(root, agreement, public, key, ledger, record["created"], fewest)


def _run(job: _Job, parties: Parties, progress: Progress) -> None:
    config, steps = job.agreement.config, job.agreement.config.steps
    model = initial_network(config, Own(), job.public, job.key).train()
    optimizer = optimizer_of(config, model)
    average = WeightAverage(model, config.averaging) if config.averaging else None
    released = nullcontext if average is None else average.in_place
    first = load_checkpoint(job.layout.private, model, optimizer, binding=job.binding, average=average)
    constraint = constraint_of(config, job.public.shape)
    if first == 0:
        redistribute(config, model, job.public, public_records(config, job.public, None), job.key, job.ledger)
        if constraint is not None:
            constraint.apply(model)
    refuse_older_ledger(job.ledger, first)
    source = FederatedGradients(
        job.agreement, _execution(job, model), model, parties, _teller(job, first, progress), fewest=job.fewest
    )
    reporter = Reporter(job.layout, config, job.public, _CPU)
    reporter.rewind(first)
    progress.start("rounds", steps, first)
    began = time.monotonic()

    def report(done: int) -> None:
        if reporter.due(done):
            with released():
                reporter.report(model, done)

    def after_step(done: int) -> None:
        if constraint is not None:
            constraint.apply(model)
        # Before anybody hears of these weights: a kill must not make another version of them with the same noise.
        save_checkpoint(job.layout.private, model, optimizer, step=done, binding=job.binding, average=average)
        report(done)
        progress.advance()

    if first and not reporter.reported(first):
        report(first)
    rate = rate_of(config.schedule, config.learning_rate, steps)
    run_loop(model, optimizer, source, first=first, steps=steps, after_step=after_step, rate=rate, average=average)
    with released():
        finish_run(job.root, config, job.public, job.ledger, model, created=job.created, seconds=time.monotonic() - began)


def _execution(job: _Job, model: nn.Module) -> PrivateExecution:
    """Ledger and noise. It has no records to draw from: the parties draw theirs."""
    parameters = sum(value.numel() for value in trainable_parameters(model).values())
    return PrivateExecution(job.agreement.plan, job.key, job.ledger, records=0, parameters=parameters, device=_CPU)


def _teller(job: _Job, first: int, progress: Progress) -> Callable[[Round], None]:
    """Writes rounds down, and says aloud who was refused."""
    log = RoundLog(job.layout.private)
    log.rewind(first)

    def tell(happened: Round) -> None:
        log.add(happened)
        for one in happened.refused:
            progress.say(f"round {happened.step}: {one.party} is refused: {one.reason}")
        for name in happened.missing:
            progress.say(f"round {happened.step}: {name} did not answer in time")

    return tell
