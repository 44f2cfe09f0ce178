"""The options that the ``odradek zookeeper`` commands share: the session of ZooKeeper, the layout, and the groups."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from odradek.cli.command_config import read_properties
from odradek.cli.options import (
    LAST_INT32,
    TIMEOUT_MS,
    AsJson,
    CommandConfig,
    brokers_option,
    client_config,
    connect,
    given_names,
)
from odradek.cli.terminal import NO_NAME, CommandError, warning_lines
from odradek.cli.undo_file import check_undo_file, pasted
from odradek.core.errors import ConfigError
from odradek.text.similar_names import nearest

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.zookeeper.config import ZooKeeperConfig
    from odradek.zookeeper.layout import OffsetLayout
    from odradek.zookeeper.store import InvalidZnode, OffsetStore

Names = Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="The groups, as with --group.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="GROUP", help="The group. Repeatable.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic. Repeatable.")]
Execute = Annotated[bool, typer.Option("--execute", help="Write. Without it, the command only shows the offsets.")]
UndoFile = Annotated[Path | None, typer.Option("--undo-file", metavar="FILE", help="File for the previous offsets.")]
Bootstrap = Annotated[str | None, brokers_option("Addresses of Kafka's brokers.")]


_PROBE_S = 1.0
"""How long a first connection may take; a session with a shorter timeout ends by itself."""


class NamesGroups(Protocol):
    """The options of a command that works on groups."""

    @property
    def names(self) -> list[str] | None: ...

    @property
    def group(self) -> list[str] | None: ...


@dataclass(frozen=True, kw_only=True)
class ZooKeeperLine:
    """The options of every ``odradek zookeeper`` command."""

    zookeeper: Annotated[
        str | None,
        typer.Option(
            "-z", "--zookeeper", metavar="HOST:PORT[,HOST:PORT][/CHROOT]", help="Addresses of ZooKeeper's nodes."
        ),
    ] = None
    zookeeper_config: Annotated[
        Path | None,
        typer.Option(
            "--zookeeper-config",
            metavar="FILE",
            help="A properties file: zookeeper.connect, zookeeper.login=user:password, zookeeper.ssl.*, timeouts."
            " Default: the file in ODRADEK_ZOOKEEPER_CONFIG. ODRADEK_ZOOKEEPER_LOGIN has a login, too.",
        ),
    ] = None
    path: Annotated[
        str | None,
        typer.Option(
            "--path", metavar="TEMPLATE", help="Path of an offset: /consumers/{group}/offsets/{topic}/{partition}."
        ),
    ] = None
    path_group: Annotated[
        str | None, typer.Option("--path-group", metavar="GROUP", help="The group of a --path without {group}.")
    ] = None
    path_topic: Annotated[
        str | None, typer.Option("--path-topic", metavar="TOPIC", help="The topic of a --path without {topic}.")
    ] = None
    json_field: Annotated[
        str | None,
        typer.Option("--json-field", metavar="NAME", help="Values are JSON objects with the offset in NAME."),
    ] = None
    last_read: Annotated[
        bool, typer.Option("--last-read", help="Values are the last offset that was read, not the next one.")
    ] = False
    as_json: AsJson = False

    def layout(self) -> OffsetLayout:
        """Returns the layout that --path and the options after it describe. Raises ConfigError, CommandError."""
        from odradek.zookeeper.layout import KAFKA_TEMPLATE, OffsetLayout

        template = KAFKA_TEMPLATE if self.path is None else self.path
        for name, option, value in (
            ("group", "--path-group", self.path_group),
            ("topic", "--path-topic", self.path_topic),
        ):
            if self.path is None and value is not None:
                raise CommandError(f"{option} is for a --path without {{{name}}}: add --path, or leave it out")
            if "{partition}" in template and (f"{{{name}}}" in template) == (value is not None):
                has, remedy = ("has", "leave out") if value is not None else ("has no", "add")
                raise CommandError(f"--path {template!r} {has} {{{name}}}: {remedy} {option}")
        try:
            return OffsetLayout(template, self.json_field, self.last_read, self.path_group, self.path_topic)
        except ConfigError as error:
            named = str(error).replace("path template ", "--path ", 1).replace("JSON field ", "--json-field ", 1)
            raise CommandError(named) from error

    def session(self) -> ZooKeeperConfig:
        """Returns the settings of the session. Raises ConfigError, CommandError."""
        from odradek.zookeeper.config import config_of, file_settings

        settings = file_settings(self.zookeeper_config, "--zookeeper-config")
        if self.zookeeper is None and "zookeeper.connect" not in settings:
            raise CommandError("missing option '--zookeeper' (or zookeeper.connect in the file of --zookeeper-config)")
        try:
            return config_of(self.zookeeper, settings)
        except ConfigError as error:
            if self.zookeeper is None:
                raise
            raise CommandError(re.sub(r"^zookeeper\.connect\b", "-z", str(error))) from error

    @contextmanager
    def store(self) -> Iterator[OffsetStore]:
        """Yields the store of a new session. Raises ConfigError, CommandError, ZooKeeperErrors."""
        from odradek.zookeeper.connection import ZooKeeperConnection
        from odradek.zookeeper.store import OffsetStore

        check_undo_file(getattr(self, "undo_file", None))
        given_names(getattr(self, "topic", None) or [], "--topic")
        layout, session = self.layout(), self.session()
        _check_reachable(session)
        with ZooKeeperConnection(session) as connection:
            yield OffsetStore(connection, layout)

    def undo_command(self, undo: Path) -> str:
        """Returns the command that writes the offsets of an undo file to this ZooKeeper, for a shell."""
        return pasted(
            "odradek", "zookeeper", "import", "--file", undo, "--execute", "--last-read" if self.last_read else None,
            z=self.zookeeper, zookeeper_config=self.zookeeper_config, path=self.path, path_group=self.path_group,
            path_topic=self.path_topic, json_field=self.json_field,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KafkaLine(ZooKeeperLine):
    """The options of commands that also ask Kafka."""

    bootstrap: Bootstrap = None
    command_config: CommandConfig = None
    timeout_ms: Annotated[
        int,
        typer.Option(
            "--timeout",
            min=1,
            max=LAST_INT32,
            metavar="MS",
            help="Timeout for requests to Kafka's brokers, in milliseconds. That of ZooKeeper is"
            " zookeeper.connection.timeout.ms in --zookeeper-config.",
        ),
    ] = TIMEOUT_MS

    @contextmanager
    def store(self) -> Iterator[OffsetStore]:
        """Yields the store of a new session. The addresses of Kafka's brokers are checked first.

        Raises ConfigError, CommandError, ZooKeeperErrors."""
        if self.bootstrap is not None:
            client_config(self.bootstrap, self.timeout_ms, self.command_config)
        elif self.command_config is not None:
            read_properties(self.command_config)
        with super().store() as store:
            yield store

    def admin(self, why: str) -> AbstractContextManager[Admin]:
        """Returns a client of Kafka's brokers. Raises CommandError if --bootstrap-server is not given."""
        if self.bootstrap is None:
            raise CommandError(f"missing option '--bootstrap-server': {why}")
        return connect(self.bootstrap, self.timeout_ms, self.command_config)

    @contextmanager
    def optional_admin(self) -> Iterator[Admin | None]:
        """Yields a client of Kafka's brokers, or None if their addresses are not given."""
        if self.bootstrap is None:
            yield None
            return
        with connect(self.bootstrap, self.timeout_ms, self.command_config) as admin:
            yield admin


def _check_reachable(session: ZooKeeperConfig) -> None:
    """Raises ZooKeeperUnreachable at once if each address refuses connections or has no host.

    The session itself tries again until its timeout: a program waits for nodes that start, a person corrects a line."""
    from odradek.zookeeper.errors import ZooKeeperUnreachable

    reason = ""
    for address in session.hosts.split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
        except ConnectionRefusedError:
            reason = "connection refused"
        except socket.gaierror:
            reason = "host name not found"
        except OSError:
            return
        else:
            return
    if session.timeout_ms > _PROBE_S * 1000:
        raise ZooKeeperUnreachable(f"cannot reach {session.hosts}: {reason}: is ZooKeeper running there? check -z")


def named_groups(line: NamesGroups) -> list[str]:
    """Returns the names of a command's groups, which are arguments or values of --group.

    Raises CommandError for both: a word after --group g may be the rest of a value that a shell has split."""
    if line.names and line.group:
        raise CommandError(
            f"unexpected argument {' '.join(line.names) or NO_NAME}: --group names the groups; quote a value with "
            "spaces"
        )
    return [*(line.names or []), *(line.group or [])]


def group_names(groups: list[str] | None) -> list[str]:
    """Returns the names of --group. Raises CommandError for a name that no path can hold, or without a name."""
    from odradek.zookeeper.layout import name_problem

    names = given_names(groups or [], "--group")
    if not names:
        raise CommandError("missing argument 'GROUP' or '--group': odradek zookeeper groups lists the groups")
    for name in names:
        if problem := name_problem(name):
            raise CommandError(f"--group {name!r}: no path of ZooKeeper can hold this name: {problem}")
    return names


def check_scope(groups: list[str] | None, all_groups: bool) -> None:
    """Raises CommandError unless either --group or --all-groups is given."""
    if bool(groups) == all_groups:
        raise CommandError(
            "missing argument 'GROUP', '--group' or '--all-groups': odradek zookeeper groups lists the groups"
            if not groups
            else "--group and --all-groups cannot be used together"
        )


def chosen_groups(store: OffsetStore, groups: list[str] | None, all_groups: bool) -> list[str]:
    """Returns the groups that a command works on: all of them by name, or those of --group in its order.

    Raises CommandError, also for a group that does not exist."""
    check_scope(groups, all_groups)
    return sorted(store.groups()) if all_groups else known_groups(store, groups)


def known_groups(store: OffsetStore, groups: list[str] | None) -> list[str]:
    """Returns the names of --group. Raises CommandError for a group that ZooKeeper does not have."""
    names, known = group_names(groups), set(store.groups())
    for name in names:
        if name not in known:
            where = store.connection.config.address
            remedy = nearest(name, known) or ": odradek zookeeper groups lists the groups"
            raise CommandError(f"ZooKeeper {where} has no group {name}{remedy}")
    return names


def warn_of_invalid(invalid: list[InvalidZnode]) -> None:
    """Lists the invalid znodes on stderr."""
    for one in invalid:
        warning_lines(f"{one.path}: {one.reason}")


def refuse_live_members(store: OffsetStore, groups: list[str]) -> None:
    """Raises CommandError if a group has live members in ZooKeeper: the members would write their own offsets.

    Only Kafka's layout contains members. With another layout nothing is checked.
    """
    from odradek.cli.terminal import EXIT_FAILED
    from odradek.zookeeper.members import read_members

    if not store.layout.is_kafkas:
        return
    for group in groups:
        if names := read_members(store.connection, group).live():
            raise CommandError(f"group {group} has live members: {', '.join(names)}: stop them first", EXIT_FAILED)
