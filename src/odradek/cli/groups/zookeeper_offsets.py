"""The ZooKeeper side of ``odradek groups reset --zookeeper-connect``: a group's offsets there are moved, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.terminal import CommandError
from odradek.cli.undo_file import write_undo

if TYPE_CHECKING:
    from odradek.cli.zookeeper.scope import ZooKeeperLine
    from odradek.core.ids import TopicPartition
    from odradek.lag.reset import GroupResetPlan
    from odradek.zookeeper.store import OffsetChange, OffsetStore


class GroupsInZooKeeper:
    """The offsets of groups in ZooKeeper. The methods raise CommandError and ZooKeeperErrors."""

    def __init__(self, store: OffsetStore, line: ZooKeeperLine) -> None:
        self._store, self._line = store, line

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """Returns the offsets of a group. Raises CommandError for a name that no path can hold."""
        from odradek.zookeeper.layout import name_problem

        if problem := name_problem(group):
            raise CommandError(f"--group {group!r}: no path of ZooKeeper can hold this name: {problem}")
        return self._store.read(group).next_offsets()

    def live_members(self, group: str) -> list[str]:
        """Returns the names of the members that ZooKeeper knows."""
        from odradek.zookeeper.members import read_members

        return read_members(self._store.connection, group).live()

    def changes(self, plan: GroupResetPlan) -> list[OffsetChange]:
        """Returns the changes that a plan needs. Raises CommandError if a znode is invalid or has changed."""
        from odradek.cli.zookeeper.write_plan import changes_of

        made = changes_of(self._store, plan.group, {(row.topic, row.partition): row.after for row in plan.rows})
        seen = plan.elsewhere or {}
        for change in made:
            if (change.before.offset if change.before else None) != seen.get(change.group_partition.tp):
                raise CommandError(
                    f"group {plan.group}: its offsets in ZooKeeper have changed in the meantime: try again"
                )
        return [change for change in made if change.before is None or change.before.offset != change.offset]

    def write_undo(self, changes: Sequence[OffsetChange], kafka: Path) -> Path | None:
        """Writes the previous offsets beside the undo file of Kafka's offsets; returns None if there were none."""
        from odradek.cli.zookeeper.write_plan import undo_text

        if all(change.before is None for change in changes):
            return None
        return write_undo(undo_text(changes), kafka.with_name(f"{kafka.name}.zookeeper.txt"), "txt")

    def undo_command(self, undo: Path) -> str:
        """Returns the command that writes the offsets of an undo file to this ZooKeeper, for a shell."""
        return self._line.undo_command(undo)

    def write(self, changes: Sequence[OffsetChange]) -> None:
        """Writes the offsets of a group in one transaction. Raises ZnodeChanged."""
        self._store.write(changes)


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Names the option of this command in an error about ZooKeeper's address, which has another one elsewhere."""
    from odradek.zookeeper.errors import ZooKeeperUnreachable

    try:
        yield
    except CommandError as error:
        raise CommandError(re.sub(r"^-z\b", option, str(error)), error.exit_code) from error
    except ZooKeeperUnreachable as error:
        raise ZooKeeperUnreachable(re.sub(r"check -z$", f"check {option}", str(error))) from error


@contextmanager
def groups_in_zookeeper(connect: str | None) -> Iterator[GroupsInZooKeeper | None]:
    """Connects to ZooKeeper, if an address is given. Raises ConfigError, CommandError, ZooKeeperErrors."""
    if connect is None:
        yield None
        return
    from odradek.cli.zookeeper.scope import ZooKeeperLine

    line = ZooKeeperLine(zookeeper=connect)
    with _named("--zookeeper-connect"), line.store() as store:
        yield GroupsInZooKeeper(store, line)
