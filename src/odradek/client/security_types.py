"""The types of the security settings of all clients; ``client/security_settings`` checks the values at run time."""

from __future__ import annotations

from typing import TypedDict


class SecuritySettings(TypedDict, total=False):
    """TLS and SASL, with the names of Java's clients and of librdkafka."""

    security_protocol: str
    """Protocol of the listener: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."""
    sasl_mechanism: str
    """`PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`."""
    sasl_mechanisms: str
    """librdkafka's name of `sasl_mechanism`."""
    sasl_jaas_config: str
    """The login module with its options, as in Java: user and password; `tokenauth="true"` for a delegation token."""
    sasl_username: str
    """User of PLAIN and SCRAM, as in librdkafka; in place of `sasl_jaas_config`."""
    sasl_password: str
    """Password of PLAIN and SCRAM, as in librdkafka."""
    sasl_oauthbearer_token_endpoint_url: str
    """Where OAUTHBEARER gets its tokens: the endpoint of an identity provider, or `file:///PATH`."""
    sasl_oauthbearer_client_credentials_client_id: str
    """The client's id at the identity provider."""
    sasl_oauthbearer_client_credentials_client_secret: str
    """The client's secret at the identity provider."""
    sasl_oauthbearer_scope: str
    """Scope of the tokens that the client asks for."""
    sasl_oauthbearer_header_urlencode: bool
    """Whether id and secret are encoded for URLs before they are sent (RFC 6749)."""
    sasl_login_connect_timeout_ms: int
    """Longest time until the identity provider accepts a connection."""
    sasl_login_read_timeout_ms: int
    """Longest time until the identity provider replies."""
    ssl_truststore_type: str
    """Type of the trust store: `PEM` or `PKCS12`. PKCS12 files are also read with Java's default, `JKS`."""
    ssl_truststore_location: str
    """File with the certificates of the authorities that the client trusts; by default those of the system."""
    ssl_truststore_password: str
    """Password of a trust store in PKCS12."""
    ssl_truststore_certificates: str
    """The trusted certificates themselves, in PEM."""
    ssl_keystore_type: str
    """Type of the key store: `PEM` or `PKCS12`."""
    ssl_keystore_location: str
    """File with the client's private key and certificates, for brokers that ask for them."""
    ssl_keystore_password: str
    """Password of a key store in PKCS12."""
    ssl_keystore_key: str
    """The private key itself, in PEM."""
    ssl_keystore_certificate_chain: str
    """The client's certificates themselves, in PEM."""
    ssl_key_password: str
    """Password of an encrypted private key in PEM."""
    ssl_ca_location: str
    """librdkafka: PEM file with the trusted certificates."""
    ssl_ca_pem: str
    """librdkafka: the trusted certificates themselves, in PEM."""
    ssl_certificate_location: str
    """librdkafka: PEM file with the client's certificates."""
    ssl_certificate_pem: str
    """librdkafka: the client's certificates themselves, in PEM."""
    ssl_key_location: str
    """librdkafka: PEM file with the client's private key."""
    ssl_key_pem: str
    """librdkafka: the private key itself, in PEM."""
    ssl_enabled_protocols: str
    """Versions of TLS: `TLSv1.2`, `TLSv1.3` or both."""
    ssl_protocol: str
    """The newest version of TLS, if `ssl_enabled_protocols` is not set."""
    ssl_cipher_suites: str
    """Suites of TLS 1.2, with Java's names; needs `ssl_enabled_protocols=TLSv1.2`."""
    ssl_endpoint_identification_algorithm: str
    """`https` checks that the certificate has the name that the client connects to; an empty value does not."""
    enable_ssl_certificate_verification: bool
    """librdkafka: false accepts every certificate."""
