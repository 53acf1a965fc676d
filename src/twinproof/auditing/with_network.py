"""What verification asks of the network itself: accuracy, answers to attacked inputs, and votes that are drawn again."""

from __future__ import annotations

import math

from torch import nn

from twinproof.auditing.ask_network import (
    MOST_SECONDS,
    REFUSALS,
    Network,
    Place,
    TooLong,
    accuracy_problems,
    attack_problems,
    loaded_network,
    words_of,
)
from twinproof.auditing.redraw import Drawn, chosen, redraw_lines
from twinproof.auditing.redraw_network import CannotRedraw
from twinproof_verify import Originals, Problem
from twinproof_verify.attack_results import read_attacked_inputs
from twinproof_verify.evidence import parse_object, shown
from twinproof_verify.files import METRICS, MODEL, RUN_JSON, Evidence
from twinproof_verify.inspection import Attack, Certification, Inspection


def ask(seen: Inspection, weights: bytes, network: nn.Module | None, redraw: int | None) -> None:
    """Loads ``weights`` into the network that run.json names, or into the owner's, and asks it with the test set."""
    run, findings = seen.run, seen.findings
    model = loaded_network(weights, run, network)
    findings.check("network", model if isinstance(model, list) else (), "names, types and shapes of the weights")
    originals = seen.originals
    if originals is None or isinstance(model, list):
        return
    shape = tuple(run["data"]["shape"])
    if originals.inputs.shape[1:] != shape:
        given = shown(list(originals.inputs.shape[1:]))
        wrong = Problem(RUN_JSON, "data.shape is not that of the test set", shown(list(shape)), given)
        findings.check("test set", (wrong,), "its shape against run.json")
        return
    try:
        _Asker(seen, originals, model, shape).ask(redraw)
    except REFUSALS as error:
        what = "the network cannot be asked"
        findings.check("answers", (Problem(MODEL, what, shown(words_of(error)), "one score for each class"),), what)


class _Asker:
    """Asks one network everything, where it was asked first if this machine can."""

    def __init__(self, seen: Inspection, originals: Originals, model: nn.Module, shape: tuple[int, ...]) -> None:
        self._seen, self._originals, self._model, self._shape = seen, originals, model, shape
        self._findings = seen.findings
        self._network = Network(model, shape, seen.run["data"]["levels"])
        self._random = self._network.draws_at_random(originals.inputs)

    def ask(self, redraw: int | None) -> None:
        """Accuracy, answers to attacked inputs, and votes of ``redraw`` lines of each kind."""
        self._ask_accuracy(patient=redraw is not None)
        for attack in self._seen.attacks:
            self._ask_attack(attack, redraw)
        if redraw is None:
            return
        if not self._seen.certifications:
            self._findings.leave("votes of certificates (there are none)")
        for certification in self._seen.certifications.values():
            self._redraw_certificates(certification, redraw)

    def _ask_accuracy(self, *, patient: bool) -> None:
        """Accuracy and the last progress line; a network that takes minutes is only asked by who is ``patient``."""
        if self._random:
            self._findings.leave("accuracy on the test set (the network answers at random)")
            return
        run = self._seen.run
        place = Place.of(run, self._model)
        self._model.to(place.device)
        try:
            asked = self._network.measured(self._originals, math.inf if patient else MOST_SECONDS)
        except TooLong as why:
            self._findings.leave(f"accuracy on the test set ({why}; --redraw K waits for it)")
            return
        # A last line that cannot be read is reported where all lines are read.
        content = self._seen.folder.content(METRICS)
        line = None if isinstance(content, Problem) else parse_object(content.rstrip(b"\n").rpartition(b"\n")[2])
        found = accuracy_problems(run, line if isinstance(line, dict) else None, asked, self._originals, place)
        self._findings.check("accuracy again", found, f"{len(asked.answers)} test inputs {place.words}")

    def _ask_attack(self, attack: Attack, redraw: int | None) -> None:
        """The network's answers to attacked inputs, and ``redraw`` of the smoothed classifier's."""
        settings, table, files = attack.settings, attack.table, attack.files
        content = self._seen.folder.content(files.tensors)
        if settings is None or table is None or isinstance(content, Problem):
            return
        tensors, unreadable = read_attacked_inputs(content, files.tensors, settings)
        if unreadable or settings.inputs > len(self._originals.labels):
            return  # which is reported where they are read
        place = Place.of(settings.flat, self._model)
        self._model.to(place.device)
        if self._random:
            self._findings.leave("the network's answers to attacked inputs (it answers at random)")
        else:
            found = attack_problems(self._network, table, tensors, self._originals, place)
            self._findings.check(files.titled("network under attack"), found, f"{table.network.size} answers {place.words}")
        if redraw is not None:
            drawn = Drawn.of_attacks(settings, table, tensors, self._originals)
            self._redraw("answers to attacked inputs", files, drawn, redraw)

    def _redraw_certificates(self, certification: Certification, count: int) -> None:
        """``count`` certificates, where they are sound."""
        settings, lines, files = certification.settings, certification.lines, certification.files
        sound = lines is not None and bool((lines.index == range(len(lines.index))).all())
        if settings is None or lines is None or not sound or len(lines.index) > len(self._originals.labels):
            self._findings.leave(f"votes of {files.titled('certificates')}: their settings and lines are not sound")
            return
        self._redraw("certificates", files, Drawn.of_certificates(settings, lines, self._originals), count)

    def _redraw(self, what: str, files: Evidence, drawn: Drawn, count: int) -> None:
        name, place, total = files.titled(what), Place.of(drawn.settings, self._model), len(drawn.lines.rows)
        places = chosen(count, total)
        try:
            redrawn = redraw_lines(self._model.to(place.device), drawn, places, self._shape, place)
        except CannotRedraw as why:
            problem = Problem(files.json, "the votes cannot be drawn again", shown(str(why)), "noise that the format describes")
            self._findings.check(f"votes of {name}", (problem,), f"{len(places)} of them")
            return
        self._findings.check(f"votes of {name}", redrawn.problems, redrawn.words(place))
        if len(places) < total:
            self._findings.leave(f"votes of {total - len(places)} of {total} {name}")
