"""Attacking the test set of a run and recording what is left of its accuracy."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Unpack

import torch
from safetensors.numpy import save as save_arrays
from safetensors.torch import load, save
from torch import Tensor

from twinproof.attacks.run import default_batch, run_attack
from twinproof.attacks.search import METHODS
from twinproof.certification.catalogue import best_bound
from twinproof.certification.method import INTERVAL, Certification, Method, Sampling, certifications, find_certification
from twinproof.certification.radius import largest_radius
from twinproof.certification.run import default_bound, norm_of_run, smoothed_for_run
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError, system_faults
from twinproof.evaluation.attack_record import (
    CSV,
    INPUTS,
    NOBODY,
    AttackLine,
    AttackSettings,
    format_lines,
    parse_lines,
    read_attack_settings,
    read_attacks,
)
from twinproof.evaluation.attack_results import Judge, Subjects, attack_results, entry_key, stored_inside
from twinproof.evaluation.certified import CertifiedLine, line_of
from twinproof.evaluation.protocols import CLEAN, AttackedClassifiers, AttackPlan, Entry, aimed_classes
from twinproof.extensions import Group, plugin_of
from twinproof.files import write_atomic
from twinproof.keys import Key
from twinproof.layers.noise import Law
from twinproof.runs import work
from twinproof.runs.layout import update_run_json
from twinproof.runs.records import ATTACKS, Made, NetworkRecord, check_name, default_name, json_file
from twinproof.runs.run import Run, load_run_data
from twinproof.runs.work import How, Options, Place, Work

DEFAULT_LIMIT = 500
JUDGING = Sampling(n0=100, n=1000, alpha=0.001)
"""Draws for each answer at an attacked input; fewer than for certificates, as there are many more of them."""
# Inputs judged and made durable together.
_INPUTS_PER_BATCH = 100


@dataclass(frozen=True)
class AttackedRun:
    """What ``attack`` made, and under which name; ``results`` is described in docs/formats/run.md."""

    name: str
    settings: AttackSettings
    results: dict[str, Any]
    lines: list[AttackLine]


@system_faults("run the same command again: it goes on where it stopped")
def attack(
    run: Run,
    dataset: Dataset | None = None,
    *,
    plan: AttackPlan | None = None,
    sampling: Sampling | None = None,
    limit: int | None = DEFAULT_LIMIT,
    certificates: str | None = None,
    **options: Unpack[Options],
) -> AttackedRun:
    """Attacks the first ``limit`` test inputs of ``run`` (None: all) and records both protocols' results.

    The smoothed classifier is the one that was certified, with its norm and bound, or the run's own: ``certificates`` names
    the certification, by default the one in the norm of the ``plan``, or the only one. A run of the recipe ``interval`` that
    was never certified under noise is refused: its network is what ``audit`` attacks. ``sampling`` says how it is asked at
    each attacked input, by votes. The ``options`` are those of ``certify``; the default name is the norm of the attacks, with
    the bound where it is not the best.

    Guarantees
        - Whatever is refused is refused before anything in the run is touched, and a run whose attacks are not finished
          keeps the record that it had.
        - Interrupted at any moment and resumed on the same machine, it ends with the same bytes.
        - Every attacked input that the smoothed classifier is asked about can be stored, and lies within the size of its
          original in exact arithmetic.
        - ``run.json`` binds the digests of the three files.
        - Lines and attacked inputs are the same to the byte for any number of ranks.
    """
    how, began, plan = How(**options), time.monotonic(), plan or AttackPlan(norm=default_norm(run, certificates))
    dataset = dataset or load_run_data(run)
    if limit is not None and limit < 1:
        raise ConfigError("there is nothing to attack", where="limit", got=limit, wanted="at least 1 input")
    sampling = sampling or JUDGING
    if sampling.target_radius is not None or sampling.shared_noise:
        raise ConfigError("answers under attack are made one by one", where="sampling", got=sampling, wanted="n0, n and alpha")
    run.refuse_other_data(dataset)
    device = resolve_device(how.device)
    certified = find_certification(run.root, name=certificates, norm=plan.norm)
    if certified is None and default_bound(run) == INTERVAL:
        _refuse_noise(run)
    attacker: list[_Attacker] = []

    def prepare(earlier: AttackSettings | None, key: Key) -> AttackSettings:
        attacker[:] = [_prepared(run, dataset, plan, sampling, limit, device, certified, earlier, key)]
        return attacker[0].settings

    usable = _usable(certified, run)
    usual = plan.norm
    if usable is not None:
        usual = default_name(usual, usable.settings.method.bound, best_bound(Law(usable.settings.noise.law)))
    place = Place(run.root, ATTACKS, check_name(how.name or usual))
    with work.begun(place, AttackSettings, prepare, read_attack_settings, records=dataset.test, how=how) as begun:
        if not begun.complete:
            settings = replace(begun.settings, certificates=attacker[0].settings.certificates)
            _make(replace(attacker[0], settings=settings), dataset, _line(certified, run), begun, began)
        elif begun.ranks.is_first:
            _renew(place, plan, certified, run)
    made = read_attacks(place.settings, place.name)
    return AttackedRun(place.name, made.settings, made.results, made.lines)


def _refuse_noise(run: Run) -> NoReturn:
    """A run that was trained to answer without noise is not attacked under noise that nobody asked for."""
    raise RunError(
        "this run answers by its network alone, so that there is no smoothed classifier to attack",
        where=str(run.root),
        got=f"recipe {INTERVAL}, and no certificates by randomized smoothing",
        wanted="attacks on the network itself, inside its certified radii",
        fix=f"twinproof audit {run.root}; to attack it under noise, first twinproof certify {run.root} --bound tight",
    )


def default_norm(run: Run, certificates: str | None = None) -> str:
    """The norm in which attacks can be compared with the run's certificates: theirs, or the one that its noise was made for."""
    found = certifications(run.root)
    if certificates is None and len(found) != 1:
        return norm_of_run(run)
    one = find_certification(run.root, name=certificates)
    return norm_of_run(run) if one is None else one.settings.method.norm


def _usable(certified: Certification | None, run: Run) -> Certification | None:
    """The certification, where it is complete and of these weights."""
    return certified if certified is not None and certified.is_of(run) else None


def _line(certified: Certification | None, run: Run) -> CertifiedLine | None:
    return None if certified is None else line_of(certified.settings, certified.certificates, run.model_sha256)


@dataclass(frozen=True)
class _Attacker:
    """Everything that was checked before the run is touched."""

    settings: AttackSettings
    attacked: AttackedClassifiers
    subjects: Subjects

    @property
    def plan(self) -> AttackPlan:
        return self.settings.plan

    def inputs(self, rows: slice = slice(None)) -> Tensor:
        return self.subjects.stored[rows].to(torch.float32) / self.settings.noise.levels

    @property
    def judge(self) -> Judge:
        network, settings = self.attacked.network(self.plan.draws), self.settings
        return Judge(self.attacked.smoothed, settings.sampling, network, self.plan.norm, settings.secret)

    def crafted(self, entry: Entry, rows: slice, batch: int) -> tuple[Tensor, Tensor]:
        """Attacked inputs of an entry: in stored levels, and as the attack left them."""
        targeted, levels = self.plan.aim is not None, self.settings.noise.levels
        found = run_attack(
            self.plan.attack(entry),
            self.plan.objective(entry, self.attacked),
            self.inputs(rows),
            (self.subjects.aims if targeted else self.subjects.labels)[rows],
            self.plan.threat(entry),
            targeted=targeted,
            key=entry_key(self.settings.secret, "attack", entry),
            batch=batch,
            first_index=rows.start,
        )
        stored = stored_inside(found.inputs, self.subjects.stored[rows], levels, self.plan.norm, entry.size)
        return stored.to(torch.int32), found.inputs


def _prepared(
    run: Run,
    dataset: Dataset,
    plan: AttackPlan,
    sampling: Sampling,
    limit: int | None,
    device: torch.device,
    certified: Certification | None,
    earlier: AttackSettings | None,
    key: Key,
) -> _Attacker:
    """The network is taken in the form of the work that is resumed, else in the form that was certified on such a device."""
    usable = _usable(certified, run)
    method, sigma = Method(norm=norm_of_run(run)), None
    if usable is not None:  # answers under attack are plain votes in any case
        sigma = usable.settings.noise.sigma
        method = Method(norm=usable.settings.method.norm, bound=usable.settings.method.bound)
    smoothed = smoothed_for_run(run, dataset, device, sigma=sigma, method=method)
    alone = None if usable is None or usable.settings.sampling.shared_noise else usable.settings
    forms = [settings.form_on(device.type) for settings in (earlier, alone) if settings is not None]
    form = next((form for form in forms if form is not None), None)
    base = smoothed.base_for(dataset.test.inputs[:1], sampling, form=form)
    smoothed, shape = replace(smoothed, base=base), tuple(dataset.shape)
    largest_radius(sampling, smoothed.radius_rule(shape, base.classes))
    example = torch.as_tensor(dataset.test.inputs[:1].astype("float32"), device=device) / dataset.levels
    attacked = AttackedClassifiers.of(smoothed, example)
    count = min(limit or len(dataset.test), len(dataset.test))
    settings = AttackSettings(
        network=NetworkRecord(run.model_sha256, base.form, base.arithmetic, base.classes),
        inputs=count,
        key=key.secret.hex(),
        made=Made.now(describe_device(device)),
        plan=plan,
        method=smoothed.method,
        sampling=sampling,
        noise=smoothed.noise_record(shape, base.classes),
        certificates=None if certified is None else certified.name,
        dimension=math.prod(shape),
        random_network=attacked.random,
    )
    return _Attacker(settings, attacked, _subjects(dataset, plan, attacked, count, device))


def _subjects(dataset: Dataset, plan: AttackPlan, attacked: AttackedClassifiers, count: int, device: torch.device) -> Subjects:
    stored = torch.as_tensor(dataset.test.inputs[:count].astype("int32"), device=device)
    labels = torch.as_tensor(dataset.test.labels[:count], device=device)
    aims = torch.full_like(labels, NOBODY)
    if plan.aim is not None:
        inputs = stored.to(torch.float32) / dataset.levels
        aims = aimed_classes(plan.aim, attacked.bare, inputs, labels, len(dataset.classes))
    return Subjects(stored, labels, aims)


Batch = tuple[Entry, slice]
Points = dict[str, tuple[Tensor, Tensor]]


def _batches(folder: str, entries: tuple[Entry, ...], inputs: int, step: int) -> dict[str, Batch]:
    return {
        f"{folder}/{entry.name}/{first:09d}": (entry, slice(first, min(first + step, inputs)))
        for entry in entries
        for first in range(0, inputs, step)
    }


def _sizes(batches: Mapping[str, Batch]) -> dict[str, int]:
    return {name: rows.stop - rows.start for name, (_, rows) in batches.items()}


def _make(
    attacker: _Attacker, dataset: Dataset, certified: CertifiedLine | None, begun: Work[AttackSettings], began: float
) -> None:
    """Crafts all attacked inputs, asks both classifiers about them, and finishes."""
    points = _craft(attacker, begun)
    lines = _ask(attacker, points, begun)
    settings = begun.completed(attacker.settings, time.monotonic() - began)
    kind = dataset.test.inputs.dtype
    arrays = {entry.name: points[entry.name][0].cpu().numpy().astype(kind) for entry in attacker.plan.entries}
    record = {**settings.as_dict(), "results": attack_results(settings, lines, certified)}
    # The library lays tensors out by type and name and pads its header, so that equal content has equal bytes.
    plugins = [plugin_of(Group.ATTACKS, name) for name in attacker.plan.attacks if name not in METHODS]
    files = {INPUTS: save_arrays(arrays), CSV: format_lines(lines), "attacks.json": json_file(record)}
    begun.finish(files, plugins=plugins)


def _craft(attacker: _Attacker, begun: Work[AttackSettings]) -> Points:
    device = attacker.subjects.stored.device
    step = default_batch(device)
    batches = _batches("crafted", attacker.plan.entries, attacker.settings.inputs, step)

    def crafted(name: str) -> bytes:
        stored, left = attacker.crafted(*batches[name], step)
        return save({"stored": stored.cpu().contiguous(), "left": left.cpu().contiguous()})

    parts: dict[str, list[dict[str, Tensor]]] = {entry.name: [] for entry in attacker.plan.entries}
    for name, content in begun.batches("attacking", _sizes(batches), crafted):
        parts[batches[name][0].name].append(load(content))
    points = {
        name: (torch.cat([part["stored"] for part in found]).to(device), torch.cat([part["left"] for part in found]).to(device))
        for name, found in parts.items()
    }
    return {CLEAN.name: (attacker.subjects.stored, attacker.inputs()), **points}


def _ask(attacker: _Attacker, points: Points, begun: Work[AttackSettings]) -> list[AttackLine]:
    judge, entries = attacker.judge, (CLEAN, *attacker.plan.entries)
    batches = _batches("judged", entries, attacker.settings.inputs, _INPUTS_PER_BATCH)
    before: dict[str, list[int]] = {}

    def judged(name: str) -> bytes:
        entry, rows = batches[name]
        stored, left = points[entry.name]
        if entry.name not in before:
            before[entry.name] = judge.network_classes(left, entry).tolist()
        return format_lines(judge.lines(entry, stored, attacker.subjects, before[entry.name], rows))

    asked = begun.batches("judging", _sizes(batches), judged)
    return [line for name, content in asked for line in parse_lines(content, Path(name))]


def _renew(place: Place, plan: AttackPlan, certified: Certification | None, run: Run) -> None:
    """Renews the results of finished attacks: they follow from the lines and the certificates, which may be newer."""
    found = read_attacks(place.settings, place.name)
    lines, wanted = found.lines, found.settings.inputs * (len(plan.entries) + 1)
    if len(lines) != wanted:
        raise RunError(
            "the lines of the attacks are not the ones that attacks.json describes",
            where=str(found.csv),
            got=f"{len(lines)} lines",
            wanted=f"{wanted} lines",
            fix="restore the file, or attack again with --overwrite",
        )
    results = attack_results(found.settings, lines, _line(certified, run))
    settings = replace(found.settings, certificates=None if certified is None else certified.name)
    if (settings, results) != (found.settings, found.results):
        write_atomic(place.settings, json_file({**settings.as_dict(), "results": results}))
        update_run_json(place.root, files=(place.relative(place.settings),))
