"""The settings of the authorizer."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.core.errors import ConfigError

AUTHORIZER = "authorizer.class.name"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def check_authorizer(texts: Mapping[str, str]) -> None:
    """Raises ConfigError if the authorizer is unknown or a super user is no principal."""
    name = texts.get(AUTHORIZER, "").strip()
    if name not in ("", STANDARD_AUTHORIZER):
        raise ConfigError(f"{AUTHORIZER}: this broker has no class {name!r}; set {STANDARD_AUTHORIZER} or leave it out")
    super_users(texts)


def super_users(texts: Mapping[str, str]) -> list[str]:
    """Returns the principals of ``super.users``. Raises ConfigError."""
    users = [part.strip() for part in texts.get("super.users", "").split(";") if part.strip()]
    for user in users:
        if ":" not in user:
            raise ConfigError(f"super.users: {user!r} is no principal; write kind:name, as in User:admin")
    return users


def allows_unlisted(texts: Mapping[str, str]) -> bool:
    """Returns whether all clients may use a resource that no ACL names."""
    return texts.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true"
