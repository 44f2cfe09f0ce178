"""Property files as projects have them: a command takes the settings of its connection, and names the rest.

The settings are those of public files: Kafka's own ``consumer.properties`` and ``producer.properties``, Confluent
Cloud's, Kafdrop's, Strimzi's, MSK's, Connect workers, Streams, librdkafka's programs, Spring's.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from odradek.cli.main import run
from odradek.client.admin import Admin

Capture = pytest.CaptureFixture[str]
STRINGS = "org.apache.kafka.common.serialization.String"
CONSUMER = f"""\
group.id=${{spring.application.name}}
group.instance.id=host-1
session.timeout.ms=30000
heartbeat.interval.ms=10000
max.poll.records=5000
enable.auto.commit=false
auto.offset.reset=earliest
partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor
security.protocol=PLAINTEXT
sasl.mechanism=PLAIN
key.deserializer={STRINGS}Deserializer
value.deserializer={STRINGS}Deserializer
"""
PRODUCER = f"""\
acks=all
compression.type=gzip
linger.ms=5
key.serializer={STRINGS}Serializer
"""
LIBRDKAFKA = (
    "metadata.broker.list=h:1\nsocket.keepalive.enable=true\nenable.partition.eof=true\nsession.timeout.ms=6000\n"
)
STREAMS = "application.id=wordcount\nprocessing.guarantee=exactly_once_v2\nnum.stream.threads=2\n"
CONNECT = "group.id=connect-cluster\nkey.converter=JsonConverter\noffset.storage.topic=offsets\n"
REGISTRY = "schema.registry.url=https://r\nbasic.auth.user.info=a:secret-of-a\nclient.dns.lookup=use_all_dns_ips\n"
PLAIN_WITH_TLS = "security.protocol=PLAINTEXT\nssl.endpoint.identification.algorithm=\nssl.truststore.location=/a.jks\n"


@pytest.mark.parametrize(
    ("text", "unused"),
    [
        (CONSUMER, ""),
        (PRODUCER, ""),
        (PLAIN_WITH_TLS, ""),
        (LIBRDKAFKA, "enable.partition.eof, metadata.broker.list, socket.keepalive.enable"),
        (STREAMS, "application.id, num.stream.threads, processing.guarantee"),
        (CONNECT, "key.converter, offset.storage.topic"),
        (REGISTRY, "basic.auth.user.info, schema.registry.url"),
        ("ssl.client.auth=required\n", "ssl.client.auth"),
    ],
)
def test_a_command_takes_its_settings_and_names_the_rest(
    bootstrap: str, tmp_path: Path, capsys: Capture, text: str, unused: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nclient.id=c\n" + text)
    assert run(["groups", "list", "-b", bootstrap, "--command-config", str(file)]) == 0
    err = capsys.readouterr().err
    assert err == (f"--command-config {file}: not used here: {unused}\n" if unused else "")
    assert "secret-of-a" not in err


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("security.protocl=SSL\n", ("line 1", "security.protocl")),
        ("request.timout.ms=1\n", ("line 1", "request.timout.ms", "request.timeout.ms")),
        ("ssl.truststore.location=/a.jks\n", ("line 1", "ssl.truststore.location", "security.protocol")),
        ("sasl.pasword=x\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n", ("line 1", "sasl.pasword")),
        ('security.protocol="PLAINTEXT"\n', ("line 1", "security.protocol", "remove the quotation marks")),
        ("KAFKA_BOOTSTRAP_SERVERS=h:1\n", ("line 1", "NAME=VALUE", "bootstrap.servers")),
        ("spring.kafka.bootstrap-servers=h:1\n", ("line 1", "NAME=VALUE", "bootstrap.servers")),
        ('{"bootstrap.servers": "h:1"}\n', ("line 1", "NAME=VALUE")),
        ("[default]\nbootstrap.servers=h:1\n", ("line 1", "NAME=VALUE")),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            "sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler\n",
            ("line 3", "sasl.login.callback.handler.class"),
        ),
        ("security.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM\n", ("line 2", "sasl.mechanism", "SCRAM-SHA-512")),
    ],
)
def test_what_would_protect_and_what_is_mistyped_is_an_error(
    bootstrap: str, tmp_path: Path, capsys: Capture, text: str, names: tuple[str, ...]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    assert run(["groups", "list", "-b", bootstrap, "--command-config", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(name in line for name in names), line


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        ("client.id=c\n".encode("utf-16"), "it is UTF-16: save it as UTF-8, for example with `iconv -f UTF-16 -t UTF-"),
        ("client.id=c\n".encode("utf-16-le"), "it is UTF-16: save it"),
        ("client.id=c\n".encode("utf-16-be"), "it is UTF-16: save it"),
        ("client.id=\xe9\n".encode("latin-1"), "it is not valid UTF-8: save it as UTF-8, or write é as the escape \\u"),
    ],
    ids=["mark", "little", "big", "latin-1"],
)  # fmt: skip
def test_a_file_in_another_encoding_names_the_remedy(
    bootstrap: str, tmp_path: Path, capsys: Capture, data: bytes, remedy: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(data)
    assert run(["groups", "list", "-b", bootstrap, "--command-config", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert remedy in line
    file.write_text("client.id=\\u00e9\n")
    assert run(["groups", "list", "-b", bootstrap, "--command-config", str(file)]) == 0


def test_a_consumers_file_is_no_membership_without_the_option(
    bootstrap: str, admin: Admin, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text(CONSUMER.replace("${spring.application.name}", filled + "-file"))
    read = ["consume", filled, "-b", bootstrap, "--command-config", str(file)]
    assert run(read) == 0, capsys.readouterr().err
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 20
    assert "group.id (--group gives it)" in shown.err
    assert filled + "-file" not in admin.list_groups()
    assert run([*read, "--group", filled + "-option"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 20
    assert filled + "-file" not in admin.list_groups()


def test_produce_takes_the_producers_settings(bootstrap: str, filled: str, tmp_path: Path, capsys: Capture) -> None:
    file, lines = tmp_path / "producer.properties", tmp_path / "lines.txt"
    lines.write_text("a\nb\n")
    file.write_text(PRODUCER)
    send = ["produce", filled, "--file", str(lines), "-b", bootstrap, "--command-config", str(file)]
    assert run(send) == 0
    file.write_text("compression.type=gzap\n")
    assert run(send) == 2
    assert "line 1: compression" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("acks=seven", "acks"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=open-sesame", "sasl.jaas.config"),
    ],
)
def test_a_file_from_a_pipe_is_read_once(
    bootstrap: str, topic: str, text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    reader, writer = os.pipe()  # what a shell makes of --command-config <(…): a second read finds nothing
    os.write(writer, text.encode())
    os.close(writer)
    file = f"/dev/fd/{reader}"
    try:
        assert run(["produce", topic, "--file", str(lines), "-b", bootstrap, "--command-config", file]) == 2
    finally:
        os.close(reader)
    error = capsys.readouterr().err
    assert error.startswith(f"odradek: --command-config {file}, line {text.count(chr(10)) + 1}: ")
    assert named in error
    assert "seven" not in error
    assert "sesame" not in error


def test_a_file_that_changes_between_two_commands_of_a_process_is_read_again(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    for text, code in (("client.id=a", 0), ("security.protocol=b", 2), ("client.id=c", 0)):
        file.write_text(text)
        assert run(["groups", "list", "-b", bootstrap, "--command-config", str(file)]) == code


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\n", "sasl.mechanism: GSSAPI (Kerberos) is not supported"),
        ("security.protocol=SASL\n", "SASL_PLAINTEXT, SASL_SSL"),
        ("security.protocol=PLAIN\n", "expected PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=SCRAM\n", "SCRAM-SHA-256, SCRAM-SHA-512"),
    ],
)
def test_the_choices_of_a_setting_are_shown_whole(text: str, message: str, tmp_path: Path, capsys: Capture) -> None:
    """A value of the file is hidden, because it may be a secret. A part of the choices is none."""
    file = tmp_path / "client.properties"
    file.write_text(text)
    assert run(["topics", "list", "-b", "127.0.0.1:1", "--command-config", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert "…" not in line
