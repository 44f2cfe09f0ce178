"""The pictures of the monitor's pages in docs/monitor.md. ``PYTHONPATH=tests python -m support.page_pictures`` writes
them.

A browser draws the same page a little differently on each machine. So a picture has a digest of its page, and the test
compares this digest with that of the page as it is now.
"""

from __future__ import annotations

import re
import shutil
import struct
import urllib.request
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

from support.monitor_view import pictured_view, served

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = {"monitor-groups.png": "/", "monitor-group.png": "/group?name=reset"}
_HEIGHTS = {"monitor-groups.png": 560, "monitor-group.png": 960}
_SIGNATURE, _KEYWORD = b"\x89PNG\r\n\x1a\n", b"page\0"


def page_digest(url: str, path: str) -> str:
    """Returns a digest of a page, without the digests of its styles and scripts."""
    with urllib.request.urlopen(url + path, timeout=20) as reply:
        return sha256(re.sub(rb"\?v=[0-9a-f]+", b"", reply.read())).hexdigest()


def digest_in(picture: bytes) -> str:
    """Returns the digest in a picture; "" if it has none."""
    at = len(_SIGNATURE)
    while at < len(picture):
        size, kind = struct.unpack_from(">I4s", picture, at)
        content = picture[at + 8 : at + 8 + size]
        if kind == b"tEXt" and content.startswith(_KEYWORD):
            return content.removeprefix(_KEYWORD).decode()
        at += size + 12
    return ""


def _with_digest(picture: bytes, digest: str) -> bytes:
    content = _KEYWORD + digest.encode()
    chunk = struct.pack(">I", len(content)) + b"tEXt" + content + struct.pack(">I", zlib.crc32(b"tEXt" + content))
    return picture[:-12] + chunk + picture[-12:]  # before the last chunk, which has no content


def write() -> None:
    from playwright.sync_api import sync_playwright

    with served(pictured_view()) as url, sync_playwright() as playwright:
        command = shutil.which("chromium")
        found: Any = {"executable_path": command} if command else {}
        browser = playwright.chromium.launch(args=["--no-sandbox"], **found)
        for name, path in PICTURES.items():
            page = browser.new_page(viewport={"width": 1280, "height": _HEIGHTS[name]})
            page.goto(url + path)
            page.wait_for_load_state("networkidle")
            (DOCS / name).write_bytes(_with_digest(page.screenshot(), page_digest(url, path)))
        browser.close()


if __name__ == "__main__":
    write()
