"""``python -m odradek.broker DIR HOST:PORT [name=value]…``: a broker's process, without the command line of odradek.

``--exit-with-parent``: stops at the end of stdin. ``--control``: the same, and stdin is a Unix socket for commands
(broker/control_channel). ``--clock-ahead-ms=N``: moves the broker's clock forward by N ms before the start.
``--remove-orphaned=PATH``: removes this directory if the broker stops because the other side of the ``--control``
socket was closed. ``--delete-config=NAME,…``: deletes the dynamic values of these settings before the broker serves.
``--config-file=PATH``: a properties file of settings. HOST:PORT is ``-`` if the setting ``listeners`` has the
addresses. ``--add-scram=PATH``: a file with first users (broker/logins/first_users).
``--log-level=LEVEL``: the log level if ODRADEK_LOG_LEVEL is not set. ``--network-faults=TEXT``: faults between nodes
(broker/fault_injection/node_network); also an empty text lets the ``--control`` socket make some.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.broker.process import ParentLink

gc.disable()  # until the broker serves: a collection would find nothing, because the objects of a start stay in use


def main(arguments: list[str]) -> int:
    """Runs the broker. Returns the exit code: 2 if it cannot start, 74 if the disk failed, with one line on stderr."""
    from odradek.broker.loop.clock import Clock
    from odradek.broker.node.writer_role import StartChanges
    from odradek.broker.process import EXIT_DISK_FAILED, DiskFailed, Extras, run
    from odradek.broker.settings.config import BrokerConfig
    from odradek.core.errors import OdradekError
    from odradek.text.log_lines import log_to_stderr

    positional = [argument for argument in arguments if not argument.startswith("--")]
    options = dict(argument.partition("=")[::2] for argument in arguments if argument.startswith("--"))
    if len(positional) < 2:
        sys.stderr.write(
            "usage: python -m odradek.broker DIR HOST:PORT [name=value]... [--exit-with-parent | --control] "
            "[--clock-ahead-ms=N] [--remove-orphaned=PATH] [--delete-config=NAME,...] "
            "[--config-file=PATH] [--add-scram=PATH] [--log-level=LEVEL] [--network-faults=TEXT]\n"
        )
        return 2
    host, _, port = positional[1].rpartition(":")
    file = users = None

    def ready(addresses: str) -> None:
        sys.stdout.write(f"ready {addresses}\n")
        sys.stdout.flush()

    try:
        level = os.environ.get("ODRADEK_LOG_LEVEL") or options.get("--log-level") or "WARNING"
        log_to_stderr(level, logging.BASIC_FORMAT)
        clock = Clock()
        clock.advance(int(options.get("--clock-ahead-ms", 0)))
        if path := options.get("--config-file"):
            from odradek.text.properties_file import read_properties_file

            file = {name: one.value for name, one in read_properties_file(Path(path), "--config-file").items()}
        if path := options.get("--add-scram"):
            from odradek.broker.logins import first_users

            users = first_users.read(Path(path))
        orphaned = run(
            BrokerConfig.parse(positional[2:], file),
            Path(positional[0]),
            None if positional[1] == "-" else (host, int(port)),
            ready,
            parent=_parent_link(options),
            clock=clock,
            changes=StartChanges([name for name in options.get("--delete-config", "").split(",") if name], users),
            extras=Extras(network_faults=options.get("--network-faults")),
        )
    except (OdradekError, ValueError) as error:
        sys.stderr.write(f"odradek broker: {error}\n")
        return EXIT_DISK_FAILED if isinstance(error, DiskFailed) else 2
    if orphaned and (orphan := options.get("--remove-orphaned")):
        import shutil  # not at the start: it imports codecs that occupy half a megabyte while the broker runs

        shutil.rmtree(orphan, ignore_errors=True)
    return 0


def _parent_link(options: Mapping[str, str]) -> ParentLink:
    from odradek.broker.process import ParentLink

    if "--control" in options:
        return ParentLink.CONTROL
    return ParentLink.STDIN if "--exit-with-parent" in options else ParentLink.NONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
