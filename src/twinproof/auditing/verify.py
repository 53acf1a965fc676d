"""``verify_run``: checks everything that a run states, trusting nothing that it holds.

Written from docs/formats/run.md alone; it shares no code with the writers except file names, rounding and error types. What
needs the network itself stands in modules of its own, which rebuild it. Whatever was not checked is named in
:attr:`Verification.not_checked`: among it, always, what no file can show, such as the noise that was added in training.

Guarantees
    Any content of the directory ends in a :class:`Verification`; the one error is :class:`RunError`, where there is no run, or
    one of a newer version (and ConfigError, where votes are to be drawn again without what that needs).
    Epsilons and radii are recomputed from the ledger's events and the votes, never from a printed epsilon or radius.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinproof.auditing.evidence import RunFolder, parse_object, shown
from twinproof.auditing.fields import FORMATS
from twinproof.auditing.verification import Findings, Problem, Verification
from twinproof.auditing.verify_attack_lines import AttackTable
from twinproof.auditing.verify_attack_settings import FILE as ATTACKS_FILE
from twinproof.auditing.verify_attack_settings import attack_noise, is_sound_attack
from twinproof.auditing.verify_attacks import Surroundings, verify_attacks
from twinproof.auditing.verify_audit import verify_audit
from twinproof.auditing.verify_certificate_lines import FILE as CERTIFICATE_LINES
from twinproof.auditing.verify_certificate_lines import Lines, line_problems, read_lines
from twinproof.auditing.verify_certificates import SETTINGS_FILE, is_sound, settings_problems
from twinproof.auditing.verify_epsilon import Spent, close_problems, recompute
from twinproof.auditing.verify_files import (
    ATTACKS,
    AUDIT,
    CERTIFICATES,
    digest_problems,
    leftovers,
    private_problems,
    reports,
    unexpected_problems,
)
from twinproof.auditing.verify_first_layer import noise_site, site_problems
from twinproof.auditing.verify_guarantees import epsilon_problems, guarantee_problems, robustness_problems
from twinproof.auditing.verify_ledger import FILE as LEDGER
from twinproof.auditing.verify_ledger import Ledger, read_ledger
from twinproof.auditing.verify_method import INPUT, is_plain
from twinproof.auditing.verify_metrics import FILE as METRICS
from twinproof.auditing.verify_metrics import metrics_problems
from twinproof.auditing.verify_model import FILE as MODEL
from twinproof.auditing.verify_model import identity_problems, weight_problems
from twinproof.auditing.verify_noise import noise_of
from twinproof.auditing.verify_originals import Originals, originals_problems
from twinproof.auditing.verify_prior import prior_problems
from twinproof.auditing.verify_promise import own_network_problems, promise_problems
from twinproof.auditing.verify_reach import GAUSSIAN
from twinproof.auditing.verify_redistribution import redistribution_problems
from twinproof.auditing.verify_run_json import FILE as RUN_JSON
from twinproof.auditing.verify_run_json import (
    accuracy_problems,
    config_problems,
    format_problems,
    privacy_block,
    public_data,
    scaling_problems,
    spending_problems,
    steps_problems,
    top_problems,
)
from twinproof.auditing.verify_with_network import Attacks, Request, verify_with_network
from twinproof.errors import RunError
from twinproof.rounding import format_up, round_up

if TYPE_CHECKING:
    from torch import nn


LARGEST_FORMAT = 1000  # a number above it is not the format of any version
TRAINING = "how training was done beyond its ledger (which records, the noise that was added, who knew its key)"
"""What no file of a run can show."""


def verify_run(
    root: Path, *, originals: Originals | None = None, network: nn.Module | None = None, redraw: int | None = None
) -> Verification:
    """Checks the run in ``root`` and returns everything that was found; RunError only where there is no run.

    With ``originals``, the test set of the run, the network is asked again: labels, accuracy, its answers to attacked inputs,
    which are measured from the inputs that they were made of. An owner's network is needed for that as ``network``.
    ``redraw`` certificates, chosen at random, get their votes drawn again. What was not looked at is in ``not_checked``.
    """
    request = Request(network, redraw)
    folder = RunFolder(root)
    findings = Findings()
    record = _read_object(folder, RUN_JSON, findings)
    run = record or {}
    _refuse_unfinished(folder, run)
    request.refuse(run, originals)
    findings.check("run.json", top_problems(run) if record is not None else (), "fields of run.json")
    findings.check("weights to start from", prior_problems(run), "against the file in this package, where the run names one")
    findings.check("digests", digest_problems(folder, run), "SHA-256 of every released file")
    findings.check("names of files", unexpected_problems(folder), "only files that belong to a run")
    for name in leftovers(folder):
        findings.leave(f"{name}, which an interrupted command left behind: it can be deleted")
    for name in reports(folder):
        findings.leave(f"{name}: a report is not evidence")
    findings.check(
        "private", private_problems(folder, complete=run.get("state") == "complete"), "mode and leftovers of private/"
    )
    ledger, spent = _verify_ledger(folder, findings)
    _verify_promises(run, ledger, spent, findings)
    _verify_metrics(folder, run, findings)
    settings, lines = _verify_certificates(folder, run, findings)
    findings.check("promise of robustness", robustness_problems(run, settings), "its numbers against the certificates")
    around = Surroundings(run, public_data(run), settings, lines, _usable(originals, run, findings))
    attacks, audit = _verify_attacks(folder, around, findings)
    _verify_words(run, settings, audit, findings)
    _verify_noise(folder, run, settings, attacks.settings, findings, network)
    _verify_model(folder, ledger, {SETTINGS_FILE: settings, ATTACKS_FILE: attacks.settings}, findings)
    verify_with_network(folder, around, attacks, request, findings)
    findings.leave(TRAINING)
    return Verification(
        run=shown(str(root)),
        problems=tuple(dict.fromkeys(findings.problems)),
        checks=tuple(findings.checks),
        epsilon=round_up(spent.epsilon) if spent else None,
        epsilon_rdp=round_up(spent.epsilon_rdp) if spent else None,
        delta=ledger.delta if ledger else None,
        steps=ledger.steps if ledger else None,
        certificates=len(lines.rows) if lines is not None else 0,
        not_checked=tuple(dict.fromkeys(findings.unchecked)),
    )


def _read_object(folder: RunFolder, name: str, findings: Findings) -> dict[str, Any] | None:
    """One JSON file, or None and a failed check."""
    content = folder.content(name)
    record = parse_object(content) if isinstance(content, bytes) else content
    if isinstance(record, dict):
        _refuse_newer(folder, name, record.get("format"))
        findings.check(f"{name} parses", (), "one JSON object")
        return record
    problem = Problem(name, "this is no JSON object", record, "one JSON object") if isinstance(record, str) else record
    findings.check(f"{name} parses", (problem,), "one JSON object")
    return None


def _refuse_newer(folder: RunFolder, name: str, found: object) -> None:
    """A file of a later version cannot be checked, and is not called false for that."""
    if type(found) is int and FORMATS[-1] < found <= LARGEST_FORMAT:
        raise RunError(
            f"{name} was made by a newer version of twinproof, and cannot be checked by this one",
            where=shown(str(folder.root / name)),
            got=f"format {shown(found)}",
            wanted=f"format {FORMATS[0]} to {FORMATS[-1]}",
            fix="upgrade twinproof",
        )


def _refuse_unfinished(folder: RunFolder, run: dict[str, Any]) -> None:
    """Half a run promises nothing yet: one message in place of everything that it lacks."""
    if run.get("state") == "training":
        verb = "federate" if "federation" in run else "train"
        raise RunError(
            "the run is not finished, so that there is nothing to verify yet",
            where=shown(str(folder.root)),
            got="state 'training'",
            wanted="a complete run",
            fix=f"twinproof {verb} --out {shown(str(folder.root))} --resume",
        )


def _verify_words(run: dict[str, Any], settings: dict[str, Any], audit: dict[str, Any], findings: Findings) -> None:
    """Both promises against what the settings lead to; those of format 1 have other words, which nothing is compared with."""
    if run.get("format") == 1:
        findings.leave("the words of the promises: they are those of format 1, whose numbers are checked")
        return
    findings.check("own network", own_network_problems(run), "what is assumed about it, where there is one")
    if "own_network" in run:
        findings.leave("what was tried on the owner's network while it was trained")
    problems = promise_problems(run, settings, audit)
    findings.check("words of the promises", problems, "promise, theorem, assumptions, reason and values from the settings")


def _verify_ledger(folder: RunFolder, findings: Findings) -> tuple[Ledger | None, Spent | None]:
    content = folder.content(LEDGER)
    if isinstance(content, Problem):
        findings.check("ledger", (content,), "hash chain and grammar")
        return None, None
    ledger = read_ledger(content)
    findings.check("ledger", ledger.problems, f"hash chain and grammar of {ledger.lines} lines")
    outcome = recompute(ledger)
    spent = outcome if isinstance(outcome, Spent) else None
    problems = [outcome] if isinstance(outcome, Problem) else list(close_problems(ledger, spent))
    detail = f"PLD {format_up(spent.epsilon)}, RDP {format_up(spent.epsilon_rdp)}" if spent else "nothing recomputed"
    findings.check("epsilon of the ledger", problems, detail)
    return ledger, spent


def _verify_promises(run: dict[str, Any], ledger: Ledger | None, spent: Spent | None, findings: Findings) -> None:
    findings.check("format", format_problems(run, ledger), "of run.json and of the ledger")
    findings.check("config", config_problems(run, ledger), "digest and settings of config")
    findings.check("privacy block", spending_problems(run, ledger), "noise, rate, steps and delta against the ledger")
    findings.check("feature ranges", scaling_problems(run, ledger), "their source, and what it cost")
    findings.check("redistribution", redistribution_problems(run, ledger), "where the shares of the noise came from")
    findings.check("steps", steps_problems(run, ledger), "steps of config against the ledger")
    findings.check("epsilon of run.json", epsilon_problems(run, spent), "printed against recomputed")
    findings.check("guarantees", guarantee_problems(run, spent), "words, and whether the evidence carries them")
    findings.check("accuracy", accuracy_problems(run), "value and interval from the counts")


def _verify_metrics(folder: RunFolder, run: dict[str, Any], findings: Findings) -> None:
    content = folder.content(METRICS)
    problems = (content,) if isinstance(content, Problem) else metrics_problems(content, privacy=privacy_block(run))
    findings.check("metrics", problems, "progress lines")


def _verify_certificates(folder: RunFolder, run: dict[str, Any], findings: Findings) -> tuple[dict[str, Any], Lines | None]:
    """The settings (empty where there are none) and the certificates that could be read."""
    if not any(name in folder.names for name in CERTIFICATES):
        return {}, None
    record, data = _read_object(folder, SETTINGS_FILE, findings), public_data(run)
    settings = record or {}
    findings.check(
        "certificate settings",
        settings_problems(settings, data) if record is not None else (),
        "noise, tau, alpha, largest radius",
    )
    content = folder.content(CERTIFICATE_LINES)
    if isinstance(content, Problem):
        findings.check("certificates", (content,), "every radius from its votes")
        return settings, None
    lines, problems = read_lines(content, wide=record is not None and not is_plain(settings))

    def all_problems() -> Iterator[Problem]:
        yield from problems
        yield from line_problems(lines, settings, data)

    findings.check("certificates", all_problems(), f"{len(lines.rows)} radii from their votes")
    return settings, lines


def _usable(originals: Originals | None, run: dict[str, Any], findings: Findings) -> Originals | None:
    """The test set if it is the one that run.json describes."""
    if originals is None:
        return None
    found = originals_problems(originals, public_data(run))
    return originals if findings.check("test set", found, "its size and levels against run.json") else None


def _verify_attacks(folder: RunFolder, around: Surroundings, findings: Findings) -> tuple[Attacks, dict[str, Any]]:
    """Attacks and the audit of certificates, where there are such; returns what their files hold."""
    settings: dict[str, Any] | None = None
    audit: dict[str, Any] | None = None
    table: AttackTable | None = None
    if any(name in folder.names for name in ATTACKS):
        settings = _read_object(folder, ATTACKS_FILE, findings)
        table = verify_attacks(folder, settings, around, findings)
    if AUDIT in folder.names:
        audit = _read_object(folder, AUDIT, findings)
        verify_audit(folder, audit, around, findings)
    return Attacks(settings or {}, table), audit or {}


def _verify_noise(
    folder: RunFolder,
    run: dict[str, Any],
    certificates: dict[str, Any],
    attacks: dict[str, Any],
    findings: Findings,
    network: nn.Module | None,
) -> None:
    """The noise that certificates and attacks speak of against the network's own, where their settings are sound."""
    spoken = [noise_of(SETTINGS_FILE, certificates, norm="norm", dimension="dimension")] if is_sound(certificates) else []
    spoken += [attack_noise(attacks)] if is_sound_attack(attacks) else []
    if not spoken:
        return
    plain = all((noise.law, noise.place) == (GAUSSIAN, INPUT) for noise in spoken)
    site = noise_site(folder, run, network, plain=plain)
    if isinstance(site, Problem):
        findings.check("noise of the network", (site,), "law, place, operator norm and slack from the weights")
        return
    problems = [
        problem for noise in spoken for problem in site_problems(noise, site, findings.leave, own_sigma=not certificates)
    ]
    findings.check("noise of the network", problems, "law, place, operator norm and slack from the weights")


def _verify_model(folder: RunFolder, ledger: Ledger | None, settings: dict[str, dict[str, Any]], findings: Findings) -> None:
    content = folder.content(MODEL)
    findings.check("weights", (content,) if isinstance(content, Problem) else weight_problems(content), "loads, all finite")
    closing = ledger.closing if ledger else {}
    findings.check(
        "model identity", identity_problems(folder, closing, settings), "one model in ledger, certificates and attacks"
    )
