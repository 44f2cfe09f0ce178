"""``python -m odradek.broker DIR HOST:PORT [name=value]…``: a broker with nothing around it.

``--exit-with-parent``: stops when stdin ends. ``--control``: the same, and stdin is a Unix socket that carries
commands (broker/control_channel). ``--clock-ahead-ms=N``: its clock was moved before. ``--remove-orphaned=PATH``:
removes this directory when it stopped because the other side of ``--control`` was gone. ``--delete-config=NAME,…``:
deletes what was set for these settings while running, before it serves.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path

gc.disable()  # until the broker serves: what a start makes, it keeps


def main(arguments: list[str]) -> int:
    """Exit code 2 and one line on stderr for what cannot work."""
    from odradek.broker.clock import Clock
    from odradek.broker.config import BrokerConfig
    from odradek.broker.process import run
    from odradek.core.errors import OdradekError
    from odradek.core.log_lines import log_to_stderr

    places = [argument for argument in arguments if not argument.startswith("--")]
    options = dict(argument.partition("=")[::2] for argument in arguments if argument.startswith("--"))
    if len(places) < 2:
        sys.stderr.write("usage: python -m odradek.broker DIR HOST:PORT [name=value]... [--exit-with-parent]\n")
        return 2
    log_to_stderr(os.environ.get("ODRADEK_LOG_LEVEL", "WARNING").upper(), logging.BASIC_FORMAT)
    host, _, port = places[1].rpartition(":")

    def ready(host: str, port: int) -> None:
        sys.stdout.write(f"ready {host}:{port}\n")
        sys.stdout.flush()

    try:
        clock = Clock()
        clock.advance(int(options.get("--clock-ahead-ms", 0)))
        orphaned = run(
            BrokerConfig.parse(places[2:]),
            Path(places[0]),
            (host, int(port)),
            ready,
            exit_with_parent="--exit-with-parent" in options,
            control="--control" in options,
            clock=clock,
            delete_configs=[name for name in options.get("--delete-config", "").split(",") if name],
        )
    except (OdradekError, ValueError) as error:
        sys.stderr.write(f"odradek broker: {error}\n")
        return 2
    if orphaned and (doomed := options.get("--remove-orphaned")):
        import shutil  # it brings codecs that take half a megabyte for as long as the broker runs

        shutil.rmtree(doomed, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
