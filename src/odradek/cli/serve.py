"""``odradek serve``: runs the broker in this process."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from odradek.cli.environment import LOG_LEVEL
from odradek.core.log_lines import log_to_stderr


def serve(data_dir: Path, listen: str, config: list[str], delete_config: list[str], exit_with_parent: bool) -> int:
    """Runs a broker until SIGTERM or Ctrl-C; returns the exit code.

    ``listen``: ``host:port``; port 0 chooses a free port. ``config``: ``name=value`` texts. ``delete_config``: names of
    settings whose dynamic values are deleted first. Prints ``ready HOST:PORT`` on stdout when the
    broker accepts requests. Wrong arguments, an unusable directory or port give one line on stderr and exit code 2.
    After a failed disk the exit code is 74 (docs/limits.md).
    ``exit_with_parent``: also stops when stdin ends.
    """
    gc.disable()  # until the broker serves: a collection would find nothing, because the objects of a start stay in use
    from odradek.core.errors import OdradekError
    from odradek.core.operating_system import require_posix

    try:
        require_posix("the broker")
        log_to_stderr(os.environ.get(LOG_LEVEL, "WARNING"), "%(asctime)s %(levelname)s %(message)s")
        address = parse_listen(listen)
        from odradek.broker.settings.config import BrokerConfig

        settings = BrokerConfig.parse(config)
    except (OdradekError, ValueError) as error:
        return _refuse(error)
    from odradek.broker.process import EXIT_DISK_FAILED, DiskFailed, run

    try:
        run(settings, data_dir, address, _say_ready, exit_with_parent=exit_with_parent, delete_configs=delete_config)
    except DiskFailed as error:
        _refuse(error)
        return EXIT_DISK_FAILED
    except OdradekError as error:
        return _refuse(error)
    return 0


def parse_listen(listen: str) -> tuple[str, int]:
    """Returns host and port of ``host:port`` (``[::1]:9092`` for IPv6). Raises ValueError."""
    host, colon, port = listen.rpartition(":")
    if "://" in host:
        raise ValueError(f"--listen takes HOST:PORT without a protocol, not {listen!r}; every listener is PLAINTEXT")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"--listen takes HOST:PORT, not {listen!r}")
    return host, int(port)


def _refuse(error: Exception) -> int:
    from odradek.cli.terminal import EXIT_BAD_INPUT, error_line

    error_line(str(error))
    return EXIT_BAD_INPUT


def _say_ready(host: str, port: int) -> None:
    print(f"ready {host}:{port}", flush=True)
