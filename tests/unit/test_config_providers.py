"""Variables in the values of properties files, as Kafka's providers of settings replace them."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.broker.settings.config import BrokerConfig, start_texts
from odradek.core.errors import ConfigError
from odradek.text.config_providers import read_settings_file, with_values
from odradek.text.properties_file import java_properties

CLASSES = "org.apache.kafka.common.config.provider."
FILE = {"config.providers": "file", "config.providers.file.class": CLASSES + "FileConfigProvider"}
ENV = {"config.providers": "env", "config.providers.env.class": CLASSES + "EnvVarConfigProvider"}
DIRECTORY = {"config.providers": "directory", "config.providers.directory.class": CLASSES + "DirectoryConfigProvider"}
SECRET = "pass-7f3a"
ENVIRONMENT = {"KAFKA_PASSWORD": SECRET, "EMPTY": ""}


def replaced(value: str, *providers: dict[str, str], **more: str) -> str:
    settings: dict[str, str] = {}
    for one in providers:
        names = [name for name in (settings.get("config.providers"), one["config.providers"]) if name]
        settings |= one | {"config.providers": ",".join(names)}
    settings |= {name.replace("_", "."): text for name, text in more.items()} | {"client.id": value}
    return with_values(settings, lambda name: "", ENVIRONMENT)["client.id"]


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    file = tmp_path / "secrets.properties"
    file.write_text(
        f"# of the database\npassword={SECRET}\nuser : alice\nDB_PASS   spaced value \nempty=\n"
        "long = a\\\n   b\nescaped=a\\u00e9\\=\\tb\nkey\\ with\\:signs=x\nonly\n"
    )
    (tmp_path / "token").write_text(f"{SECRET}\n")
    return file


def test_values_of_files(secrets: Path) -> None:
    def of(key: str) -> str:
        return replaced(f"${{file:{secrets}:{key}}}", FILE)

    assert of("password") == SECRET
    assert of("user") == "alice"
    assert of("DB_PASS") == "spaced value"
    assert of("empty") == of("only") == ""
    assert of("long") == "ab"
    assert of("escaped") == "aé=\tb"
    assert of("key with:signs") == "x"
    assert replaced(f"<${{file:{secrets}:DB_PASS}}|${{file:{secrets}:user}}>", FILE) == "<spaced value |alice>"


def test_values_of_the_environment_and_of_directories(secrets: Path) -> None:
    assert replaced("${env:KAFKA_PASSWORD}", ENV) == SECRET
    assert replaced("a${env:EMPTY}b", ENV) == "ab"
    assert replaced(f"${{directory:{secrets.parent}:token}}", DIRECTORY) == SECRET
    assert replaced(f"${{env:KAFKA_PASSWORD}} ${{file:{secrets}:user}}", ENV, FILE) == f"{SECRET} alice"


def test_what_is_no_variable_stays() -> None:
    for text in ("${spring.application.name}", "${PASSWORD:default}", "$1", "RULE:^CN=(.*?),.*$/$1/", "${", "a}b"):
        assert replaced(text, ENV) == text
        assert replaced(text) == text


def test_a_value_has_no_further_variables(secrets: Path) -> None:
    secrets.write_text("a=${env:KAFKA_PASSWORD}\n")
    assert replaced(f"${{file:{secrets}:a}}", FILE, ENV) == "${env:KAFKA_PASSWORD}"


@pytest.mark.parametrize(
    ("value", "providers", "more", "says"),
    [
        ("${env:GONE}", [ENV], {}, "client.id: the environment variable 'GONE' is not set: export it"),
        ("${env:/etc:HOME}", [ENV], {}, "client.id: expected ${env:VARIABLE}"),
        ("${env:X}", [], {}, "client.id: the variable ${env:…} needs the settings config.providers=env and "
         "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider"),
        ("${file:/a:b}", [ENV], {}, "${file:…} needs the settings config.providers=file"),
        ("${env:KAFKA_PASSWORD}", [ENV], {"config.providers.env.param.allowlist.pattern": "KAFKA_USER|PATH"},
         "config.providers.env.param.allowlist.pattern does not allow the environment variable 'KAFKA_PASSWORD'"),
        ("${env:KAFKA_PASSWORD}", [ENV], {"config.providers.env.param.allowlist.pattern": "("}, "regular expression"),
        ("x", [ENV], {"config.providers.env.param.allowlist": "A"}, "config.providers.env.param.allowlist does not "
         "exist: the settings of this provider are config.providers.env.class and "
         "config.providers.env.param.allowlist.pattern"),
        ("x", [ENV], {"config.providers.vault.class": "a.b.Vault"}, "config.providers does not name 'vault'"),
        ("x", [{"config.providers": "vault", "config.providers.vault.class": "a.b.Vault"}], {},
         "config.providers.vault.class: a class of Java other than FileConfigProvider, EnvVarConfigProvider, "
         "DirectoryConfigProvider of org.apache.kafka.common.config.provider is not supported"),
        ("x", [{"config.providers": "env"}], {}, "config.providers names 'env': add config.providers.env.class="
         "org.apache.kafka.common.config.provider.EnvVarConfigProvider"),
        ("${file:password}", [FILE], {}, "expected ${file:PATH:NAME}"),
        ("${directory:/tmp:../etc/passwd}", [DIRECTORY], {}, "is not the name of a file"),
    ],
)  # fmt: skip
def test_errors_name_the_setting_and_the_remedy(
    value: str, providers: list[dict[str, str]], more: dict[str, str], says: str
) -> None:
    settings = {name: text for one in providers for name, text in one.items()} | more | {"client.id": value}
    with pytest.raises(ConfigError) as refused:
        with_values(settings, lambda name: "", ENVIRONMENT)
    assert says in str(refused.value)
    assert SECRET not in str(refused.value)


def test_errors_of_files_have_no_value(secrets: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        replaced(f"${{file:{secrets}:gone}}", FILE)
    assert str(refused.value) == f"client.id: the file {secrets} has no key 'gone'"
    with pytest.raises(ConfigError, match="No such file or directory"):
        replaced("${file:/nowhere/secrets:a}", FILE)
    with pytest.raises(ConfigError, match="bytes: is it a properties file"):
        replaced("${file:/dev/zero:a}", FILE)
    secrets.write_bytes(b"password=\xff\xfe" + SECRET.encode())
    with pytest.raises(ConfigError, match="not valid UTF-8") as refused:
        replaced(f"${{file:{secrets}:password}}", FILE)
    assert SECRET not in str(refused.value)


def test_allowed_paths(secrets: Path, tmp_path: Path) -> None:
    allowed = "config.providers.file.param.allowed.paths"

    def of(path: object, *paths: object) -> str:
        settings = FILE | {allowed: ",".join(map(str, paths)), "client.id": f"${{file:{path}:user}}"}
        return with_values(settings, lambda name: "", ENVIRONMENT)["client.id"]

    (tmp_path / "other").mkdir()
    assert of(secrets, "/usr", tmp_path) == of(secrets, secrets) == "alice"
    assert of(tmp_path / "other" / ".." / secrets.name, tmp_path) == "alice"
    for path, paths in ((secrets, [tmp_path / "other"]), (f"{tmp_path}/other/../{secrets.name}", [tmp_path / "other"])):
        with pytest.raises(ConfigError, match=f"{allowed} does not allow"):
            of(path, *paths)
    for wrong in ("etc", "/nowhere/at/all"):
        with pytest.raises(ConfigError, match="is not an absolute path that exists"):
            of(secrets, wrong)


def test_a_properties_file_names_the_line(secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    file = tmp_path / "client.properties"
    lines = [f"{name}={value}\n" for name, value in ENV.items()]
    file.write_text("".join(lines) + "client.id=a\nsasl.password=${env:KAFKA_PASSWORD}\n")
    with pytest.raises(ConfigError) as refused:
        read_settings_file(file, "-c")
    assert str(refused.value) == (
        f"-c {file}, line 4: sasl.password: the environment variable 'KAFKA_PASSWORD' is not set: export it"
    )
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    found = read_settings_file(file, "-c")
    assert {name: tuple(one) for name, one in found.items()} == {"client.id": ("a", 3), "sasl.password": (SECRET, 4)}


def test_settings_of_a_broker(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETENTION_MS", "1234")
    file = FILE | {"broker.rack": f"${{file:{secrets}:user}}"}
    options = [f"{name}={value}" for name, value in ENV.items()] + ["log.retention.ms=${env:RETENTION_MS}"]
    with pytest.raises(ConfigError, match=r"config\.providers does not name 'file'"):
        start_texts(options, file)
    config = BrokerConfig.parse([*options, "config.providers=env,file"], file)
    assert (config.broker_rack, config.value("log.retention.ms")) == ("alice", 1234)
    assert config.texts["config.providers"] == "env,file"
    assert not any(name.startswith("config.providers.") for name in config.texts)
    with pytest.raises(ConfigError):  # a client cannot read the broker's files
        config.after({"log.retention.ms": "${env:RETENTION_MS}"}, cluster_wide=False)


def test_properties_as_java_reads_them() -> None:
    text = "a=1\n b : 2\nc 3\n!no\nd\\=e = f = g\\\n  h\nempty\n\\ =x\nk==v\nq=\\\n"
    assert [(name, value) for _, name, value in java_properties(text)] == [
        ("a", "1"), ("b", "2"), ("c", "3"), ("d=e", "f = gh"), ("empty", ""), (" ", "x"), ("k", "=v"), ("q", ""),
    ]  # fmt: skip
