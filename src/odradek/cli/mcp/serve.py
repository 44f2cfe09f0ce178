"""``odradek mcp``: checks the options, and serves the tools over stdin and stdout or over HTTP."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from odradek.cli import environment
from odradek.cli.mcp.options import McpLine
from odradek.cli.monitor.monitor import (
    check_exposure,
    make_reader,
    open_port,
    parse_listen,
    poll_interval_ms,
    read_token,
    served_hosts,
)
from odradek.cli.options import client_config
from odradek.cli.reset_targets import plans_folder
from odradek.cli.terminal import CommandError, note, warning_lines
from odradek.cli.top.top import checked_url
from odradek.core.extras import command_of
from odradek.monitor.choices import SOURCES
from odradek.monitor.view_sources import MonitorSource, ReaderSource, SourceLost, SourceRefused, ViewSource
from odradek.text.log_lines import log_to_stderr

if TYPE_CHECKING:
    from odradek.client.config import ClientConfig
    from odradek.monitor.agents.tools import Tool

_PACKAGES = ("mcp", "pyarrow", "numba")
ALLOWED = ("reset",)


@dataclass(frozen=True)
class _Served:
    """Where HTTP is served: to clients with ``token`` ("": to all), for these names in their Host headers."""

    host: str
    port: int
    hosts: frozenset[str]
    token: str = field(repr=False)


def run_mcp(line: McpLine) -> None:
    """Runs until the client is gone, or with --listen until SIGTERM or Ctrl-C. Raises CommandError."""
    _check(line)
    served = _served(line)
    interval_ms = poll_interval_ms(line.interval)
    monitor = None if line.url is None else MonitorSource(checked_url(line.url), read_token(line.token_file))
    config = None
    if line.bootstrap_servers is not None:
        config = client_config(line.bootstrap_servers, line.timeout_ms, line.command_config)
    if served is None and sys.stdin.isatty():
        raise CommandError(
            "stdin is a terminal: an agent starts this command and writes to it; add --listen 127.0.0.1:8765 for HTTP"
        )
    log_to_stderr(os.environ.get(environment.LOG_LEVEL) or "WARNING", "%(asctime)s %(levelname)s %(message)s")
    if monitor is not None:
        _check_monitor(monitor)
        _serve(line, config, monitor, served)
    elif config is not None:
        with _following(line, config, interval_ms) as reader:
            _serve(line, config, reader, served)


def _check(line: McpLine) -> None:
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise CommandError(f"this command needs {', '.join(missing)}: {command_of('mcp')}")
    if line.bootstrap_servers is None and line.url is None:
        raise CommandError("missing option '-b' (a cluster) or '--url' (a running monitor)")
    if line.url is None and line.token_file is not None:
        raise CommandError("--token-file is for --url: leave it out, or give --client-token-file for --listen")
    for name in line.allow or ():
        if name not in ALLOWED:
            raise CommandError(f"--allow {name!r}: expected {', '.join(ALLOWED)}")
    if line.allow and line.bootstrap_servers is None:
        raise CommandError("--allow reset needs -b: a monitor changes nothing")
    if line.source not in SOURCES:
        raise CommandError(f"--source {line.source!r}: expected {', '.join(SOURCES)}")
    if line.checkpoints is not None and not line.checkpoints.is_dir():
        raise CommandError(f"--checkpoints {line.checkpoints}: it is no folder: give the folder of the checkpoints")
    if line.plans is not None and line.plans.exists() and not line.plans.is_dir():
        raise CommandError(f"--plans {line.plans}: it is no folder: give a folder for the plans")


def _served(line: McpLine) -> _Served | None:
    """Returns where HTTP is served; None without --listen. Raises CommandError."""
    if line.listen is None:
        if line.client_token_file is not None or line.allowed_host:
            option = "--client-token-file" if line.client_token_file is not None else "--allowed-host"
            raise CommandError(f"{option} is for --listen: leave it out")
        return None
    (host, port), token = parse_listen(line.listen), read_token(line.client_token_file)
    check_exposure(host, token, "--client-token-file")
    return _Served(host, port, served_hosts(host, tuple(line.allowed_host or ())), token)


def _check_monitor(monitor: MonitorSource) -> None:
    """Raises CommandError if the address is not that of a monitor."""
    try:
        monitor.state()
    except SourceRefused as error:
        raise CommandError(str(error)) from None
    except SourceLost as error:  # an agent may come before the monitor
        warning_lines(f"{error}: it is asked again at each question")


@contextmanager
def _following(line: McpLine, config: ClientConfig, interval_ms: int) -> Iterator[ReaderSource]:
    """Yields a reader that follows the cluster while the block runs."""
    rules = line.rules()
    reader = ReaderSource(
        str(line.bootstrap_servers), lambda: make_reader(line.source, interval_ms, config, rules, "odradek-mcp")
    )
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()


def _serve(line: McpLine, config: ClientConfig | None, view: ViewSource, served: _Served | None) -> None:
    tools = _tools(line, config, view)
    if served is None:
        from odradek.monitor.agents.server import serve_stdio

        serve_stdio(tools)
    else:
        _serve_http(served, tools)


def _tools(line: McpLine, config: ClientConfig | None, view: ViewSource) -> tuple[Tool, ...]:
    from odradek.monitor.agents.view_tools import view_tools

    tools = view_tools(view)
    if line.checkpoints is not None:
        from odradek.cli.mcp.checkpoint_tools import checkpoint_tools

        tools += checkpoint_tools(line.checkpoints, view)
    if config is not None:
        from odradek.cli.mcp.reset_tools import reset_tools
        from odradek.lag.reset_plans import PlanFolder

        folder = PlanFolder(plans_folder(line.plans))
        tools += reset_tools(line, config, folder, may_apply="reset" in (line.allow or ()))
    return tools


def _serve_http(served: _Served, tools: Sequence[Tool]) -> None:
    import uvicorn

    from odradek.monitor.agents.server import http_app
    from odradek.monitor.http.access import AccessTokens, Guard

    with open_port(served.host, served.port) as listening:
        host, port = listening.getsockname()[:2]
        app = Guard(http_app(tools), served.hosts, AccessTokens(served.token))
        server = uvicorn.Server(
            uvicorn.Config(app, lifespan="on", log_config=None, access_log=False, server_header=False)
        )
        note(f"ready http://{f'[{host}]' if ':' in host else host}:{port}/mcp")
        server.run(sockets=[listening])
