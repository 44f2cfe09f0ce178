"""Whole rows of CSV from an input that arrives in pieces, and the delimiter of its cells.

A program that uses a comma in numbers separates cells with semicolons or tabs. The header shows the delimiter.
"""

from __future__ import annotations

import io
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import cache
from typing import BinaryIO, NamedTuple

from odradek.cli.terminal import CommandError

PIECE_BYTES = 256 << 10
LONGEST_ROW = 16 << 20
"""The longest row of CSV. Without a limit, an unclosed quote would read the rest of the input as one cell."""
_OTHERS = b";\t|"
_NAMES = {"tab": "\t", "\\t": "\t"}
_ANY_QUOTED = re.compile(rb'"(?:[^"]++|"")*+"')
_FIRST_LINE = re.compile(rb'[\r\n]*+((?:"(?:[^"]++|"")*+"|[^"\r\n])*+)(?:\n|\r\n|\r(?=[^\n]))')
_NAMED = re.compile(rb'"?sep=([\t -~])"?', re.IGNORECASE)
"""The line before the header in which Excel writes, and reads, the delimiter."""
_IN_QUOTES = re.compile(rb'(?:[^"]++|"")*+')


class Dialect(NamedTuple):
    """The patterns for one delimiter. A quote counts only at the start of a cell, as in pyarrow, which parses cells.

    The quantifiers are possessive, so that nothing backtracks.
    """

    delimiter: str
    row: re.Pattern[bytes]
    rows: re.Pattern[bytes]
    cells: re.Pattern[bytes]
    in_text: re.Pattern[bytes]
    in_quotes: re.Pattern[bytes] = _IN_QUOTES

    def line_of(self, rows: bytes, number: int, line: int) -> int:
        """Returns the line in which row ``number`` begins, without empty rows. The first row begins in ``line``."""
        at = 0
        while (row := self.row.match(rows, at)) is not None:
            if row[0].strip(b"\r\n"):
                if not number:
                    break
                number -= 1
            at = row.end()
        return line + line_ends(rows[:at])


@cache
def dialect(delimiter: str) -> Dialect:
    """Returns the patterns for a delimiter."""
    between = re.escape(delimiter.encode())
    text = rb"[^" + between + rb"\r\n]*+"
    cell = rb'(?:"' + _IN_QUOTES.pattern + rb'"' + text + rb'|(?!")' + text + rb")"
    # A carriage return at the end of the data does not end a row yet: a line feed may follow.
    row = cell + rb"(?:" + between + cell + rb")*+(?:\n|\r\n|\r(?=[^\n]))"
    return Dialect(
        delimiter,
        re.compile(row),
        re.compile(rb"(?:" + row + rb")*+"),
        re.compile(rb"(?:" + cell + between + rb")*+"),
        re.compile(text),
    )


def given_delimiter(text: str | None) -> str | None:
    """Returns the value of --delimiter. Raises CommandError."""
    if text is None:
        return None
    delimiter = _NAMES.get(text, text)
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise CommandError(f"--delimiter {text!r}: expected one character, such as ';', or tab")
    return delimiter


def delimiter_of(head: bytes) -> str:
    """Returns the delimiter of a header: the comma, or another one if the header has no comma outside of quotes.

    Raises ValueError for a header with several others.
    """
    if (named := named_delimiter(head)) is not None:
        return named
    plain = _ANY_QUOTED.sub(b"", head)
    others = [chr(one) for one in _OTHERS if one in plain]
    if b"," in plain or not others:
        return ","
    if len(others) > 1:
        shown = " and ".join(map(shown_delimiter, others))
        raise ValueError(f"the header has {shown}: name the one between cells with --delimiter")
    return others[0]


def named_delimiter(line: bytes) -> str | None:
    """Returns the delimiter that Excel's line ``sep=;`` names; None for any other line."""
    match = _NAMED.fullmatch(line)
    return match[1].decode("latin-1") if match is not None else None


def shown_delimiter(delimiter: str) -> str:
    """Returns a delimiter as --delimiter accepts it in a shell."""
    return "tab" if delimiter == "\t" else f"'{delimiter}'"


def line_ends(text: bytes | bytearray) -> int:
    """Returns the number of line ends; a carriage return with a line feed is one."""
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


def whole_rows(
    source: BinaryIO | io.BufferedIOBase, delimiter: str | None = None, longest_row: int = LONGEST_ROW
) -> Iterator[tuple[Dialect, int, bytes]]:
    """Yields the input in parts of whole rows, each with the number of its first line.

    A line feed in quotes does not end a row. ``delimiter`` None: that of the header. Raises ValueError.
    """
    line, rest = 1, bytearray()
    scanner = RowScanner(dialect(delimiter)) if delimiter else None
    while piece := source.read1(PIECE_BYTES):  # type: ignore[union-attr]  # files of bytes have it
        rest += piece
        if scanner is None:
            if (first := _first_line(rest)) is None and len(rest) <= longest_row:
                continue
            scanner = RowScanner(dialect("," if first is None else delimiter_of(first)))
        if cut := scanner.move(rest):
            rows = bytes(rest[:cut])
            del rest[:cut]
            yield scanner.dialect, line, rows
            line += line_ends(rows)
        if len(rest) > longest_row:
            message = f"a row is longer than {longest_row >> 20} MiB"
            raise ValueError(f"line {line}: {message}: is there an unclosed quote?")
    if scanner is None:
        first = _first_line(rest + b"\n")
        scanner = RowScanner(dialect("," if first is None else delimiter_of(first)))
        if cut := scanner.move(rest):
            yield scanner.dialect, line, bytes(rest[:cut])
            line += line_ends(rest[:cut])
            del rest[:cut]
    if scanner.is_in_quotes(len(rest)):
        raise ValueError(f"line {line}: the input ends inside quotes: is there an unclosed quote?")
    if rest:
        yield scanner.dialect, line, bytes(rest)


def _first_line(data: bytearray) -> bytes | None:
    """Returns the first line that is not empty, as soon as it has an end."""
    at = len(BOM_UTF8) if data.startswith(BOM_UTF8) else 0
    match = _FIRST_LINE.match(data, at)
    return bytes(match[1]) if match is not None else None


class RowScanner:
    """The position up to which rows are scanned. A row in many parts is scanned only once."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._between = ord(dialect.delimiter)
        self.at = 0
        self.inside: re.Pattern[bytes] | None = None
        """The pattern for the rest of the current cell; None at the start of a cell."""

    def is_in_quotes(self, size: int) -> bool:
        """Returns whether the data, of this size, ends in a quoted cell."""
        return self.inside is self.dialect.in_quotes and self.at == size

    def move(self, data: bytearray) -> int:
        """Scans to the end of ``data``. Returns the end of its last complete row, or 0.

        The next call gets the data after that row.
        """
        form, cut = self.dialect, 0
        while True:
            if self.inside is None:
                if rows := form.rows.match(data, self.at):
                    cut = max(cut, rows.end() if rows.end() > self.at else 0)
                    self.at = rows.end()
                if cells := form.cells.match(data, self.at):
                    self.at = cells.end()
                if self.at == len(data):
                    break
                quoted = data[self.at] == ord('"')
                self.inside = form.in_quotes if quoted else form.in_text
                self.at += quoted
            if more := self.inside.match(data, self.at):
                self.at = more.end()
            # The last byte alone is ambiguous: half of a doubled quote, or of a line end.
            if self.at == len(data) or (self.at + 1 == len(data) and data[self.at] in b'"\r'):
                break
            if self.inside is form.in_quotes:
                self.inside = form.in_text
                self.at += 1
                continue
            self.inside = None
            ended = data[self.at] != self._between
            self.at += 2 if data[self.at : self.at + 2] == b"\r\n" else 1
            cut = self.at if ended else cut
        self.at -= cut
        return cut
