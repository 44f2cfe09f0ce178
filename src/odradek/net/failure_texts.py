"""Why a connection to a broker failed, in plain words, and what to change."""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING

from odradek.net.errors import AuthenticationFailed

if TYPE_CHECKING:
    from odradek.net.transports import Address


def expected_listener(context: ssl.SSLContext | None) -> str:
    if context is None:
        return "if it is a listener with TLS, set security.protocol to SSL or SASL_SSL"
    return (
        "if it is a listener without TLS, set security.protocol to PLAINTEXT or SASL_PLAINTEXT; "
        "if it wants a certificate of the client, set ssl.keystore.location"
    )


def tls_failure(address: Address, error: ssl.SSLError) -> AuthenticationFailed:
    """Returns the error for a failed TLS handshake, with its cause and the setting that may be wrong."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        if "ostname mismatch" in reason or "IP address mismatch" in reason:
            remedy = "connect to a name of the certificate, or set ssl.endpoint.identification.algorithm to nothing"
        elif "expired" in reason or "not yet valid" in reason:
            remedy = "the broker needs a valid certificate"
        else:
            remedy = "set ssl.truststore.location to the certificate of its authority"
        text = f"{address}: its certificate is refused: {reason[:1].lower()}{reason[1:]}: {remedy}"
    else:
        words = (error.reason or str(error)).replace("_", " ").lower()
        if words in ("wrong version number", "record layer failure", "http request"):
            text = f"{address} is no listener with TLS: set security.protocol to PLAINTEXT or SASL_PLAINTEXT"
        elif "alert" in words:
            alert = words.partition("alert ")[2] or words
            text = f"{address} refused the TLS handshake: {alert}: {_certificate_remedy(alert)}"
        else:
            text = f"{address}: the TLS handshake failed: {words}"
    return AuthenticationFailed(text)


def _certificate_remedy(alert: str) -> str:
    if alert == "certificate required":
        return "it wants a certificate of the client: set ssl.keystore.location"
    return "it may ask for another certificate of the client than that of ssl.keystore.location"


def plain_reason(error: BaseException) -> str:
    """Returns the error in plain words: ``connection refused``, without the error number and the address."""
    if isinstance(error, socket.gaierror):
        return "host name not found"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError):
        return "connection reset"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    if isinstance(error, OSError) and "Multiple exceptions" in str(error):
        return "connection refused"
    return str(error) or type(error).__name__
