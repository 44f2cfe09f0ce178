"""Variables in the values of settings: ``${file:PATH:KEY}``, ``${env:NAME}``, ``${directory:PATH:FILE}``.

As in Kafka (KIP-297, KIP-421, KIP-887), ``config.providers`` names the providers, ``config.providers.NAME.class`` has
the class of each, and ``config.providers.NAME.param.*`` what it may read. Kafka leaves a variable that has no value as
it is, and a password would be that text. Here it is an error. No message has a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from odradek.core.errors import ConfigError
from odradek.text.properties_file import Property, java_properties, properties_text, read_properties_file

PROVIDERS = "config.providers"
_PREFIX = f"{PROVIDERS}."
_PACKAGE = "org.apache.kafka.common.config.provider."
_CLASSES = {"FileConfigProvider": "file", "EnvVarConfigProvider": "env", "DirectoryConfigProvider": "directory"}
_CLASS_OF = {kind: _PACKAGE + name for name, kind in _CLASSES.items()}
_PARAMETERS = {"file": "allowed.paths", "directory": "allowed.paths", "env": "allowlist.pattern"}
_UNKNOWN = re.compile(r"""(?:^|(?<=["'=\s]))\$\{([^{}]*)\}(?=$|["';\s])""")
"""A variable that stands alone, or as an option's value in sasl.jaas.config."""
_SECRET = re.compile(r"password|secret|jaas\.config|keystore\.key|ssl\.key\.pem|user\.info")
"""Names of settings with secrets. Other settings may have variables of other programs, such as those of Spring."""
_VARIABLE = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")


class _Provider(NamedTuple):
    """``kind``: file, env or directory. ``allowed``: the text of its parameter; "" allows everything."""

    name: str
    kind: str
    allowed: str


def read_settings_file(path: Path, source: str) -> dict[str, Property]:
    """Reads a properties file, and replaces the variables in its values (``with_values``).

    The providers' own settings are left out. Raises ConfigError as ``read_properties_file``.
    """
    properties = read_properties_file(path, source)
    if not any("${" in one.value or name.startswith(PROVIDERS) for name, one in properties.items()):
        return properties
    values = with_values(
        {name: one.value for name, one in properties.items()},
        lambda name: f"{source} {path}, line {properties[name].line}: ",
    )
    return {name: Property(value, properties[name].line) for name, value in values.items() if name != PROVIDERS}


def with_values(
    settings: Mapping[str, str], where: Callable[[str], str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Replaces the variables in the values, and leaves out the settings of the providers, except ``config.providers``.

    ``where(name)`` is what a message about a setting begins with. Raises ConfigError, which names the setting and the
    variable.
    """
    if not any("${" in value or name.startswith(PROVIDERS) for name, value in settings.items()):
        return dict(settings)
    sources = _Sources(_providers(settings, where), environment)
    values = {}
    for name, value in settings.items():
        if name.startswith(_PREFIX):
            continue
        try:
            if "${" in value and _SECRET.search(name):
                sources.check_names(value)
            values[name] = sources.replaced(value)
        except ConfigError as error:
            raise ConfigError(f"{where(name)}{name}: {error}") from error.__cause__
    return values


def _providers(settings: Mapping[str, str], where: Callable[[str], str]) -> dict[str, _Provider]:
    """Returns the providers by name. Raises ConfigError."""
    names = [name.strip() for name in settings.get(PROVIDERS, "").split(",") if name.strip()]
    providers = {}
    for name in names:
        setting = f"{_PREFIX}{name}.class"
        given = settings.get(setting)
        usual = _CLASS_OF.get(name, _CLASS_OF["file"])
        if given is None:
            raise ConfigError(f"{where(PROVIDERS)}{PROVIDERS} names {name!r}: add {setting}={usual}")
        kind = _CLASSES.get(given.removeprefix(_PACKAGE)) if given.startswith(_PACKAGE) else None
        if kind is None:
            raise ConfigError(
                f"{where(setting)}{setting}: a class of Java other than {', '.join(_CLASSES)} of "
                f"{_PACKAGE.removesuffix('.')} is not supported: use one of these"
            )
        providers[name] = _Provider(name, kind, settings.get(f"{_PREFIX}{name}.param.{_PARAMETERS[kind]}", ""))
    for setting in settings:
        if setting.startswith(_PREFIX):
            _check_setting(setting, providers, where)
    return providers


def _check_setting(setting: str, providers: Mapping[str, _Provider], where: Callable[[str], str]) -> None:
    """Raises ConfigError for a setting that no provider has: it may be a limit of what a provider reads."""
    name, _, rest = setting.removeprefix(_PREFIX).partition(".")
    if name not in providers:
        raise ConfigError(f"{where(setting)}{setting}: {PROVIDERS} does not name {name!r}: add it there")
    known = ("class", f"param.{_PARAMETERS[providers[name].kind]}")
    if rest not in known:
        expected = " and ".join(f"{_PREFIX}{name}.{one}" for one in known)
        raise ConfigError(f"{where(setting)}{setting} does not exist: the settings of this provider are {expected}")


class _Sources:
    """Looks variables up. Each file is read once: it may be a pipe."""

    def __init__(self, providers: Mapping[str, _Provider], environment: Mapping[str, str]) -> None:
        self._providers = providers
        self._environment = environment
        self._files: dict[str, dict[str, str]] = {}

    def check_names(self, value: str) -> None:
        """Raises ConfigError for a variable of no source in a secret: its text would be the secret."""
        for match in _UNKNOWN.finditer(value):
            if (name := match[1].partition(":")[0]) not in {*self._providers, *_CLASS_OF}:
                shown = f"${{{name}:…}}" if ":" in match[1] else f"${{{name}}}"
                raise ConfigError(
                    f"the variable {shown} names no source of {PROVIDERS}: write it as ${{file:PATH:KEY}}, "
                    "${env:NAME} or ${directory:PATH:FILE}"
                )

    def replaced(self, value: str) -> str:
        """Returns a value with its variables replaced. Raises ConfigError."""
        if "${" not in value:
            return value
        text = _VARIABLE.sub(lambda match: self._look_up(match[0], match[1], match[2] or "", match[3]), value)
        return text if text == value else text.strip()

    def _look_up(self, text: str, name: str, path: str, key: str) -> str:
        provider = self._providers.get(name)
        if provider is None:
            if name not in _CLASS_OF:
                return text  # such as a part of a mapping rule
            raise ConfigError(
                f"the variable ${{{name}:…}} needs the settings {PROVIDERS}={name} and "
                f"{_PREFIX}{name}.class={_CLASS_OF[name]}"
            )
        if provider.kind == "env":
            return self._of_environment(provider, path, key)
        if not path or not key:
            raise ConfigError(f"expected ${{{name}:PATH:NAME}} with an absolute path and a name")
        _check_path(provider, Path(path))
        return self._of_file(path, key) if provider.kind == "file" else _of_directory(path, key)

    def _of_environment(self, provider: _Provider, path: str, key: str) -> str:
        if path:
            raise ConfigError(f"expected ${{{provider.name}:VARIABLE}} with the name of an environment variable alone")
        if provider.allowed:
            setting = f"{_PREFIX}{provider.name}.param.allowlist.pattern"
            try:
                is_allowed = re.fullmatch(provider.allowed, key) is not None
            except re.error as error:
                raise ConfigError(f"{setting} is not a regular expression: {error}") from None
            if not is_allowed:
                raise ConfigError(f"{setting} does not allow the environment variable {key!r}")
        value = self._environment.get(key)
        if value is None:
            raise ConfigError(f"the environment variable {key!r} is not set: export it")
        return value

    def _of_file(self, path: str, key: str) -> str:
        if path not in self._files:
            self._files[path] = {name: value for _, name, value in java_properties(_text(Path(path)))}
        value = self._files[path].get(key)
        if value is None:
            raise ConfigError(f"the file {path} has no key {key!r}")
        return value


def _of_directory(path: str, key: str) -> str:
    if key != Path(key).name:
        raise ConfigError(f"{key!r} is not the name of a file in {path}")
    return _text(Path(path) / key)


def _text(path: Path) -> str:
    try:
        return properties_text(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_path(provider: _Provider, path: Path) -> None:
    """Raises ConfigError for a path that ``allowed.paths`` does not allow. As in Kafka, links are not followed."""
    if not provider.allowed:
        return
    setting = f"{_PREFIX}{provider.name}.param.allowed.paths"
    allowed = [Path(os.path.normpath(one)) for one in provider.allowed.split(",")]
    for one in allowed:
        if not one.is_absolute() or not one.exists():
            raise ConfigError(f"{setting}: {one} is not an absolute path that exists")
    normal = Path(os.path.normpath(path))
    if not any(normal == one or one in normal.parents for one in allowed):
        raise ConfigError(f"{setting} does not allow {path}")
