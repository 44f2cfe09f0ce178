"""Runs a command, and kills it when standard input ends, because then the process at the other end has died.

Java programs cannot watch their parent. ``testing/zookeeper`` runs this file as a script, so it imports nothing but the
standard library. Arguments: a folder that is removed if the parent dies first (or "-"), then the command. The first
line of output is the command's process id; the exit code is the command's (128 + number for a signal).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading


def main(folder: str, command: list[str]) -> int:
    """Runs the command and returns its exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    orphaned = threading.Event()

    def watch() -> None:
        while os.read(0, 4096):
            continue
        orphaned.set()
        child.kill()

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    if orphaned.is_set() and folder != "-":
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(sys.argv[1], sys.argv[2:]))
