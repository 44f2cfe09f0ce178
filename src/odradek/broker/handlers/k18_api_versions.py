"""ApiVersions 0–4: what this broker serves.

Versions: 1 throttle time, 3 flexible, who asks, features; 4 lets features start at 0. A version newer than 4 gets a
v0 reply with UNSUPPORTED_VERSION and the versions of this API alone, so that the client can come down.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.broker.router import Api, Context
    from odradek.broker.server import BrokerServer

API_KEY = 18

_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def _row(api: Api) -> dict[str, int]:
    return {"api_key": api.key, "min_version": api.advertised_oldest, "max_version": api.newest}


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    apis = broker.router.apis
    if message is None:
        return {"error_code": ErrorCode.unsupported_version, "api_keys": [_row(apis[API_KEY])]}
    if context.version >= 3 and not (
        _NAME.fullmatch(message.client_software_name) and _NAME.fullmatch(message.client_software_version)
    ):
        return {"error_code": ErrorCode.invalid_request, "api_keys": []}
    return {
        "error_code": ErrorCode.none,
        "api_keys": [_row(api) for api in apis.values()],
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": level} for name, level in broker.features.items()
        ]
        if context.version >= 4
        else [],
        "finalized_features_epoch": 0 if broker.features else -1,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, level in broker.features.items()
            if level
        ],
    }
