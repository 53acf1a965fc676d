"""What can be checked with the network and the test set at hand, and what is left unchecked without them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinproof.auditing.evidence import RunFolder, parse_object, shown
from twinproof.auditing.loaded_network import REFUSALS, loaded_network, words_of
from twinproof.auditing.verification import Findings, Problem
from twinproof.auditing.verify_attack_lines import AttackTable
from twinproof.auditing.verify_attack_settings import FILE as ATTACKS
from twinproof.auditing.verify_attacked_inputs import FILE as ATTACKED
from twinproof.auditing.verify_attacked_inputs import read_attacked_inputs
from twinproof.auditing.verify_attacks import Surroundings
from twinproof.auditing.verify_certificates import SETTINGS_FILE, is_sound
from twinproof.auditing.verify_files import AUDIT
from twinproof.auditing.verify_metrics import FILE as METRICS
from twinproof.auditing.verify_model import FILE as MODEL
from twinproof.auditing.verify_network import is_own, network_problems
from twinproof.auditing.verify_originals import Originals, label_problems
from twinproof.auditing.verify_run_json import FILE as RUN_JSON
from twinproof.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from twinproof.auditing.redraw import Drawn

NO_TEST_SET = "labels, accuracy and the network's answers (the test set was not given)"
NO_MODULE = "the weights against the owner's network, and its answers (the module was not given)"
VOTES = "votes of certificates (draw them again with --redraw K)"
ATTACK_VOTES = "votes at attacked inputs (draw them again with --redraw K)"
BEFORE_ROUNDING = "the network's answers to attacked inputs before these were brought to stored levels"
AIMS = "which class the network found least likely (the aim of the attacks)"
AUDITED = "what the audit of certificates tried, and the votes behind its flips"


@dataclass(frozen=True)
class Request:
    """What a caller gave besides the run: an owner's module, and how many certificates to draw again (None: none)."""

    network: nn.Module | None = None
    redraw: int | None = None

    def refuse(self, run: dict[str, Any], originals: Originals | None) -> None:
        """ConfigError where votes cannot be drawn again with what was given."""
        if self.redraw is None:
            return
        if self.redraw < 1:
            raise ConfigError(
                "there is nothing to draw again", where="redraw", got=self.redraw, wanted="at least 1 certificate"
            )
        for needed, missing in (("the test set", originals is None), ("the network", is_own(run) and self.network is None)):
            if missing:
                raise ConfigError(
                    f"votes cannot be drawn again without {needed}",
                    where="redraw",
                    got="nothing",
                    wanted=needed,
                    fix="in Python: verify_run(path, originals=Originals(inputs, labels), network=your_module, redraw=K)",
                )


@dataclass(frozen=True)
class Attacks:
    """What attacks.json and attacks.csv hold: empty settings where there are none, no table where the lines are not sound."""

    settings: dict[str, Any]
    table: AttackTable | None


def verify_with_network(
    folder: RunFolder, around: Surroundings, attacks: Attacks, request: Request, findings: Findings
) -> None:
    """The weights against the network that run.json names; then, with the test set, what that network answers."""
    content, run, originals = folder.content(MODEL), around.run, around.originals
    left_out = (
        (VOTES, request.redraw is None and around.lines is not None),
        (ATTACK_VOTES, request.redraw is None and bool(attacks.settings)),
        (BEFORE_ROUNDING, bool(attacks.settings)),
        (AIMS, attacks.settings.get("aim") == "least-likely"),
        (AUDITED, AUDIT in folder.names),
    )
    for left, there in left_out:
        if there:
            findings.leave(left)
    if originals is not None and around.lines is not None:
        findings.check("labels", label_problems(around.lines, originals), "of the certificates, against the test set")
    if isinstance(content, Problem):
        return  # which is told where the weights are read
    if is_own(run) and request.network is None:
        findings.leave(NO_MODULE)
        return
    model: nn.Module | list[Problem]
    if originals is None and request.network is None:
        model = list(network_problems(content, run))  # without torch, which nothing else needs
    else:
        model = loaded_network(content, run, request.network)
    findings.check("network", model if isinstance(model, list) else (), "names, types and shapes of the weights")
    if originals is None:
        findings.leave(NO_TEST_SET)
    elif not isinstance(model, list):
        _ask(folder, around, originals, attacks, model, request, findings)


def _ask(
    folder: RunFolder,
    around: Surroundings,
    originals: Originals,
    attacks: Attacks,
    model: nn.Module,
    request: Request,
    findings: Findings,
) -> None:
    """Everything that the loaded network is asked; whatever it raises is a problem."""
    shape = tuple(around.run["data"]["shape"])
    if originals.inputs.shape[1:] != shape:
        given = shown(list(originals.inputs.shape[1:]))
        wrong = Problem(RUN_JSON, "data.shape is not that of the test set", shown(list(shape)), given)
        findings.check("test set", (wrong,), "its shape against run.json")
        return
    asker = _Asker(folder, around, originals, model, shape, findings)
    try:
        asker.verify_accuracy(patient=request.redraw is not None)
        if attacks.table is not None:
            asker.verify_attacks(attacks.settings, attacks.table, request.redraw)
        if request.redraw is not None:
            asker.redraw_certificates(request.redraw)
    except REFUSALS as error:
        what = "the network cannot be asked"
        findings.check("answers", (Problem(MODEL, what, shown(words_of(error)), "one score for each class"),), what)


class _Asker:
    """Asks one network everything, where it was asked first if this machine can."""

    def __init__(
        self,
        folder: RunFolder,
        around: Surroundings,
        originals: Originals,
        model: nn.Module,
        shape: tuple[int, ...],
        findings: Findings,
    ) -> None:
        from twinproof.auditing.network_answers import Network

        self._folder, self._around, self._originals = folder, around, originals
        self._model, self._shape, self._findings = model, shape, findings
        self._network = Network(model, shape, around.run["data"]["levels"])
        self._random = self._network.draws_at_random(originals.inputs)

    def verify_accuracy(self, *, patient: bool) -> None:
        """Accuracy and the last progress line; a network that takes minutes is only asked by who is ``patient``."""
        from twinproof.auditing.network_answers import MOST_SECONDS, TooLong, accuracy_problems
        from twinproof.auditing.same_place import Place

        if self._random:
            self._findings.leave("accuracy on the test set (the network answers at random)")
            return
        run = self._around.run
        place = Place.of(run, self._model)
        self._model.to(place.device)
        try:
            asked = self._network.measured(self._originals, math.inf if patient else MOST_SECONDS)
        except TooLong as why:
            self._findings.leave(f"accuracy on the test set ({why}; --redraw K waits for it)")
            return
        found = accuracy_problems(run, self._last_line(), asked, self._originals, place)
        self._findings.check("accuracy again", found, f"{len(asked.answers)} test inputs {place.words}")

    def _last_line(self) -> dict[str, Any] | None:
        """The last progress line, where it can be read; what cannot is told where all lines are read."""
        content = self._folder.content(METRICS)
        line = None if isinstance(content, Problem) else parse_object(content.rstrip(b"\n").rpartition(b"\n")[2])
        return line if isinstance(line, dict) else None

    def verify_attacks(self, settings: dict[str, Any], table: AttackTable, redraw: int | None) -> None:
        """The network's answers to attacked inputs, and ``redraw`` of the smoothed classifier's."""
        from twinproof.auditing.network_answers import attack_problems
        from twinproof.auditing.redraw import Drawn
        from twinproof.auditing.same_place import Place

        content = self._folder.content(ATTACKED)
        tensors, unreadable = ({}, [content]) if isinstance(content, Problem) else read_attacked_inputs(content, settings)
        if unreadable or settings["inputs"] > len(self._originals.labels):
            return  # which is told where they are read
        place = Place.of(settings, self._model)
        self._model.to(place.device)
        if self._random:
            self._findings.leave("the network's answers to attacked inputs (it answers at random)")
        else:
            found = attack_problems(self._network, table, tensors, self._originals, place)
            self._findings.check("network under attack", found, f"{table.network.size} answers {place.words}")
        if redraw is not None:
            drawn = Drawn.of_attacks(settings, table, tensors, self._originals)
            self._redraw("answers to attacked inputs", ATTACKS, drawn, redraw)

    def redraw_certificates(self, count: int) -> None:
        """``count`` certificates, where there are such, and sound ones."""
        from twinproof.auditing.redraw import Drawn

        settings, lines = self._around.certificates, self._around.lines
        sound = lines is not None and is_sound(settings) and bool((lines.index == range(len(lines.index))).all())
        if lines is None or not sound or len(lines.index) > len(self._originals.labels):
            self._findings.leave("votes of certificates (there are none, or their settings and lines are not sound)")
            return
        self._redraw("certificates", SETTINGS_FILE, Drawn.of_certificates(settings, lines, self._originals), count)

    def _redraw(self, name: str, file: str, drawn: Drawn, count: int) -> None:
        from twinproof.auditing.redraw import chosen, redraw_lines
        from twinproof.auditing.redraw_network import CannotRedraw
        from twinproof.auditing.same_place import Place

        place, total = Place.of(drawn.settings, self._model), len(drawn.lines.rows)
        places = chosen(count, total)
        try:
            redrawn = redraw_lines(self._model.to(place.device), drawn, places, self._shape, place)
        except CannotRedraw as why:
            problem = Problem(file, "the votes cannot be drawn again", shown(str(why)), "noise that the format describes")
            self._findings.check(f"votes of {name}", (problem,), f"{len(places)} of them")
            return
        self._findings.check(f"votes of {name}", redrawn.problems, redrawn.words(place))
        if len(places) < total:
            self._findings.leave(f"votes of {total - len(places)} of {total} {name}")
