"""Builds programs in Go, and keeps what was built in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

BUILD_S = 300
# Without optimizations the first build, which compiles Go's standard library too, takes two thirds of the CPU time.
_FLAGS = ("-gcflags=all=-N -l", "-ldflags=-s -w")


def cache_of(sources: Path, *names: str) -> Path:
    """A path in the user's cache that depends on the contents of these files."""
    digest = hashlib.sha256()
    for name in names:
        digest.update((sources / name).read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odradek-interop"
    root.mkdir(parents=True, exist_ok=True)
    return root / f"{sources.name}-{digest.hexdigest()[:16]}"


def go_program(sources: Path) -> Path:
    """The built program. Skips if there is no Go, or if the program's Go modules are not available."""
    go = shutil.which("go")
    if go is None:
        pytest.skip(f"there is no go to build the {sources.name} program with")
    path = cache_of(sources, "go.mod", "go.sum", "main.go")
    # Go's cache has the standard library and the clients after the first build. Builds at the same time would each
    # compile all of that, which takes most of a minute of both cores.
    with path.with_name("go.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            fresh = path.with_name(f"{path.name}.{os.getpid()}")
            done = build([go, "build", *_FLAGS, "-o", str(fresh), "."], sources, sources.name)
            assert "main.go:" not in done.stderr, f"the program does not compile: {done.stderr}"
            if done.returncode != 0:
                pytest.skip(f"the {sources.name} program cannot be built: {done.stderr.strip()[-300:]}")
            fresh.rename(path)
    return path


def build(command: Sequence[str], directory: Path, name: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=BUILD_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the {name} program was not built within {BUILD_S} s")
