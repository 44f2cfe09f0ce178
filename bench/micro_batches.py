"""The requests and files of each further micro-batch of `odradek pipeline ingest`, of this or another revision.

``python -m bench.micro_batches [OTHER] [--fence-commits]``

A topic of four partitions is read into a new table with 3, and into another one with 7 micro-batches, each by a whole
command. The difference, divided by 4, is one line: the requests that the broker has counted on its page of metrics, by
API, and the files of the table, of its notes and of the checkpoint (without checksums). ``OTHER`` is a checkout with an
environment (``.venv``); its commands run beside those of this revision, against the same broker.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.topics import filled, random_values
from odradek.client.admin import Admin

_HERE = Path(__file__).resolve().parent.parent
_FEW, _MANY, _RECORDS = 3, 7, 10
_REQUESTS = re.compile(r'^kafka_network_requestmetrics_requests_total\{request="(\w+)"\} (\d+)', re.MULTILINE)
_COMMAND_S = 600.0


@contextmanager
def serving(place: Path) -> Iterator[tuple[str, str]]:
    """Yields the addresses of a broker and of its page of metrics."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        page = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["serve", "--data-dir", str(place / "data"), "--listen", "127.0.0.1:0", "--metrics", page]
    with subprocess.Popen(
        [sys.executable, "-m", "odradek", *command], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            yield broker.stdout.readline().split()[1], page
        finally:
            broker.terminate()


def requests(page: str) -> Counter[str]:
    """Returns the number of requests so far, by API."""
    with urllib.request.urlopen(f"http://{page}/metrics", timeout=30) as reply:
        return Counter({api: int(count) for api, count in _REQUESTS.findall(reply.read().decode())})


def ingest(checkout: Path, bootstrap: str, topic: str, table: Path, more: list[str]) -> None:
    """Reads a topic into a new table. Raises SystemExit with the output if the command fails."""
    arguments = ["pipeline", "ingest", "-b", bootstrap, "--topics", topic, "--group", table.name, *more]
    arguments += ["--output", str(table), "--option", f"maxOffsetsPerTrigger={_RECORDS}", "--progress", "none"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(checkout / ".venv/bin/odradek"), *arguments], capture_output=True, text=True, timeout=_COMMAND_S,
        env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{checkout}: {(done.stdout + done.stderr)[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.micro_batches", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("other", nargs="?", type=Path, metavar="OTHER", help="another checkout with its environment")
    parser.add_argument("--table-format", choices=("parquet", "delta"), default="parquet")
    parser.add_argument("--fence-commits", action="store_const", const=["--fence-commits"], default=[])
    given = parser.parse_args()
    revisions = {"here": _HERE, **({} if given.other is None else {"other": given.other.resolve()})}
    more = ["--table-format", given.table_format, *given.fence_commits]
    with tempfile.TemporaryDirectory(prefix="micro-batches-") as name, serving(Path(name)) as (bootstrap, page):
        place = Path(name)
        with Admin(bootstrap) as admin:
            topics = {
                count: filled(bootstrap, admin, f"batches-{count}", count * _RECORDS, random_values(100), "none")
                for count in (_FEW, _MANY)
            }
        for revision, checkout in revisions.items():
            counts, files = {}, {}
            for count, topic in topics.items():
                before, table = requests(page), place / f"{revision}-{count}"
                ingest(checkout, bootstrap, topic, table, more)
                counts[count] = requests(page) - before
                files[count] = sum(1 for path in table.rglob("*") if path.is_file() and path.suffix != ".crc")
            show(revision, counts, files)
    return 0


def show(revision: str, counts: dict[int, Counter[str]], files: dict[int, int]) -> None:
    """Prints the figures of a revision."""
    rest = _MANY - _FEW
    apis = {api: (counts[_MANY][api] - counts[_FEW][api]) / rest for api in sorted(counts[_FEW] | counts[_MANY])}
    parts = ", ".join(f"{api} {number:g}" for api, number in apis.items() if number)
    print(
        f"{revision:6} {sum(apis.values()):g} requests for each further micro-batch ({parts}); a run with {_FEW}: "
        f"{counts[_FEW].total()}, with {_MANY}: {counts[_MANY].total()}; {(files[_MANY] - files[_FEW]) / rest:g} files",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
