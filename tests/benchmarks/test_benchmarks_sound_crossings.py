"""Sound certificates are not called crossed, whatever share of them lies at the edge; radii that are too long are."""

from __future__ import annotations

import json

import benchmarks_path
import pytest

from sound_crossings import SETTINGS, Setting, alarms, by_covered

RESULTS = benchmarks_path.BENCHMARKS.parent / "results" / "sound-crossings.json"
NAMED = {setting.name: setting for setting in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS, ids=NAMED)
def test_sound_certificates_are_not_called_crossed(setting: Setting) -> None:
    assert alarms(setting, 8) == 0


@pytest.mark.parametrize("name", ["few votes, many inputs", "loose alpha", "very loose alpha"])
def test_planted_count_over_covered_inputs_calls_sound_certificates_crossed(name: str) -> None:
    assert alarms(NAMED[name], 4, by_covered) >= 3


@pytest.mark.parametrize("name", ["few votes, many inputs", "as attack does by default", "half at the edge", "loose alpha"])
def test_radii_half_as_long_again_are_called_crossed(name: str) -> None:
    assert alarms(NAMED[name], 4, longer=1.5) == 4


def test_the_kept_results_are_of_these_settings_and_show_no_false_alarm() -> None:
    kept = json.loads(RESULTS.read_text())
    assert [row["name"] for row in kept["rows"]] == list(NAMED)
    assert kept["runs"] >= 20_000
    assert kept["false_alarms"] == 0
    assert max(row["false_alarms_by_covered"] for row in kept["rows"]) > 0.9
