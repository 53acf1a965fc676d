"""The three files of the attacks together: settings, lines, attacked inputs, and results that follow from them.

What it cannot see: whether the network really answered so (``network_answers`` asks it), or whether a stronger attack exists.
It shows that the attacked inputs are inside their balls and that every printed share, interval and flag follows from the lines
and the certificates.

Guarantees
    Any content of the files ends in problems, never in an error. Results pass only if they are those that the lines and the
    *present* certificates give: a record from before the run was certified anew is reported as stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from twinproof.auditing.evidence import RunFolder
from twinproof.auditing.verification import Findings, Problem
from twinproof.auditing.verify_attack_lines import FILE as LINES
from twinproof.auditing.verify_attack_lines import AttackTable, arranged, attack_line_problems, read_attack_lines
from twinproof.auditing.verify_attack_results import line_of, own_line, result_problems
from twinproof.auditing.verify_attack_settings import FILE, is_sound_attack, setting_problems
from twinproof.auditing.verify_attacked_inputs import FILE as INPUTS
from twinproof.auditing.verify_attacked_inputs import ball_problems, read_attacked_inputs
from twinproof.auditing.verify_certificate_lines import Lines
from twinproof.auditing.verify_method import SCORES
from twinproof.auditing.verify_originals import Originals
from twinproof.auditing.verify_run_json import PublicData


@dataclass(frozen=True)
class Surroundings:
    """What the attacks and the audit of a run must agree with; empty certificates where the run has none."""

    run: dict[str, Any]
    data: PublicData
    certificates: dict[str, Any] = field(default_factory=dict)
    lines: Lines | None = None
    originals: Originals | None = None


def verify_attacks(
    folder: RunFolder, settings: dict[str, Any] | None, around: Surroundings, findings: Findings
) -> AttackTable | None:
    """Notes the checks of the attacks; ``settings`` is what attacks.json holds, None where it could not be read.

    Returns the lines, where they are those that the settings ask for.
    """
    record = settings or {}
    about = "norm, sizes, and the smoothed classifier of the run"
    if settings is not None:
        found = setting_problems(settings, around.data, around.run, around.certificates)
        findings.check("attack settings", found, about)
    if not is_sound_attack(record):
        unknown = Problem(FILE, "the attacks cannot be checked without sound settings", "see the settings", "sound settings")
        findings.check("attacks", (unknown,), "lines, attacked inputs and results")
        return None
    table = _verify_lines(folder, record, around, findings)
    content = folder.content(INPUTS)
    about = (
        "inside their balls, measured from the test set" if around.originals else "inside their balls, as far as the run shows"
    )
    if isinstance(content, Problem):
        findings.check("attacked inputs", (content,), about)
    else:
        findings.check("attacked inputs", _input_problems(content, record, table, around), about)
    if table is not None:
        findings.check("attack results", _result_problems(record, table, around), "shares, intervals and flags from the lines")
    return table


def _verify_lines(folder: RunFolder, settings: dict[str, Any], around: Surroundings, findings: Findings) -> AttackTable | None:
    content = folder.content(LINES)
    if isinstance(content, Problem):
        findings.check("attack lines", (content,), "answers from their votes")
        return None
    lines, problems = read_attack_lines(content)
    problems += attack_line_problems(lines, settings, around.data)
    table, more = arranged(lines, settings, around.data, around.originals)
    if table is not None and around.lines is not None:
        more += _label_problems(table, around.lines)
    findings.check("attack lines", [*problems, *more], f"{len(lines.answers.rows)} answers from their votes")
    return table


def _label_problems(table: AttackTable, certificates: Lines) -> Iterator[Problem]:
    """Both files speak of the same inputs, and so of the same classes."""
    both = min(len(certificates.rows), table.label.shape[1])
    different = (certificates.label[:both] != table.label[0, :both]).nonzero()[0]
    if len(different):
        at = int(different[0])
        got = f"input {at}: {table.label[0, at]}; {len(different)} inputs in all"
        yield Problem(LINES, "labels are not those of certificates.csv", got, str(certificates.label[at]))


def _input_problems(
    content: bytes, settings: dict[str, Any], table: AttackTable | None, around: Surroundings
) -> Iterator[Problem]:
    tensors, problems = read_attacked_inputs(content, settings)
    yield from problems
    if table is not None and not problems:
        yield from ball_problems(tensors, table, settings, around.originals)


def _result_problems(settings: dict[str, Any], table: AttackTable, around: Surroundings) -> Iterator[Problem]:
    line = own_line(table, float(settings["alpha"]))
    # Attacks are judged by votes, and the class of the highest mean score need not be the one with the most votes.
    by_scores = around.certificates.get("statistic") == SCORES
    if not by_scores and (around.certificates or around.lines is not None):
        certified = line_of(around.lines, around.certificates) if around.lines is not None else None
        if certified is None:
            yield Problem(FILE, "results cannot be checked without sound certificates", "broken certificates", "sound ones")
            return
        line = certified
    yield from result_problems(settings["results"], table, settings, line)
