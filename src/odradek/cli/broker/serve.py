"""``odradek serve``: runs the broker in this process."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.broker.data_directory import check_unused_data_dir
from odradek.cli.environment import LOG_LEVEL
from odradek.cli.terminal import CommandError, error_line, with_remedy
from odradek.core.counts import counted
from odradek.text.log_lines import log_to_stderr

if TYPE_CHECKING:
    from odradek.broker.node.writer_role import StartChanges
    from odradek.broker.settings.config import BrokerConfig
    from odradek.cli.broker.served_registry import ServedRegistry


class ServedCluster(NamedTuple):
    """The options of a cluster. ``brokers``: None for a lone broker. ``racks``: separated by commas."""

    brokers: int | None = None
    racks: str = ""
    restart: bool = False


NO_CLUSTER = ServedCluster()


class ServedPages(NamedTuple):
    """``HOST:PORT`` of what the process serves over HTTP: the page of metrics, a schema registry."""

    metrics: str | None = None
    schema_registry: str | None = None


NO_PAGES = ServedPages()


class _Extras(NamedTuple):
    exit_with_parent: bool
    metrics: tuple[str, int] | None
    registry: ServedRegistry | None


class FirstChanges(NamedTuple):
    """What the start changes. ``add_scram``: a file with first users (``broker/logins/first_users``).

    ``delete_config``: names of settings whose dynamic values are deleted."""

    add_scram: Path | None = None
    delete_config: Sequence[str] = ()


NO_CHANGE = FirstChanges()


def serve(
    data_dir: Path | None,
    listen: str | None,
    config: list[str],
    *,
    config_file: Path | None = None,
    first: FirstChanges = NO_CHANGE,
    exit_with_parent: bool,
    cluster: ServedCluster = NO_CLUSTER,
    pages: ServedPages = NO_PAGES,
) -> int:
    """Runs a broker until SIGTERM or Ctrl-C; returns the exit code.

    ``listen``: ``host:port``; port 0 chooses a free port; None if the setting ``listeners`` has the addresses.
    ``config``: ``name=value`` texts. ``config_file``: a properties file of settings.
    Prints ``ready HOST:PORT``, with the addresses of all listeners, on stdout when the broker accepts requests. Wrong
    arguments, an unusable directory or port give one line on stderr and exit code 2. After a failed disk the exit code
    is 74 (docs/limits.md).
    ``exit_with_parent``: also stops when stdin ends. With a schema registry, a second line
    has its address.
    """
    gc.disable()  # until the broker serves: a collection would find nothing, because the objects of a start stay in use
    from odradek.core.errors import OdradekError
    from odradek.core.operating_system import require_posix

    try:
        require_posix("the broker")
        log_to_stderr(os.environ.get(LOG_LEVEL, "WARNING"), "%(asctime)s %(levelname)s %(message)s")
        address = None if listen is None else parse_listen(listen)
        page = None if pages.metrics is None else _page_address(pages.metrics, cluster)
        registry_address = _registry_address(pages.schema_registry, cluster)
        file = _settings_file(config_file)
        from odradek.broker.settings.config import start_texts

        texts = start_texts(config, file)
        given = {setting.partition("=")[0].strip() for setting in config}
        directory = _data_directory(data_dir, texts, file.keys() - given)
        if cluster != NO_CLUSTER:
            if first.delete_config:
                raise ValueError("--delete-config is for one broker: leave --brokers out")
            return _serve_cluster(
                cluster, directory, address, texts, first.add_scram, exit_with_parent=exit_with_parent
            )
        if nodes := _nodes_of_cluster(directory):
            raise ValueError(
                f"{directory} is the folder of a cluster of {counted(nodes, 'broker')}: add --brokers {nodes}, or give "
                "the folder of one node"
            )
        check_unused_data_dir(directory)
        settings = _checked(texts, config_file, file.keys() - given)
        changes = _changes(directory, first)  # before the directory is made
        if address is None and not settings.texts.get("listeners"):
            raise ValueError("--listen HOST:PORT is missing, and no setting listeners has the addresses")
        registry = _registry(registry_address, address, settings)
    except (OdradekError, ValueError) as error:
        raise CommandError(str(error)) from error
    extras = _Extras(exit_with_parent, page, registry)
    return _run(settings, directory, address, changes, extras)


def _run(
    settings: BrokerConfig,
    directory: Path,
    address: tuple[str, int] | None,
    changes: StartChanges,
    given: _Extras,
) -> int:
    """Runs a broker in this process. Returns the exit code."""
    from odradek.broker.process import EXIT_DISK_FAILED, DiskFailed, Extras, ParentLink, run
    from odradek.core.errors import OdradekError

    def say_ready(addresses: str) -> None:
        registry = given.registry
        if registry is not None:
            registry.start(addresses)
        _say_ready(addresses if registry is None else f"{addresses}\nschema registry {registry.url}")

    try:
        run(
            settings,
            directory,
            address,
            say_ready,
            parent=ParentLink.STDIN if given.exit_with_parent else ParentLink.NONE,
            changes=changes,
            extras=Extras(given.metrics),
        )
    except DiskFailed as error:
        error_line(with_remedy(error))
        return EXIT_DISK_FAILED
    except OdradekError as error:
        raise CommandError(str(error)) from error
    finally:
        if given.registry is not None:
            given.registry.close()
    return 0


def _serve_cluster(
    cluster: ServedCluster,
    directory: Path,
    address: tuple[str, int] | None,
    texts: dict[str, str],
    add_scram: Path | None,
    *,
    exit_with_parent: bool,
) -> int:
    """Raises OdradekError, ValueError before the first start of a node."""
    gc.enable()  # this process serves no client
    from odradek.cli.broker.serve_cluster import ClusterOptions, serve_cluster

    if cluster.brokers is None:
        raise ValueError("--racks and --restart need --brokers N")
    if address is None:
        raise ValueError("--listen HOST:PORT is missing: the first broker has this port, the others have the next ones")
    racks = tuple(part.strip() for part in cluster.racks.split(",")) if cluster.racks else ()
    options = ClusterOptions(cluster.brokers, racks, cluster.restart, exit_with_parent, add_scram)
    return serve_cluster(directory, address, texts, options)


def _changes(directory: Path, first: FirstChanges) -> StartChanges:
    """Returns what the start changes. Raises ConfigError for users that cannot be read, ValueError for unknown settings
    that no directory can have stored."""
    from odradek.broker.node.writer_role import StartChanges

    users = None
    if first.add_scram is not None:
        from odradek.broker.logins import first_users

        users = first_users.read(first.add_scram)
    if first.delete_config and not (directory / "meta.properties").exists():
        from odradek.broker.settings.keys import UnknownConfig, find_broker_key

        for name in first.delete_config:
            try:
                find_broker_key(name)
            except UnknownConfig as error:
                raise ValueError(f"--delete-config: {error.with_hint()}") from None
    return StartChanges(first.delete_config, users)


def _page_address(metrics: str, cluster: ServedCluster) -> tuple[str, int]:
    """Returns host and port of ``--metrics``. Raises ValueError."""
    if cluster.brokers is not None:
        raise ValueError("--metrics is for one broker: leave --brokers out")
    host, colon, port = metrics.rpartition(":")
    if "://" in host or not colon or not host or not port.isdigit() or not 0 < int(port) <= 65_535:
        without = ": Prometheus needs a port that stays, so it is not 0" if metrics.endswith(":0") else ""
        raise ValueError(f"--metrics takes HOST:PORT, for example 127.0.0.1:9404, not {metrics!r}{without}")
    return host, int(port)


def _registry_address(given: str | None, cluster: ServedCluster) -> tuple[str, int] | None:
    """Returns host and port of ``--schema-registry``. Raises ValueError."""
    if given is None:
        return None
    if cluster.brokers is not None:
        raise ValueError(
            "--schema-registry is for one broker: leave --brokers out, or start odradek.SchemaRegistry in Python"
        )
    try:
        return parse_listen(given)
    except ValueError:
        text = f"--schema-registry takes HOST:PORT, for example 127.0.0.1:8081, not {given!r}"
        raise ValueError(text) from None


def _registry(
    address: tuple[str, int] | None, listen: tuple[str, int] | None, settings: BrokerConfig
) -> ServedRegistry | None:
    """Takes the port of the registry. Raises ConfigError."""
    if address is None:
        return None
    from odradek.cli.broker.served_registry import ServedRegistry, check_listener

    check_listener(listen, settings.texts.get("listeners", ""))
    return ServedRegistry(address)


def parse_listen(listen: str) -> tuple[str, int]:
    """Returns host and port of ``host:port`` (``[::1]:9092`` for IPv6). Raises ValueError."""
    host, colon, port = listen.rpartition(":")
    if "://" in host:
        raise ValueError(
            f"--listen takes HOST:PORT without a protocol, not {listen!r}: such a listener is PLAINTEXT; the setting "
            "listeners names others"
        )
    if colon and host and port.isdigit() and int(port) > 65_535:
        raise ValueError(f"--listen takes HOST:PORT with a port up to 65535, not {listen!r}")
    if not colon or not host or not port.isdigit():
        raise ValueError(f"--listen takes HOST:PORT, for example 127.0.0.1:9092, not {listen!r}")
    return host, int(port)


def _settings_file(path: Path | None) -> dict[str, str]:
    """Returns the settings of ``--config-file``. Raises ConfigError."""
    if path is None:
        return {}
    from odradek.text.properties_file import read_properties_file

    return {name: one.value for name, one in read_properties_file(path, "--config-file").items()}


def _checked(texts: dict[str, str], config_file: Path | None, in_file: Collection[str]) -> BrokerConfig:
    """Returns the settings. Raises ConfigError, with the file if the error names one of its settings (``in_file``)."""
    from odradek.broker.settings.config import BrokerConfig
    from odradek.core.errors import ConfigError

    try:
        return BrokerConfig(texts)
    except ConfigError as error:
        if any(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", str(error)) for name in in_file):
            raise ConfigError(f"--config-file {config_file}: {error}") from error
        raise


def _data_directory(data_dir: Path | None, texts: dict[str, str], in_file: Collection[str]) -> Path:
    """Takes the data directory out of the settings, if the file has it. Returns it, or that of ``--data-dir``.

    ``in_file``: the names of the file's settings. Raises ValueError."""
    named = [texts.pop(name) for name in ("log.dirs", "log.dir") if name in in_file]
    if data_dir is not None:
        if _is_folder_of_demo(data_dir):
            raise ValueError(
                f"--data-dir {data_dir} is the folder of `odradek demo`: give that of its broker, {data_dir / 'broker'}"
            )
        return data_dir
    if not named:
        where = "--config-file has no log.dirs" if in_file else "no --config-file names log.dirs"
        raise ValueError(f"--data-dir DIR is missing, and {where}")
    if "," in named[0]:
        raise ValueError("log.dirs: the broker has one data directory: name one, or give it by --data-dir")
    return Path(named[0])


def _is_folder_of_demo(path: Path) -> bool:
    """Returns whether a broker would begin an empty log beside the one that the person means."""
    return (path / "demo.json").exists() and (path / "broker").is_dir() and not (path / "meta.properties").exists()


def _nodes_of_cluster(path: Path) -> int:
    """Returns the number of brokers in the folder of ``serve --brokers``; 0 for another folder. A lone broker would
    begin an empty log beside those of the nodes."""
    if (path / "meta.properties").exists() or not (path / "controller" / "meta.properties").exists():
        return 0
    return sum(1 for one in path.glob("*/meta.properties") if one.parent.name.isdigit())


def _say_ready(addresses: str) -> None:
    print(f"ready {addresses}", flush=True)
