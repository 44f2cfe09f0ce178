"""The user's folder for data of the commands: the demo, and the undo files."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_data_folder() -> Path:
    """Returns ``odradek`` in the system's folder for user data."""
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "odradek"
