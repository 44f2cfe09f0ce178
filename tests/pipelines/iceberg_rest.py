"""A REST catalogue for tests: the HTTP API of Iceberg before an SQL catalogue, with faults. It is no server of others:
what it shows is that our requests have the form of the API, and what follows from its answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest

_OPTIONAL: dict[str, Any] = dict.fromkeys(("location", "partition-spec", "write-order"))


class RestCatalogServer:
    """The server. ``faults``: the answers to the next commits: ``lost`` (done, then 502) and ``refused`` (503)."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self._catalog = catalog
        self.faults: list[str] = []
        self.commits = 0

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        parts = [unquote(part) for part in path.partition("?")[0].strip("/").split("/")]
        try:
            match [method, *parts]:
                case ["GET", "v1", "config"]:
                    return 200, {"defaults": {}, "overrides": {}}
                case ["GET", "v1", "namespaces", namespace]:
                    properties = self._catalog.load_namespace_properties(namespace)
                    return 200, {"namespace": [namespace], "properties": properties}
                case ["POST", "v1", "namespaces", namespace, "tables"]:
                    return 200, self._create(namespace, CreateTableRequest.model_validate(_OPTIONAL | json.loads(body)))
                case ["GET", "v1", "namespaces", namespace, "tables", table]:
                    return 200, self._loaded((namespace, table))
                case ["POST", "v1", "namespaces", namespace, "tables", table]:
                    return self._commit((namespace, table), CommitTableRequest.model_validate_json(body))
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            return 404, _error(404, error)
        except CommitFailedException as error:
            return 409, _error(409, error)
        except Exception as error:
            return 400, _error(400, error)
        return 406, _error(406, ValueError(path))

    def _create(self, namespace: str, request: CreateTableRequest) -> Any:
        if request.stage_create:
            location = f"{self._catalog.properties['warehouse']}/{namespace}/{request.name}"
            staged = self._catalog._create_staged_table((namespace, request.name), request.table_schema, location)
            return {"metadata": json.loads(staged.metadata.model_dump_json())}
        self._catalog.create_table(
            (namespace, request.name), request.table_schema, request.location,
            request.partition_spec or UNPARTITIONED_PARTITION_SPEC, properties=request.properties,
        )  # fmt: skip
        return self._loaded((namespace, request.name))

    def _loaded(self, identifier: tuple[str, str]) -> Any:
        table = self._catalog.load_table(identifier)
        metadata = json.loads(table.metadata.model_dump_json())
        return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}

    def _commit(self, identifier: tuple[str, str], request: CommitTableRequest) -> tuple[int, Any]:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refused":
            return 503, _error(503, OSError("the catalogue is busy"))
        table = self._catalog.load_table(identifier)
        done = self._catalog.commit_table(table, request.requirements, request.updates)
        self.commits += 1
        if fault == "lost":
            return 502, _error(502, OSError("the gateway has no answer"))
        metadata = json.loads(done.metadata.model_dump_json())
        return 200, {"metadata-location": done.metadata_location, "metadata": metadata}


def _error(code: int, error: Exception) -> Any:
    return {"error": {"message": str(error), "type": type(error).__name__, "code": code}}


@contextmanager
def serving(catalog: SqlCatalog) -> Iterator[tuple[RestCatalogServer, str]]:
    """Serves a catalogue; yields the server and its URI."""
    served = RestCatalogServer(catalog)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            code, content = served.answer(self.command, self.path, body)
            text = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._answer
            raise AttributeError(name)

        def log_message(self, *given: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield served, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
