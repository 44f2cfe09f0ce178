"""The catalogue of an Iceberg table, as a user names it: a name in pyiceberg's configuration, or a URI.

SQL and REST catalogues change a table's metadata by compare-and-set, with requirements. The commit of a micro-batch
needs exactly this. A refused name writes nothing: no database, no namespace, no table.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from odradek.core.errors import ConfigError, OdradekError, StorageError
from odradek.core.extras import command_of
from odradek.pipelines.values.arguments import wrong
from odradek.text.printable import one_line, printable
from odradek.text.table_paths import is_uri, local_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as IcebergMetadata

_MEMORY = (":memory:", "")
_WAREHOUSE = "warehouse"


@dataclass(frozen=True)
class TableName:
    """A table in a catalogue. ``catalog``: a name in pyiceberg's configuration, or a URI. ``options``: properties of
    the catalogue, which override those of the configuration."""

    catalog: str = field(repr=False)  # a URI may have a password
    table: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, catalog: str | None, table: str | None, options: Mapping[str, str] | None) -> TableName:
        """Returns the name that options give. Raises ArgumentError if one is missing."""
        if not catalog or not table:
            lacks = "table" if catalog else "catalog"
            raise wrong(lacks, " is missing: an Iceberg table needs a catalogue and a name, such as db.events")
        return cls(catalog, table, options or {})

    @property
    def identifier(self) -> tuple[str, ...]:
        return tuple(self.table.split("."))

    @property
    def namespace(self) -> str:
        return self.table.rpartition(".")[0]

    def check(self) -> None:
        """Checks the names. Raises ConfigError."""
        check_installed()
        if not self.catalog.strip():
            raise wrong("catalog", " is empty: give a name in pyiceberg's configuration, or a URI")
        if len(self.identifier) < 2 or not all(part.strip() for part in self.identifier):
            raise wrong("table", f" {printable(self.table)!r}: expected a namespace and a name, such as db.events")


@dataclass(frozen=True)
class TablePlace:
    """A table, and the location that it has or gets, in the form of the catalogue."""

    name: TableName
    location: str

    @property
    def folder(self) -> str:
        """The location in the form of Spark's file systems."""
        scheme, mark, rest = self.location.partition("://")
        return f"s3a://{rest}" if mark and scheme in ("s3", "s3n") else self.location


def place_of(name: TableName, output: str | None) -> TablePlace:
    """Returns the place of a table. ``output``: the location that the user wants. Raises the errors of
    ``open_catalog`` and ``location_of_table``."""
    return TablePlace(name, location_of_table(open_catalog(name), name, output))


def shown_catalog(catalog: str) -> str:
    """Returns the name of a catalogue without a password."""
    return printable(re.sub(r"(?<=://)[^/@]*@", "", catalog))


def check_installed() -> None:
    """Raises ConfigError if the package pyiceberg is missing."""
    if any(importlib.util.find_spec(name) is None for name in ("pyiceberg", "sqlalchemy")):
        raise wrong("table_format", f" iceberg needs pyiceberg: {command_of('iceberg')}")


@contextlib.contextmanager
def catalog_errors(what: str) -> Iterator[None]:
    """Turns the errors of pyiceberg and of its clients into StorageError with one line. ``what``: what was tried."""
    from pyiceberg.exceptions import RESTError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except OdradekError:
        raise
    except SQLAlchemyError as error:
        raise StorageError(f"{what}: {one_line(getattr(error, 'orig', None) or error)}") from error
    except (RESTError, OSError, ValueError) as error:
        raise StorageError(f"{what}: {said_by(error)}") from error
    except Exception as error:
        if not type(error).__module__.startswith("pyiceberg"):
            raise
        raise StorageError(f"{what}: {said_by(error)}") from error


def said_by(error: Exception) -> str:
    """Returns an error in one line; some have no text."""
    return one_line(error) if str(error).strip() else type(error).__name__


def open_catalog(name: TableName) -> Catalog:
    """Returns the catalogue. Writes nothing. Raises ConfigError for one that cannot be used, StorageError."""
    name.check()
    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.memory import InMemoryCatalog
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.sql import SqlCatalog

    shown, options = shown_catalog(name.catalog), _with_absolute_warehouse(name.options)
    called = name.catalog
    if "://" in name.catalog:
        scheme = urlsplit(name.catalog).scheme.lower()
        kind = "rest" if scheme in ("http", "https") else "sql"
        options = {"type": kind, "uri": name.catalog} | options
        called = options.pop("name", "default")
        if kind == "sql":
            _check_database(name.catalog, shown)
    elif "uri" not in options:
        uri = _configured(name.catalog)
        if uri is not None:
            _check_database(uri, shown)
    with catalog_errors(f"the catalogue {shown} cannot be used"):
        catalog = load_catalog(called, **{"init_catalog_tables": "false"} | options)
    if isinstance(catalog, InMemoryCatalog) or not isinstance(catalog, SqlCatalog | RestCatalog):
        raise ConfigError(
            f"the catalogue {shown} is of the class {type(catalog).__name__}: pipelines write by catalogues of the "
            "types sql and rest"
        )
    if isinstance(catalog, SqlCatalog):
        with catalog_errors(f"the catalogue {shown} cannot be used"):
            names = _names_in(catalog)
        if "://" in name.catalog and "name" not in name.options and names and catalog.name not in names:
            if len(names) > 1:
                raise ConfigError(
                    f"the database {shown} has several catalogues ({', '.join(names)}): name one with "
                    "--catalog-option name=…"
                )
            catalog.name = names[0]
    return catalog


def _with_absolute_warehouse(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options. Iceberg's metadata have absolute paths, so a relative warehouse is one of this folder."""
    found = dict(options)
    if _WAREHOUSE in found and "://" not in found[_WAREHOUSE] and found[_WAREHOUSE].startswith((".", "/", "~")):
        found[_WAREHOUSE] = str(local_path(found[_WAREHOUSE]))
    return found


def _configured(name: str) -> str | None:
    """Returns the URI of a catalogue in pyiceberg's configuration, if it is that of an SQL catalogue. Raises
    ConfigError if no catalogue has this name."""
    from pyiceberg.utils.config import Config

    with catalog_errors("pyiceberg's configuration cannot be read"):
        found = Config().get_catalog_config(name)
    if not found:
        raise ConfigError(
            f"the catalogue {printable(name)} is unknown: neither ~/.pyiceberg.yaml nor an environment variable "
            f"PYICEBERG_CATALOG__{printable(name).upper()}__URI names it. Add it there, or give its URI"
        )
    uri = str(found.get("uri", ""))
    return None if urlsplit(uri).scheme.lower() in ("http", "https", "thrift", "") else uri


def _check_database(uri: str, shown: str) -> None:
    """Raises ConfigError for an SQLite database that does not exist: a connection would create it."""
    from sqlalchemy.engine import make_url

    with catalog_errors(f"the catalogue {shown} cannot be used"):
        url = make_url(uri)
    if url.get_backend_name() != "sqlite":
        return
    if (url.database or "") in _MEMORY:
        raise ConfigError(f"the catalogue {shown} is in memory: give a database that other programs can read")
    path = Path(str(url.database))
    if not path.is_file():
        raise ConfigError(
            f"the catalogue {shown} does not exist: there is no file {path}. Create it first, for example with "
            f"pyiceberg: load_catalog('default', type='sql', uri='{shown}', warehouse=…).create_namespace(…)"
        )


def _names_in(catalog: object) -> list[str]:
    """Returns the names of the catalogues in a database of an SQL catalogue."""
    from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
    from sqlalchemy import select, union
    from sqlalchemy.orm import Session

    assert isinstance(catalog, SqlCatalog)
    names = union(select(IcebergTables.catalog_name), select(IcebergNamespaceProperties.catalog_name))
    with Session(catalog.engine) as session:
        return sorted(session.execute(names).scalars())


def load(catalog: Catalog, name: TableName) -> IcebergMetadata | None:
    """Returns the table; None if the catalogue does not have it. Raises StorageError."""
    from pyiceberg.exceptions import NoSuchTableError

    with catalog_errors(f"the Iceberg table {name.table} cannot be read"):
        try:
            return catalog.load_table(name.identifier)
        except NoSuchTableError:
            return None


def location_of_table(catalog: Catalog, name: TableName, given: str | None) -> str:
    """Returns the location of the table, or the one that it gets. ``given``: the location that the user wants. Raises
    ConfigError for a namespace that does not exist, for another location, and if a new table has none; StorageError."""
    from pyiceberg.exceptions import NoSuchNamespaceError
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField, StringType

    shown = shown_catalog(name.catalog)
    table = load(catalog, name)
    if table is not None:
        held: str = table.location().rstrip("/")
        if given is not None and _plain(given) != _plain(held):
            raise wrong("output", f" {given}: the Iceberg table {name.table} is at {held}; leave the option out")
        return held
    with catalog_errors(f"the namespace {name.namespace} of the catalogue {shown} cannot be read"):
        try:
            catalog.load_namespace_properties(name.identifier[:-1])
        except NoSuchNamespaceError:
            raise ConfigError(
                f"the catalogue {shown} has no namespace {name.namespace}: create it first, or correct the name of "
                "the table"
            ) from None
    if given is not None:
        return given.rstrip("/")
    staged = Schema(NestedField(1, "topic", StringType()))  # of a table that is not created: only its location counts
    try:
        with catalog_errors(f"the catalogue {shown} cannot be used"):
            found: str = catalog.create_table_transaction(name.identifier, staged).table_metadata.location
    except StorageError as error:
        if isinstance(error.__cause__, ValueError):
            raise ConfigError(
                f"the catalogue {shown} gives no location for the new table {name.table}: give a warehouse "
                "(--catalog-option warehouse=…), or the location with --output"
            ) from error
        raise
    return found.rstrip("/") if is_uri(found) or found.startswith("file:") else str(local_path(found))


def _plain(location: str) -> str:
    """Returns a location in one form of those that name the same folder."""
    if not is_uri(location):
        return str(local_path(location))
    scheme, _, rest = location.rstrip("/").partition("://")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"
