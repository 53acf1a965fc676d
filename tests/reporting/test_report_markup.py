"""Text stays text: whatever a user writes shows itself and does nothing."""

from __future__ import annotations

import pytest

from twinproof.reporting.markup import Markup, definitions, element, escaped, join, listing, table, trusted

HOSTILE = "<script>alert('\"&')</script>"
HARMLESS = "&lt;script&gt;alert(&#x27;&quot;&amp;&#x27;)&lt;/script&gt;"


@pytest.mark.parametrize(
    "made",
    [
        element("p", HOSTILE),
        element("p", "", title=HOSTILE),
        listing([HOSTILE]),
        definitions([(HOSTILE, "x")]),
        definitions([("x", HOSTILE)]),
        table([HOSTILE], []),
        table(["a"], [[HOSTILE]]),
        table(["a", "b"], [["x", HOSTILE]]),
        table(["a"], [], caption=HOSTILE),
        join([HOSTILE]),
        join(["a", "b"], separator=HOSTILE),
        escaped(HOSTILE),
    ],
)
def test_everything_is_escaped(made: Markup) -> None:
    assert "<script" not in made
    assert HARMLESS in made


def test_markup_passes_through_once() -> None:
    assert element("p", element("b", "<")) == "<p><b>&lt;</b></p>"
    assert escaped(trusted("<hr>")) == "<hr>"


def test_attributes() -> None:
    made = element("div", class_="a", aria_label="b", title=None, width=3)
    assert made == '<div class="a" aria-label="b" width="3"></div>'


def test_void_elements_have_no_end() -> None:
    assert element("meta", charset="utf-8") == '<meta charset="utf-8"/>'
