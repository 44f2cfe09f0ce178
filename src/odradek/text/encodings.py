"""Files that are not UTF-8: what they are, and the remedy."""

from __future__ import annotations

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path

from odradek.core.errors import ConfigError

UTF16 = "it is UTF-16: save it as UTF-8, for example with `iconv -f UTF-16 -t UTF-8`"
_SIGNATURES = {
    b"PAR1": "Parquet", b"Obj\x01": "Avro", b"\x1f\x8b": "gzip", b"PK\x03\x04": "a ZIP archive", b"ORC": "ORC",
    b"ARROW1": "Arrow", b"\x28\xb5\x2f\xfd": "Zstandard", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz",
}  # fmt: skip


def is_utf16(data: bytes) -> bool:
    """Returns whether a file's first bytes are UTF-16: its mark, or a null byte in each of the first characters."""
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return True
    head = data[:8]
    pairs = [bytes(head[at : at + 2]) for at in range(0, len(head) - 1, 2)]
    # One character of ASCII has a null byte beside it. A file of UTF-8 text has none at all.
    little, big = ([pair[at] for pair in pairs if pair[1 - at] == 0 and 0 < pair[at] < 128] for at in (0, 1))
    return len(pairs) > 1 and len(pairs) in (len(little), len(big))


def binary_format(head: bytes) -> str | None:
    """Returns which format of files begins with these bytes, if it is not text. Otherwise returns None."""
    return next((what for signature, what in _SIGNATURES.items() if head.startswith(signature)), None)


def encoding_problem(data: bytes) -> str:
    """Returns why bytes that are not valid UTF-8 are refused, with the remedy. ``data``: the start of the file."""
    if (what := binary_format(data)) is not None:
        return f"it is {what}, not text: give a text file in UTF-8"
    return UTF16 if is_utf16(data) else "it is not valid UTF-8: save it as UTF-8"


def text_of_file(path: Path, option: str = "") -> str:
    """Returns the text of a file in UTF-8. ``option``: what names the file. Raises ConfigError."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else encoding_problem(error.object)
        raise ConfigError(f"{option} {path}: {reason}".lstrip()) from None
