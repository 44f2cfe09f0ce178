"""``python -m bench.order_of_writes``: the same blocks, written in sequence and at random positions of a file.

The file is larger than all written blocks. Before each order, the file is removed from the page cache, because a log of
many gigabytes does not fit into the cache. The file is synced every 256 blocks.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from bench.claims import judge
from bench.measures import Values
from bench.overview import publish
from bench.pages import MECHANISMS, option_help
from bench.report import head, spread

NAME = "order of writes"
BLOCKS = (1000, 4096, 65536)
"""The sizes of a record, a page and a batch."""
FILE_BYTES = 256 << 20
WRITES = 4096
SYNC_EVERY = 256
ORDERS = ("random", "sequential")


def one_round(directory: Path, block_bytes: int, seed: int = 1) -> Values:
    """Writes blocks of one size in both orders. Returns MB/s by order and size: ``random_4096``."""
    path, block = directory / "blocks", os.urandom(block_bytes)
    places = FILE_BYTES // block_bytes
    count = min(WRITES, places // 2)
    found: Values = {}
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for place in range(0, FILE_BYTES, 1 << 20):  # so that the disk has allocated all blocks for both orders
            os.pwrite(fd, os.urandom(1 << 20), place)
        for order in ORDERS:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            chosen = range(count) if order == "sequential" else random.Random(seed).sample(range(places), count)
            began = time.perf_counter()
            for number, place in enumerate(chosen):
                os.pwrite(fd, block, place * block_bytes)
                if number % SYNC_EVERY == SYNC_EVERY - 1:
                    os.fdatasync(fd)
            os.fdatasync(fd)
            found[f"{order}_{block_bytes}"] = count * block_bytes / (time.perf_counter() - began) / 1e6
    finally:
        os.close(fd)
        path.unlink()
    return found


def table(rounds: list[Values]) -> str:
    lines = ["| blocks of | random, MB/s | sequential, MB/s | times faster |", "|---|---|---|---|"]
    for block in BLOCKS:
        random_, sequential = ([values[f"{order}_{block}"] for values in rounds] for order in ORDERS)
        times = [mine / other for mine, other in zip(sequential, random_, strict=True)]
        lines.append(f"| {block:,} B | {spread(random_)} | {spread(sequential)} | {spread(times)} × |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.order_of_writes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--directory", type=Path, help="directory on the disk to measure (default: the directory for temporary files)"
    )
    parser.add_argument("--out", type=Path, default=MECHANISMS, help=option_help(MECHANISMS))
    args = parser.parse_args()
    rounds: list[Values] = []
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        for number in range(args.rounds):
            found = [one_round(Path(directory), block, number) for block in BLOCKS]
            rounds.append({key: value for values in found for key, value in values.items()})
    run = head(args.rounds, " ".join(["python -m bench.order_of_writes", *sys.argv[1:]]))
    publish(args.out, f"{run}\n\n{table(rounds)}", NAME)
    print(table(rounds))
    return judge(NAME, run, rounds, args.out)


if __name__ == "__main__":
    sys.exit(main())
