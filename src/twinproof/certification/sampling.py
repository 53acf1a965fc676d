"""How many draws and how sure: the settings of CERTIFY that every certificate of a call shares."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from twinproof.certification.looks import Schedule
from twinproof.certification.method import Method
from twinproof.errors import ConfigError
from twinproof.runs.certificates import Look

MOST_DRAWS = 10**12
"""More than anybody can draw; sums of scores of so many still fit into 63 bits."""


@dataclass(frozen=True)
class Sampling:
    """How many draws and how sure: n0 to choose the class, n to bound its probability, alpha the failure per input.

    With ``target_radius`` the question is whether the certified radius is at least that: n is then the most draws that an
    input can get, and it gets no more once the answer is known. Without one every input gets n draws: its radius still grows
    with the last of them.

    With ``shared_noise`` the inputs of a batch meet the same noise, which makes the first layer of the network nearly free.
    What is promised for each input stays the same; that one certificate fails is then no longer independent of the others.
    """

    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    target_radius: float | None = None
    shared_noise: bool = False

    def __post_init__(self) -> None:
        for name in ("n0", "n"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} cannot be used", where=name, got=getattr(self, name), wanted="at least 1 draw")
            if getattr(self, name) > MOST_DRAWS:
                raise ConfigError(f"{name} cannot be used", where=name, got=getattr(self, name), wanted=f"at most {MOST_DRAWS}")
        if not 0 < self.alpha < 1:
            raise ConfigError("alpha is no probability", where="alpha", got=self.alpha, wanted="0 < alpha < 1, e.g. 0.001")
        if self.target_radius is not None and not (self.target_radius > 0 and math.isfinite(self.target_radius)):
            raise ConfigError(
                "the target radius cannot be used", where="target_radius", got=self.target_radius, wanted="a finite number > 0"
            )

    @property
    def schedule(self) -> Schedule:
        """When the votes are looked at: once at the end, or more often with a target."""
        make = Schedule.single if self.target_radius is None else Schedule.doubling
        return make(self.n, self.alpha)

    def at(self, look: Look) -> Sampling:
        """The fixed procedure whose bound is the one of ``look``."""
        return replace(self, n=look.draws, alpha=look.alpha, target_radius=None)

    def refuse_other_methods(self, method: Method) -> None:
        """A target radius and shared noise rest on votes and one Clopper-Pearson bound; other methods are refused."""
        asked = [name for name in ("target_radius", "shared_noise") if getattr(self, name)]
        if asked and not method.is_plain:
            raise ConfigError(
                f"{' and '.join(asked).replace('_', ' ')} can be had with plain votes only",
                where=", ".join(asked),
                got=f"{method.statistic}, {method.confidence}, {method.runner_up}",
                wanted="votes, clopper-pearson, complement",
                fix="leave it out, or the other statistic, confidence bound or runner-up",
            )
