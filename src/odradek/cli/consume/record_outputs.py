"""The destinations of ``odradek consume``: lines, JSON lines, CSV or Parquet, to standard output or to a file."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TextIO, TypeVar

from odradek.batches.columns import COLUMNS
from odradek.batches.row_sets import RowBatch
from odradek.cli.progress_lines import progress_lines
from odradek.cli.records.record_csv import HEADER, NotText, csv_lines
from odradek.cli.records.record_lines import (
    JSON_COLUMNS,
    VALUE_COLUMNS,
    Batch,
    json_lines,
    printable_json_lines,
    printable_value_lines,
    value_lines,
    with_null_times,
)
from odradek.cli.records.schema_values import decoded
from odradek.cli.terminal import EXIT_FAILED, CommandError, note, progress, warning_lines, writing_out
from odradek.core.counts import counted
from odradek.text.output_file import PositionedStream, is_standard_output, output_file, problem_of
from odradek.text.printable import printable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from odradek.registry.values import RegistryDecoder

T = TypeVar("T")
_NAMES = {"parquet": "Parquet", "json": "JSON lines", "csv": "CSV"}
_LINES: dict[str, Callable[..., bytes]] = {"lines": value_lines, "json": json_lines, "csv": csv_lines}


class Destination(NamedTuple):
    """Where the records of ``topic`` go. ``path`` None: standard output. ``form``: one of ``formats.FORMATS``.

    ``grows``: the file is written at once and grows; otherwise it replaces an old file when it is complete.
    ``names_form``: the message about the written file names the format, because nothing in the command line does.
    ``decoder``: of values with schema ids; None for values as they are.
    """

    topic: str
    path: Path | None
    form: str
    grows: bool = False
    names_form: bool = False
    decoder: RegistryDecoder | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read: only those that are written."""
        chosen = {"lines": VALUE_COLUMNS, "parquet": COLUMNS}.get(self.form, JSON_COLUMNS)
        # An error of the decoder names the record.
        return chosen if self.decoder is None else tuple(dict.fromkeys(("topic", "partition", *chosen)))

    def lines(self, makers: Mapping[str, Callable[..., T]]) -> Callable[[Batch], T]:
        """The function that makes lines of this format: one of ``makers``."""
        made = makers[self.form]
        return made if self.decoder is None or self.form != "json" else partial(made, are_json=True)


class Sink(Protocol):
    """A destination of records. If ``written`` returns True, the records survive a kill."""

    def write(self, batch: Batch) -> None: ...
    def written(self) -> bool:
        """Returns whether all records passed to ``write`` are written. A file that is not complete returns False."""


def write_to(sink: Sink, batch: Batch) -> None:
    """Writes a batch. Raises NotText for a record that CSV cannot hold, when the records before it are written."""
    try:
        sink.write(batch)
    except NotText as refused:
        if refused.row:
            sink.write(batch.slice(0, refused.row))
        raise


class _DecodedSink:
    """Decodes values before they are written."""

    def __init__(self, sink: Sink, decoder: RegistryDecoder) -> None:
        self._sink, self._decoder = sink, decoder

    def write(self, batch: Batch) -> None:
        self._sink.write(decoded(batch, self._decoder))

    def written(self) -> bool:
        return self._sink.written()


@contextmanager
def open_sink(to: Destination, total: int, text: Callable[[int], str]) -> Iterator[Sink]:
    """Opens the destination, as ``_open``. With a decoder, a write raises Undecoded, a NotText."""
    with _open(to, total, text) as sink:
        yield sink if to.decoder is None else _DecodedSink(sink, to.decoder)


@contextmanager
def _open(to: Destination, total: int, text: Callable[[int], str]) -> Iterator[Sink]:
    """Opens the destination. ``total``: the expected number of records, for the progress bar; 0 if it is unknown.

    ``text``: the line on stderr if nothing shows the progress, of the number of written records. It comes after a
    second. Raises CommandError."""
    if to.path is None:
        with _standard_output(to, text) as sink:
            yield sink
        return
    own = parquet_writer("--output") if to.form == "parquet" else None
    is_special = not to.path.is_file() and to.path.exists()
    file: _FileSink | None = None

    def line() -> str:
        return text(file.count if file is not None else 0)

    try:
        with _stream(to) as stream, progress("Reading", total, "records", line) as advance:
            shown = None if own is not None else _escaped(to) if stream.isatty() else to.lines(_LINES)
            file = _FileSink(stream, shown, advance)
            if own is not None:
                with own(PositionedStream(stream)) as writer:
                    file.use(writer)
                    yield file
            else:
                file.begin(HEADER if to.form == "csv" else b"")
                yield file
    except KeyboardInterrupt:
        if not (to.grows or is_special):
            warning_lines(f"Interrupted: {to.path} is not written.")
        raise
    except BrokenPipeError:
        raise CommandError(f"--output {to.path}: its reader has ended", EXIT_FAILED) from None
    except OSError as error:
        is_wrong_path = isinstance(error, FileNotFoundError | NotADirectoryError)
        code = {} if is_wrong_path or isinstance(error, PermissionError | IsADirectoryError) else {"exit_code": 1}
        reason = problem_of(to.path) if is_wrong_path else None
        raise CommandError(f"--output {to.path}: {reason or error.strerror or error}", **code) from error
    form = f" as {_NAMES.get(to.form, to.form)}" if to.names_form else ""
    message = f"{counted(file.count, 'record')} of {to.topic} written to {to.path}{form}."
    (warning_lines if is_standard_output(to.path) else note)(message)


@contextmanager
def _stream(to: Destination) -> Iterator[BinaryIO]:
    assert to.path is not None
    if to.grows and to.path.is_file():
        with to.path.open("wb") as stream:
            yield stream
        return
    with output_file(to.path) as stream:
        yield stream


@contextmanager
def _standard_output(to: Destination, text: Callable[[int], str]) -> Iterator[Sink]:
    head = HEADER if to.form == "csv" else b""
    sink: _TerminalLines | _Lines
    sink = (
        _TerminalLines(to.lines(_PRINTABLE), head.decode()) if sys.stdout.isatty() else _Lines(to.lines(_LINES), head)
    )
    # On a terminal and in a pipe, lines show by themselves that the command works.
    is_hidden = _is_regular(sys.stdout)
    with progress_lines(lambda: text(sink.count) if is_hidden or not sink.count else None):
        yield sink


def _is_regular(stream: TextIO) -> bool:
    """Returns whether a stream is a regular file."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _escaped(to: Destination) -> Callable[[Batch], bytes]:
    """Returns the function that makes lines for a terminal that is not standard output."""
    lines = to.lines(_PRINTABLE)
    return lambda batch: lines(batch).encode()


def _printable_csv_lines(batch: Batch) -> str:
    return "".join(f"{printable(line)}\n" for line in csv_lines(batch).decode().split("\n")[:-1])


_PRINTABLE: dict[str, Callable[..., str]] = {
    "json": printable_json_lines,
    "lines": printable_value_lines,
    "csv": _printable_csv_lines,
}


def parquet_writer(what: str) -> Callable[[PositionedStream], pq.ParquetWriter]:
    """Returns the function that makes a writer of Parquet for a stream. Raises ColumnsMissing."""
    from odradek.batches.row_sets import needs_columns

    with needs_columns(what):
        import pyarrow.parquet as pq

        from odradek.batches.columns.arrow_columns import schema

    return lambda stream: pq.ParquetWriter(stream, schema(COLUMNS))


class _Lines:
    """Writes a line for each record to standard output, with unchanged bytes.

    Flushes each batch, so that a reader sees the lines at once, and the command notices a closed pipe."""

    def __init__(self, lines: Callable[[Batch], bytes], head: bytes) -> None:
        self._lines, self._head = lines, head
        self.count = 0

    def write(self, batch: Batch) -> None:
        lines, self._head = self._head + self._lines(batch), b""
        self.count += batch.num_rows
        with writing_out():
            left = memoryview(lines)
            while left:  # unbuffered: if the reader ends, a write is partial, and the next one fails
                left = left[sys.stdout.buffer.write(left) :]
            sys.stdout.flush()

    def written(self) -> bool:
        return True


class _TerminalLines:
    """Writes lines to a terminal, with escapes: control characters in records must not act on the terminal."""

    def __init__(self, lines: Callable[[Batch], str], head: str) -> None:
        self._lines, self._head = lines, head
        self.count = 0

    def write(self, batch: Batch) -> None:
        lines, self._head = self._head + self._lines(batch), ""
        self.count += batch.num_rows
        with writing_out():
            sys.stdout.write(lines)
            sys.stdout.flush()

    def written(self) -> bool:
        return True


class _FileSink:
    """Writes records to a file. ``lines`` None: with a writer of Parquet."""

    def __init__(
        self, stream: BinaryIO, lines: Callable[[Batch], bytes] | None, advance: Callable[[int], None]
    ) -> None:
        self._stream, self._lines, self._advance = stream, lines, advance
        self._parquet: Any = None
        self.count = 0

    def use(self, writer: object) -> None:
        """Sets the writer of Parquet."""
        self._parquet = writer

    def begin(self, head: bytes) -> None:
        """Writes the first line."""
        self._stream.write(head)
        self._stream.flush()

    def write(self, batch: Batch) -> None:
        if self._lines is None:
            table: pa.RecordBatch = batch.refuse("--format parquet") if isinstance(batch, RowBatch) else batch
            self._parquet.write_batch(with_null_times(table))
        else:
            self._stream.write(self._lines(batch))
            self._stream.flush()
        self.count += batch.num_rows
        self._advance(batch.num_rows)

    def written(self) -> bool:
        return False  # a Parquet file is not readable before its footer, another file is not in its place yet
