"""The fields of forms: both kinds of bodies, files, and bodies that are none."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("jinja2", reason="the extra ui is not installed")

from odradek.monitor.choices import RequestRefused
from odradek.monitor.web.form_fields import form_fields

BOUNDARY = "----WebKitFormBoundaryabc"


def multipart(*parts: tuple[str, bytes]) -> bytes:
    body = b""
    for head, content in parts:
        body += f"--{BOUNDARY}\r\ncontent-disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


@pytest.mark.parametrize("text", ["orders,0,1\n", "orders,0,1\r\n\r\n", "", "é🙂\x00\n\n", "a\rb"])
def test_a_file_is_its_text(text: str) -> None:
    body = multipart(
        ('name="target"', b"from-file"),
        ('name="file"; filename="a.csv"\r\ncontent-type: text/csv', text.encode()),
        ('name="csv"', b"x\r\ny"),
    )
    fields = form_fields(f"multipart/form-data; boundary={BOUNDARY}", body)
    assert fields == {"target": "from-file", "file": text, "csv": "x\r\ny"}


def test_fields_in_one_line() -> None:
    fields = form_fields("application/x-www-form-urlencoded; charset=utf-8", b"confirm=a%2Fb+%F0%9F%99%82&empty=")
    assert fields == {"confirm": "a/b 🙂", "empty": ""}


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        ("text/plain", b"a=1", "content-type"),
        ("", b"", "content-type"),
        ("multipart/form-data", b"nonsense", "form"),
        (f"multipart/form-data; boundary={BOUNDARY}", multipart(('name="file"; filename="a"', b"\xff\xfe")), "file"),
        ("application/x-www-form-urlencoded", b"&".join(b"a=1" for _ in range(1_001)), "form"),
    ],
)
def test_what_is_no_form_is_refused(kind: str, body: bytes, field: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        form_fields(kind, body)
    assert caught.value.field == field
