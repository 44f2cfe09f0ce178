"""``odradek top``: checks the options, then shows the groups on the screen, or prints them once."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from urllib.parse import urlsplit

from odradek.cli import environment
from odradek.cli.monitor.monitor import make_reader, poll_interval_ms, read_token
from odradek.cli.options import check_reachable, client_config, table_or_blocks
from odradek.cli.progress_lines import kernel_notice, progress_lines
from odradek.cli.terminal import EXIT_FAILED, CommandError
from odradek.cli.top.options import TopLine
from odradek.core.extras import command_of
from odradek.monitor.choices import MOST_GROUPS, SORTS, SOURCES
from odradek.monitor.terminal.cells import GROUPS, PARTITIONS, Column
from odradek.monitor.view_sources import (
    Json,
    MonitorSource,
    ReaderSource,
    SourceLost,
    SourceRefused,
    ViewSource,
)
from odradek.text.printable import printable_json
from odradek.text.similar_names import nearest

_READER_PACKAGES = ("pyarrow", "numba")


def run_top(line: TopLine) -> None:
    """Runs until ``q``, or prints once. Raises CommandError."""
    if line.sort.removeprefix("-") not in SORTS:
        raise CommandError(f"--sort {line.sort!r}: expected {', '.join(SORTS)}, with - before it for the highest first")
    if line.as_json and not line.once:
        raise CommandError("--json needs --once: without it the groups stay on the screen")
    if line.once and line.group is not None and line.search:
        raise CommandError("--group shows one group, and --search chooses several: leave one out")
    needed = ([] if line.once else ["textual"]) + ([] if line.url is not None else list(_READER_PACKAGES))
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise CommandError(f"this command needs {', '.join(missing)}: {command_of('ui')}")
    if not line.once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("the output is not a terminal: add --once to print the groups once")
    if line.url is not None:
        _check_monitor_line(line)
        source = MonitorSource(checked_url(line.url), read_token(line.token_file))
        _run_at_monitor(line, source)
    else:
        _run_alone(line)


def _run_at_monitor(line: TopLine, source: MonitorSource) -> None:
    every_ms = poll_interval_ms(line.interval or "1s")
    try:
        source.state()
    except SourceRefused as error:
        raise CommandError(str(error)) from None
    except SourceLost as error:
        if line.once:
            raise CommandError(f"{error}: is `odradek monitor` running there?", EXIT_FAILED) from None
    if line.once:
        _print_once(line, source)
    else:
        _show(line, source, every_ms)


def _run_alone(line: TopLine) -> None:
    if line.bootstrap_servers is None:
        raise CommandError("missing option '-b' (a cluster) or '--url' (a running monitor)")
    if line.token_file is not None:
        raise CommandError("--token-file is for --url: leave it out")
    if line.source not in SOURCES:
        raise CommandError(f"--source {line.source!r}: expected {', '.join(SOURCES)}")
    interval_ms = poll_interval_ms(line.interval or "10s")
    config = client_config(line.bootstrap_servers, line.timeout_ms, line.command_config)
    rules = line.rules()
    source = ReaderSource(
        line.bootstrap_servers, lambda: make_reader(line.source, interval_ms, config, rules, "odradek-top")
    )
    if line.once:
        check_reachable(config)
        notice = nullcontext() if sys.stderr.isatty() else kernel_notice(is_shown=True)
        with progress_lines(_once("The offsets topic is being read.")), notice:
            try:
                source.step()
            except SourceLost as error:
                raise CommandError(str(error), EXIT_FAILED) from None
        _print_once(line, source)
        return
    source.start()
    try:
        _show(line, source, min(1_000, interval_ms))
    finally:
        source.stop()


def _once(text: str) -> Callable[[], str | None]:
    """Returns a function that returns the text at its first call only: the same line again says nothing."""
    texts = iter([text])
    return lambda: next(texts, None)


def _show(line: TopLine, source: ViewSource, every_ms: int) -> None:
    """Shows the groups until the person ends it."""
    from odradek.monitor.terminal.app import TopApp

    logger = logging.getLogger("odradek")
    logger.addHandler(logging.NullHandler())  # a line in the middle of the screen would destroy it
    logger.propagate = False
    TopApp(source, sort=line.sort, search=line.search, every_s=every_ms / 1000, group=line.group).run()


def _check_monitor_line(line: TopLine) -> None:
    """Raises CommandError for options of a reader: the monitor has its own."""
    if line.bootstrap_servers not in (None, os.environ.get(environment.BOOTSTRAP_SERVERS)):
        raise CommandError("-b and --url exclude each other: leave one of them out")
    if given := line.options_of_a_reader():
        raise CommandError(f"{given[0]} is for -b: the monitor at --url has its own")


def checked_url(url: str) -> str:
    """Returns the address of a monitor. Raises CommandError."""
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_right = False
    if not is_right or parts.query or parts.fragment or parts.username is not None or not url.isprintable():
        raise CommandError(f"--url {url!r}: expected an address such as http://127.0.0.1:8000")
    return url


def _print_once(line: TopLine, source: ViewSource) -> None:
    """Prints one view: the groups, or one group. Raises CommandError."""
    try:
        if line.group is not None:
            view = source.group(line.group)
            if view is None:
                known = [row["group"] for row in _all_groups(line, source.groups)["groups"]]
                remedy = nearest(line.group, known) or ": odradek top --once lists the groups"
                raise CommandError(f"--group {line.group!r}: there is no such group{remedy}")
        else:
            view = _all_groups(line, source.groups)
    except SourceLost as error:
        raise CommandError(str(error), EXIT_FAILED) from None
    if line.as_json:
        import json

        print(printable_json(json.dumps(view, ensure_ascii=False, indent=2)))
    elif line.group is not None:
        _print_group(line.group, view)
    else:
        print(_table(GROUPS, view["groups"]))


def _all_groups(line: TopLine, ask: Callable[[dict[str, str]], Json]) -> Json:
    """Returns the reply of ``/api/v1/groups`` with all groups."""
    query = {"sort": line.sort, "limit": str(MOST_GROUPS)} | ({"search": line.search} if line.search else {})
    page = ask(query)
    while len(page["groups"]) < page["total"]:
        more = ask(query | {"offset": str(len(page["groups"]))})
        if not more["groups"]:
            break
        page["groups"] += more["groups"]
    return page


def _print_group(group: str, view: Json) -> None:
    from odradek.monitor.terminal.group_texts import facts, finding_text

    print(facts(group, view["summary"]))
    if view["partitions"]:
        print("\n" + _table(PARTITIONS, view["partitions"]))
    for finding in view["findings"]:
        print("\n" + finding_text(finding))
        for record in finding["proof"]:
            kind = "deletion" if record["is_tombstone"] else record["kind"]
            print(f"  record {record['record_partition']}:{record['record_offset']} ({kind})")


def _table(columns: tuple[Column, ...], rows: list[Json]) -> str:
    right = frozenset(number for number, one in enumerate(columns) if one.is_number)
    cells = [tuple(one.cell(row).text for one in columns) for row in rows]
    return table_or_blocks(tuple(one.title for one in columns), cells, right=right)
