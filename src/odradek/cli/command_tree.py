"""The commands of ``odradek`` with their summaries. The module of a command is imported when the command runs."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import typer

from odradek.cli.plain_values import PlainGroup, convert_plain_values


class SubApp(NamedTuple):
    """A group of commands, or one command, in a module of its own, which has a ``typer.Typer`` named ``app``."""

    module: str
    summary: str
    is_command: bool = False


_SUB_APPS = {
    "demo": SubApp("odradek.cli.demo.command", "Run the whole pipeline on real flights and check it.", is_command=True),
    "serve": SubApp("odradek.cli.broker.command", "Run a broker on a data directory.", is_command=True),
    "info": SubApp("odradek.cli.info", "Print versions and limits for a bug report.", is_command=True),
    "produce": SubApp("odradek.cli.produce.command", "Send lines, JSON, CSV or Parquet to a topic.", is_command=True),
    "consume": SubApp("odradek.cli.consume.command", "Print or save a topic's records.", is_command=True),
    "monitor": SubApp("odradek.cli.monitor.command", "Follow groups: metrics, Burrow's API, states.", is_command=True),
    "top": SubApp("odradek.cli.top.command", "Show the groups of a cluster in the terminal.", is_command=True),
    "mcp": SubApp("odradek.cli.mcp.command", "Answer an agent's questions about groups.", is_command=True),
    "check-history": SubApp("odradek.cli.consistency.command", "Check what clients saw of a cluster.", is_command=True),
    "groups": SubApp("odradek.cli.groups.app", "Consumer groups of a Kafka cluster: lag, members, resets."),
    "topics": SubApp("odradek.cli.cluster.topics", "Topics of a Kafka cluster: list, create, alter, delete."),
    "transactions": SubApp(
        "odradek.cli.cluster.transactions", "Transactions of a Kafka cluster: list, describe, abort."
    ),
    "zookeeper": SubApp("odradek.cli.zookeeper.app", "Offsets of groups in ZooKeeper: lag, resets, migration."),
    "offsets": SubApp("odradek.cli.cluster.offsets", "The offsets topic of a Kafka cluster, decoded."),
    "cluster": SubApp(
        "odradek.cli.cluster.app", "The nodes of a cluster of brokers: describe them, prepare directories."
    ),
    "metadata": SubApp("odradek.cli.broker.metadata", "The metadata log of a stopped broker: check, repair, strays."),
    "log": SubApp("odradek.cli.broker.log", "The partitions' logs of a stopped broker: check, accept a loss."),
    "pipeline": SubApp("odradek.cli.pipeline.app", "Pipelines on Spark: ingest, transform, replay, history."),
}


@functools.cache
def _loaded(name: str) -> Any:
    """Returns a command or a group of commands of ``_SUB_APPS``. The checks of a command line ask for it, too."""
    app: typer.Typer = importlib.import_module(_SUB_APPS[name].module).app
    app.rich_markup_mode = None
    command = typer.main.get_command(app) if _SUB_APPS[name].is_command else typer.main.get_group(app)
    command.name = name
    convert_plain_values(command)
    return command


class CommandHome(NamedTuple):
    """Where a command is: a module, its function, and its constant with the text after the help."""

    module: str
    function: str
    epilog: str


@functools.cache
def _command_of(name: str, home: CommandHome) -> Any:
    module = importlib.import_module(home.module)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name=name, epilog=getattr(module, home.epilog))(getattr(module, home.function))
    command = typer.main.get_command(app)
    convert_plain_values(command)
    return command


class CommandsOnDemand(PlainGroup):
    """A group that imports the module of a command only when it is used."""

    homes: ClassVar[Mapping[str, CommandHome]] = {}

    def list_commands(self, ctx: object) -> list[str]:
        return list(self.homes)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        return _command_of(cmd_name, self.homes[cmd_name]) if cmd_name in self.homes else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.homes and not args[0].startswith("-"):
            import difflib

            meant = ", ".join(map(repr, difflib.get_close_matches(args[0], self.homes)))
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {meant}?" if meant else ""))
        return super().resolve_command(ctx, args)


class Interrupt(BaseException):
    """Ctrl-C in a command, in a form that typer lets through; typer would end with exit code 130 and no line."""


@contextlib.contextmanager
def _let_through() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupt from error


class CommandTree(PlainGroup):
    """Imports the module of a command or sub-app only when it is used."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _let_through():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> object:
        with _let_through():
            return super().invoke(ctx)

    def list_commands(self, ctx: object) -> list[str]:
        return list(_SUB_APPS)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        return _loaded(cmd_name) if cmd_name in _SUB_APPS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sub_app.summary) for name, sub_app in _SUB_APPS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            from odradek.text.similar_names import nearest

            ctx.fail(f"no such command {args[0]!r}{nearest(args[0], names)}")
        return super().resolve_command(ctx, args)
