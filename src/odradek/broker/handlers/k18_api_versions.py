"""ApiVersions 0–4: returns the APIs, versions and features that this broker serves.

* 1: throttle time.
* 3: flexible; the client's software name and version; features.
* 4: features whose lowest level is 0.

A version newer than 4 gets a v0 reply with UNSUPPORTED_VERSION and only this API's versions, so that the client can
repeat the request in an older version.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from odradek.broker.limits.quotas import REQUEST_PERCENTAGE
from odradek.catalog.features import SUPPORTED
from odradek.core.errors import ErrorCode
from odradek.wire import schemas
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.request import ApiVersionsRequest

    from odradek.broker.handlers.api import BrokerServices, Context, ServedApi

VERSIONS = (0, 4)
LISTENERS = ("client", "controller")
IS_FREQUENT = True
REPLIES_TO_ANY_VERSION = True
API_KEY = 18

_PACKED: WeakKeyDictionary[BrokerServices, dict[int, tuple[int, bytes]]] = WeakKeyDictionary()
"""A broker's packed replies by version, each with the end offset of the metadata log that it reflects."""
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def has_valid_names(message: ApiVersionsRequest, version: int) -> bool:
    """Returns whether the client's software has a valid name and version. Before version 3 they are not there."""
    return version < 3 or bool(
        _NAME.fullmatch(message.client_software_name) and _NAME.fullmatch(message.client_software_version)
    )


def _row(api: ServedApi) -> dict[str, int]:
    return {"api_key": api.key, "min_version": api.advertised_oldest, "max_version": api.newest}


def handle(broker: BrokerServices, context: Context, message: ApiVersionsRequest | None) -> dict[str, object] | bytes:
    apis = broker.apis
    if message is None:
        return {"error_code": ErrorCode.unsupported_version, "api_keys": [_row(apis[API_KEY])]}
    version = context.version
    if version >= 3 and not has_valid_names(message, version):
        return {"error_code": ErrorCode.invalid_request, "api_keys": []}
    if broker.quotas.has_quota(REQUEST_PERCENTAGE):
        return _reply(broker, version)  # the reply may need a throttle time
    # Every connection begins with this request, and some connections repeat it. The reply changes with the catalogue.
    packed, epoch = _PACKED.setdefault(broker, {}), broker.catalog.log_end_offset
    known = packed.get(version)
    if known is None or known[0] != epoch:
        known = packed[version] = epoch, schemas.encode(API_KEY, version, Kind.RESPONSE, _reply(broker, version))
    return known[1]


def _reply(broker: BrokerServices, version: int) -> dict[str, object]:
    lowest_level = 0 if version >= 4 else 1
    return {
        "error_code": ErrorCode.none,
        "api_keys": [_row(api) for api in broker.apis.values()],
        "supported_features": [
            {"name": name, "min_version": lowest, "max_version": highest}
            for name, (lowest, highest) in SUPPORTED.items()
            if lowest >= lowest_level
        ],
        "finalized_features_epoch": broker.catalog.log_end_offset,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, level in broker.catalog.features().items()
        ],
    }
