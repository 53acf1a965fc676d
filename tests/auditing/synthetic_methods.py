"""Runs certified by every method, written from docs/formats/run.md: bounds by their formulas, norms by matrices."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from scipy import stats
from scipy.optimize import minimize_scalar
from torch import nn

from synthetic_run import (
    ALPHA,
    CLASSES,
    DRAWS,
    HEADER,
    LEVELS,
    SHAPE,
    canonical,
    forge_ledger,
    forge_run,
    forge_settings,
    sha256,
    write_run,
)
from twinproof.layers.networks import build_network
from twinproof.layers.noise import Law, Place
from twinproof.layers.noise_placement import NoiseForm, RedistributionKind, split_at_noise, with_noise
from twinproof.privacy.operator_norm import operator_norm
from twinproof.privacy.paper_formulas import paper_row_norm, paper_single_feature_map

INPUTS, SCORES = 10, 2**20
FIRST_LAYER_SIGMA, FIRST_LAYER_GRID, INPUT_SIGMA, INPUT_GRID = 2.0, 2.0**-9, 0.25, 0.0625
MORE = ["squares", "runner_up", "runner_up_squares"]
Sums = tuple[int, int, int, int]


@dataclass(frozen=True)
class Made:
    """How the certificates of a synthetic run are made."""

    law: str = "gaussian"
    place: str = "first-layer"
    norm: str = "l2"
    bound: str = "tight"
    statistic: str = "votes"
    confidence: str = "clopper-pearson"
    runner_up: str = "complement"
    model: str = "mlp"
    redistribution: str = "public"

    @property
    def resolution(self) -> int:
        return 1 if self.statistic == "votes" else SCORES

    @property
    def wide(self) -> bool:
        return (self.statistic, self.runner_up) != ("votes", "complement")

    @property
    def whitened(self) -> bool:
        """Whether what gets the noise is divided by its scales, and rounded to a grid in those units."""
        return self.place != "input"

    @property
    def own_noise(self) -> bool:
        return self.whitened or self.law == "laplace"


SOFT = Made(statistic="scores", confidence="empirical-bernstein", runner_up="union")
METHODS = [
    Made(),
    Made(norm="linf"),
    Made(norm="l1", model="small-cnn", redistribution="learned"),
    Made(norm="linf", model="small-cnn", redistribution="uniform"),
    Made(bound="hgm"),
    Made(bound="hgm-complement", redistribution="random"),
    Made(bound="pixeldp", norm="linf"),
    Made(bound="published", norm="linf"),
    Made(bound="published", norm="linf", model="small-cnn"),
    Made(law="laplace", norm="l1"),
    Made(law="laplace", norm="linf", bound="pixeldp", model="small-cnn"),
    Made(law="laplace", place="input", norm="l2", redistribution="uniform"),
    Made(law="laplace", place="input", norm="linf", redistribution="uniform"),
    Made(place="input", norm="linf"),
    Made(place="input", norm="l1", bound="hgm"),
    Made(place="unequal-input", norm="linf"),
    Made(place="unequal-input", redistribution="learned"),
    Made(place="unequal-input", norm="l1", bound="hgm", redistribution="random"),
    Made(place="unequal-input", norm="linf", bound="published"),
    Made(law="laplace", place="unequal-input", norm="l2"),
    Made(runner_up="union"),
    Made(runner_up="union", confidence="hoeffding", bound="pixeldp"),
    Made(confidence="hoeffding"),
    Made(confidence="empirical-bernstein"),
    Made(statistic="scores", confidence="hoeffding"),
    replace(SOFT, bound="hgm"),
    SOFT,
]


def network_of(made: Made) -> nn.Sequential:
    """A network with weights that are fixed, and scales that differ where they can."""
    torch.manual_seed(3)
    network = build_network(made.model, SHAPE, CLASSES)
    if not made.own_noise:
        assert isinstance(network, nn.Sequential)
        return network
    form = NoiseForm(
        Place(made.place.removeprefix("unequal-")), Law(made.law), RedistributionKind(made.redistribution), 0.1, 0.5
    )
    noisy = with_noise(network, SHAPE, form, sigma_of(made))
    state = noisy.state_dict()
    for name in ("noise.spread.scales", "noise.spread.log_shares"):
        if name in state:
            state[name].copy_(torch.linspace(0.5, 1.5, state[name].numel()))
    return noisy


def sigma_of(made: Made) -> float:
    return FIRST_LAYER_SIGMA if made.whitened else INPUT_SIGMA


@cache
def norm_of(made: Made) -> tuple[float, int]:
    """The operator norm by matrices where that is possible, and the number of coordinates that get noise."""
    target = 2 if made.law == "gaussian" else 1
    split = split_at_noise(network_of(made))
    if split is None or split.before is None:
        size = math.prod(SHAPE)
        shares = 1 / (np.ones(size) if split is None else split.noise.spread.least_scales())
        # The changes that may be the worst of their length: each coordinate alone, all of them equal, or like the shares.
        length = {"l1": 1, "l2": 2, "linf": np.inf}[made.norm]
        worst = [one / np.linalg.norm(one, ord=length) for one in (*np.eye(size), np.ones(size), shares)]
        return max(float(np.linalg.norm(shares * one, ord=target)) for one in worst), size
    scales = split.noise.spread.least_scales()
    shape = (math.prod(SHAPE),) if split.flattens else SHAPE
    if made.bound == "published":
        claim = paper_row_norm if split.flattens else paper_single_feature_map
        return claim(split.before, shape, scales), len(scales)
    if made.norm == "l1" or (made.norm, target) == ("l2", 2):
        plain = split.before.double()
        with torch.no_grad():
            outputs = plain(torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape))
            outputs = outputs - plain(torch.zeros((1, *shape), dtype=torch.float64))
        matrix = outputs.flatten(1).numpy().T / scales[:, None]
        columns = np.linalg.norm(matrix, ord=target, axis=0)
        found = float(columns.max()) if made.norm == "l1" else float(np.linalg.norm(matrix, ord=2))
        return found * (1 + 1e-9), len(scales)
    return operator_norm(split.before, shape, made.norm, f"l{target}", scales).value, len(scales)


def tau_of(made: Made) -> float:
    sigma, grid, levels = (FIRST_LAYER_SIGMA, FIRST_LAYER_GRID, 1) if made.whitened else (INPUT_SIGMA, INPUT_GRID, LEVELS)
    cells = 17 if made.law == "gaussian" else 72
    return norm_of(made)[1] * (cells * sigma * levels / grid * 2**-64 + 2**-49) + 2**-36


def slack_of(made: Made) -> float:
    size = norm_of(made)[1]
    steps = math.sqrt(size) if made.law == "gaussian" else size
    return FIRST_LAYER_GRID * steps * (1 + 1e-6) if made.whitened else 0.0


def confident(made: Made, total: int, squares: int, level: float, *, upper: bool) -> float:
    """A one-sided bound on an expected score, from its definition."""
    if made.confidence == "clopper-pearson":
        votes = DRAWS - total if upper else total
        low = float(stats.beta.ppf(level, votes, DRAWS - votes + 1)) if votes else 0.0
        return 1 - low if upper else low
    scores = np.array([total, squares], dtype=np.float64) / np.array([made.resolution, made.resolution**2], dtype=np.float64)
    mean, spread = scores[0] / DRAWS, max(0.0, (scores[1] - scores[0] ** 2 / DRAWS) / (DRAWS - 1))
    width = math.sqrt(math.log(1 / level) / (2 * DRAWS))
    if made.confidence == "empirical-bernstein":
        width = math.sqrt(2 * spread * math.log(2 / level) / DRAWS) + 7 * math.log(2 / level) / (3 * (DRAWS - 1))
    return float(min(1.0, mean + width) if upper else max(0.0, mean - width))


def reach(made: Made, low: float, high: float) -> float:
    """The bounds by their formulas; the best delta by a grid and a minimiser, with epsilon solved for."""
    if made.bound == "tight":
        if made.law == "gaussian":
            return float(stats.norm.ppf(low) - stats.norm.ppf(high)) / 2
        return max(math.log(low / high) / 2, -math.log(1 - low + high))
    if made.law == "laplace":
        return math.log(low / high) / 2

    def at(delta: float) -> float:
        if made.bound == "published":
            delta = 1e-5
        rest = low - delta
        epsilon = math.log(2 * rest / (delta + math.sqrt(delta * delta + 4 * high * rest))) if low - high > 2 * delta else 0.0
        if made.bound == "hgm-complement":
            epsilon = max(epsilon, math.log(max(1.0, (1 - 2 * delta) / (1 - low + high))))
        if made.bound == "pixeldp":
            return min(epsilon, 1.0) / math.sqrt(2 * math.log(1.25 / delta))
        s = math.log(math.sqrt(2 / math.pi) / delta)
        found = math.sqrt(2) * epsilon / (math.sqrt(s) + math.sqrt(s + epsilon))
        return found * epsilon if made.bound == "published" else found

    places = np.log((low - high) / 2) + np.linspace(-40, -1e-9, 400)
    best = places[int(np.argmax([at(math.exp(place)) for place in places]))]
    refined = minimize_scalar(
        lambda place: -at(math.exp(place)),
        bounds=(best - 0.2, min(best + 0.2, places[-1])),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return max(-float(refined.fun), at(math.exp(best)))


def answer(made: Made, sums: Sums) -> tuple[bool, float]:
    """Whether there is an answer, and its radius, rounded down."""
    level = ALPHA / CLASSES if made.runner_up == "union" else ALPHA
    bound = confident(made, sums[0], sums[1], level, upper=False)
    high = 1 - bound
    if made.runner_up == "union":
        high = min(high, confident(made, sums[2], sums[3], level, upper=True))
    low, high = bound - tau_of(made), high + tau_of(made)
    if low <= high:
        return False, 0.0
    exact = (sigma_of(made) * reach(made, low, high) - slack_of(made)) / norm_of(made)[0]
    return True, max(0.0, math.floor(exact * (1 - 1e-10) * 1e6) / 1e6)


def sums_of(made: Made) -> list[Sums]:
    """Sums of simulated draws, from sure to hopeless; the first is unanimous."""
    random_draws, found = np.random.default_rng(4), []
    for index in range(INPUTS):
        share = 1.0 if index == 0 else 1 - 0.55 * random_draws.random() ** 2
        if made.statistic == "votes":
            top = random_draws.random(DRAWS) < share
            other = ~top & (random_draws.random(DRAWS) < 0.7)
            scores, others = top.astype(np.int64), other.astype(np.int64)
        else:
            scores = np.floor(random_draws.beta(40 * share + 0.5, 40 * (1 - share) + 1e-3, DRAWS) * SCORES).astype(np.int64)
            others = np.floor((SCORES - scores) * 0.7).astype(np.int64)
        if made.runner_up == "complement":
            others = np.zeros_like(scores)
        found.append((int(scores.sum()), int((scores**2).sum()), int(others.sum()), int((others**2).sum())))
    return found


def largest_of(made: Made) -> float:
    unit = made.resolution
    return answer(made, (DRAWS * unit, DRAWS * unit**2, 0, 0))[1]


def rows_of(made: Made) -> list[list[str]]:
    rows = []
    for index, sums in enumerate(sums_of(made)):
        answers, size = answer(made, sums)
        prediction, label = (index % CLASSES if answers else -1), index % CLASSES
        cells = [index, label, prediction, sums[0], index % CLASSES, f"{size:.6f}", int(prediction == label), DRAWS]
        rows.append([str(cell) for cell in (*cells, *(sums[1:] if made.wide else ()))])
    return rows


def settings_of(made: Made) -> dict[str, Any]:
    return {
        "norm": made.norm,
        "sigma": sigma_of(made),
        "grid": FIRST_LAYER_GRID if made.whitened else INPUT_GRID,
        "dimension": norm_of(made)[1],
        "tau": tau_of(made),
        "largest_radius": largest_of(made),
        "inputs": INPUTS,
        "law": made.law,
        "place": made.place,
        "bound": made.bound,
        "statistic": made.statistic,
        "confidence": made.confidence,
        "runner_up": made.runner_up,
        "classes": CLASSES,
        "resolution": made.resolution,
        "operator_norm": norm_of(made)[0],
        "operator_norm_method": "by hand",
        "slack": slack_of(made),
    }


def noise_layer(made: Made) -> dict[str, Any]:
    return {
        "place": made.place.removeprefix("unequal-"),
        "law": made.law,
        "norm": made.norm,
        "redistribution": made.redistribution,
        "floor": 0.1,
        "width": 0.5,
        "r_noise_multiplier": 20.0,
    }


def reconfigure(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Another config, with the digest in the ledger put right."""

    def apply(root: Path) -> None:
        forge_run(lambda run: change(run["config"]))(root)
        config = json.loads((root / "run.json").read_text())["config"]
        forge_ledger(lambda story: story[0][1].update(config_sha256=sha256(canonical(config).encode())))(root)

    return apply


def put_weights(root: Path, network: nn.Module) -> None:
    """The weights of ``network``, with every digest put right."""
    (root / "model.safetensors").write_bytes(save(dict(network.state_dict())))
    digest = sha256((root / "model.safetensors").read_bytes())
    forge_ledger(lambda story: story[-1][1].update(model_sha256=digest))(root)
    forge_settings(lambda settings: settings.update(model_sha256=digest))(root)


def write_made(root: Path, made: Made) -> None:
    """An honest run whose certificates are made as ``made`` says."""
    write_run(root)
    put_weights(root, network_of(made))
    layer = noise_layer(made) if made.own_noise else None
    reconfigure(lambda config: config.update(model=made.model, width=1, sigma=1.0, noise_layer=layer, variant="sound"))(root)
    header = [*HEADER, *(MORE if made.wide else [])]
    (root / "certificates.csv").write_text("".join(",".join(row) + "\n" for row in [header, *rows_of(made)]))
    forge_settings(lambda settings: settings.update(settings_of(made)))(root)
    status = "refuted" if made.bound == "published" else "proven"
    forge_run(lambda run: run["guarantees"]["robustness"].update(status=status, values={"bound": made.bound}))(root)
