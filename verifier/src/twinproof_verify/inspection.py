"""``verify``: checks everything that a run states, trusting nothing that it holds.

Written from docs/formats/run.md alone. Any content of the directory ends in a :class:`Verification`; the one error is
:class:`VerifyError`, where there is no complete run, or one of a newer version. Epsilons and radii are recomputed from the
ledger's events and the votes, never from a printed epsilon or radius. Whatever was not checked is named: among it, always, what
no file can show, such as the noise that was added in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinproof_verify import certificate_lines, files, models, promises, run_json, sentences, weights
from twinproof_verify.bounds import GAUSSIAN, PUBLISHED
from twinproof_verify.certificates import INPUT, CertificateSettings, Noise, read_settings, rules_of
from twinproof_verify.epsilon import Spent, close_problems, recompute
from twinproof_verify.evidence import Originals, RunFolder, format_up, parse_object, round_up, shown
from twinproof_verify.files import ATTACKS, AUDITS, CERTIFICATES, LEDGER, METRICS, MODEL, RUN_JSON, Evidence
from twinproof_verify.findings import Findings, Problem, Verification, VerifyError
from twinproof_verify.ledger import Ledger, metrics_problems, read_ledger
from twinproof_verify.models import FORMATS, ONLY, block, is_former, read
from twinproof_verify.run_json import PublicData, is_own, plugin_names

if TYPE_CHECKING:
    from twinproof_verify.attacks import AttackSettings, AttackTable
    from twinproof_verify.interval_certificates import IntervalCertification
    from twinproof_verify.layers import OwnersNetwork

LARGEST_FORMAT = 1000  # a number above it is not the format of any version
TRAINING = "how training was done beyond its ledger (which records, the noise that was added, who knew its key)"
"""What no file of a run can show."""
NO_TEST_SET = "labels, accuracy and the network's answers (the test set was not given)"
NO_NETWORK = "accuracy and the network's answers (`twinproof verify` asks the network)"
NO_MODULE = "the weights against the owner's network, and its answers (the module was not given)"
VOTES = "votes of certificates (draw them again with --redraw K)"
ATTACK_VOTES = "votes at attacked inputs (draw them again with --redraw K)"
BEFORE_ROUNDING = "the network's answers to attacked inputs before these were brought to stored levels"
AIMS = "which class the network found least likely (the aim of the attacks)"
AUDITED = "what the audit of certificates tried, and the votes behind its flips"


Audits = dict[str, list[tuple[str, dict[str, Any]]]]
"""Of each certification the files of its audits with their verdicts."""


@dataclass
class Certification:
    """One certification: its files, its settings as format 3 has them, and its lines."""

    files: Evidence
    record: dict[str, Any]
    settings: CertificateSettings | None = None
    lines: certificate_lines.Lines | None = None


@dataclass
class Attack:
    """One set of attacks: its files, its settings as format 3 has them, and its lines."""

    files: Evidence
    record: dict[str, Any]
    settings: AttackSettings | None = None
    table: AttackTable | None = None


@dataclass
class Inspection:
    """A run whose files have been checked; what needs the network can be added to ``findings`` before ``result``.

    The only certification of a run before format 3 is called ONLY; ``bounded`` are those by interval bounds. ``current``
    holds the audits that are sound, and of the certificates that are there.
    """

    folder: RunFolder
    run: dict[str, Any]
    data: PublicData
    originals: Originals | None = None
    findings: Findings = field(default_factory=Findings)
    ledger: Ledger | None = None
    spent: Spent | None = None
    certifications: dict[str, Certification] = field(default_factory=dict)
    bounded: dict[str, IntervalCertification] = field(default_factory=dict)
    attacks: list[Attack] = field(default_factory=list)
    audits: Audits = field(default_factory=dict)
    current: Audits = field(default_factory=dict)

    @property
    def named(self) -> dict[str, Certification | IntervalCertification]:
        """All certifications, with and without draws."""
        return {**self.certifications, **self.bounded}

    def certification(self, name: object) -> Certification | None:
        return self.certifications.get(name) if isinstance(name, str) else None

    def record(self, one: Evidence, kind: str) -> dict[str, Any] | None:
        """The settings of some evidence as format 3 has them; None and a failed check where there are none."""
        found = read_object(self.folder, one.json, self.findings)
        if found is None or not is_former(self.run):
            return found
        certified = ONLY if kind != ATTACKS or ONLY in self.certifications else None
        return models.translated(kind, found, certified, self.data.classes)

    def unsound(self, one: Evidence, check: str, what: str, detail: str) -> None:
        """Notes that ``what`` cannot be checked, as the settings are not sound: why is told where these are read."""
        problem = Problem(one.json, f"{what} cannot be checked without sound settings", "see the settings", "sound settings")
        self.findings.check(one.titled(check), (problem,), detail)

    def content(self, name: str, check: str, detail: str) -> bytes | None:
        """The bytes of a file; None and a failed check where there are none."""
        content = self.folder.content(name)
        if isinstance(content, Problem):
            self.findings.check(check, (content,), detail)
            return None
        return content

    def result(self) -> Verification:
        """What was found, in the order in which it was checked."""
        findings, spent, ledger = self.findings, self.spent, self.ledger
        findings.leave(TRAINING)
        return Verification(
            run=shown(str(self.folder.root)),
            problems=tuple(dict.fromkeys(findings.problems)),
            checks=tuple(findings.checks),
            epsilon=round_up(spent.epsilon) if spent else None,
            epsilon_rdp=round_up(spent.epsilon_rdp) if spent else None,
            delta=ledger.delta if ledger else None,
            steps=ledger.steps if ledger else None,
            certificates=sum(len(one.lines.rows) for one in self.named.values() if one.lines is not None),
            not_checked=tuple(dict.fromkeys(findings.unchecked)),
        )


def verify(root: str | Path, inputs: Originals | None = None) -> Verification:
    """Checks the run in ``root`` and returns everything that was found; VerifyError only where there is no complete run.

    With ``inputs``, the test set of the run, labels are compared and attacked inputs measured from the inputs that they were
    made of. What was not looked at is in ``not_checked``.
    """
    seen = inspect(Path(root), inputs)
    leave_unasked(seen, redrawn=False)
    findings = seen.findings
    if is_own(seen.run):
        findings.leave(NO_MODULE)
    elif isinstance(content := seen.folder.content(MODEL), bytes):
        findings.check("network", weights.network_problems(content, seen.run), "names, types and shapes of the weights")
    findings.leave(NO_TEST_SET if seen.originals is None else NO_NETWORK)
    return seen.result()


def inspect(root: Path, originals: Originals | None = None, owners: Callable[[], OwnersNetwork] | None = None) -> Inspection:
    """Checks all that can be checked from files; ``owners`` describes the first layer of an owner's network."""
    folder, findings = RunFolder(root), Findings()
    record = read_object(folder, RUN_JSON, findings)
    run = record or {}
    _refuse_unfinished(folder, run)
    seen = Inspection(folder, run, run_json.public_data(run), findings=findings)
    findings.check(RUN_JSON, run_json.top_problems(run) if record is not None else (), "fields of run.json")
    findings.check("federation", run_json.federation_problems(run), "records of the parties, and what they agreed on")
    findings.check("weights to start from", promises.prior_problems(run), "against the library's file, where the run names one")
    findings.check("digests", files.digest_problems(folder, run), "SHA-256 of every released file")
    findings.check("names of files", files.unexpected_problems(folder, run), "only files that belong to a run")
    for line in files.left_aside(folder, run):
        findings.leave(line)
    complete = run.get("state") == "complete"
    findings.check("private", files.private_problems(folder, complete=complete), "mode and leftovers of private/")
    _check_ledger(seen)
    _check_run(seen)
    for one in files.evidence_of(folder, run, CERTIFICATES):
        _check_certificates(seen, one)
    found = promises.robustness_problems(run, {name: (one.files.json, one.record) for name, one in seen.named.items()})
    findings.check("promise of robustness", found, "its numbers against the certificates")
    if originals is not None:
        given = _test_set_problems(originals, seen.data)
        seen.originals = originals if findings.check("test set", given, "its size and levels against run.json") else None
    _check_bounds(seen)
    for one in files.evidence_of(folder, run, ATTACKS):
        _check_attacks(seen, one)
    for one in files.evidence_of(folder, run, AUDITS):
        _check_audit(seen, one)
    _check_words(seen)
    _check_noise(seen, owners)
    _check_weights(seen)
    return seen


def leave_unasked(seen: Inspection, *, redrawn: bool) -> None:
    """Names what only a network could tell; votes are ``redrawn`` by whoever asks it. With the test set, checks labels."""
    findings, audited = seen.findings, bool(files.evidence_of(seen.folder, seen.run, AUDITS))
    aimed = any(block(one.record, "plan").get("aim") == "least-likely" for one in seen.attacks)
    certified = [one for one in seen.certifications.values() if one.lines is not None]
    for line, there in (
        (VOTES, not redrawn and bool(certified)),
        (ATTACK_VOTES, not redrawn and bool(seen.attacks)),
        (BEFORE_ROUNDING, bool(seen.attacks)),
        (AIMS, aimed),
        (AUDITED, audited),
    ):
        if there:
            findings.leave(line)
    for one in certified:
        if one.lines is not None and seen.originals is not None:
            found = certificate_lines.label_problems(one.lines, seen.originals)
            findings.check(one.files.titled("labels"), found, "of the certificates, against the test set")


def read_object(folder: RunFolder, name: str, findings: Findings) -> dict[str, Any] | None:
    """One JSON file, or None and a failed check; a file of a later version cannot be checked, and is not called false."""
    content = folder.content(name)
    record = parse_object(content) if isinstance(content, bytes) else content
    if isinstance(record, dict):
        found = record.get("format")
        if type(found) is int and FORMATS[-1] < found <= LARGEST_FORMAT:
            raise VerifyError(
                f"{name} was made by a newer version of twinproof, and cannot be checked by this one",
                where=shown(str(folder.root / name)),
                got=f"format {found}",
                wanted=f"format {FORMATS[0]} to {FORMATS[-1]}",
                fix="upgrade twinproof",
            )
        findings.check(f"{name} parses", (), "one JSON object")
        return record
    problem = Problem(name, "this is no JSON object", record, "one JSON object") if isinstance(record, str) else record
    findings.check(f"{name} parses", (problem,), "one JSON object")
    return None


def _refuse_unfinished(folder: RunFolder, run: dict[str, Any]) -> None:
    """Half a run promises nothing yet: one message in place of everything that it lacks."""
    if run.get("state") == "training":
        where, verb = shown(str(folder.root)), "federate" if "federation" in run else "train"
        raise VerifyError(
            "the run is not finished, so that there is nothing to verify yet",
            where=where,
            got="state 'training'",
            wanted="a complete run",
            fix=f"twinproof {verb} --out {where} --resume",
        )


def _check_ledger(seen: Inspection) -> None:
    findings = seen.findings
    content = seen.content(LEDGER, "ledger", "hash chain and grammar")
    if content is None:
        return
    seen.ledger = ledger = read_ledger(content)
    findings.check("ledger", ledger.problems, f"hash chain and grammar of {ledger.lines} lines")
    outcome = recompute(ledger)
    seen.spent = spent = outcome if isinstance(outcome, Spent) else None
    problems = [outcome] if isinstance(outcome, Problem) else list(close_problems(ledger, spent))
    detail = f"PLD {format_up(spent.epsilon)}, RDP {format_up(spent.epsilon_rdp)}" if spent else "nothing recomputed"
    findings.check("epsilon of the ledger", problems, detail)


def _check_run(seen: Inspection) -> None:
    run, ledger, findings = seen.run, seen.ledger, seen.findings
    findings.check("config", run_json.config_problems(run, ledger), "format, digest, settings and steps against the ledger")
    findings.check("privacy block", run_json.spending_problems(run, ledger), "noise, rate, steps and delta against the ledger")
    findings.check("training records", run_json.paid_problems(run, ledger), "feature ranges and shares of noise are paid for")
    findings.check("epsilon of run.json", promises.epsilon_problems(run, seen.spent), "printed against recomputed")
    findings.check("promise of privacy", promises.privacy_problems(run, seen.spent), "whether the evidence carries it")
    findings.check("accuracy", run_json.accuracy_problems(run), "value and interval from the counts")
    content = seen.content(METRICS, "metrics", "progress lines")
    if content is not None:
        findings.check("metrics", metrics_problems(content, run_json.privacy_block(run)), "progress lines")
    for kind in ("recipe", "variant", "layer_rule", "bound", "attack"):
        for name in plugin_names(run, kind):
            if name.rpartition(".")[2] == PUBLISHED:
                continue  # the papers' variants and bounds are known here
            findings.leave(f"the numbers of the {kind} {shown(name)}, which comes from another package")


def _check_certificates(seen: Inspection, one: Evidence) -> None:
    findings, found = seen.findings, seen.record(one, CERTIFICATES)
    if found is not None and block(found, "method").get("bound") == sentences.INTERVAL:
        from twinproof_verify import interval_certificates

        seen.bounded[ONLY if one.name is None else one.name] = interval_certificates.check(seen, one, found)
        return
    made = seen.certifications[ONLY if one.name is None else one.name] = Certification(one, found or {})
    problems: list[Problem] = []
    if found is not None:
        made.settings, problems = read_settings(one.json, found, seen.data, plugin_names(seen.run, "bound"))
        problems += models.format_problems(one.json, found, former=is_former(seen.run))
    findings.check(one.titled("certificate settings"), problems, "noise, tau, alpha, largest radius")
    content = seen.content(one.csv, one.titled("certificates"), "every radius from its votes")
    if content is None:
        return
    method = block(made.record, "method")
    plain = (method.get("statistic"), method.get("runner_up")) == ("votes", "complement")
    lines, unreadable = certificate_lines.read_lines(content, one.csv, wide=found is not None and not plain)
    made.lines = lines
    found_in = certificate_lines.line_problems(lines, rules_of(made.settings), made.record.get("inputs"), seen.data)
    findings.check(one.titled("certificates"), chain(unreadable, found_in), f"{len(lines.rows)} radii from their votes")


def _check_bounds(seen: Inspection) -> None:
    """Radii that need no draws: a function of weights and inputs."""
    if not seen.bounded:
        return
    from twinproof_verify import interval_certificates

    if seen.originals is None:
        seen.findings.leave(interval_certificates.UNGIVEN)
    else:
        interval_certificates.check_radii(seen, seen.originals)


def _test_set_problems(given: Originals, data: PublicData) -> Iterator[Problem]:
    """Whether the given test set is of the form that run.json describes; one of another form is not used."""
    count, dimension, labels = len(given.inputs), given.inputs[:1].size, len(given.labels)
    known = None not in (data.test_records, data.dimension, data.levels)
    fits = (count, dimension, labels) == (data.test_records, data.dimension, data.test_records)
    numbers = given.inputs.dtype.kind in "iuf" and given.labels.dtype.kind in "iu"
    if not known or not fits or not numbers or not 0 <= np.min(given.inputs) <= np.max(given.inputs) <= (data.levels or 0):
        what = "the test set that was given is not the one that data describes"
        wanted = f"{data.test_records} inputs of {data.dimension} coordinates on {data.levels} levels"
        yield Problem(RUN_JSON, what, f"{count} inputs of {dimension} coordinates, {labels} labels", wanted)


def _check_attacks(seen: Inspection, one: Evidence) -> None:
    from twinproof_verify import attack_results, attacks

    findings, found = seen.findings, seen.record(one, ATTACKS)
    made = Attack(one, found or {})
    seen.attacks.append(made)
    named = made.record.get("certificates")
    certified = seen.certification(named)
    if found is not None:
        of = None if certified is None else (certified.files.json, certified.record)
        made.settings, problems = attacks.read_attacks(one.json, found, seen.data, seen.run, of)
        problems += models.format_problems(one.json, found, former=is_former(seen.run))
        if certified is None and named is not None:
            what = "the certification that the attacks are compared with is not there"
            problems.append(Problem(one.json, what, shown(named), ", ".join(seen.certifications) or "null"))
        findings.check(one.titled("attack settings"), problems, "norm, sizes, and the smoothed classifier of the run")
        if named is None and seen.certifications:
            findings.leave(f"whether {one.json} contradicts certificates: it names none")
    settings = made.settings
    if settings is None:
        seen.unsound(one, "attacks", "the attacks", "lines, attacked inputs and results")
        return
    title = one.titled("attack lines")
    content = seen.content(one.csv, title, "answers from their votes")
    if content is not None:
        made.table, count, problems = attacks.read_lines(content, one, settings, seen.data, seen.originals)
        for other in seen.certifications.values():
            if made.table is not None and other.lines is not None:
                problems += attacks.label_problems(made.table, other.lines)
        findings.check(title, problems, f"{count} answers from their votes")
    table, title = made.table, one.titled("attacked inputs")
    about = f"inside their balls, {'as far as the run shows' if seen.originals is None else 'measured from the test set'}"
    content = seen.content(one.tensors, title, about)
    if content is not None:
        tensors, problems = attack_results.read_attacked_inputs(content, one.tensors, settings)
        if table is not None and not problems:
            problems += attack_results.ball_problems(tensors, table, settings, seen.originals)
        findings.check(title, problems, about)
    if table is not None:
        against = (None, None) if certified is None else (certified.settings, certified.lines)
        results = attack_results.result_problems(table, settings, *against)
        findings.check(one.titled("attack results"), results, "shares, intervals and flags from the lines")


def _check_audit(seen: Inspection, one: Evidence) -> None:
    from twinproof_verify import audits

    findings, record, old = seen.findings, seen.record(one, AUDITS), is_former(seen.run)
    if record is None:
        return
    if sentences.INTERVALS in record:
        from twinproof_verify import interval_audits

        interval_audits.check(seen, one, record)
        return
    audit, faults = read(audits.AuditFile, record, one.json)
    section = block(record, "certificates")
    named = section.get("of")
    certified = seen.certification(named)
    faults += models.format_problems(one.json, record, former=old)
    if certified is None and not old:
        got, wanted = shown(named), ", ".join(seen.certifications) or "one"
        faults.append(Problem(one.json, "of is no certification of the run", got, wanted))
    findings.check(one.titled("audit settings"), faults, f"fields of {one.json}")
    of = Evidence.of(CERTIFICATES) if certified is None else certified.files
    stale = list(audits.stale_problems(seen.folder, one.json, section, of))
    findings.check(one.titled("audit is of these certificates"), stale, "digests of certificates and weights")
    told = one.json, block(section, "verdict")
    seen.audits.setdefault(str(named), []).append(told)
    if audit is None:
        seen.unsound(one, "audit", "the audit", "flips and verdict")
        return
    parts = (None, None) if certified is None else (certified.settings, certified.lines)
    context = audits.Context(one.json, seen.data, seen.originals, *parts, stale=bool(stale))
    problems = audits.audit_problems(audit.certificates, context)
    findings.check(one.titled("audit"), problems, f"{len(audit.certificates.attacked)} attacked certificates")
    if not stale:
        seen.current.setdefault(str(named), []).append(told)


def _check_words(seen: Inspection) -> None:
    """All promises against what the settings lead to; those of format 1 have other words, which nothing is compared with."""
    run, findings = seen.run, seen.findings
    records = {name: one.record for name, one in seen.named.items()}
    for name, found in seen.current.items():
        problems = list(promises.refutation_problems(run, name, records.get(name, {}), found))
        findings.check("refuted promises", problems, f"{', '.join(file for file, _ in found)} against run.json")
    if run.get("format") == 1:
        findings.leave("the words of the promises: they are those of format 1, whose numbers are checked")
        return
    findings.check("own network", promises.own_network_problems(run), "what is assumed about it, where there is one")
    if "own_network" in run:
        findings.leave("what was tried on the owner's network while it was trained")
    problems = list(sentences.privacy_words(run))
    for name, (where, stated) in promises.robustness_promises(run).items():
        problems += sentences.robustness_words(where, stated, run, records.get(name, {}), seen.audits.get(name, []))
    findings.check("words of the promises", problems, "promise, theorem, assumptions, reason and values from the settings")


def _check_noise(seen: Inspection, owners: Callable[[], OwnersNetwork] | None) -> None:
    """The noise that certificates and attacks speak of against the network's own, where their settings are sound."""
    certified = [(one.files.json, one.settings) for one in seen.certifications.values() if one.settings is not None]
    attacked = [(one.files.json, one.settings) for one in seen.attacks if one.settings is not None]
    spoken = [(Noise.of(file, settings), False) for file, settings in certified]
    spoken += [(Noise.of(file, settings), settings.certificates is None) for file, settings in attacked]
    if not spoken:
        return
    findings, about = seen.findings, "law, place, operator norm and slack from the weights"
    plain = all((noise.law, noise.place) == (GAUSSIAN, INPUT) for noise, _ in spoken)
    if plain and not is_own(seen.run) and block(seen.run, "config").get("noise_layer") is None:
        findings.check("noise of the network", (), "none of its own, and Gaussian noise at the input")
        return
    from twinproof_verify.first_layer import noise_site, site_problems  # heavy, and only needed here

    site = noise_site(seen.folder, seen.run, owners, plain=plain)
    if isinstance(site, Problem):
        findings.check("noise of the network", (site,), about)
        return
    problems = [one for noise, own in spoken for one in site_problems(noise, site, findings.leave, own_sigma=own)]
    findings.check("noise of the network", problems, about)


def _check_weights(seen: Inspection) -> None:
    content = seen.content(MODEL, "weights", "loads, all finite")
    if content is not None:
        seen.findings.check("weights", weights.weight_problems(content), "loads, all finite")
    closing = None if seen.ledger is None else seen.ledger.closing
    stated: dict[str, object] = {} if closing is None else {LEDGER: closing.model_sha256}
    spoken: list[Certification | IntervalCertification | Attack] = [*seen.named.values(), *seen.attacks]
    for one in spoken:
        if one.record:
            stated[one.files.json] = block(one.record, "network").get("model_sha256")
    found = weights.identity_problems(seen.folder, stated)
    seen.findings.check("model identity", found, "one model in ledger, certificates and attacks")
