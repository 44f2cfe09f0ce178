"""``odradek monitor``: checks the options, opens the port, and runs the follower and the HTTP service."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import re
import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.environment import LOG_LEVEL
from odradek.cli.monitor.changes import (
    allowed_changes,
    check_change_tokens,
    check_token,
    read_change_tokens,
)
from odradek.cli.monitor.incidents import check_webhooks
from odradek.cli.monitor.kept_state import KeptState, open_kept
from odradek.cli.progress_lines import progress_lines
from odradek.cli.terminal import CommandError, note
from odradek.cli.termination import terminable
from odradek.core.extras import command_of
from odradek.monitor.choices import GRANULARITIES, SHORTEST_INTERVAL_MS, SOURCES
from odradek.text.encodings import text_of_file
from odradek.text.log_lines import log_to_stderr

if TYPE_CHECKING:
    import uvicorn

    from odradek.cli.monitor.options import MonitorLine
    from odradek.client.config import ClientConfig
    from odradek.history.verdict_rules import VerdictRules
    from odradek.monitor.offsets_reader import OffsetsTopicReader

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
"""A name in a Host header, without its port."""
_PACKAGES = ("starlette", "uvicorn", "jinja2", "pyarrow", "numba")
_MOST_POLLS = 250
_FETCH_BYTES = 1 << 20
"""Larger fetches take more memory, and are not faster."""


def run_monitor(line: MonitorLine, interval_ms: int, config: ClientConfig, rules: VerdictRules) -> None:
    """Runs until SIGTERM or Ctrl-C. Prints ``ready http://HOST:PORT`` when the port is open. Raises CommandError.

    The port is open after some seconds; stderr says so."""
    if any(importlib.util.find_spec(name) is None for name in _PACKAGES):
        raise CommandError(f"the monitor needs {', '.join(_PACKAGES)}: {command_of('ui')}")
    if not line.cluster_name.strip():
        raise CommandError("--cluster-name: a cluster's name cannot be empty: leave it out for kafka")
    _check_choice("--source", line.source, SOURCES)
    _check_choice("--metrics-granularity", line.metrics_granularity, GRANULARITIES)
    host, port = parse_listen(line.listen)
    token = read_token(line.token_file)
    allowed, change_tokens = allowed_changes(line), read_change_tokens(line.change_token_file, token)
    check_exposure(host, token)
    check_change_tokens(line, change_tokens, allowed)
    hosts = served_hosts(host, tuple(line.allowed_host or ()))
    webhooks = check_webhooks(line)
    stop = threading.Event()
    from odradek.monitor import process_memory

    process_memory.give_back_freed_memory()
    with terminable(), ExitStack() as opened:  # uvicorn raises SIGTERM once more after its own end
        listening = opened.enter_context(open_port(host, port))
        kept = open_kept(line, config, webhooks, allowed, opened)  # an error comes before the packages are loaded
        with progress_lines(lambda: "The monitor is starting."):
            reader = make_reader(line.source, interval_ms, config, rules, "odradek-monitor")
            kept.follow(reader)
            server = _server(line, reader, config, ServiceAccess(hosts, token, change_tokens), kept)
            process_memory.give_back_compiler_code()
            reader.on_complete = process_memory.give_back_free_pages
        following = threading.Thread(target=reader.run, args=(stop,), name="odradek-monitor", daemon=True)
        following.start()
        host, port = listening.getsockname()[:2]
        note(f"ready http://{f'[{host}]' if ':' in host else host}:{port}")
        try:
            server.run(sockets=[listening])
        finally:
            stop.set()
            following.join(timeout=1)


def poll_interval_ms(text: str) -> int:
    """Returns the value of --interval in milliseconds. Raises CommandError."""
    from odradek.cli.pipeline.history import span_ms

    if (interval_ms := span_ms("--interval", text)) < SHORTEST_INTERVAL_MS:
        raise CommandError(f"--interval {text}: expected at least {SHORTEST_INTERVAL_MS} ms")
    return interval_ms


def make_reader(
    source: str, interval_ms: int, config: ClientConfig, rules: VerdictRules, client_id: str
) -> OffsetsTopicReader:
    """Returns a reader that has read nothing. The first call loads packages for some seconds."""
    from odradek.monitor.process_memory import load_arrow

    load_arrow()
    import_module("odradek.batches.arrow")  # the kernels of the first read, which would be loaded then
    from odradek.monitor.group_tracker import GroupTracker
    from odradek.monitor.offsets_reader import OffsetsTopicReader, ReaderOptions

    polls = min(_MOST_POLLS, max(4, 2 + rules.recent_ms // interval_ms))
    return OffsetsTopicReader(
        replace(
            config,
            client_id=client_id,
            max_partition_fetch_bytes=min(config.max_partition_fetch_bytes, _FETCH_BYTES),
        ),
        GroupTracker(rules, polls),
        ReaderOptions(source, interval_ms),
    )


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """Who is served. ``hosts``: the names that the Host header may have. ``token``: "" without one. ``change_tokens``:
    those of users who may change, by name."""

    hosts: frozenset[str]
    token: str = field(repr=False)
    change_tokens: dict[str, str] = field(repr=False)


def _server(
    line: MonitorLine, reader: OffsetsTopicReader, config: ClientConfig, access: ServiceAccess,
    kept: KeptState,
) -> uvicorn.Server:  # fmt: skip
    import uvicorn

    from odradek.monitor.http.metrics import MetricsOptions
    from odradek.monitor.http.service import Service, ServiceOptions

    log_to_stderr(os.environ.get(LOG_LEVEL) or "WARNING", "%(asctime)s %(levelname)s %(message)s")
    brokers = tuple(config.bootstrap_servers.split(",")) if isinstance(config.bootstrap_servers, str) else ()
    metrics = MetricsOptions(line.cluster_name, line.metrics_granularity)
    options = ServiceOptions(metrics, access.hosts, access.token, brokers, access.change_tokens)
    app = Service(reader, options, kept.incidents, kept.changes).app()
    return uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, server_header=False))


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise CommandError(f"{option} {value!r}: expected {', '.join(choices)}")


def parse_listen(text: str) -> tuple[str, int]:
    """Returns host and port of ``HOST:PORT`` or ``[HOST]:PORT``. Raises CommandError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        raise CommandError(f"--listen {text!r}: expected HOST:PORT, for example 127.0.0.1:8000")
    return match[1] or match[2], int(match[3])


def read_token(path: Path | None) -> str:
    """Returns the token in a file, without spaces around it; "" without a file. Raises CommandError, ConfigError."""
    if path is None:
        return ""
    token = text_of_file(path, "--token-file").strip()
    if re.search(r"\s", token):
        raise CommandError(f"--token-file {path}: a token has no spaces: make one with: openssl rand -hex 32")
    check_token(token, f"--token-file {path}")
    return token


def is_loopback(host: str) -> bool:
    """Returns whether only this tracker can connect to an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, token: str, option: str = "--token-file") -> None:
    """Raises CommandError if another machine could read the service without a token. ``option``: that of the token."""
    if not is_loopback(host) and not token:
        raise CommandError(f"--listen {host}: other machines can connect to it: give {option}, or use 127.0.0.1")


def served_hosts(host: str, more: tuple[str, ...]) -> frozenset[str]:
    """Returns the names that the Host header may have. Raises CommandError for what is no name of a host."""
    for name in more:
        if _HOST_NAME.fullmatch(name) is None:
            raise CommandError(f"--allowed-host {name!r}: expected the name of a host, such as monitor.example.com")
    own = f"[{host}]" if ":" in host else host
    return frozenset(name.lower() for name in (*LOOPBACK_NAMES, own, socket.gethostname(), *more))


def open_port(host: str, port: int) -> socket.socket:
    """Opens the port. Raises CommandError."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, number)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise CommandError(f"--listen {host}:{port}: {error.strerror or error}: choose another address") from None
    return listening
