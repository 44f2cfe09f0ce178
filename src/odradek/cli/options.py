"""The common options of commands for a cluster, the connection that they define, and the layout of tables."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli import environment
from odradek.cli.command_config import client_settings, without_values
from odradek.cli.terminal import CommandError, ask
from odradek.core.ids import read_partitions
from odradek.text.printable import printable

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.client.config import ClientConfig

# The default of kafka-consumer-groups.
TIMEOUT_MS = 5_000
LAST_INT16, LAST_INT32, LAST_INT64 = ((1 << bits) - 1 for bits in (15, 31, 63))
CONTEXT: dict[object, object] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def brokers_option(text: str) -> object:
    """Returns the option for addresses of brokers. ``text``: its help."""
    return typer.Option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT[,HOST:PORT]",
        envvar=environment.BOOTSTRAP_SERVERS,
        help=text,
    )


Bootstrap = Annotated[str, brokers_option("Addresses of brokers; at least one of them must answer.")]
Timeout = Annotated[
    int, typer.Option("--timeout", min=1, max=LAST_INT32, metavar="MS", help="Timeout for requests, in milliseconds.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Delete without asking.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar=environment.COMMAND_CONFIG,
        help="A properties file with further client settings.",
    ),
]


def client_config(bootstrap: str, timeout_ms: int, command_config: Path | None = None) -> ClientConfig:
    """Returns the settings of a command's client. The client fails at once if it can connect to no address.

    Raises ConfigError, CommandError."""
    from odradek.client.config import ClientConfig
    from odradek.client.settings.settings_file import shared_settings

    check_bootstrap(bootstrap)
    settings: dict[str, object] = {
        "client_id": "odradek-cli",
        "default_api_timeout_ms": timeout_ms,
        "bootstrap_timeout_ms": 0,
        "socket_connection_setup_timeout_ms": max(1, timeout_ms * 4 // 5),
    }
    given = client_settings(command_config, shared_settings())
    with without_values(command_config):
        return ClientConfig.of(over(settings, given) | {"bootstrap_servers": bootstrap})


def over(defaults: dict[str, object], given: dict[str, str]) -> dict[str, object]:
    """Returns a command's own settings with those of a file, which override them and keep their names with dots."""
    names = {name.replace(".", "_") for name in given} | {"bootstrap_servers"}
    kept = {name: value for name, value in defaults.items() if name not in names}
    # As in Kafka's tools, the command line says which cluster it is.
    return kept | {name: value for name, value in given.items() if name.replace(".", "_") != "bootstrap_servers"}


def check_bootstrap(bootstrap: str) -> None:
    """Raises CommandError if the option has no address, for example because a variable of a script is empty."""
    if not bootstrap.strip(" ,"):
        raise CommandError("-b / --bootstrap-server: it is empty: give HOST:PORT, for example 127.0.0.1:9092")


@contextmanager
def connect(bootstrap: str, timeout_ms: int, command_config: Path | None = None) -> Iterator[Admin]:
    """Yields an Admin for a command. An error about an unknown topic or group suggests a similar name.

    Raises ConfigError, CommandError, and the errors of the block.
    """
    from odradek.cli.suggestions import with_suggestions
    from odradek.client.admin import Admin

    with Admin(client_config(bootstrap, timeout_ms, command_config)) as admin, with_suggestions(admin):
        yield admin


def check_reachable(config: ClientConfig) -> None:
    """Raises BrokerUnreachable before a command begins work whose lines a wrong address would follow."""
    from odradek.client.admin import Admin

    with Admin(config) as admin:
        admin.describe_cluster()


def given_names(names: list[str], option: str, *, allow_empty: bool = False) -> list[str]:
    """Returns the names sorted and without duplicates. Raises CommandError for an empty name, unless it is allowed."""
    if "" in names and not allow_empty:
        what = "a group's" if option in ("--group", "GROUP") else "a topic's"
        raise CommandError(f"{option}: {what} name cannot be empty: give one")
    return sorted(set(names))


def check_visible(name: str, option: str) -> None:
    """Raises CommandError for a name that a person takes for another one: a command must not create such a group."""
    if name.isascii() and name.isprintable() and name == name.strip():
        return
    from odradek.text.look_alikes import oddity  # with the names of Unicode

    if (what := oddity(name)) is not None:
        raise CommandError(f"{option} {name!a}: the name has {what}: correct it")


def shown_name(name: str) -> str:
    """Returns a name for a line with another one: with escapes if the two may look alike, in quotes with a space at an
    end."""
    return name if name.isascii() and name.isprintable() and name == name.strip() else ascii(name)


def parse_partitions(arguments: list[str], option: str = "--topic ") -> tuple[list[str], list[tuple[str, int]]]:
    """Reads ``topic`` and ``topic:0,1`` as Kafka's tools do. Returns topics and partitions.

    Raises CommandError with the name of the option."""
    try:
        return read_partitions(arguments)
    except ValueError as error:
        raise CommandError(f"{option}{error}") from None


def terminal_columns() -> int | None:
    """Returns the width of the terminal. Returns None if the output is not a terminal, so that nothing is cut off."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_or_blocks(
    head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, right: frozenset[int] = frozenset()
) -> str:
    """Returns the table of ``columns``. If it is wider than the terminal, returns a block of lines for each row."""
    table = columns(head, rows, right=right)
    width = terminal_columns()
    if width is None or all(len(line) <= width for line in table.splitlines()):
        return table
    names = max(map(len, head))
    blocks = [
        "\n".join(f"{name:<{names}}  {printable(cell)}" for name, cell in zip(head, row, strict=True)) for row in rows
    ]
    return "\n\n".join(blocks)


def columns(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, right: frozenset[int] = frozenset()) -> str:
    """Returns a plain table. A column is as wide as its widest cell; columns in ``right`` are right-aligned.

    Control characters in cells are shown as escapes."""
    table = [head, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    return "\n".join(
        "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        .rstrip()
        for line in table
    )  # fmt: skip


def named_values(
    given: Sequence[str] | None, option: str, example: str = "", form: str = "NAME=VALUE"
) -> dict[str, str]:
    """Reads NAME=VALUE arguments. ``form``: what an error expects. Raises CommandError."""
    values: dict[str, str] = {}
    for argument in given or ():
        name, equals, value = argument.partition("=")
        if not name or not equals:
            raise CommandError(f"{option} {argument!r}: expected {form}{example}")
        if values.get(name, value) != value:
            raise CommandError(f"{option} gives {name} two values: leave one of them out")
        values[name] = value
    return values


def only_topic(given: str | None, option: str | None, metavar: str = "TOPIC") -> str:
    """Returns the topic, which is given once. Raises CommandError."""
    if given is not None and option is not None and given != option:
        both = f"topic {shown_name(given)} and --topic {shown_name(option)}"
        raise CommandError(f"{both}: give one topic, as an argument or with --topic")
    topic = given if given is not None else option
    if topic is None:
        raise CommandError(f"missing argument '{metavar}': name the topic, as an argument or with --topic")
    if not topic:
        raise CommandError("the topic's name cannot be empty")
    return topic


def confirm(question: str, yes: bool) -> bool:
    """Returns whether ``yes`` is set or the user agrees at the terminal. Raises CommandError without a terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise CommandError(f"{question} No terminal to ask at: add --yes")
    return ask(question)
