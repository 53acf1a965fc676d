"""A few functions that make HTML: everything is escaped unless it was made here, and every tag is closed."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset({"meta", "img", "br", "line", "rect"})


class Markup(str):
    """Text that is HTML already; only this module makes it from other text."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """``value`` as text that shows itself and can do nothing else; markup passes through."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value), quote=True))


def trusted(markup: str) -> Markup:
    """Marks text of our own making (the style sheet, a drawn plot) as HTML; never call it with what a user controls."""
    return Markup(markup)


def join(parts: Iterable[object], separator: str = "") -> Markup:
    """The parts one after the other, each escaped where it is not markup."""
    return Markup(html.escape(separator).join(escaped(part) for part in parts))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """``<name attribute="...">children</name>``.

    ``class_`` stands for ``class`` and ``aria_label`` for ``aria-label``; an attribute that is None is left out.

    Guarantees
        Attribute values and children are escaped unless they are markup, so the result is balanced if its children are.
    """
    pairs = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None]
    opening = "".join(f' {key}="{html.escape(str(value), quote=True)}"' for key, value in pairs)
    if name in _VOID:
        return Markup(f"<{name}{opening}/>")
    return Markup(f"<{name}{opening}>{join(children)}</{name}>")


def listing(items: Iterable[object], class_: str | None = None) -> Markup:
    """An unordered list."""
    return element("ul", *(element("li", item) for item in items), class_=class_)


def definitions(pairs: Iterable[tuple[object, object]], class_: str | None = None) -> Markup:
    """A list of terms with what they mean; each pair is kept together so that it can be laid out as a row."""
    rows = (element("div", element("dt", term), element("dd", meaning)) for term, meaning in pairs)
    return element("dl", *rows, class_=class_)


def table(
    head: Iterable[object],
    rows: Iterable[Iterable[object]],
    caption: str | None = None,
    groups: Iterable[tuple[object, int]] = (),
) -> Markup:
    """A table whose first column names the rows; it scrolls by itself where the page is too narrow.

    ``groups`` names neighbouring columns together: what stands above them, and how many they are.
    """
    above = [element("th", name, colspan=width, scope="colgroup" if name else None) for name, width in groups]
    header = element(
        "thead",
        element("tr", *above, class_="groups") if above else Markup(),
        element("tr", *(element("th", cell, scope="col") for cell in head)),
    )
    body = element("tbody", *(_row(list(row)) for row in rows))
    title = element("caption", caption) if caption else Markup()
    return element("div", element("table", title, header, body), class_="scroll")


def two_lines(value: str, interval: str) -> Markup:
    """A cell of a table: the value, and its interval below."""
    return join([element("strong", value), element("br"), element("small", interval)])


def _row(cells: list[object]) -> Markup:
    first = element("th", cells[0], scope="row") if cells else Markup()
    return element("tr", first, *(element("td", cell) for cell in cells[1:]))
