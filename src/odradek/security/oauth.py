"""OAUTHBEARER (RFC 7628) on the client's side: tokens from a file or from an identity provider, and the first message.

The token itself is not checked here, except for its end: the broker decides whether it is valid.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

from odradek.core.errors import ConfigError
from odradek.security.client_security import TokenSource
from odradek.security.secret import Secret
from odradek.security.stores import client_context, unprotected_host

logger = logging.getLogger("odradek.client")

MOST_BYTES = 1 << 20
_USED_SHARE = 0.8
"""A token is fetched again when this share of its life is over (``sasl.login.refresh.window.factor``)."""
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


class TokenError(Exception):
    """No token could be had. The text never shows a secret."""


def token_message(token: Secret, extensions: Iterable[tuple[str, str]] = ()) -> bytes:
    """Returns the client's first message. Raises TokenError for a token or an extension with other characters."""
    parts = ["n,,"]
    for name, value in [("auth", f"Bearer {token.reveal()}"), *extensions]:
        if not _KEY.fullmatch(name) or not _VALUE.fullmatch(value):
            raise TokenError("the token has invalid characters" if name == "auth" else f"extension_{name} is invalid")
        parts.append(f"{name}={value}")
    return ("\x01".join(parts) + "\x01\x01").encode()


class Tokens:
    """The newest token of each source, used until most of its life is over. Safe for threads.

    ``ask`` gets a token from an identity provider, as ``from_provider`` does, which is the default.
    """

    def __init__(
        self, now_s: Callable[[], float] = time.time, ask: Callable[[TokenSource], Secret] | None = None
    ) -> None:
        self._now_s = now_s
        self._ask = ask
        self._lock = threading.Lock()  # of the dicts; it is never held during a fetch
        self._fetches: dict[TokenSource, threading.Lock] = {}
        self._kept: dict[TokenSource, tuple[Secret, float]] = {}
        self._warned: set[str] = set()

    def token(self, source: TokenSource) -> Secret:
        """Returns a token. Waits for the identity provider. One fetch of a source is in progress at a time; other
        sources do not wait for it. Raises TokenError."""
        with self._lock:
            fetch = self._fetches.setdefault(source, threading.Lock())
        with fetch:
            with self._lock:
                kept = self._kept.get(source)
                if kept is not None and self._now_s() < kept[1]:
                    return kept[0]
                self._warn(source)
            begin_s = self._now_s()
            token = _from_file(source) if source.url.startswith("file:") else (self._ask or from_provider)(source)
            used_until_s = begin_s + _USED_SHARE * (end_s(token) - begin_s)
            with self._lock:
                self._kept[source] = token, used_until_s
            return token

    def _warn(self, source: TokenSource) -> None:
        """Warns once of an address to which the client's secret goes without TLS."""
        host = unprotected_host(source.url)
        if host and source.url not in self._warned:
            self._warned.add(source.url)
            logger.warning(
                "sasl.oauthbearer.token.endpoint.url: the client's secret goes to %s, and the token comes from there, "
                "without TLS, so others on the network can read both; use https",
                host,
            )

    def forget(self, source: TokenSource) -> None:
        """Drops a token that a broker has refused."""
        with self._lock:
            self._kept.pop(source, None)


tokens = Tokens()


def end_s(token: Secret) -> float:
    """Returns the end of a signed token in seconds since 1970. Raises TokenError if it is no such token."""
    parts = token.reveal().split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise TokenError("the token is not a JSON web token with the claim exp") from error


def _from_file(source: TokenSource) -> Secret:
    path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(source.url).path))
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise TokenError(f"{path} is larger than {MOST_BYTES >> 20} MiB")
        return Secret(data.decode("ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"{path}: {getattr(error, 'strerror', None) or 'it is not a token'}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would send the client's secret to another host."""

    def redirect_request(self, *_: object) -> None:
        return None


def from_provider(source: TokenSource) -> Secret:
    """Asks the identity provider of a source for a token. Raises TokenError."""
    user, secret = source.client_id, source.client_secret.reveal()
    if source.encodes_header:
        user, secret = urllib.parse.quote_plus(user), urllib.parse.quote_plus(secret)
    fields = {"grant_type": "client_credentials", **({"scope": source.scope} if source.scope else {})}
    request = urllib.request.Request(
        source.url,
        urllib.parse.urlencode(fields).encode(),
        {
            "Authorization": "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode(),
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        },
    )
    host = urllib.parse.urlsplit(source.url).netloc.rpartition("@")[2]
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    try:
        if source.tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=client_context(source.tls)))
        opener = urllib.request.build_opener(*handlers)
        timeout_s = (source.connect_timeout_ms + source.read_timeout_ms) / 1000
        with opener.open(request, timeout=timeout_s) as reply:
            data = reply.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise TokenError(f"the identity provider {host} answered with status {error.code}") from error
    except ConfigError as error:
        raise TokenError(str(error)) from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise TokenError(f"the identity provider {host} cannot be reached: {reason}") from error
    return _token_in(data, host)


def _token_in(data: bytes, host: str) -> Secret:
    try:
        if len(data) > MOST_BYTES:
            raise ValueError
        content = json.loads(data)
        token = content.get("access_token") or content.get("id_token")
        if not isinstance(token, str) or not token:
            raise ValueError
    except (ValueError, AttributeError) as error:
        raise TokenError(f"the reply of the identity provider {host} has no access_token") from error
    return Secret(token)
