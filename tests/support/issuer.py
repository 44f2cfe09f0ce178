"""An identity provider for tests: keys of each kind, a key set as a file and by HTTP, and tokens, good and bad."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

ISSUER, AUDIENCE = "https://issuer.test", "kafka"
HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def packed_json(value: object) -> str:
    return packed(json.dumps(value).encode())


def number(value: int, size: int = 0) -> str:
    return packed(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


class Issuer:
    """Signs tokens by the keys k1 (RSA) and ES256, ES384, ES512; ``key_set`` is the file with their public parts."""

    _rsa_keys: ClassVar[dict[str, rsa.RSAPrivateKey]] = {}

    def __init__(self, directory: Path, key_id: str = "k1") -> None:
        self.key_id = key_id
        if key_id not in self._rsa_keys:
            self._rsa_keys[key_id] = rsa.generate_private_key(65537, 2048)
        self.rsa_key = self._rsa_keys[key_id]
        self.curve_keys = {name: ec.generate_private_key(curve) for name, curve in CURVES.items()}
        self.key_set = directory / "jwks.json"
        self.write()

    def rows(self) -> list[dict[str, Any]]:
        numbers = self.rsa_key.public_key().public_numbers()
        rows: list[dict[str, Any]] = [
            {"kty": "RSA", "kid": self.key_id, "use": "sig", "n": number(numbers.n), "e": number(numbers.e)}
        ]
        for name, key in self.curve_keys.items():
            point = key.public_key().public_numbers()
            size = (key.curve.key_size + 7) // 8
            curve = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[name]
            rows.append({
                "kty": "EC", "kid": name, "use": "sig", "alg": name, "crv": curve, "x": number(point.x, size),
                "y": number(point.y, size),
            })  # fmt: skip
        return rows

    def write(self) -> None:
        new = self.key_set.with_suffix(".new")
        new.write_text(json.dumps({"keys": self.rows()}))
        new.replace(self.key_set)

    def claims(self, subject: str = "alice", *, lifetime_s: float = 600, **more: Any) -> dict[str, Any]:
        """The claims of a token. A claim with the value None is left out."""
        now = int(time.time())
        found = {"sub": subject, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": int(now + lifetime_s), **more}
        return {name: value for name, value in found.items() if value is not None}

    def token(self, subject: str = "alice", algorithm: str = "RS256", **more: Any) -> str:
        """A signed token. ``header``: further fields of the header, or None to leave one out."""
        header = more.pop("header", {})
        return self.signed(self.claims(subject, **more), algorithm, **header)

    def signed(self, claims: object, algorithm: str = "RS256", **header: Any) -> str:
        key_id = algorithm if algorithm in CURVES else self.key_id
        head = {"alg": algorithm, "typ": "JWT", "kid": key_id, **header}
        head = {name: value for name, value in head.items() if value is not None}
        signed = f"{packed_json(head)}.{claims if isinstance(claims, str) else packed_json(claims)}"
        return f"{signed}.{packed(self.signature(signed.encode(), algorithm))}"

    def signature(self, data: bytes, algorithm: str) -> bytes:
        digest = HASHES[algorithm[2:]]
        if algorithm in CURVES:
            key = self.curve_keys[algorithm]
            size = (key.curve.key_size + 7) // 8
            return b"".join(one.to_bytes(size, "big") for one in decode_dss_signature(key.sign(data, ec.ECDSA(digest))))
        if algorithm.startswith("RS"):
            return self.rsa_key.sign(data, padding.PKCS1v15(), digest)
        return self.rsa_key.sign(data, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)


class Provider(http.server.ThreadingHTTPServer):
    """Serves a key set. ``status`` and ``body`` may be changed; ``drip_s``: the pause after each byte."""

    daemon_threads = True

    def __init__(self, issuer: Issuer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.issuer = issuer
        self.requests = 0
        self.status = 200
        self.body: bytes | None = None
        self.drip_s = 0.0
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/keys?v=1"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        server = self.server
        server.requests += 1
        assert self.path == "/keys?v=1"
        body = server.issuer.key_set.read_bytes() if server.body is None else server.body
        self.send_response(server.status)
        if server.status == 302:
            self.send_header("Location", server.url)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not server.drip_s:
            self.wfile.write(body)
            return
        for byte in body:
            self.wfile.write(bytes([byte]))
            time.sleep(server.drip_s)

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            pass


@contextmanager
def provider(issuer: Issuer, context: Any = None) -> Iterator[Provider]:
    """A running provider. ``context``: TLS of the server."""
    server = Provider(issuer)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.scheme = "https"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class TokenEndpoint(http.server.ThreadingHTTPServer):
    """Gives tokens to the client ``client_id`` with its secret (RFC 6749, client credentials), and keeps them."""

    daemon_threads = True

    def __init__(self, issuer: Issuer, client_id: str, client_secret: str) -> None:
        super().__init__(("127.0.0.1", 0), _TokenHandler)
        self.issuer = issuer
        self.login = "Basic " + base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
        self.tokens: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/token"


class _TokenHandler(http.server.BaseHTTPRequestHandler):
    server: TokenEndpoint

    def do_POST(self) -> None:
        server = self.server
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != server.login:
            self.send_error(401)
            return
        server.tokens.append(server.issuer.token())
        body = json.dumps({"access_token": server.tokens[-1], "token_type": "Bearer"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def token_endpoint(issuer: Issuer, client_id: str, client_secret: str) -> Iterator[TokenEndpoint]:
    """A running endpoint."""
    server = TokenEndpoint(issuer, client_id, client_secret)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
