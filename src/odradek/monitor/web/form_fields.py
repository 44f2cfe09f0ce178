"""The fields of a form in the body of a request: ``application/x-www-form-urlencoded`` or ``multipart/form-data``."""

from __future__ import annotations

from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from urllib.parse import parse_qsl

from odradek.monitor.choices import RequestRefused

_PLAIN, _PARTS = "application/x-www-form-urlencoded", "multipart/form-data"


def form_fields(content_type: str, body: bytes) -> dict[str, str]:
    """Returns the fields; a file is its text. A field without a name is left out. Raises RequestRefused."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _PLAIN:
        try:
            pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=1_000)
        except ValueError as error:
            raise RequestRefused("form", f"form: {error}") from None
        return dict(pairs)
    if kind != _PARTS:
        raise RequestRefused("content-type", f"content-type: expected a form, not {kind!r}")
    head = f"content-type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    message = BytesParser(EmailMessage, policy=HTTP).parsebytes(head + body)
    if not message.is_multipart():
        raise RequestRefused("form", "form: its parts cannot be read")
    fields: dict[str, str] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(payload, bytes):
            continue
        is_file = part.get_filename() is not None
        try:
            fields[name] = payload.decode("utf-8-sig" if is_file else "utf-8")
        except UnicodeDecodeError:
            raise RequestRefused(name, f"{name}: it is not text in UTF-8") from None
    return fields
