"""Secrets in kio's messages, whose ``repr`` shows all fields: passwords, tokens and settings of brokers.

A log line, a traceback with values or a failed assertion may show the ``repr`` of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from typing import Any

from kio.serial._introspect import classify_field

HIDDEN = "[hidden]"
SECRETS: dict[int, tuple[str, ...]] = {
    33: ("value",),  # AlterConfigs
    36: ("auth_bytes",),  # SaslAuthenticate
    38: ("hmac",),  # CreateDelegationToken
    39: ("hmac",),  # RenewDelegationToken
    40: ("hmac",),  # ExpireDelegationToken
    41: ("hmac",),  # DescribeDelegationToken
    44: ("value",),  # IncrementalAlterConfigs
    51: ("salt", "salted_password"),  # AlterUserScramCredentials
    58: ("request_data", "request_principal", "response_data"),  # Envelope: another request and its reply
    59: ("unaligned_records",),  # FetchSnapshot: the snapshot has the credentials of the metadata log
}
"""The fields with secrets, by the key of the API."""


def hide(entity: Any, api_key: int) -> None:
    """Makes the ``repr`` of a message's class, and of the classes in it, leave the values of secrets out."""
    names = SECRETS.get(api_key, ())
    if not names:
        return
    if any(field.name in names for field in fields(entity)):
        entity.__repr__ = _repr_without(names)
    for field in fields(entity):
        inner = classify_field(field).type_
        if is_dataclass(inner):
            hide(inner, api_key)


def _repr_without(names: Collection[str]) -> Callable[[Any], str]:
    def shown(message: Any) -> str:
        parts = []
        for field in fields(message):
            value = getattr(message, field.name)
            text = HIDDEN if field.name in names and value else repr(value)
            parts.append(f"{field.name}={text}")
        return f"{type(message).__qualname__}({', '.join(parts)})"

    return shown
