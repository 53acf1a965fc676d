"""``verify_run``: what ``twinproof_verify`` checks from the files, and what can be checked with the network and the test set.

Guarantees
    Any content of the directory ends in a :class:`Verification`; the one error is :class:`RunError`, where there is no run, or
    one of a newer version (and ConfigError, where votes are to be drawn again without what that needs).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinproof.errors import ConfigError, RunError
from twinproof_verify import Originals, Problem, Verification, VerifyError
from twinproof_verify.files import MODEL
from twinproof_verify.inspection import NO_MODULE, NO_TEST_SET, Inspection, inspect, leave_unasked
from twinproof_verify.run_json import is_own
from twinproof_verify.weights import network_problems

if TYPE_CHECKING:
    from torch import nn

    from twinproof.runs.run import Run


def verify_run(
    run: Run | str | Path, *, originals: Originals | None = None, network: nn.Module | None = None, redraw: int | None = None
) -> Verification:
    """Checks a run, or the directory of one, and returns everything that was found; RunError only where there is no run.

    With ``originals``, the test set of the run, the network is asked again: labels, accuracy, its answers to attacked inputs,
    which are measured from the inputs that they were made of. An owner's network is needed for that as ``network``.
    ``redraw`` certificates, chosen at random, get their votes drawn again. What was not looked at is in ``not_checked``.
    """
    if redraw is not None and redraw < 1:
        raise ConfigError("there is nothing to draw again", where="redraw", got=redraw, wanted="at least 1 certificate")
    try:
        seen = inspect(
            Path(run) if isinstance(run, str | Path) else run.root,
            originals,
            None if network is None else lambda: _owners(network),
        )
    except VerifyError as error:
        raise RunError(error.what, where=error.where, got=error.got, wanted=error.wanted, fix=error.fix) from error
    for needed, missing in (("the test set", originals is None), ("the network", is_own(seen.run) and network is None)):
        if redraw is not None and missing:
            raise ConfigError(
                f"votes cannot be drawn again without {needed}",
                where="redraw",
                got="nothing",
                wanted=needed,
                fix="in Python: verify_run(path, originals=Originals(inputs, labels), network=your_module, redraw=K)",
            )
    _with_network(seen, network, redraw)
    return seen.result()


def _owners(network: nn.Module) -> Any:
    from twinproof.auditing.ask_network import owners_network

    return owners_network(network)


def _with_network(seen: Inspection, network: nn.Module | None, redraw: int | None) -> None:
    """The weights against the network that run.json names; then, with the test set, what that network answers."""
    leave_unasked(seen, redrawn=redraw is not None)
    content, run, findings = seen.folder.content(MODEL), seen.run, seen.findings
    if isinstance(content, Problem):
        return  # which is reported where the weights are read
    if is_own(run) and network is None:
        findings.leave(NO_MODULE)
        return
    about = "names, types and shapes of the weights"
    if seen.originals is None:
        findings.leave(NO_TEST_SET)
        if network is None:
            findings.check("network", network_problems(content, run), about)  # without torch, which nothing else needs
            return
    from twinproof.auditing.with_network import ask

    ask(seen, content, network, redraw)
