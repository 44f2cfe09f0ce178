"""One session of ZooKeeper over kazoo: reads in bulk, and transactions.

A read is repeated while kazoo reconnects. A transaction is sent once. If ZooKeeper's reply to it is lost, the caller
(``store`` or ``consumer_session``) reads whether ZooKeeper has carried out the transaction.

A "node" is a server of ZooKeeper; a "znode" is an entry in its tree.
"""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from odradek.core.errors import ConfigError
from odradek.core.extras import command_of
from odradek.text.log_lines import PATIENCE_S
from odradek.zookeeper.config import ZooKeeperConfig
from odradek.zookeeper.errors import (
    NoPermission,
    SessionExpired,
    TransactionTooLarge,
    ZnodeChanged,
    ZooKeeperError,
    ZooKeeperUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kazoo.client import KazooClient, TransactionRequest
    from kazoo.interfaces import IAsyncResult

MAX_REQUEST_BYTES = 0xFFFFF
"""ZooKeeper's limit for a request (``jute.maxbuffer``)."""
_OPERATION_BYTES = 80
logger = logging.getLogger("odradek.zookeeper")
"""An upper bound for the bytes of an operation besides its path and value: header, lengths, access list, version."""
_IN_FLIGHT = 500


class Znode(NamedTuple):
    """The state of a znode. ``data`` is None for a znode without data; times in ms since 1970.

    ``owner``: the session id of an ephemeral znode, otherwise 0.
    """

    path: str
    data: bytes | None
    version: int
    created_ms: int
    modified_ms: int
    owner: int


class Create(NamedTuple):
    """Creates a znode; its parent must exist."""

    path: str
    data: bytes | None = None
    is_ephemeral: bool = False


class SetData(NamedTuple):
    """Replaces the data of a znode, if it still has this version."""

    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    """Deletes a znode without children, if it still has this version (-1: any version)."""

    path: str
    version: int = -1


class Check(NamedTuple):
    """A condition of a transaction: the znode still has this version (-1: it exists)."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check

MAX_PAUSE_S = 1.0
"""The longest pause between two attempts to connect, or to make a call; kazoo adds up to 40 % at random."""


_ATTEMPTS_PER_SESSION = 3
_LEAST_WAIT_MS = 1000
"""The shortest wait for a reply to an attempt to connect, unless the session timeout itself is shorter."""


class ZooKeeperConnection:
    """A session, from ``open`` to ``close``. Threads may share it. Paths are below the chroot.

    The constructor raises ConfigError if kazoo is not installed. The methods raise ZooKeeperUnreachable,
    SessionExpired, NoPermission and other ZooKeeperErrors."""

    def __init__(self, config: ZooKeeperConfig) -> None:
        self.config = config
        self._log = _LastWarning()
        self._client = _client(config, self._log)

    def open(self) -> Self:
        """Connects. Raises ZooKeeperUnreachable, and ConfigError for a chroot that does not exist."""
        from kazoo.handlers.threading import KazooTimeoutError

        limit_s = self.config.timeout_ms / 1000
        note = threading.Timer(
            PATIENCE_S, logger.warning, ("%s: no answer yet; waiting up to %.0f s", self.config.hosts, limit_s)
        )
        note.daemon = True
        note.start()
        try:
            with warnings.catch_warnings():  # a missing chroot is an error below
                warnings.simplefilter("ignore")
                self._client.start(self.config.timeout_ms / 1000)
        except KazooTimeoutError:
            self.close()
            raise ZooKeeperUnreachable(self._unanswered()) from None
        except Exception as error:
            self.close()
            with self._errors(""):
                raise error
        finally:
            note.cancel()
        if self.config.chroot and not self.exists("/"):
            self.close()
            raise ConfigError(
                f"zookeeper.connect: the chroot {self.config.chroot} does not exist at {self.config.hosts}: "
                "correct it, or leave it out"
            )
        return self

    def _unanswered(self) -> str:
        why = f" ({self._log.reason})" if self._log.reason else ""
        remedy = "check the addresses, and that the nodes run; for a TLS port set zookeeper.ssl.client.enable=true"
        if self.config.tls is not None:
            remedy = "check the addresses, that they are TLS ports, and the files of zookeeper.ssl.*"
        within = f"the {self.config.timeout_ms} ms of zookeeper.connection.timeout.ms"
        return f"no node of ZooKeeper at {self.config.hosts} answered within {within}{why}: {remedy}"

    def close(self) -> None:
        """Ends the session; its ephemeral znodes disappear."""
        self._client.stop()
        self._client.close()

    @property
    def session_id(self) -> int:
        """The id of the session. Raises ZooKeeperUnreachable while there is no connection."""
        known = self._client.client_id
        if known is None:
            raise ZooKeeperUnreachable(f"ZooKeeper {self.config.hosts} is not connected")
        return int(known[0])

    @property
    def client(self) -> KazooClient:
        """The client of kazoo, for its listeners and watches."""
        return self._client

    def sync(self) -> None:
        """Waits until the connected node has all writes from before the call. Without it, reads can be outdated."""
        self._retry("/", self._client.sync, "/")

    def exists(self, path: str) -> bool:
        """Returns whether there is a znode at the path."""
        return self._retry(path, self._client.exists, path) is not None

    def children(self, path: str) -> list[str] | None:
        """Returns the names of a znode's children, in the order of ZooKeeper's reply; None if there is no znode."""
        return self.children_of([path])[0]

    def children_of(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Returns the result of ``children`` for each path."""
        return [None if names is None else list(names) for names in self._many(paths, self._client.get_children_async)]

    def get(self, path: str) -> Znode | None:
        """Returns a znode, or None if it does not exist."""
        return self.get_many([path])[0]

    def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        """Returns the znode at each path; None if there is none."""
        return [
            None
            if content is None
            else Znode(
                path, content[0], content[1].version, content[1].ctime, content[1].mtime, content[1].ephemeralOwner
            )
            for path, content in zip(paths, self._many(paths, self._client.get_async), strict=True)
        ]

    def commit(self, operations: Iterable[Operation]) -> None:
        """Carries out all operations, or none.

        Raises ZnodeChanged if a znode exists already, is missing, has another version or has children; and
        TransactionTooLarge. Raises ZooKeeperUnreachable if the reply is lost: the outcome is unknown then."""
        from kazoo.exceptions import NoAuthError

        chosen = list(operations)
        if not chosen:
            return
        size = sum(_OPERATION_BYTES + len(one.path.encode()) + len(getattr(one, "data", None) or b"") for one in chosen)
        if size > MAX_REQUEST_BYTES:
            raise TransactionTooLarge(
                f"the transaction has {len(chosen)} operations in about {size} bytes, and ZooKeeper takes at most "
                f"{MAX_REQUEST_BYTES}: choose fewer topics or groups"
            )
        request = self._client.transaction()
        for one in chosen:
            _add(request, one)
        with self._errors(chosen[0].path):
            results = request.commit_async().get(self.config.timeout_ms / 1000)
        for one, result in zip(chosen, results, strict=True):
            if isinstance(result, Exception) and type(result).__name__ not in (
                "RolledBackError",
                "RuntimeInconsistency",
            ):
                refused = isinstance(result, NoAuthError) and isinstance(one, Create | Delete)
                # The access list of the parent decides who may create and delete.
                with self._errors(one.path.rpartition("/")[0] or "/" if refused else one.path):
                    raise result

    def _many(self, paths: Sequence[str], call: Callable[[str], IAsyncResult]) -> list[Any]:
        """Sends up to ``_IN_FLIGHT`` requests before it waits for their replies. Returns None for a missing znode."""
        from kazoo.exceptions import NoNodeError

        results: list[Any] = []
        for first in range(0, len(paths), _IN_FLIGHT):
            sent = [(path, call(path)) for path in paths[first : first + _IN_FLIGHT]]
            for path, answer in sent:
                try:
                    with self._errors(path):
                        results.append(answer.get(self.config.timeout_ms / 1000))
                except ZooKeeperUnreachable:
                    results.append(self._retry(path, lambda path=path: call(path).get(self.config.timeout_ms / 1000)))
                except ZnodeChanged as error:
                    if not isinstance(error.__cause__, NoNodeError):
                        raise
                    results.append(None)
        return results

    def _retry(self, path: str, call: Callable[..., object], *arguments: object) -> object:
        """Repeats a read while kazoo reconnects, for at most the timeout. Returns None for a missing znode."""
        from kazoo.exceptions import NoNodeError
        from kazoo.retry import KazooRetry

        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=MAX_PAUSE_S, deadline=self.config.timeout_ms / 1000)
        with self._errors(path):
            try:
                return retry(call, *arguments)
            except NoNodeError:
                return None

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Converts kazoo's errors to those of ``zookeeper.errors``."""
        import ssl

        from kazoo import exceptions as kazoo
        from kazoo.handlers.threading import KazooTimeoutError
        from kazoo.retry import RetryFailedError

        where = self.config.hosts
        try:
            yield
        except (kazoo.SessionExpiredError, kazoo.ConnectionClosedError) as error:
            raise SessionExpired(
                f"the session at ZooKeeper {where} has ended: its connection was lost for too long"
            ) from error
        except (kazoo.ConnectionLoss, KazooTimeoutError, kazoo.OperationTimeoutError, RetryFailedError) as error:
            what = "did not answer in time" if isinstance(error, KazooTimeoutError) else "lost the connection"
            raise ZooKeeperUnreachable(f"ZooKeeper {where} {what} ({path or 'at the start'})") from error
        except kazoo.NoAuthError as error:
            user = f" as user {self.config.login.partition(':')[0]}" if self.config.login else ""
            raise NoPermission(
                f"ZooKeeper {where}: no permission for {path}{user}: log in as a user of its access list, with the "
                "right password (zookeeper.login in a file, or ODRADEK_ZOOKEEPER_LOGIN)"
            ) from error
        except kazoo.AuthFailedError as error:
            raise NoPermission(
                f"ZooKeeper {where} refuses the login (zookeeper.login, ODRADEK_ZOOKEEPER_LOGIN)"
            ) from error
        except (kazoo.BadVersionError, kazoo.NodeExistsError, kazoo.NoNodeError, kazoo.NotEmptyError) as error:
            why = {
                "BadVersionError": "was changed", "NodeExistsError": "was created", "NoNodeError": "was deleted",
                "NotEmptyError": "got a child",
            }[type(error).__name__]  # fmt: skip
            raise ZnodeChanged(
                f"{path} {why} by another writer in the meantime: nothing was written; try again"
            ) from error
        except kazoo.ZookeeperError as error:
            raise ZooKeeperError(f"ZooKeeper {where}: {path}: {type(error).__name__} {error}".rstrip()) from error
        except ssl.SSLError as error:
            raise ZooKeeperUnreachable(f"ZooKeeper {where}: TLS: {error.reason or error}") from error

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def check_installed() -> None:
    """Raises ConfigError if kazoo is not installed."""
    try:
        import kazoo.client  # noqa: F401  only its presence counts
    except ImportError:
        raise ConfigError(f"offsets in ZooKeeper need kazoo: {command_of('zookeeper')}") from None


class _LastWarning(logging.Logger):
    """The logger of kazoo. It prints nothing; ``reason`` is why the last attempt to connect failed."""

    def __init__(self) -> None:
        super().__init__("odradek.zookeeper.kazoo", logging.WARNING)
        self.reason = ""

    def handle(self, record: logging.LogRecord) -> None:
        """Keeps the reason of a failed attempt to connect, without file paths and secrets."""
        text = record.getMessage()
        if text.startswith("Connection dropped: socket connection error: "):
            self.reason = re.sub(r"^\[SSL: \w+\] | \(_ssl\.c:\d+\)$", "", text.partition("error: ")[2])
        elif text.startswith("Cannot resolve "):
            self.reason = f"{text.split()[2].rstrip(':')} has no address"


def _client(config: ZooKeeperConfig, log: logging.Logger) -> KazooClient:
    check_installed()
    from kazoo.client import KazooClient

    tls = config.tls
    options: dict[str, object] = {}
    if tls is not None:
        options = {
            "use_ssl": True, "verify_certs": True, "check_hostname": tls.check_names, "ca": tls.authorities,
            "certfile": tls.certificate, "keyfile": tls.certificate, "keyfile_password": tls.key_password,
        }  # fmt: skip
    return KazooClient(
        hosts=_hosts(config),
        timeout=config.session_timeout_ms / 1000,
        auth_data=[("digest", config.login)] if config.login else None,
        logger=log,
        # kazoo's own pauses grow to 60 s. A session would expire in one of them although ZooKeeper is back.
        connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": MAX_PAUSE_S},
        **options,
    )


def _hosts(config: ZooKeeperConfig) -> str:
    """Returns the connect string for kazoo, in which each node may be several times.

    A node that is starting may accept a connection and never reply to it. kazoo waits for the reply for the session
    timeout divided by the number of addresses. With one address the session expires at the end of that wait."""
    nodes = config.hosts.split(",")
    attempts = min(_ATTEMPTS_PER_SESSION, config.session_timeout_ms // _LEAST_WAIT_MS)
    return ",".join(nodes * max(1, -(-attempts // len(nodes)))) + config.chroot


def _add(request: TransactionRequest, one: Operation) -> None:
    match one:
        case Create():
            _add_create(request, one)
        case SetData():
            request.set_data(one.path, one.data, one.version)
        case Delete():
            request.delete(one.path, one.version)
        case Check():
            request.check(one.path, one.version)


def _add_create(request: TransactionRequest, one: Create) -> None:
    from kazoo.protocol import serialization

    request.create(one.path, one.data or b"", ephemeral=one.is_ephemeral)
    if one.data is None:
        # Kafka's consumers create parents without data. kazoo's method always sends data, so change its operation.
        made = request.operations[-1]
        request.operations[-1] = serialization.Create(made.path, None, made.acl, made.flags)
