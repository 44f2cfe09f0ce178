"""OAUTHBEARER (RFC 7628, KIP-768) on the server's side: a state machine like those of ``sasl_server``.

The client's only message has its token. The answer to a token that is not valid is a JSON object, as in the RFC; the
client acknowledges it with one byte, and then the login is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from odradek.security.sasl_server import LoggedIn, LoginFailed, LoginRefused
from odradek.security.web_tokens import TokenRefused, WebToken

INVALID_TOKEN = '{"status":"invalid_token"}'
_ACKNOWLEDGEMENT = b"\x01"
_FIRST = re.compile(r"n,(?:a=(?P<name>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01(?P<pairs>.*)\x01", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z]+)=([\x21-\x7e \t\r\n]+)")
_AUTH = re.compile(r"(\w+) +([-_~+/.a-zA-Z0-9]+=*)", re.ASCII)


class OauthServer:
    """``check(token)`` returns the claims of a valid token, and raises TokenRefused. ``user``: that of such a token."""

    def __init__(self, check: Callable[[str], WebToken]) -> None:
        self._check = check
        self.user = ""
        self.refusal = ""
        self.login: LoggedIn | None = None

    def step(self, message: bytes) -> bytes:
        if self.login is not None:
            raise LoginFailed("a message after the login")
        if self.refusal:
            if message == _ACKNOWLEDGEMENT:
                raise LoginRefused(INVALID_TOKEN, self.refusal)
            raise LoginFailed("a message after an invalid token")
        token, authorization = read_first(message)
        try:
            accepted = self._check(token)
        except TokenRefused as error:
            self.refusal = f"the token is not valid: {error}"
            return INVALID_TOKEN.encode()
        self.user = accepted.subject
        if authorization not in ("", accepted.subject):
            raise LoginRefused(
                f"Authentication failed: Client requested an authorization id ({authorization}) that is different from "
                f"the token's principal name ({accepted.subject})"
            )
        self.login = LoggedIn(accepted.subject, accepted.end_ms)
        return b""


def read_first(message: bytes) -> tuple[str, str]:
    """Returns the token and the authorization id of the client's message. Raises LoginFailed."""
    match = _FIRST.fullmatch(message.decode(errors="replace"))
    if match is None:
        raise LoginFailed("Invalid OAUTHBEARER client first message")
    pairs: dict[str, str] = {}
    for part in match["pairs"].split("\x01")[:-1]:
        pair = _PAIR.fullmatch(part)
        if pair is None:
            raise LoginFailed("Invalid OAUTHBEARER client first message")
        pairs[pair[1]] = pair[2]
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None:
        raise LoginFailed("Invalid OAUTHBEARER client first message: 'auth' is not there or is invalid")
    if auth[1].lower() != "bearer":
        raise LoginFailed("Invalid scheme in OAUTHBEARER client first message")
    return auth[2], match["name"] or ""
