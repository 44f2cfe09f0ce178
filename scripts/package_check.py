"""Builds the wheel and the sdist, and uses them as a new user would: in empty environments, outside the repository.

    python scripts/package_check.py [--unit]

The script checks the base install of the wheel: its size and number of packages, the command ``odradek`` and its errors
for wrong input, the README's program, and the pytest fixtures in two processes. With ``[arrow]`` it reads columns. With
``[demo]`` it runs the whole demo, with the Java of that extra. With ``[ui]`` the monitor serves its pages. It checks
that the sdist has the tests; ``--unit`` also runs its unit tests. The first failure ends the script with exit code 1.
The printed times of first polls decide nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_MB = 60
"""The limit of the base install in MiB, without bytecode, pip, setuptools and wheel."""
MOST_PACKAGES = 20
NOT_OURS = {"pip", "setuptools", "wheel"}

README = (ROOT / "README.md").read_text()
PROGRAM = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[0]
"""The first program of the README, which needs only the base install."""
PRINTS = re.findall(r"^It prints `([^`]+)`", README, re.MULTILINE)[0]
NOT_FOR_USERS = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "JAVA_HOME", "SPARK_HOME"}
"""Variables of this process that an empty environment does not have."""
ADDRESS = "-b 127.0.0.1:1"
SERVE = "serve --data-dir data --listen 127.0.0.1:0"
WRONG = (
    ("groups list", "ODRADEK_BOOTSTRAP_SERVERS"),
    ("topics list -b nowhere", "expected HOST:PORT"),
    (f"groups list {ADDRESS}", "cannot reach 127.0.0.1:1"),
    ("grups list", "did you mean groups"),
    (f"groups reset --group g {ADDRESS}", "--to-earliest"),
    (f"{SERVE} --config num.partition=1", "did you mean 'num.partitions'"),
    (f"{SERVE} --config ssl.protocol=x", "leave it out"),
    ("serve --data-dir test_fixtures.py --listen 127.0.0.1:0", "test_fixtures.py cannot be used"),
    (f"pipeline ingest {ADDRESS} --topics t --group g --output t", "odradek[spark]"),
    (f"pipeline history {ADDRESS}", "odradek[arrow]"),
    (f"pipeline history {ADDRESS} --report t.html", "odradek[report]"),
    ("zookeeper describe --group g -z 127.0.0.1:1", "odradek[zookeeper]"),
    ("demo", "odradek[demo]"),
)
"""Commands that fail in the base install, each with a part of the one line that it prints."""
READER = """
import sys, time

began = time.perf_counter()
from odradek import Consumer, TopicPartition

imported = time.perf_counter()
with Consumer(sys.argv[1]) as consumer:
    tp = TopicPartition("first-poll", 0)
    consumer.assign([tp])
    consumer.seek(tp, 0)
    polled = consumer.poll(60.0)
    found = len(list(polled.records())) if sys.argv[2] == "records" else polled.table().num_rows
    assert found == 100, found
    print(f"{time.perf_counter() - imported:.2f} {imported - began:.2f}")
"""
"""Prints the seconds from the creation of a consumer to its first records, and the seconds of the import."""
FIRST_POLL = """
import os, subprocess, sys, tempfile
import odradek

with odradek.Broker() as broker:
    with odradek.Producer(broker.bootstrap_servers) as producer:
        for number in range(100):
            producer.send("first-poll", b"x" * 100, partition=0)
    for _ in range(3):
        with tempfile.TemporaryDirectory() as empty:
            subprocess.run(
                [sys.executable, "-c", sys.argv[1], broker.bootstrap_servers, sys.argv[2]],
                env=os.environ | {"NUMBA_CACHE_DIR": empty}, check=True,
            )
"""
MONITOR = r"""
import json, re, subprocess, sys, time, urllib.request
import odradek
from odradek import Admin, OffsetAndMetadata, TopicPartition

def get(path):
    with urllib.request.urlopen(url + path, timeout=60) as reply:
        return reply.read().decode()

with odradek.Broker() as broker, Admin(broker.bootstrap_servers) as admin:
    admin.create_topics([odradek.client.NewTopic("orders")])
    admin.alter_group_offsets("billing", {TopicPartition("orders", 0): OffsetAndMetadata(0)})
    command = [sys.argv[1], "monitor", "-b", broker.bootstrap_servers, "--listen", "127.0.0.1:0", "--interval", "1s"]
    monitor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url = monitor.stdout.readline().split()[1]
    try:
        while not json.loads(get("/api/v1/status"))["ready"]:
            time.sleep(0.1)
        parts = set()
        for path in ("/", "/group?name=billing", "/topic?name=orders"):
            page = get(path)
            assert "billing" in page, page
            parts |= set(re.findall(r'(?:src|href|hx-get|action)="([^"]+)"', page))
        files = sorted(part for part in parts if part.startswith("/static/"))
        for file in files:
            text = get(file)
            parts |= set(re.findall(r"url\(['\"]?([^'\")]+)", text)) if ".css" in file else set()
        away = [part for part in parts if not part.startswith(("/", "#", "?", "data:")) or part.startswith("//")]
        assert not away, f"the pages refer to {away}"
        assert "burrow_kafka_consumer_status" in get("/metrics")
        print(len(files))
    finally:
        monitor.terminate()
        monitor.wait()
"""
"""Starts the command with a broker, and loads its pages and every file that they name: none is of another host."""
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


def attempt(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command outside the repository, with the variables of a new user and those given."""
    clean = {name: value for name, value in os.environ.items() if name not in NOT_FOR_USERS}
    return subprocess.run(command, cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False)


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Runs a command outside the repository and returns its output. Ends the script, with this output, if it fails."""
    done = attempt(*command, cwd=cwd, **environment)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(place: Path) -> Path:
    """Makes an empty environment; returns the path of its Python."""
    run(sys.executable, "-m", "venv", place, cwd=place.parent)
    return place / "bin" / "python"


def install(python: Path, *requirements: str | Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        # with bytecode, as pip makes it
        run(uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *requirements, cwd=python.parent)
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
    print_first_polls(python, work, "records", "without [arrow], at most 0.3 s wanted")
    (work / "test_fixtures.py").write_text(TESTS)
    check_wrong_input(python, work)
    install(python, "pytest", "pytest-xdist")
    print("fixtures:", run(python, "-m", "pytest", "-q", "-n", "2", "test_fixtures.py", cwd=work).splitlines()[-1])


def check_wrong_input(python: Path, work: Path) -> None:
    """A new user's mistakes, in the base install: each ends with one line that names what to do."""
    for words, expected in WRONG:
        done = attempt(python.with_name("odradek"), *shlex.split(words), cwd=work)
        lines = done.stderr.splitlines()
        if done.returncode not in {1, 2} or len(lines) != 1 or expected not in lines[0]:
            sys.exit(f"odradek {words}: exit code {done.returncode}, one line with {expected!r} wanted\n{done.stderr}")
    print(f"wrong input: one line from each of {len(WRONG)} commands")


def print_first_polls(python: Path, work: Path, shape: str, title: str) -> None:
    """Prints the times of the first poll in three processes, each with an empty cache of compiled kernels."""
    printed = run(python, "-c", FIRST_POLL, READER, shape, cwd=work).split()
    polls, imports = printed[::2], printed[1::2]
    print(f"cold first polls {title}: {', '.join(polls)} s, after imports of {', '.join(imports)} s")


def check_extras(wheel: Path, work: Path) -> None:
    """Reads columns with ``[arrow]``, then runs the whole demo with ``[demo]``."""
    python = environment(work / "extras")
    install(python, f"{wheel}[arrow]")
    print_first_polls(python, work, "table", "with [arrow], at most 1 s wanted")
    install(python, f"{wheel}[demo]")
    done = run(python.with_name("odradek"), "demo", "--data-dir", work / "demo", cwd=work)
    lines = [line.strip() for line in done.splitlines()]
    agreed = [line for line in lines if line.startswith("All counts agree")]
    if not agreed or not lines[-1].endswith("every check holds; the group's lag is 0."):
        sys.exit(f"the demo from the wheel did not check its table:\n{done}")
    print("demo:", lines[-1])


def check_monitor(wheel: Path, work: Path) -> None:
    """Serves the pages of the monitor with ``[ui]``: the wheel has all their files, and a browser needs no network."""
    python = environment(work / "monitor")
    install(python, f"{wheel}[ui]")
    printed = run(python, "-c", MONITOR, python.with_name("odradek"), cwd=work).strip()
    if int(printed) < 5:
        sys.exit(f"the pages of the monitor name only {printed} files")
    print(f"the monitor from the wheel: three pages and {printed} files, none of another host")


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
        check_extras(wheel, work)
        check_monitor(wheel, work)
        check_sdist(sdist, work, unit=unit)


if __name__ == "__main__":
    main()
