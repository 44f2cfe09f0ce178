"""The fields of a form in the body of a request: ``application/x-www-form-urlencoded`` or ``multipart/form-data``."""

from __future__ import annotations

from collections.abc import Iterable
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from urllib.parse import parse_qsl

from odradek.monitor.choices import RequestRefused

_PLAIN, _PARTS = "application/x-www-form-urlencoded", "multipart/form-data"


class Form(dict[str, str]):
    """The fields of a form; of a field that came several times, the last value. ``several`` has all of them."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = list(pairs)
        super().__init__(self._pairs)

    def several(self, name: str) -> list[str]:
        return [value for one, value in self._pairs if one == name]


def form_fields(content_type: str, body: bytes) -> Form:
    """Returns the fields; a file is its text. A field without a name is left out. Raises RequestRefused."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _PLAIN:
        try:
            return Form(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=1_000))
        except ValueError as error:
            raise RequestRefused("form", f"form: {error}") from None
    if kind != _PARTS:
        raise RequestRefused("content-type", f"content-type: expected a form, not {kind!r}")
    head = f"content-type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    message = BytesParser(EmailMessage, policy=HTTP).parsebytes(head + body)
    if not message.is_multipart():
        raise RequestRefused("form", "form: its parts cannot be read")
    return Form(_fields_of(message))


def _fields_of(message: EmailMessage) -> Iterable[tuple[str, str]]:
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(payload, bytes):
            continue
        is_file = part.get_filename() is not None
        try:
            yield name, payload.decode("utf-8-sig" if is_file else "utf-8")
        except UnicodeDecodeError:
            raise RequestRefused(name, f"{name}: it is not text in UTF-8") from None
