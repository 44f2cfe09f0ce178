"""The ``odradek`` command. Sub-commands load their modules when they run, so that the command starts fast."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from odradek._version import __version__
from odradek.cli import environment
from odradek.cli.progress_lines import kernel_notice
from odradek.cli.termination import EXIT_INTERRUPTED, ExitAtOnce, Terminated
from odradek.core.extras import command_of, extra_of
from odradek.text.log_lines import set_last_resort

_ODD_NUMBER = re.compile(r"[+-]?\d+[._][\d._]*|[+-]?\d{19,}")
"""A whole number with a point or a line below, or with more digits than 64 bits have."""
_ODD = re.compile(rf"(?:{_ODD_NUMBER.pattern})?")
"""Such a number, or an empty value; few command lines have one."""
_MISTYPED = re.compile(r"=\Z|[\u2010-\u2015\u2212]|-[a-z][a-z-]|(?s:.*[\r\n])")
"""What may be an option with a wrong dash, an ``=`` between spaces, or a path of several lines."""
# The base class of all usage errors; typer keeps click's classes in a private module.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class _SubApp(NamedTuple):
    """A group of commands, or one command, in a module of its own, which has a ``typer.Typer`` named ``app``."""

    module: str
    summary: str


_COMMANDS = {
    "produce": _SubApp("odradek.cli.produce.command", "Send lines, JSON, CSV or Parquet to a topic."),
    "consume": _SubApp("odradek.cli.consume.command", "Print or save a topic's records."),
    "monitor": _SubApp("odradek.cli.monitor.command", "Follow groups: metrics, Burrow's API, states."),
    "top": _SubApp("odradek.cli.top.command", "Show the groups of a cluster in the terminal."),
    "mcp": _SubApp("odradek.cli.mcp.command", "Answer an agent's questions about groups."),
    "check-history": _SubApp("odradek.cli.consistency.command", "Check what clients saw of a cluster."),
}
_SUB_APPS = _COMMANDS | {
    "groups": _SubApp("odradek.cli.groups.app", "Consumer groups of a Kafka cluster: lag, members, resets."),
    "topics": _SubApp("odradek.cli.cluster.topics", "Topics of a Kafka cluster: list, create, alter, delete."),
    "transactions": _SubApp(
        "odradek.cli.cluster.transactions", "Transactions of a Kafka cluster: list, describe, abort."
    ),
    "zookeeper": _SubApp("odradek.cli.zookeeper.app", "Offsets of groups in ZooKeeper: lag, resets, migration."),
    "offsets": _SubApp("odradek.cli.cluster.offsets", "The offsets topic of a Kafka cluster, decoded."),
    "cluster": _SubApp(
        "odradek.cli.cluster.app", "The nodes of a cluster of brokers: describe them, prepare directories."
    ),
    "metadata": _SubApp("odradek.cli.broker.metadata", "The metadata log of a stopped broker: check, repair, strays."),
    "log": _SubApp("odradek.cli.broker.log", "The partitions' logs of a stopped broker: check, accept a loss."),
    "pipeline": _SubApp("odradek.cli.pipeline.app", "Pipelines on Spark: ingest, transform, replay, history."),
}


@functools.cache
def _loaded(name: str) -> Any:
    """Returns a command or a group of commands of ``_SUB_APPS``. The checks of a command line ask for it, too."""
    app: typer.Typer = importlib.import_module(_SUB_APPS[name].module).app
    app.rich_markup_mode = None
    command = typer.main.get_command(app) if name in _COMMANDS else typer.main.get_group(app)
    command.name = name
    return command


class _Interrupt(BaseException):
    """Ctrl-C in a command, in a form that typer lets through; typer would end with exit code 130 and no line."""


@contextlib.contextmanager
def _let_through() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise _Interrupt from error


class _CommandTree(TyperGroup):
    """Imports the module of a command or sub-app only when it is used."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _let_through():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _let_through():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_SUB_APPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _SUB_APPS:
            return super().get_command(ctx, cmd_name)
        return _loaded(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        own = [(name, super(_CommandTree, self).get_command(ctx, name)) for name in super().list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=62)) for name, command in own if command and not command.hidden]
        rows += [(name, sub_app.summary) for name, sub_app in _SUB_APPS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            from odradek.text.similar_names import nearest

            ctx.fail(f"no such command {args[0]!r}{nearest(args[0], names)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="odradek",
    cls=_CommandTree,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Examples:\n\n\b\n"
    "  odradek demo\n"
    "  odradek serve --data-dir ./kafka-data --listen 127.0.0.1:9092\n"
    "  odradek groups describe --group flight-lake -b 127.0.0.1:9092",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"odradek {__version__}")
        raise typer.Exit


def _print_completion(shell: str | None) -> None:
    if shell is not None:
        from odradek.cli.completion import script

        print(script(shell))
        raise typer.Exit


@app.callback()
def _odradek(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    show_completion: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="bash|zsh|fish",
            help="Print a completion script for a shell and exit.",
            callback=_print_completion,
            is_eager=True,
        ),
    ] = None,
) -> None:
    """Kafka's consumer-offset system in Python.

    A broker, a Spark pipeline that starts at a group's offsets and follows them, and tools for people who run
    consumers.
    """


@app.command(
    short_help="Run the whole pipeline on real flights and check it.",
    epilog="Examples:\n\n\b\n"
    "  odradek demo                    the whole flight data set, checked\n"
    "  odradek demo --more 1000        publish and process 1,000 further events\n"
    "  odradek demo --rewind -100      go back 100 records in each partition\n"
    "  odradek demo --rewind earliest  read everything again\n"
    "  odradek demo --rewind 2026-01-31T12:00:00Z\n"
    "  odradek demo --data-dir d --brokers 3   a cluster whose brokers are killed",
)
def demo(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the broker's log and the table. Default: odradek/demo in your user data folder.",
        ),
    ] = None,
    more: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Publish this many further events first.")
    ] = None,
    rewind: Annotated[
        str | None,
        typer.Option(
            metavar="earliest|latest|TIMESTAMP|-N",
            help="Reset the group's committed offsets first; the query follows. TIMESTAMP is ISO 8601 (default zone:"
            " UTC); -N goes back N records in every partition.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the commits of step 5 as JSON lines.")] = False,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=9,
            metavar="N",
            help="Run a cluster of N brokers, at least 3: a leader and the group's coordinator are killed half-way."
            " Default: as in the directory, or 1.",
        ),
    ] = None,
    events: Annotated[int | None, typer.Option(min=1, hidden=True, help="Publish only the first N events.")] = None,
    batch_events: Annotated[int | None, typer.Option(min=1, hidden=True, help="Events in one micro-batch.")] = None,
) -> None:
    """Run the whole pipeline on real flights: broker, producer, Spark, Parquet, offsets. Check it and show the lag.

    A second run on the same directory finds nothing new. The next run completes a run that was killed.
    """
    from odradek.cli.demo.demo import DemoOptions, run_demo

    raise typer.Exit(run_demo(DemoOptions(data_dir, more, rewind, json, brokers, events, batch_events)))


@app.command(
    short_help="Run a broker on a data directory.",
    epilog="Examples:\n\n\b\n"
    "  odradek serve --data-dir ./kafka-data --listen 127.0.0.1:9092\n"
    "  odradek serve --data-dir d --listen 127.0.0.1:0 --config num.partitions=4\n"
    "  odradek serve --data-dir d --listen 127.0.0.1:9092 --metrics 127.0.0.1:9404\n"
    "  odradek serve --brokers 3 --data-dir d --listen 127.0.0.1:9092 --racks a,b,c",
)
def serve(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the broker's logs; created if missing. Default: log.dirs."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address for clients; port 0 chooses a free port. Default: the setting listeners."
        ),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A broker setting by Kafka's name. Repeatable.")
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A properties file of broker settings, such as Kafka's server.properties."),
    ] = None,
    add_scram: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Add the first users of SCRAM: lines of SCRAM-SHA-512=[name=NAME,password=PASSWORD].",
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config",
            metavar="NAME",
            help="Delete the value that clients have set for this setting of the broker, for example if"
            " max.connections.per.ip.overrides refuses all clients. Repeatable.",
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=99,
            metavar="N",
            help="Run a cluster: N brokers and a controller, each in its own process, on ports in a row. Brokers "
            "advertise the host of --listen; the controller is on 127.0.0.1, so no node of another machine can join.",
        ),
    ] = None,
    racks: Annotated[str, typer.Option(metavar="A,B,...", help="With --brokers: the rack of each broker.")] = "",
    restart: Annotated[
        bool, typer.Option("--restart", help="With --brokers: start a broker again that has died.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve the broker's metrics for Prometheus at http://HOST:PORT/metrics."
        ),
    ] = None,
    exit_with_parent: Annotated[
        bool,
        typer.Option("--exit-with-parent", hidden=True, help="Stop when the process that started it ends."),
    ] = False,
) -> None:
    """Run a broker. Prints `ready HOST:PORT` (all listeners) when it accepts requests. SIGTERM and Ctrl-C stop it.

    With --brokers, run a cluster; `ready` has the address of each broker, for clients.
    """
    from odradek.cli.broker.serve import FirstChanges, ServedCluster
    from odradek.cli.broker.serve import serve as run

    raise typer.Exit(
        run(
            data_dir,
            listen,
            config or [],
            config_file=config_file,
            first=FirstChanges(add_scram, delete_config or ()),
            exit_with_parent=exit_with_parent,
            cluster=ServedCluster(brokers, racks, restart),
            metrics=metrics,
        )
    )


@app.command(
    short_help="Print versions and limits for a bug report.",
    epilog="Examples:\n\n\b\n  odradek info\n  odradek info --json",
)
def info(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the versions of odradek and of what it uses, the Java for Spark, and the limits of this machine."""
    from odradek.cli.info import run_info

    raise typer.Exit(run_info(as_json=as_json))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``odradek`` command; ends the process with an exit code."""
    end = _end_of(arguments)
    if end.at_once:
        # Exits without waiting: threads of the interrupted command would delay the exit and print errors. All data
        # that they write survives kill -9, so it survives this.
        with contextlib.suppress(OSError):  # a full disk or a closed pipe: the process ends anyway
            sys.stdout.flush()
        os._exit(end.code)
    sys.exit(end.code)


class _End(NamedTuple):
    """The exit code of a command line, and whether the process ends without waiting for its threads."""

    code: int
    at_once: bool = False


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default: the process's own), prints its errors and returns its exit code."""
    return _end_of(arguments).code


def _end_of(arguments: Sequence[str] | None) -> _End:
    given = list(sys.argv[1:] if arguments is None else arguments)
    set_last_resort()
    try:
        with kernel_notice(is_shown=sys.stderr.isatty()):  # it is for people, not for files and pipes
            return _end_of_command(given)
    finally:
        if read := sys.modules.get("odradek.cli.command_config"):  # only commands with clients import it
            read.forget()


def _end_of_command(given: list[str]) -> _End:
    if environment.COMPLETION in os.environ:
        from odradek.cli.completion import prepare

        prepare()
    try:
        command = typer.main.get_command(app)
        if (any(map(_is_odd, given)) or _has_options(given)) and (refused := _odd_word(command, given)):
            return _End(refused, at_once=False)
        code = command.main(args=given, prog_name="odradek", standalone_mode=False)
        print(end="", flush=True)  # flushed here, where a closed pipe is handled
    except (Exception, KeyboardInterrupt, _Interrupt) as error:
        code = _report(error, given)
    except Terminated as error:
        from odradek.cli import terminal

        terminal.error_line(str(error))
        return _End(error.code, at_once=True)
    code = code if isinstance(code, int) else 0
    return _End(code, at_once=code == EXIT_INTERRUPTED or isinstance(code, ExitAtOnce))


def _is_odd(word: str) -> bool:
    return _ODD.fullmatch(word.rpartition("=")[2]) is not None or _MISTYPED.match(word) is not None


def _has_options(given: Sequence[str]) -> bool:
    """Whether there is an option: two may be the same one, and the path of one may have a space too many."""
    return any(word[:1] == "-" for word in given)


def _odd_word(command: object, given: Sequence[str]) -> int:
    """Prints a line for a whole number, a text or an option that the parser would misread, and returns the exit code; 0
    without one."""
    from odradek.cli import terminal
    from odradek.cli.usage.usage_errors import mistyped_option, odd_number, odd_text, repeated_option

    line = (
        odd_number(command, given, _ODD_NUMBER)
        or odd_text(command, given)
        or mistyped_option(command, given)
        or repeated_option(command, given)
    )
    if line:
        terminal.error_line(line)
    return terminal.EXIT_BAD_INPUT if line else 0


def _report(error: BaseException, given: Sequence[str]) -> int:
    """Prints a line for an error and returns the exit code. Raises the error again if it is a bug."""
    # Imported here, because these imports would slow down each start.
    from odradek.cli import terminal
    from odradek.core.errors import OdradekError

    match error:
        case KeyboardInterrupt() | _Interrupt() | typer.Abort():
            if given[:1] == ["produce"]:  # the command reports every Ctrl-C that comes later
                terminal.error_line("interrupted before the first record: nothing was sent")
            if given[:1] == ["demo"]:
                terminal.error_line("interrupted: the same command completes the work")
            return EXIT_INTERRUPTED
        case BrokenPipeError():
            # The reader of our output has ended (`odradek … | head`). Exit without another write to the closed pipe.
            sys.stdout = None
            return terminal.EXIT_FAILED
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG):
            # A full disk is not a bug. Most often it is the disk of standard output: output is buffered, so any
            # command's print can fail. Then the flush of the rest of the buffer fails here again.
            where = f"{error.filename}: " if error.filename else "the output: "
            try:
                sys.stdout.flush()
            except OSError:
                sys.stdout, where = None, "standard output: "
            terminal.error_line(terminal.with_remedy(f"{where}{error.strerror}"))
            return terminal.EXIT_FAILED
        case OSError(errno=errno.ENAMETOOLONG | errno.ELOOP | errno.EACCES) if error.filename:
            # a path of the command line
            terminal.error_line(_with_option(f"{error.filename}: {error.strerror}", given))
            return terminal.EXIT_BAD_INPUT
        case OdradekError():
            terminal.error_line(_with_option(error, given))
            return terminal.exit_code_of(error)
        case ModuleNotFoundError() if extra := extra_of(error.name or ""):
            terminal.error_line(f"this command needs {error.name}: {command_of(extra)}")
            return terminal.EXIT_BAD_INPUT
    if not isinstance(error, _UsageError):
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error)
    else:
        from odradek.cli.usage.usage_errors import usage_line

        terminal.error_line(usage_line(error, given, typer.main.get_command(app)))
    return terminal.EXIT_BAD_INPUT


def _with_option(error: Exception | str, given: Sequence[str]) -> str:
    """Returns an error's text with its remedy, and with the option whose value the text begins with."""
    from odradek.cli import terminal
    from odradek.cli.usage.usage_errors import option_of_value

    text = terminal.with_remedy(error)
    option = option_of_value(typer.main.get_command(app), given, text)
    return f"{option} {text}" if option else text


if __name__ == "__main__":
    main()
