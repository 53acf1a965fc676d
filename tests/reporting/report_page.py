"""Checks that a page stands alone: every tag closed, nothing loaded from elsewhere, nothing run."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "line", "rect"}


class Balance(HTMLParser):
    """Fails on a tag that is closed in the wrong place or never; keeps what a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.sections: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._look(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._look(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def _look(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.loads.append(str(value))
            assert not name.startswith("on"), name
            if tag == "section" and name == "id":
                self.sections.append(str(value))


def check_page(page: str) -> Balance:
    """A page that stands alone: balanced, nothing loaded from elsewhere, nothing run."""
    balance = Balance()
    balance.feed(page)
    balance.close()
    assert balance.open == []
    assert all(load.startswith(("data:image/png;base64,", "#")) for load in balance.loads), balance.loads
    assert not balance.tags & {"script", "link", "iframe", "object", "embed", "form"}
    assert "@import" not in page
    assert not re.search(r"https?://", page)
    assert not re.search(r"url\((?!#)", page)
    return balance
