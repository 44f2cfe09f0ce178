"""Builds programs in other languages that use a broker, and exchanges lines with them.

A program prints one JSON object per line, with the name of its step. At the step "restart" it waits for a line on its
standard input; the test kills and restarts the broker before it sends this line.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.go_programs import build, cache_of

RUN_S = 150
Steps = dict[str, list[dict[str, Any]]]


def node_modules(sources: Path) -> Path:
    """The packages of ``package-lock.json``. Skips if there is no Node or npm, or if the packages are not available."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip(f"there is no {'node' if node is None else 'npm'} to run the {sources.name} program with")
    path = cache_of(sources, "package.json", "package-lock.json")
    if not path.exists():
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(sources / name, fresh)
        done = build([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], fresh, sources.name)
        if done.returncode != 0:
            shutil.rmtree(fresh)
            pytest.skip(f"the packages of {sources.name} are not available: {done.stderr.strip()[-300:]}")
        fresh.rename(path)
    return path / "node_modules"


def compiled(modules: Path, name: str) -> None:
    """Compiles a C++ package of ``modules`` for Node. Skips if the package cannot be compiled."""
    done = modules / name / "compiled"
    if not done.exists():
        built = build(["npm", "rebuild", name], modules.parent, name)
        if built.returncode != 0 or not any((modules / name / "build").glob("Release/*.node")):
            pytest.skip(f"the package {name} of Node cannot be compiled: {built.stderr.strip()[-300:]}")
        done.touch()


def converse(command: Sequence[str | Path], restart: Callable[[], None], **environment: str) -> Steps:
    """Runs a program to its end and returns its output, by step."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | environment,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    limit = threading.Timer(RUN_S, process.kill)
    limit.start()
    errors: list[str] = []
    reading = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
    reading.start()
    steps: Steps = {}
    try:
        for entry in _lines(process.stdout):
            steps.setdefault(entry.pop("step"), []).append(entry)
            if "restart" in steps and len(steps["restart"]) == 1 and not steps["restart"][0].get("done"):
                steps["restart"][0]["done"] = True
                restart()
                process.stdin.write("go on\n")
                process.stdin.flush()
        code = process.wait()
    finally:
        limit.cancel()
        process.kill()
        process.wait()
        reading.join()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
    assert code == 0, f"{steps}\n{''.join(errors)[-3000:]}"
    assert "done" in steps
    return steps


def _lines(output: Any) -> Iterator[dict[str, Any]]:
    for line in output:
        yield json.loads(line)


def codecs(directory: Path, topic: str, partition: int = 0) -> list[int]:
    """The codec of each batch in a partition's log: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
    found, at = [], 0
    data = (directory / "data" / f"{topic}-{partition}" / f"{0:020}.log").read_bytes()
    while at + 61 <= len(data) and (size := int.from_bytes(data[at + 8 : at + 12], "big")):
        found.append(int.from_bytes(data[at + 21 : at + 23], "big") & 7)
        at += 12 + size
    return found
