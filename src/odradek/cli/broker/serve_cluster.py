"""``odradek serve --brokers N``: brokers and a controller, each in its own process, under one command.

This module checks the options and prepares the directories. Then the process becomes that of ``cluster_supervisor``,
which needs half of the memory: what reads the command line is gone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from odradek.broker.repair.cluster_layout import REPLICAS, ClusterNode, lay_out, prepare
from odradek.broker.settings.config import MIN_ISR
from odradek.cli.terminal import CommandError

FACTOR = "default.replication.factor"
_IN_SYNC = 2
"""Of new topics, in a cluster of at least three brokers: any broker may die, and no acknowledged record is lost."""
_CHOSEN = range(10_000, 30_000)
"""Ports for ``--listen HOST:0``. The system chooses higher ones for the clients' ends of connections."""


class ClusterOptions(NamedTuple):
    """``racks``: of the brokers, or none. ``restart``: whether brokers that die are started again.

    ``add_scram``: a file with first users, for the controller."""

    brokers: int
    racks: tuple[str, ...]
    restart: bool
    exit_with_parent: bool = False
    add_scram: Path | None = None


def serve_cluster(
    data_dir: Path, address: tuple[str, int], settings: Mapping[str, str], options: ClusterOptions
) -> NoReturn:
    """Runs the nodes until SIGTERM or Ctrl-C, and ends the process. Raises OdradekError before the first start."""
    from odradek.core.operating_system import require_posix

    require_posix("the broker")
    host, port = address
    ports = range(port, port + options.brokers + 1) if port else free_row(host, options.brokers + 1)
    if ports[-1] > 65_535:
        raise CommandError(f"--listen {host}:{port}: the last of {len(ports)} ports in a row is above 65535")
    _check_no_more(data_dir, options.brokers)
    settings = replica_defaults(options.brokers) | dict(settings)
    nodes = lay_out(data_dir.absolute(), host, ports, options.racks, settings)
    prepare(nodes)
    _become_supervisor(nodes, options, said_of_topics(settings))


def replica_defaults(brokers: int) -> dict[str, str]:
    """Returns the settings of new topics in a cluster of so many brokers."""
    factor = min(brokers, REPLICAS)
    return {FACTOR: str(factor), MIN_ISR: str(_IN_SYNC if factor == REPLICAS else 1)}


def said_of_topics(settings: Mapping[str, str]) -> str:
    """Returns what the start says about new topics."""
    names = ", ".join(f"{name}={settings[name]}" for name in (FACTOR, MIN_ISR))
    return f"new topics: {names}"


def _become_supervisor(nodes: Sequence[ClusterNode], options: ClusterOptions, said: str) -> NoReturn:
    """Replaces the program of this process. The settings, which may have passwords, are in a file without a name."""
    rows = [
        {
            "name": node.name,
            "data_dir": str(node.data_dir),
            "address": node.address,
            "settings": dict(node.settings),
            "restart": node.is_controller or options.restart,
            "add_scram": str(options.add_scram.absolute()) if options.add_scram and node.is_controller else "",
        }
        for node in nodes
    ]
    with tempfile.TemporaryFile() as file:
        given = {"nodes": rows, "exit_with_parent": options.exit_with_parent, "said": said}
        file.write(json.dumps(given).encode())
        file.flush()
        file.seek(0)
        os.set_inheritable(file.fileno(), True)
        # A signal waits until the new program can stop the nodes.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        program = "odradek.cli.broker.cluster_supervisor"
        try:
            os.execv(sys.executable, [sys.executable, "-m", program, str(file.fileno())])
        finally:  # there is no new program
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_no_more(data_dir: Path, brokers: int) -> None:
    """Raises CommandError if the folder has directories of more brokers, whose partitions would have no leader."""
    names = [path.parent.name for path in data_dir.glob("*/meta.properties")]
    held = [int(name) for name in names if name.isdecimal()]
    if held and max(held) > brokers:
        raise CommandError(
            f"{data_dir} has a broker {max(held)}: with --brokers {brokers} its partitions have no leader. Give "
            f"--brokers {max(held)}; to remove the broker, unregister it, and move its directory away"
        )


def free_row(host: str, count: int) -> range:
    """Returns ports in a row that no server has now. Raises CommandError if there are none."""
    for first in random.sample(_CHOSEN, 200):
        row = range(first, first + count)
        if all(_is_free(host, port) for port in row):
            return row
    raise CommandError(f"--listen {host}:0: there are no {count} free ports in a row: name a port")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host.strip("[]"), port))
        except OSError:
            return False
    return True
