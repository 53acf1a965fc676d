"""``verify``: checks everything that a run states, trusting nothing that it holds.

Written from docs/formats/run.md alone. Any content of the directory ends in a :class:`Verification`; the one error is
:class:`VerifyError`, where there is no complete run, or one of a newer version. Epsilons and radii are recomputed from the
ledger's events and the votes, never from a printed epsilon or radius. Whatever was not checked is named: among it, always, what
no file can show, such as the noise that was added in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinproof_verify import certificate_lines, files, promises, run_json, weights
from twinproof_verify.bounds import GAUSSIAN, PUBLISHED
from twinproof_verify.certificates import INPUT, CertificateSettings, Noise, read_settings, rules_of
from twinproof_verify.epsilon import Spent, close_problems, recompute
from twinproof_verify.evidence import Originals, RunFolder, format_up, parse_object, round_up, shown
from twinproof_verify.files import ATTACKS, AUDIT, CERTIFICATES, LEDGER, METRICS, MODEL, RUN_JSON
from twinproof_verify.findings import Findings, Problem, Verification, VerifyError
from twinproof_verify.ledger import Ledger, metrics_problems, read_ledger
from twinproof_verify.models import FORMATS, block, read
from twinproof_verify.run_json import PublicData, is_own, plugin_names
from twinproof_verify.sentences import promise_problems

if TYPE_CHECKING:
    from twinproof_verify.attacks import AttackSettings, AttackTable
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


@dataclass
class Inspection:
    """A run whose files have been checked; what needs the network can be added to ``findings`` before ``result``."""

    folder: RunFolder
    run: dict[str, Any]
    data: PublicData
    originals: Originals | None = None
    findings: Findings = field(default_factory=Findings)
    ledger: Ledger | None = None
    spent: Spent | None = None
    certificates: dict[str, Any] = field(default_factory=dict)
    certificate_settings: CertificateSettings | None = None
    lines: certificate_lines.Lines | None = None
    attacks: dict[str, Any] = field(default_factory=dict)
    attack_settings: AttackSettings | None = None
    table: AttackTable | None = None
    audit: dict[str, Any] = field(default_factory=dict)

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
            certificates=len(self.lines.rows) if self.lines is not None else 0,
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
    findings.check("names of files", files.unexpected_problems(folder), "only files that belong to a run")
    for line in files.left_aside(folder):
        findings.leave(line)
    complete = run.get("state") == "complete"
    findings.check("private", files.private_problems(folder, complete=complete), "mode and leftovers of private/")
    _check_ledger(seen)
    _check_run(seen)
    _check_certificates(seen)
    found = promises.robustness_problems(run, seen.certificates, CERTIFICATES.json)
    findings.check("promise of robustness", found, "its numbers against the certificates")
    if originals is not None:
        given = _test_set_problems(originals, seen.data)
        seen.originals = originals if findings.check("test set", given, "its size and levels against run.json") else None
    if any(name in folder.names for name in files.ATTACK_FILES):
        _check_attacks(seen)
    if AUDIT.json in folder.names:
        _check_audit(seen)
    _check_words(seen)
    _check_noise(seen, owners)
    _check_weights(seen)
    return seen


def leave_unasked(seen: Inspection, *, redrawn: bool) -> None:
    """Names what only a network could tell; votes are ``redrawn`` by whoever asks it. With the test set, checks labels."""
    findings = seen.findings
    for line, there in (
        (VOTES, not redrawn and seen.lines is not None),
        (ATTACK_VOTES, not redrawn and bool(seen.attacks)),
        (BEFORE_ROUNDING, bool(seen.attacks)),
        (AIMS, seen.attacks.get("aim") == "least-likely"),
        (AUDITED, AUDIT.json in seen.folder.names),
    ):
        if there:
            findings.leave(line)
    if seen.originals is not None and seen.lines is not None:
        found = certificate_lines.label_problems(seen.lines, seen.originals)
        findings.check("labels", found, "of the certificates, against the test set")


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


def _check_certificates(seen: Inspection) -> None:
    if not any(name in seen.folder.names for name in files.CERTIFICATE_FILES):
        return
    findings, record = seen.findings, read_object(seen.folder, CERTIFICATES.json, seen.findings)
    seen.certificates = record or {}
    problems: list[Problem] = []
    if record is not None:
        bounds = plugin_names(seen.run, "bound")
        seen.certificate_settings, problems = read_settings(CERTIFICATES.json, record, seen.data, bounds)
    findings.check("certificate settings", problems, "noise, tau, alpha, largest radius")
    content = seen.content(CERTIFICATES.csv, "certificates", "every radius from its votes")
    if content is None:
        return
    plain = (seen.certificates.get("statistic"), seen.certificates.get("runner_up")) == ("votes", "complement")
    lines, unreadable = certificate_lines.read_lines(content, wide=record is not None and not plain)
    seen.lines = lines

    def all_problems() -> Iterator[Problem]:
        yield from unreadable
        yield from certificate_lines.line_problems(
            lines, rules_of(seen.certificate_settings), seen.certificates.get("inputs"), seen.data
        )

    findings.check("certificates", all_problems(), f"{len(lines.rows)} radii from their votes")


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


def _check_attacks(seen: Inspection) -> None:
    from twinproof_verify import attack_results, attacks

    findings, data = seen.findings, seen.data
    record = read_object(seen.folder, ATTACKS.json, findings)
    seen.attacks = record or {}
    if record is not None:
        seen.attack_settings, problems = attacks.read_attacks(record, data, seen.run, seen.certificates)
        findings.check("attack settings", problems, "norm, sizes, and the smoothed classifier of the run")
    settings = seen.attack_settings
    if settings is None:
        what = "the attacks cannot be checked without sound settings"
        unknown = Problem(ATTACKS.json, what, "see the settings", "sound settings")
        findings.check("attacks", (unknown,), "lines, attacked inputs and results")
        return
    content = seen.content(ATTACKS.csv, "attack lines", "answers from their votes")
    if content is not None:
        seen.table, count, problems = attacks.read_lines(content, settings, data, seen.originals)
        if seen.table is not None and seen.lines is not None:
            problems += attacks.label_problems(seen.table, seen.lines)
        findings.check("attack lines", problems, f"{count} answers from their votes")
    about = f"inside their balls, {'as far as the run shows' if seen.originals is None else 'measured from the test set'}"
    content = seen.content(ATTACKS.tensors, "attacked inputs", about)
    if content is not None:
        tensors, problems = attack_results.read_attacked_inputs(content, settings)
        if seen.table is not None and not problems:
            problems += attack_results.ball_problems(tensors, seen.table, settings, seen.originals)
        findings.check("attacked inputs", problems, about)
    if seen.table is not None:
        found = attack_results.result_problems(seen.table, settings, seen.certificates, seen.lines)
        findings.check("attack results", found, "shares, intervals and flags from the lines")


def _check_audit(seen: Inspection) -> None:
    from twinproof_verify import audits

    findings, record = seen.findings, read_object(seen.folder, AUDIT.json, seen.findings)
    if record is None:
        return
    seen.audit = record
    audit, faults = read(audits.AuditFile, record, AUDIT.json)
    findings.check("audit settings", faults, "fields of audit.json")
    stale = list(audits.stale_problems(seen.folder, block(record, "certificates")))
    findings.check("audit is of these certificates", stale, "digests of certificates and weights")
    if audit is None:
        what = "the audit cannot be checked without sound settings"
        unknown = Problem(AUDIT.json, what, "see the settings", "sound settings")
        findings.check("audit", (unknown,), "flips and verdict")
        return
    found = audits.audit_problems(audit.certificates, seen, stale=bool(stale))
    findings.check("audit", found, f"{len(audit.certificates.attacked)} attacked certificates")
    if not stale:
        found = audits.refutation_problems(audit.certificates, seen)
        findings.check("refuted promises", found, "audit.json against run.json")


def _check_words(seen: Inspection) -> None:
    """Both promises against what the settings lead to; those of format 1 have other words, which nothing is compared with."""
    run, findings = seen.run, seen.findings
    if run.get("format") == 1:
        findings.leave("the words of the promises: they are those of format 1, whose numbers are checked")
        return
    findings.check("own network", promises.own_network_problems(run), "what is assumed about it, where there is one")
    if "own_network" in run:
        findings.leave("what was tried on the owner's network while it was trained")
    problems = promise_problems(run, seen.certificates, seen.audit)
    findings.check("words of the promises", problems, "promise, theorem, assumptions, reason and values from the settings")


def _check_noise(seen: Inspection, owners: Callable[[], OwnersNetwork] | None) -> None:
    """The noise that certificates and attacks speak of against the network's own, where their settings are sound."""
    spoken = [] if seen.certificate_settings is None else [Noise.of(CERTIFICATES.json, seen.certificate_settings)]
    spoken += [] if seen.attack_settings is None else [seen.attack_settings.noise]
    if not spoken:
        return
    findings, about = seen.findings, "law, place, operator norm and slack from the weights"
    plain = all((noise.law, noise.place) == (GAUSSIAN, INPUT) for noise in spoken)
    if plain and not is_own(seen.run) and block(seen.run, "config").get("noise_layer") is None:
        findings.check("noise of the network", (), "none of its own, and Gaussian noise at the input")
        return
    from twinproof_verify.first_layer import noise_site, site_problems

    site = noise_site(seen.folder, seen.run, owners, plain=plain)
    if isinstance(site, Problem):
        findings.check("noise of the network", (site,), about)
        return
    own_sigma = not seen.certificates
    problems = [one for noise in spoken for one in site_problems(noise, site, findings.leave, own_sigma=own_sigma)]
    findings.check("noise of the network", problems, about)


def _check_weights(seen: Inspection) -> None:
    content = seen.content(MODEL, "weights", "loads, all finite")
    if content is not None:
        seen.findings.check("weights", weights.weight_problems(content), "loads, all finite")
    closing = None if seen.ledger is None else seen.ledger.closing
    stated = {LEDGER: {} if closing is None else closing.model_dump()}
    stated |= {CERTIFICATES.json: seen.certificates, ATTACKS.json: seen.attacks}
    found = weights.identity_problems(seen.folder, stated)
    seen.findings.check("model identity", found, "one model in ledger, certificates and attacks")
