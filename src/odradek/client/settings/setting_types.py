"""The types of the settings of all clients but ``Consumer``, for editors and type checkers.

``client/config.ClientConfig`` has the defaults and checks the values at run time. A test holds both to the same names
and types.
"""

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


class ConnectionSettings(SecuritySettings, total=False):
    """What ``ClientSettings`` and a consumer's settings have in common. Times in milliseconds, sizes in bytes."""

    client_id: str
    """Name of the client in requests; brokers apply quotas by it and write it into their logs."""
    request_timeout_ms: int
    """Longest time of one request. After it the connection is closed and the request is sent again."""
    default_api_timeout_ms: int
    """Longest time of a call with its retries, unless the call has a `timeout`."""
    bootstrap_timeout_ms: int
    """Not in Kafka. Longest time until the first connection opens; 0: each address gets one attempt."""
    socket_connection_setup_timeout_ms: int
    """Longest time of each attempt to open a connection."""
    retry_backoff_ms: int
    """Wait before the first retry of a failed request. Each further wait is longer."""
    retry_backoff_max_ms: int
    """The longest wait before a retry."""
    metadata_max_age_ms: int
    """Age at which the topics' partitions and leaders are looked up again."""
    receive_message_max_bytes: int
    """Not in Kafka, but in librdkafka. Largest reply; the default grows with the limit of a fetch."""


class ClientSettings(ConnectionSettings, total=False):
    """The settings of ``Admin``, and of the connections of a ``Producer`` or a ``PartitionReader``.

    Times in milliseconds, sizes in bytes."""

    max_partition_fetch_bytes: int
    """Most bytes of records of one partition in a fetch. Only for a `PartitionReader`."""
    fetch_max_wait_ms: int
    """Time that the broker may wait for the first byte of records. Only for a `PartitionReader`."""
    check_crcs: bool
    """Whether the checksums of fetched batches are checked. Only for a `PartitionReader`."""
    client_rack: str
    """Rack of the client: it reads from a replica in the same rack where brokers allow it. Only for a
    `PartitionReader`."""
    allow_auto_create_topics: bool | None
    """Whether a lookup may create a topic, on a broker with `auto.create.topics.enable`. None: true for a `Producer`,
    as in Java, and false for an `Admin`."""
