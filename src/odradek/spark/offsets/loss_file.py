"""A file of the driver with the losses that the planner and the tasks go on after, one line of JSON each.

What these processes log may end up in a file that the user does not see, and that is removed with the run.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

OPTION = "lossesTo"
"""The option of ``format("odradek")`` with the name of the file."""


def append(file: str, loss: str) -> bool:
    """Appends a loss. Returns False if this machine does not have the file: workers of other machines have none."""
    with suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"{json.dumps(loss)}\n".encode())  # in one write: several processes append
        finally:
            os.close(descriptor)
        return True
    return False


def losses_in(file: Path) -> list[str]:
    """Returns the losses of the file. A line without its end is left out."""
    with file.open(encoding="utf-8") as lines:
        return [str(json.loads(line)) for line in lines if line.endswith("\n")]
