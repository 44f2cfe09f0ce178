"""The names of a broker's certificate, as Java checks them: a common name counts if there is no DNS name."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.certificates import Authority

from odradek.client.settings.security_settings import split_security
from odradek.security.stores import client_context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def connects(authority: Authority, pem: Path, host: str) -> bool:
    """Whether our client takes the certificate for that of the host, by a handshake in memory."""
    settings = {"security.protocol": "SSL", "ssl.truststore.type": "PEM"}
    security, _ = split_security({**settings, "ssl.truststore.location": str(authority.pem)})
    assert security is not None
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(pem)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(security.tls).wrap_bio(back, there, server_hostname=host)
    server = served.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError:
                return False
    return client.version() is not None


@pytest.mark.parametrize(("subject", "hosts", "host", "is_accepted"), [
    ("localhost", (), "localhost", True),
    ("localhost", ("127.0.0.1",), "localhost", True),
    ("*.example.com", (), "kafka.example.com", True),
    ("localhost", ("other",), "localhost", False),
    ("other", (), "localhost", False),
    ("127.0.0.1", (), "127.0.0.1", False),
    ("127.0.0.1", ("localhost",), "127.0.0.1", False),
    ("other", ("localhost",), "localhost", True),
])  # fmt: skip
def test_a_common_name_is_the_host_of_a_certificate_without_dns_names(
    authority: Authority, subject: str, hosts: Sequence[str], host: str, is_accepted: bool
) -> None:
    pem = authority.issue("broker", hosts, subject=subject)
    assert connects(authority, pem, host) is is_accepted
