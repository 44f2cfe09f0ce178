"""``odradek cluster format`` and ``convert``: prepare directories for nodes of a cluster."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from odradek.cli.terminal import EXIT_FAILED, CommandError, note
from odradek.core.errors import ConfigError


def run_format(
    data_dir: Path | None, node_id: int | None, cluster_id: str | None, config: Path | None, *, ignore_formatted: bool
) -> None:
    """Formats a directory and prints its identity. Raises OdradekError."""
    from odradek.broker.metadata_log.mark import encode_id
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.broker.repair.node_format import check_cluster_id, format_node
    from odradek.cli.broker.data_directory import check_unused_data_dir
    from odradek.core.operating_system import require_posix

    require_posix("the data directory of a broker")
    if cluster_id is not None:
        check_cluster_id(cluster_id)
    path, number = _node(data_dir, node_id, config)
    check_unused_data_dir(path)
    directory = LogDirectory(path, lambda: time.time_ns() // 1_000_000)
    before = os.umask(0o077)  # as the broker's
    try:
        directory.lock.acquire()
        made = format_node(
            directory,
            number,
            cluster_id or ("" if ignore_formatted and _is_formatted(path) else encode_id(_new_id())),
            _new_id(),
            time.time_ns() // 1_000_000,
            ignore_formatted=ignore_formatted,
        )
    except OSError as error:
        raise CommandError(f"{error.filename or path}: {error.strerror or error}", EXIT_FAILED) from error
    finally:
        os.umask(before)
        directory.lock.release()
    state = "formatted" if made.is_new else "formatted already"
    note(f"{path} is {state}: node {made.node_id} of the cluster {made.cluster_id}")


def run_convert(data_dir: Path, controller_dir: Path, controller_id: int) -> None:
    """Converts a lone broker's directory and prints what was made. Raises OdradekError."""
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.broker.repair.node_conversion import convert_node
    from odradek.cli.broker.data_directory import check_data_dir
    from odradek.core.counts import counted

    check_data_dir(data_dir)

    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    directory, controller = LogDirectory(data_dir, now_ms), LogDirectory(controller_dir, now_ms)
    before = os.umask(0o077)  # as the broker's
    try:
        directory.lock.acquire()
        controller.lock.acquire()
        made = convert_node(directory, controller, controller_id, _new_id, now_ms())
    except OSError as error:
        raise CommandError(f"{error.filename or data_dir}: {error.strerror or error}", EXIT_FAILED) from error
    finally:
        os.umask(before)
        controller.lock.release()
        directory.lock.release()
    what = "" if made.topics is None else f" with {counted(made.topics, 'topic')}"
    note(
        f"{data_dir} is the directory of broker {made.node_id} of the cluster {made.cluster_id}; "
        f"{made.controller_dir} is that of its controller{what}"
    )


def _is_formatted(path: Path) -> bool:
    return (path / "meta.properties").exists()


def _new_id() -> uuid.UUID:
    """Returns an id whose text does not begin with a dash, as Kafka's: it can be an argument of a command."""
    while (made := uuid.uuid4()).bytes[0] >> 2 == 62:
        pass
    return made


def _node(data_dir: Path | None, node_id: int | None, config: Path | None) -> tuple[Path, int]:
    """Returns the directory and the id of the node. Raises CommandError, ConfigError."""
    texts: dict[str, str] = {}
    if config is not None:
        from odradek.broker.settings.config import BrokerConfig
        from odradek.text.properties_file import read_properties_file

        texts = {name: one.value for name, one in read_properties_file(config, "--config").items()}
        settings = {name: text for name, text in texts.items() if name not in ("log.dirs", "log.dir")}
        try:
            checked = BrokerConfig(settings)
        except ConfigError as error:
            raise CommandError(f"--config {config}: {error}") from error
        if checked.may_be_combined:
            checked.use_both_roles()
        elif settings.get("process.roles") and checked.roles is None:
            note(
                f"With process.roles={settings['process.roles']} and these settings the node is a lone broker: other "
                "nodes cannot join it. For a cluster, set controller.quorum.voters to this node, and add a listener of "
                "controller.listener.names to listeners"
            )
        named = checked.node_id if checked.is_set("node.id") else None
        if node_id is not None and named is not None and named != node_id:
            raise CommandError(f"--node-id {node_id} is not node.id={named} of {config}: leave one of the two out")
        node_id = named if node_id is None else node_id
    if node_id is None:
        raise CommandError("--node-id N is missing, and no --config FILE has node.id")
    if data_dir is None:
        folder = texts.get("log.dirs") or texts.get("log.dir") or ""
        if not folder or "," in folder:
            raise CommandError("--data-dir DIR is missing, and no --config FILE has one directory in log.dirs")
        data_dir = Path(folder)
    return data_dir, node_id
