"""Requests to a registry, for its tests."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


def call(url: str, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, Any]:
    """Returns status and JSON of a request."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url + path, data, {"Content-Type": "application/json"} | headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def register(url: str, subject: str, schema: str, language: str = "AVRO", **more: Any) -> Any:
    """Registers a schema, and returns its id, or the error."""
    body = {"schema": schema, "schemaType": language} | more
    status, found = call(url, f"/subjects/{subject}/versions", "POST", body)
    return found["id"] if status == 200 else (status, found["error_code"], found["message"])
