"""Examples are chosen by the stated rule and shown from the test part alone."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image
from report_runs import LABELS, feature_data, image_data, make_certificates
from report_runs import each_plot_once as each_plot_once

from twinproof.reporting.examples import choose_examples, image_uri, in_user_units, misfit
from twinproof.runs.records import ABSTAIN, Certificate


def right(index: int, radius: float) -> Certificate:
    return Certificate(index, 0, 0, 900, 0, radius)


def test_the_rule() -> None:
    certificates = [right(index, 0.1 * index) for index in range(1, 10)]
    certificates += [
        Certificate(20, 0, 1, 900, 1, 0.3),
        Certificate(21, 0, 1, 900, 1, 0.8),
        Certificate(22, 0, ABSTAIN, 500, 1, 0.0),
    ]
    groups = {group.title: [member.index for member in group.certificates] for group in choose_examples(certificates)}
    assert groups == {
        "Largest radii": [9, 8],
        "Middle radii": [6, 5],
        "Smallest radii": [2, 1],
        "Wrong, largest radii": [21, 20],
        "Abstained": [22],
    }


def test_ties_go_to_the_earlier_record_and_order_does_not_matter() -> None:
    certificates = [right(index, 0.5) for index in range(9)]
    assert choose_examples(certificates) == choose_examples(certificates[::-1])
    assert [member.index for member in choose_examples(certificates)[0].certificates] == [0, 1]


@pytest.mark.parametrize("count", range(8))
def test_few_certificates_are_never_shown_twice(count: int) -> None:
    groups = choose_examples([right(index, 0.1 * index) for index in range(count)])
    indices = [member.index for group in groups for member in group.certificates]
    assert len(indices) == len(set(indices))
    assert len(indices) == min(count, 6)


def test_a_data_set_that_does_not_fit_is_named() -> None:
    data = image_data(LABELS)
    assert misfit(data, make_certificates(LABELS)) == ""
    assert "has no test record 60" in misfit(data, [right(60, 0.1)])
    assert "another label" in misfit(data, [Certificate(1, 0, 0, 900, 0, 0.1)])


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (2, "L")])
def test_images_keep_their_pixels(channels: int, mode: str) -> None:
    stored = np.random.default_rng(0).integers(0, 256, (channels, 5, 7)).astype(np.uint8)
    uri = image_uri(stored, 255)
    assert uri.startswith("data:image/png;base64,")
    picture = Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))
    assert picture.mode == mode
    pixels = np.asarray(picture)
    assert np.array_equal(pixels, stored.transpose(1, 2, 0) if channels == 3 else stored[0])


def test_sixteen_bit_images_are_scaled() -> None:
    uri = image_uri(np.array([[[0, 65535]]], np.uint16), 65535)
    assert np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))).tolist() == [[0, 255]]


def test_features_are_shown_in_the_units_of_the_user() -> None:
    data = feature_data(LABELS)
    wanted = data.test.inputs[3] / 65535 * 10
    assert in_user_units(data, data.test.inputs[3]) == pytest.approx(wanted.tolist())
