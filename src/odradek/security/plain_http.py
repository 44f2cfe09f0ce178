"""Addresses without TLS, whose messages others on the network can read and replace."""

from __future__ import annotations

import urllib.parse
from ipaddress import ip_address


def unprotected_host(url: str) -> str:
    """Returns the host of an address with ``http`` that is not this machine; "" for any other address."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost":
        return ""
    try:
        return "" if ip_address(host).is_loopback else host
    except ValueError:  # a name
        return host
