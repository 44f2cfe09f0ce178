"""A check that the operating system supports a part of Odradek."""

from __future__ import annotations

import sys

from odradek.core.errors import OdradekError


class UnsupportedSystem(OdradekError):
    """This part of Odradek does not run on this operating system. The message names the remedy."""


def require_posix(part: str) -> None:
    """Raises UnsupportedSystem on Windows. ``part`` begins the message: "the broker"."""
    if sys.platform == "win32":
        raise UnsupportedSystem(
            f"{part} does not run on Windows: run it on Linux, on macOS or in WSL, and connect to it from here"
            " (the client and the tools run on Windows)"
        )
