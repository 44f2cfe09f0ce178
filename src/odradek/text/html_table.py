"""Tables in HTML, which notebooks show in place of a ``repr``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from odradek.text.printable import printable

_LONGEST_TEXT = 80


def html_table(caption: str, names: Sequence[str], rows: Iterable[Sequence[object]], more: int = 0) -> str:
    """Returns a table. Texts are escaped and cut after 80 characters; bytes appear as UTF-8, or as hex if they are not.

    ``more``: the number of further rows, which the last row then names."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    if more > 0:
        body += f'<tr><td colspan="{len(names)}">… and {more:,} more</td></tr>'
    top = f"<caption>{escape(printable(caption))}</caption><thead><tr>{head}</tr></thead>"
    return f"<table>{top}<tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if value is None:
        return "<td>-</td>"
    if isinstance(value, int):
        return f'<td style="text-align:right">{value}</td>'
    text = _text(value)
    short = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
    return f'<td style="text-align:left">{escape(short)}</td>'


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        return printable(str(value))
    # Four bytes are the longest character: the cut decides nothing about the shown part.
    start = value[: 4 * _LONGEST_TEXT + 4]
    try:
        return printable(start.decode() if len(start) == len(value) else start.decode("utf-8", "ignore"))
    except UnicodeDecodeError:
        return f"0x{start.hex()}"
