"""The formats of records in files: the extension of the file's name, unless ``--format`` says otherwise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from odradek.cli.terminal import CommandError
from odradek.text.encodings import binary_format
from odradek.text.output_file import is_standard_output

FORMATS = ("lines", "json", "csv", "parquet")
METAVAR = "|".join(FORMATS)
_BY_EXTENSION = {
    ".txt": "lines", ".log": "lines", ".lines": "lines", ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".csv": "csv", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
# Files of other programs: their bytes as lines would be no records.
_FOREIGN = {
    ".avro", ".orc", ".arrow", ".feather", ".xlsx", ".xls", ".ods", ".zip", ".tar", ".tsv", ".zst", ".lz4", ".snappy",
    ".gz", ".bz2", ".xz", ".7z", ".pb", ".proto", ".xml", ".yaml", ".yml", ".sqlite", ".db", ".pkl",
}  # fmt: skip
_UNPACKED = {".gz": "gzip -dc", ".bz2": "bzip2 -dc", ".xz": "xz -dc", ".zst": "zstd -dc", ".lz4": "lz4 -dc"}
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]|[\x80-\xff]")
"""Bytes at the beginning of a binary file; the letters of a text are ASCII there."""
_SHEETS = {".xlsx", ".xls", ".ods"}


class Format(NamedTuple):
    """A format of records. ``is_chosen``: --format names it; otherwise it follows from the file's name."""

    name: str
    is_chosen: bool


def checked(form: str) -> str:
    """Returns the value of --format. Raises CommandError."""
    if form not in FORMATS:
        raise CommandError(f"--format {form!r}: one of {', '.join(FORMATS)}")
    return form


def format_of(path: Path | None, given: str | None, option: str, default: str) -> Format:
    """Returns the format of a file that ``option`` names. ``default``: of a name without an extension, and of None.

    Raises CommandError for an unknown format, and for an extension that names no format here.
    """
    if given is not None:
        return Format(checked(given), True)
    if path is None:
        return Format(default, False)
    extension = path.suffix.lower()
    if extension in _BY_EXTENSION:
        return Format(_BY_EXTENSION[extension], False)
    if extension == ".tsv" and option != "--output":
        raise CommandError(
            f"{option} {path}: .tsv is no format of records here: add --format csv, which finds the tabs in the header"
        )
    if option != "--output" and (unpack := _UNPACKED.get(extension)):
        inner = _BY_EXTENSION.get(path.with_suffix("").suffix.lower(), METAVAR)
        raise CommandError(
            f"{option} {path}: it is compressed: send what `{unpack} {path.name}` writes, without {option} and with "
            f"--format {inner}"
        )
    if option != "--output" and extension in _SHEETS:
        raise CommandError(
            f"{option} {path}: {extension} is a spreadsheet: save it as CSV in UTF-8, and send that file"
        )
    if extension in _FOREIGN or (option == "--output" and extension):
        raise CommandError(f"{option} {path}: {extension} is no format of records here: add --format {METAVAR}")
    return Format(default, False)


def is_stream(path: Path) -> bool:
    """Returns whether a file is stdout, a terminal, a device or a pipe: its reader wants text, as at stdout."""
    return is_standard_output(path) or (path.exists() and not path.is_file() and not path.is_dir())


def is_default(path: Path | None, given: str | None) -> bool:
    """Returns whether neither --format nor an extension says which format the file has."""
    return path is not None and given is None and not path.suffix


def foreign_content(head: bytes, form: Format) -> str | None:
    """Returns why a file that begins with these bytes does not have this format, with the remedy. Otherwise None.

    With --format lines, any bytes are records. With another --format, text such as ``ORC`` may be its beginning."""
    what = binary_format(head)
    if what is None or (form.is_chosen and (form.name == "lines" or not _CONTROL.search(head))):
        return None
    if not form.is_chosen:
        return f"it is {what}, not {form.name}: add --format {METAVAR}"
    remedy = "--format parquet reads it" if what == "Parquet" else f"give a file with {form.name}"
    return f"it is {what}, not {form.name}: {remedy}"


def check_parquet(path: Path) -> None:
    """Raises ValueError with a remedy for a file that does not begin as Parquet does, and OSError."""
    with path.open("rb") as file:
        head = file.read(4)
    if not head:
        raise ValueError("it is empty, and no Parquet: write the table again")
    if head not in (b"PAR1", b"PARE"):
        what = binary_format(head) or "text or another format"
        raise ValueError(f"it is {what}, not Parquet: give --format lines, json or csv, or a file with Parquet")
