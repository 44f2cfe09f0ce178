"""The formats of records in files: the extension of the file's name, unless ``--format`` says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from odradek.cli.terminal import CommandError
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
_SHEETS = {".xlsx", ".xls", ".ods"}
_SIGNATURES = {
    b"PAR1": "Parquet", b"Obj\x01": "Avro", b"\x1f\x8b": "gzip", b"PK\x03\x04": "a ZIP archive", b"ORC": "ORC",
    b"ARROW1": "Arrow", b"\x28\xb5\x2f\xfd": "Zstandard", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz",
}  # fmt: skip


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


def foreign_content(head: bytes) -> str | None:
    """Returns what a file is that begins with these bytes, if it is not text. Otherwise returns None."""
    return next((what for signature, what in _SIGNATURES.items() if head.startswith(signature)), None)
