"""``odradek zookeeper groups``: all groups with something in ZooKeeper."""

from __future__ import annotations

from odradek.cli.option_fields import of_fields
from odradek.cli.options import table_or_blocks
from odradek.cli.terminal import note, note_table, print_json, progress
from odradek.cli.zookeeper.scope import ZooKeeperLine

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper groups -z 127.0.0.1:2181/kafka\n"
    "  odradek zookeeper groups --path '/storm/{group}/partition_{partition}' --path-topic orders \\\n"
    "      --json-field offset -z 127.0.0.1:2181 --json"
)


@of_fields(ZooKeeperLine)
def groups(line: ZooKeeperLine) -> None:
    """List the groups in ZooKeeper with the numbers of their topics, offsets, invalid znodes and live members."""
    from odradek.zookeeper.members import read_members

    rows = []
    with line.store() as store:
        names = sorted(store.groups())
        with progress("Reading", len(names), "groups") as advance:
            for name in names:
                found = store.read(name)
                live = read_members(store.connection, name).live() if store.layout.is_kafkas else []
                topics = len({tp.topic for tp in found.offsets})
                rows.append((name, topics, len(found.offsets), len(found.invalid), len(live)))
                advance(1)
    head = ("group", "topics", "offsets", "invalid", "members")
    if line.as_json:
        print_json([dict(zip(head, row, strict=True)) for row in rows], indent=2)
    elif rows:
        cells = [tuple(map(str, row)) for row in rows]
        note_table(table_or_blocks(tuple(name.upper() for name in head), cells, right=frozenset({1, 2, 3, 4})))
    else:
        note("No groups.")
