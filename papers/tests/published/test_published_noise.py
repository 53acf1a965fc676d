"""The noise of the printed formulas, and r that nothing pays for."""

from __future__ import annotations

from typing import Any

from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source

from twinproof.recipes.config import parse_train_config
from twinproof.recipes.noise_layer import NoiseLayerConfig, settled_noise
from twinproof_papers.published.formulas import paper_classic_sigma, paper_extended_sigma
from twinproof_papers.published.variants import _DEVIATIONS

MNIST = (1, 28, 28)


def _settings(recipe: str, **noise: Any) -> dict[str, Any]:
    return {"data": {"source": "digits"}, "recipe": recipe} | ({"noise_layer": noise} if noise else {})


def _noise(recipe: str, **noise: Any) -> NoiseLayerConfig:
    config = parse_train_config(_settings(recipe, **noise)).noise_layer
    assert config is not None
    return config


def test_the_published_variant_uses_the_printed_formulas() -> None:
    classic = settled_noise(_noise("pixeldp", epsilon_r=0.5), MNIST, _DEVIATIONS)[1]
    assert classic == paper_classic_sigma(0.5, 0.05) * 0.1
    config = parse_train_config(_settings("pixeldp", epsilon_r=4.0) | {"variant": "published"})
    assert config.noise_layer is not None
    assert config.noise_layer.epsilon_r == 4.0, "beyond the theorem, as in the program"
    printed = settled_noise(_noise("hgm-pixeldp"), MNIST, _DEVIATIONS)[1]
    assert printed == paper_extended_sigma(4.0, 1e-5) * (0.1 / 28)
    assert printed < settled_noise(_noise("hgm-pixeldp"), MNIST)[1]
