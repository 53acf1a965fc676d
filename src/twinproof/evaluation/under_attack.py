"""Attacking the test set of a run and recording what is left of its accuracy: resumable, bound to the weights."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twinproof.attacks.resumable import attack_in_folder
from twinproof.attacks.search import METHODS
from twinproof.attacks.threat import Threat
from twinproof.certification.base_classifier import BaseClassifier
from twinproof.certification.method import Method, Sampling
from twinproof.certification.radius import largest_radius
from twinproof.certification.run import norm_of_run, smoothed_for_run
from twinproof.certification.smoothed import SmoothedClassifier
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.compute.ranks import ALONE, Ranks, in_rounds
from twinproof.data.record import Dataset, fingerprint
from twinproof.errors import ConfigError, RunError, system_faults
from twinproof.evaluation.attack_results import Judge, Subjects, attack_results, entry_key, stored_inside
from twinproof.evaluation.attack_work import AttackedClassifiers, AttackWork, earlier_attacks, take_up
from twinproof.evaluation.certified import CertifiedLine, line_of
from twinproof.evaluation.protocols import CLEAN, AttackPlan, Entry, aimed_classes
from twinproof.extensions import Group, plugin_of
from twinproof.files import canonical_json
from twinproof.keys import Key
from twinproof.progress import Progress, Silent
from twinproof.runs.attacks import (
    ATTACK_FILES,
    ATTACKS_CSV,
    ATTACKS_JSON,
    NOBODY,
    AttackLine,
    AttackRecord,
    AttackSettings,
    attack_settings,
    format_lines,
    is_complete,
    parse_lines,
    read_attack_lines,
    read_attacks,
    write_attacks,
    write_record,
)
from twinproof.runs.certificates import CertificateSettings, read_certificates, read_settings
from twinproof.runs.layout import COMPLETE, exclusive, plugins_entry, software_versions, update_run_json, utc_now
from twinproof.runs.run import Run

DEFAULT_LIMIT = 500
JUDGING = Sampling(n0=100, n=1000, alpha=0.001)
"""Draws for each answer at an attacked input; fewer than for certificates, as there are many more of them."""
# Inputs judged and made durable together.
_INPUTS_PER_BATCH = 100


@dataclass(frozen=True)
class AttackedRun:
    """What ``attack_run`` made; ``results`` is described in docs/formats/run.md."""

    settings: AttackSettings
    results: dict[str, Any]
    lines: list[AttackLine]


@system_faults("run the same command again: it goes on where it stopped")
def attack_run(
    run: Run,
    dataset: Dataset,
    *,
    plan: AttackPlan | None = None,
    sampling: Sampling | None = None,
    limit: int | None = DEFAULT_LIMIT,
    device: str = "auto",
    overwrite: bool = False,
    key: Key | None = None,
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> AttackedRun:
    """Attacks the first ``limit`` test inputs of ``run`` (None: all) and records both protocols' results beside the weights.

    The smoothed classifier is the one that was certified, with its norm and bound, or the run's own. ``sampling`` says how it
    is asked at each attacked input, by votes. Interrupted attacks with the same settings go on where they stopped. Several
    ``ranks`` share out the inputs; all call this alike, and rank 0 writes.

    Guarantees
        - Whatever is refused is refused before anything in the run is touched, and a run whose attacks are not finished
          keeps the record that it had.
        - Interrupted at any moment and gone on with, on the same machine, it ends with the same lines and attacked inputs to
          the byte.
        - Every attacked input that the smoothed classifier is asked about can be stored, and lies within the size of its
          original in exact arithmetic.
        - ``run.json`` binds the digests of the three files.
        - Lines and attacked inputs are the same to the byte for any number of ranks.
    """
    plan, sampling, progress = plan or AttackPlan(), sampling or JUDGING, progress or Silent()
    if limit is not None and limit < 1:
        raise ConfigError("there is nothing to attack", where="limit", got=limit, wanted="at least 1 input")
    if sampling.target_radius is not None or sampling.shared_noise:
        raise ConfigError("answers under attack are made one by one", where="sampling", got=sampling, wanted="n0, n and alpha")
    run.refuse_other_data(dataset)
    target = resolve_device(device)
    if not ranks.is_first:
        return _follow(run, dataset, plan, sampling, limit, target, ranks)
    form = _form(run, target, overwrite=overwrite)
    attacker = _prepare(run, dataset, plan, sampling, limit, target, form, key or Key.from_system())
    began = time.monotonic()
    with exclusive(run.root):
        settings = take_up(run.root, attacker.settings, own_key=key is not None, overwrite=overwrite)
        if is_complete(settings):
            AttackWork.of(run.root).remove()  # what a kill left between the last step and this one
            made = _renewed(run, settings, plan.entries)
            ranks.from_first(b"")
            return made
        ranks.from_first(canonical_json(settings.as_dict()).encode())
        _agree(ranks, dataset, settings)
        made = _made(run, dataset, replace(attacker, settings=settings), began, progress, ranks)
        ranks.wait()
        return made


def _follow(
    run: Run,
    dataset: Dataset,
    plan: AttackPlan,
    sampling: Sampling,
    limit: int | None,
    device: torch.device,
    ranks: Ranks,
) -> AttackedRun:
    """Any rank but the first: its part of the inputs, with rank 0's settings and form of the network."""
    began, told = time.monotonic(), ranks.from_first(None)
    if not told:
        record = read_attacks(run.root)
        if record is None:
            raise RunError("the attacks that rank 0 speaks of are not here", where=str(run.root), got="no attacks.json")
        return AttackedRun(record.settings, record.results, read_attack_lines(run.root))
    settings = attack_settings(told)
    attacker = _prepare(run, dataset, plan, sampling, limit, device, settings.form, Key(bytes.fromhex(settings.key)))
    _agree(ranks, dataset, attacker.settings)
    made = _made(run, dataset, replace(attacker, settings=settings), began, Silent(), ranks)
    ranks.wait()
    return made


def _agree(ranks: Ranks, dataset: Dataset, settings: AttackSettings) -> None:
    """Stops all ranks unless they attack the same inputs of the same network with the same settings."""
    if ranks is not ALONE:
        kind = settings.device.partition(":")[0]
        same = replace(settings, device=kind, versions={}, created="", seconds=0.0)
        ranks.agree("the settings of the attacks", hashlib.sha256(canonical_json(same.as_dict()).encode()).hexdigest())
        ranks.agree("the test records", fingerprint(dataset.test, bytes.fromhex(settings.key)))


def default_norm(run: Run) -> str:
    """The norm in which attacks can be held against the run's certificates: theirs, or the one that its noise was made for."""
    certified = read_settings(run.root)
    return norm_of_run(run) if certified is None else certified.norm


@dataclass(frozen=True)
class _Attacker:
    """Everything that was checked before the run is touched."""

    plan: AttackPlan
    settings: AttackSettings
    attacked: AttackedClassifiers
    sampling: Sampling
    subjects: Subjects

    @property
    def key(self) -> Key:
        return Key(bytes.fromhex(self.settings.key))

    @property
    def inputs(self) -> Tensor:
        return self.subjects.stored.to(torch.float32) / self.settings.levels

    @property
    def judge(self) -> Judge:
        network = self.attacked.network(self.plan.draws)
        return Judge(self.attacked.smoothed, self.sampling, network, self.settings.norm, self.key)


def _prepare(
    run: Run,
    dataset: Dataset,
    plan: AttackPlan,
    sampling: Sampling,
    limit: int | None,
    device: torch.device,
    form: str | None,
    key: Key,
) -> _Attacker:
    certified = _certified(run)
    smoothed = _smoothed(run, dataset, device, certified)
    base = smoothed.base_for(dataset.test.inputs[:1], sampling, form=form)
    smoothed = replace(smoothed, base=base)
    largest_radius(sampling, smoothed.radius_rule(tuple(dataset.shape), base.classes))
    example = torch.as_tensor(dataset.test.inputs[:1].astype("float32"), device=device) / dataset.levels
    attacked = AttackedClassifiers.of(smoothed, example)
    count = min(limit or len(dataset.test), len(dataset.test))
    subjects = _subjects(dataset, plan, attacked.bare, count, device)
    settings = _settings(run, dataset, plan, attacked, base, sampling, count, device, key)
    return _Attacker(plan, settings, attacked, sampling, subjects)


def _smoothed(run: Run, dataset: Dataset, device: torch.device, certified: CertificateSettings | None) -> SmoothedClassifier:
    """What was certified, with its norm and bound, else the run's own. Answers under attack are plain votes in any case."""
    if certified is None:
        return smoothed_for_run(run, dataset, device)
    method = Method(norm=certified.norm, bound=certified.bound)
    return smoothed_for_run(run, dataset, device, sigma=certified.sigma, method=method)


def _settings(
    run: Run,
    dataset: Dataset,
    plan: AttackPlan,
    attacked: AttackedClassifiers,
    base: BaseClassifier,
    sampling: Sampling,
    inputs: int,
    device: torch.device,
    key: Key,
) -> AttackSettings:
    smoothed, shape = attacked.smoothed, tuple(dataset.shape)
    rule = smoothed.radius_rule(shape, base.classes)
    return AttackSettings(
        model_sha256=run.model_sha256,
        norm=plan.norm,
        sizes=plan.sizes,
        attacks=plan.attacks,
        protocols=plan.protocols,
        steps=plan.steps,
        step_size=plan.step_size,
        paper_steps=plan.paper_steps,
        restarts=plan.restarts,
        draws=plan.draws,
        aim=plan.aim,
        inputs=inputs,
        certificate_norm=smoothed.norm,
        sigma=rule.sigma,
        levels=dataset.levels,
        law=str(smoothed.noise.law),
        place=str(smoothed.site.place),
        bound=rule.bound.name,
        operator_norm=rule.operator_norm,
        slack=rule.slack,
        grid=smoothed.noise.grid,
        tau=rule.tau,
        dimension=math.prod(shape),
        noise_dimension=smoothed.site.dimension(shape),
        n0=sampling.n0,
        n=sampling.n,
        alpha=sampling.alpha,
        key=key.secret.hex(),
        random_network=attacked.random,
        form=base.form,
        device=describe_device(device),
        versions=software_versions(),
        created=utc_now(),
        seconds=0.0,
        slackless_norm=rule.slackless_norm,
    )


def _form(run: Run, device: torch.device, *, overwrite: bool) -> str | None:
    """The network in the form of the work that is gone on with, else in the form that was certified on such a device."""
    begun, certified = None if overwrite else earlier_attacks(run.root), _certified(run)
    alone = None if certified is None or certified.shared_noise else certified
    for earlier in (begun, alone):
        if earlier is not None and earlier.device.partition(":")[0] == device.type:
            return earlier.form
    return None


def _subjects(dataset: Dataset, plan: AttackPlan, model: nn.Module, count: int, device: torch.device) -> Subjects:
    stored = torch.as_tensor(dataset.test.inputs[:count].astype("int32"), device=device)
    labels = torch.as_tensor(dataset.test.labels[:count], device=device)
    aims = torch.full_like(labels, NOBODY)
    if plan.aim is not None:
        aims = aimed_classes(plan.aim, model, stored.to(torch.float32) / dataset.levels, labels, len(dataset.classes))
    return Subjects(stored, labels, aims)


def _made(run: Run, dataset: Dataset, attacker: _Attacker, began: float, progress: Progress, ranks: Ranks) -> AttackedRun:
    work = AttackWork.of(run.root)
    progress.start("attacking", attacker.settings.inputs * len(attacker.plan.entries))
    crafted = {entry: _craft(attacker, entry, work, progress, ranks) for entry in attacker.plan.entries}
    crafted[CLEAN] = (attacker.subjects.stored, attacker.inputs)
    progress.start("judging", attacker.settings.inputs * len(crafted))
    lines = []
    for entry in (CLEAN, *attacker.plan.entries):
        lines += _judge(attacker, entry, *crafted[entry], work, progress, ranks)
    settings = replace(attacker.settings, state=COMPLETE, seconds=round(time.monotonic() - began, 3))
    results = attack_results(settings, lines, _certified_line(run))
    if not ranks.is_first:
        return AttackedRun(settings, results, lines)
    kind = dataset.test.inputs.dtype
    attacked = {entry.name: crafted[entry][0].cpu().numpy().astype(kind) for entry in attacker.plan.entries}
    write_attacks(run.root, AttackRecord(settings, results), lines, attacked)
    plugins = [plugin_of(Group.ATTACKS, name) for name in attacker.plan.attacks if name not in METHODS]
    update_run_json(run.root, files=ATTACK_FILES, **plugins_entry(run.root, plugins))
    work.remove()
    return AttackedRun(settings, results, lines)


def _craft(attacker: _Attacker, entry: Entry, work: AttackWork, progress: Progress, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """The attacked inputs of an entry: in stored levels, and as the attack left them."""
    plan, settings, subjects = attacker.plan, attacker.settings, attacker.subjects
    threat: Threat = plan.threat(entry)
    targeted = plan.aim is not None
    found = attack_in_folder(
        work.crafted(entry),
        plan.attack(entry),
        plan.objective(entry, attacker.attacked),
        attacker.inputs,
        subjects.aims if targeted else subjects.labels,
        threat,
        targeted=targeted,
        key=entry_key(attacker.key, "attack", entry),
        progress=_PartOfBar(progress),
        ranks=ranks,
    )
    stored = stored_inside(found.inputs, subjects.stored, settings.levels, settings.norm, entry.size)
    return stored.to(torch.int32), found.inputs


def _judge(
    attacker: _Attacker,
    entry: Entry,
    stored: Tensor,
    unrounded: Tensor,
    work: AttackWork,
    progress: Progress,
    ranks: Ranks,
) -> list[AttackLine]:
    judge, lines = attacker.judge, []
    before = judge.network_classes(unrounded, entry).tolist()

    def judged(first: int) -> bytes:
        rows = slice(first, min(first + _INPUTS_PER_BATCH, len(stored)))
        earlier = work.judged(entry, first)
        return format_lines(earlier or judge.lines(entry, stored, attacker.subjects, before, rows)).encode()

    for first, text in in_rounds(ranks, range(0, len(stored), _INPUTS_PER_BATCH), judged):
        made = parse_lines(text, Path(entry.name))
        if ranks.is_first and work.judged(entry, first) is None:
            work.keep_judged(entry, first, made)
        lines += made
        progress.advance(len(made))
    return lines


def _renewed(run: Run, settings: AttackSettings, entries: Sequence[Entry]) -> AttackedRun:
    """A finished record; its results follow from its lines and the certificates, which may be newer."""
    lines, record = read_attack_lines(run.root), read_attacks(run.root)
    wanted = settings.inputs * (len(entries) + 1)
    if len(lines) != wanted:
        raise RunError(
            "the lines of the attacks are not the ones that attacks.json describes",
            where=str(run.root / ATTACKS_CSV),
            got=f"{len(lines)} lines",
            wanted=f"{wanted} lines",
            fix="restore the file, or attack again with --overwrite",
        )
    results = attack_results(settings, lines, _certified_line(run))
    if record is None or record.results != results:
        write_record(run.root, AttackRecord(settings, results))
        update_run_json(run.root, files=(ATTACKS_JSON,))
    return AttackedRun(settings, results, lines)


def _certified(run: Run) -> CertificateSettings | None:
    """The settings of the run's certificates, where they are complete and of these weights."""
    settings = read_settings(run.root)
    usable = settings is not None and settings.state == COMPLETE and settings.model_sha256 == run.model_sha256
    return settings if usable else None


def _certified_line(run: Run) -> CertifiedLine | None:
    settings = read_settings(run.root)
    return None if settings is None else line_of(settings, read_certificates(run.root), run.model_sha256)


class _PartOfBar:
    """Lets one attack move the bar of all of them."""

    def __init__(self, whole: Progress) -> None:
        self._whole = whole

    def start(self, stage: str, total: int, done: int = 0) -> None:
        """What was done earlier counts at once."""
        self._whole.advance(done)

    def advance(self, units: int = 1) -> None:
        """Passed on."""
        self._whole.advance(units)

    def say(self, text: str) -> None:
        """Passed on."""
        self._whole.say(text)
