"""A process without those names of the standard library that the system PLATFORM lacks.

Usage: ``platform_child.py PLATFORM [BOOTSTRAP]``.

The process imports the modules that must work on PLATFORM. With BOOTSTRAP it checks that it cannot start a broker, and
uses the broker at this address. Without BOOTSTRAP it starts a broker. Then it produces, consumes and commits.
"""

from __future__ import annotations

import contextlib
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from support import platform_names

ROOMS = {
    "darwin": ("core", "wire", "batches", "storage", "catalog", "groups", "transactions", "coordinator_runtime",
               "broker", "net", "client", "aio", "lag", "testing", "cli"),
    "win32": ("core", "wire", "batches", "net", "client", "aio", "lag", "testing", "cli"),
}  # fmt: skip


def main() -> None:
    platform, *bootstrap = sys.argv[1:]
    platform_names.pretend(platform)
    count = 0
    for room in ROOMS[platform]:
        package = import_module(f"odradek.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.rpartition(".")[2] not in {"__main__", "plugin"}:
                import_module(found.name)
                count += 1
    print("modules", count)
    import odradek

    if bootstrap:
        with contextlib.suppress(import_module("odradek.core.operating_system").UnsupportedSystem):
            odradek.Broker()
            raise AssertionError("a broker on Windows")
        use(bootstrap[0])
        return
    with odradek.Broker(in_thread=True) as broker:
        use(broker.bootstrap_servers)


def use(bootstrap: str) -> None:
    import odradek

    with odradek.Producer(bootstrap, compression_type="lz4") as producer:
        for number in range(100):
            producer.send("system", b"%d" % number, key=b"k")
    with odradek.Consumer(bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["system"])
        read = 0
        while read < 100:
            polled = consumer.poll(20.0)
            read += polled.table().num_rows
            consumer.commit(polled.next_offsets)
    print("read", read)


if __name__ == "__main__":
    main()
