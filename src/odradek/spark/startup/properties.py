"""Spark's settings for Java, passed in files that only this user can read.

``ps`` shows the command line of every process to every user of a machine, and settings contain secrets (the key of a
storage, a password in a Java option). So Java gets the name of a properties file (``--properties-file``), and the
options of the Java process in an argument file (``@file``). Java reads both at its start; then they are removed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from odradek.core.errors import ConfigError
from odradek.text.printable import one_line

JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_PROPERTIES = "spark.properties"
_FILE_OPTION, _CONF_OPTIONS = "--properties-file", ("--conf", "-c")
# Spark refuses these options: they belong into spark.driver.memory and --conf.
_REFUSED = ("Xmx", "-Dspark")


def submit_arguments(settings: Mapping[str, str], directory: Path) -> list[str]:
    """Returns the arguments of ``spark-submit`` for these settings, which are written to files in ``directory``.

    The arguments in PYSPARK_SUBMIT_ARGS apply as in PySpark: its ``--conf`` overrides ``settings``. If it names a
    properties file, the file is copied into ours, because Spark reads only one. If it names none, Spark's
    defaults apply (``conf/spark-defaults.conf``). Raises ConfigError for an unreadable file or malformed arguments.
    """
    user_file, conf, others = _split_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    text = b""
    if user_file is not None:
        try:
            text = Path(user_file).read_bytes() + b"\n\n"  # the second line feed ends a continued line
        except OSError as error:
            raise ConfigError(f"PYSPARK_SUBMIT_ARGS: {_FILE_OPTION} {user_file}: {error.strerror}") from error
    kept = {**settings, **conf}
    for name in JAVA_OPTIONS:
        if name in kept:
            kept[name] = _to_argument_file(kept[name], directory / name)
    file = _write(directory / _PROPERTIES, text + _java_properties(kept))
    return [_FILE_OPTION, str(file), *([] if user_file is not None else ["--load-spark-defaults"]), *others]


def remove_files(directory: Path) -> None:
    """Removes the files after Java has read them."""
    for name in (_PROPERTIES, *JAVA_OPTIONS):
        (directory / name).unlink(missing_ok=True)


def _split_arguments(arguments: str) -> tuple[str | None, dict[str, str], list[str]]:
    """Splits arguments of ``spark-submit`` into the properties file, the settings, and the others."""
    try:
        left = shlex.split(arguments)
    except ValueError as error:
        raise ConfigError(f"PYSPARK_SUBMIT_ARGS: {one_line(error)}") from error
    file: str | None = None
    conf: dict[str, str] = {}
    others: list[str] = []
    while left:
        option, equals, value = left[0].partition("=")
        if option not in (_FILE_OPTION, *_CONF_OPTIONS) or (not equals and len(left) == 1):
            others.append(left.pop(0))
            continue
        del left[0]
        value = value if equals else left.pop(0)
        if option == _FILE_OPTION:
            file = value
        else:
            name, _, setting = value.partition("=")
            conf[name] = setting
    return file, conf, others


def _write(path: Path, data: bytes) -> Path:
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as file:
        file.write(data)
    return path


def _java_properties(settings: Mapping[str, str]) -> bytes:
    """Formats settings for ``java.util.Properties``: ASCII, with escapes for all other characters."""
    return b"".join(f"{_escaped(name)}={_escaped(value)}\n".encode("ascii") for name, value in settings.items())


def _escaped(text: object) -> str:
    units = str(text).encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes)


def _to_argument_file(options: str, file: Path) -> str:
    """Moves Java options to an argument file, and returns the option that names it.

    Returns ``options`` unchanged if Spark refuses one of them, or if they cannot be parsed. Argument files among the
    options stay options, because Java expands no argument file inside another.
    """
    try:
        given = shlex.split(options)
    except ValueError:
        return options
    if any(part in option for option in given for part in _REFUSED):
        return options
    plain = [option for option in given if not option.startswith("@")]
    files = [option for option in given if option.startswith("@")]
    if not plain:
        return options
    _write(file, "".join(map(_java_argument, plain)).encode())
    return shlex.join([f"@{file}", *files])


def _java_argument(argument: str) -> str:
    """Returns a line of an argument file: the ``java`` command reads a quoted text as one argument."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"\n'
