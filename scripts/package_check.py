"""Builds the wheel and the sdist, and uses them as a new user would: in empty environments, outside the repository.

    python scripts/package_check.py [--unit]

The wheel's base install: its size and number of packages, the command, the README's program, the pytest fixtures in
two processes. The sdist has the tests; ``--unit`` runs its unit tests. Ends with exit code 1 at the first failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_MB = 60
"""Limit of the base install without bytecode, pip and setuptools."""
MOST_PACKAGES = 20
NOT_OURS = {"pip", "setuptools", "wheel"}

PROGRAM = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
"""The first program of the README, which needs the base install alone."""
PRINTS = "100 orders; 100 committed"
TESTS = """
import odradek
import pytest


@pytest.mark.parametrize("number", range(4))
def test_a_topic_of_its_own(odradek_broker, odradek_topic, number):
    with odradek.Producer(odradek_broker.bootstrap_servers) as producer:
        producer.send(odradek_topic, b"1")
    settings = {"group_id": odradek_topic, "auto_offset_reset": "earliest"}
    with odradek.Consumer(odradek_broker.bootstrap_servers, **settings) as one:
        one.subscribe([odradek_topic])
        assert [record.value for record in one.poll(20.0).records()] == [b"1"]
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Runs a command outside the repository and returns its output. Prints it and ends the script if it fails."""
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(place: Path) -> Path:
    """Makes an empty environment; returns its Python."""
    run(sys.executable, "-m", "venv", place, cwd=place.parent)
    return place / "bin" / "python"


def install(python: Path, *requirements: str | Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        run(uv, "pip", "install", "--quiet", "--python", python, *requirements, cwd=python.parent)
    else:
        run(python, "-m", "pip", "install", "--quiet", *requirements, cwd=python.parent)


def check_base(python: Path, work: Path) -> None:
    names = run(python, "-m", "pip", "list", "--format=freeze", cwd=work).splitlines()
    packages = sorted(name for name in (line.partition("==")[0] for line in names) if name not in NOT_OURS)
    site = Path(run(python, "-c", "import odradek; print(odradek.__path__[0])", cwd=work).strip()).parent
    files = [path for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    size = sum(path.stat().st_size for path in files if path.relative_to(site).parts[0].split("-")[0] not in NOT_OURS)
    print(f"base install: {size / 2**20:.1f} MiB without bytecode, {len(packages)} packages")
    if size > MOST_MB << 20 or len(packages) > MOST_PACKAGES:
        sys.exit(f"the base install is too large: at most {MOST_MB} MiB and {MOST_PACKAGES} packages; {packages}")


def check_wheel(wheel: Path, work: Path) -> None:
    python = environment(work / "base")
    install(python, wheel)
    check_base(python, work)
    print(run(python.with_name("odradek"), "--version", cwd=work).strip())
    run(python.with_name("odradek"), "info", cwd=work)
    printed = run(python, "-c", PROGRAM, cwd=work).strip()
    if printed != PRINTS:
        sys.exit(f"the README's program prints {printed!r}, not {PRINTS!r}")
    print("the README's program:", printed)
    install(python, "pytest", "pytest-xdist")
    (work / "test_fixtures.py").write_text(TESTS)
    print("fixtures:", run(python, "-m", "pytest", "-q", "-n", "2", "test_fixtures.py", cwd=work).splitlines()[-1])


def check_sdist(sdist: Path, work: Path, *, unit: bool) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    root = work / sdist.name.removesuffix(".tar.gz")
    missing = [name for name in ("tests", "docs", "constraints.txt", "CHANGELOG.md") if not (root / name).exists()]
    if missing:
        sys.exit(f"{sdist.name} lacks {', '.join(missing)}")
    print(f"{sdist.name}: tests, docs, constraints and changelog")
    if unit:
        python = environment(work / "sdist")
        install(python, "-c", root / "constraints.txt", f"{root}[test]")
        print("unit tests:", run(python, "-m", "pytest", "-q", "-n", "2", "tests/unit", cwd=root).splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unit", action="store_true", help="run the unit tests of the unpacked sdist")
    unit = parser.parse_args().unit
    output = ROOT / "dist"
    shutil.rmtree(output, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="odradek-package-") as directory:
        work = Path(directory)
        tools = environment(work / "tools")
        install(tools, "build", "twine")
        run(tools, "-m", "build", "--outdir", output, ROOT, cwd=work)
        (wheel,), (sdist,) = output.glob("*.whl"), output.glob("*.tar.gz")
        print(run(tools, "-m", "twine", "check", "--strict", wheel, sdist, cwd=work).strip())
        check_wheel(wheel, work)
        check_sdist(sdist, work, unit=unit)


if __name__ == "__main__":
    main()
