"""What the command line takes from its environment: variables, and the folder of the demo and the undo files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

BOOTSTRAP_SERVERS = "ODRADEK_BOOTSTRAP_SERVERS"
"""Addresses of brokers, in place of ``-b``."""
COMMAND_CONFIG = "ODRADEK_COMMAND_CONFIG"
"""A properties file, in place of ``--command-config``."""
LOG_LEVEL = "ODRADEK_LOG_LEVEL"
"""The log level of brokers: DEBUG, INFO, WARNING, ERROR or CRITICAL."""
COMPLETION = "_ODRADEK_COMPLETE"
"""Set by the scripts of ``--show-completion`` when a shell asks for words."""


def user_data_folder() -> Path:
    """Returns ``odradek`` in the system's folder for user data."""
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "odradek"
