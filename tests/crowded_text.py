"""Text of a picture that cannot be read: outside of it, or over other text."""

from __future__ import annotations

from matplotlib.figure import Figure


def too_long(sheet: Figure) -> list[str]:
    """Titles and names of axes that leave the sheet or reach into another; of two that meet, both."""
    sheet.draw_without_rendering()
    texts = [text for axes in sheet.axes for text in (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label)]  # type: ignore[attr-defined]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    whole = sheet.bbox
    outside = [
        words for words, box in boxes if box.x0 < whole.x0 or box.x1 > whole.x1 or box.y0 < whole.y0 or box.y1 > whole.y1
    ]
    over = [words for words, box in boxes for _, other in boxes if box is not other and box.overlaps(other)]
    return outside + over
