"""The line of a usage error: the option with its value, what is expected, and how to get help."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer import Context

from odradek.cli.terminal import NO_NAME
from odradek.cli.usage.unexpected_words import arguments_of, meant_by, options_with_values
from odradek.text.units import plain_number

_INPUT = "Input should be "
_EXPECTED = (
    (re.compile(r"a valid integer"), "a whole number"),
    (re.compile(r"a valid number"), "a number"),
    (re.compile(r"greater than or equal to (\S+)"), r"a number of at least \1"),
    (re.compile(r"less than or equal to (\S+)"), r"a number of at most \1"),
    (re.compile(r"greater than (\S+)"), r"a number above \1"),
    (re.compile(r"less than (\S+)"), r"a number below \1"),
)
"""Texts of a failed check of a value, and what was expected in plain words."""
_HELP = "--help"
_NO_COMMAND = re.compile(r"no such command '([^']+)'", re.IGNORECASE)
_NO_VALUE = re.compile(r"[Oo]ption '([^']+)' requires an argument")
_LINE_END = re.compile(r"(?<!\\)(?:\\\\)*\\[nr]")
"""The escape of a line end in a quoted value."""
_FLAG = re.compile(r"[Oo]ption '([^']+)' does not take a value")
_EXTRA = re.compile(r"[Gg]ot unexpected extra argument(?:s|\(s\))? \((.*)\)")
DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""The dash of options, and those that text programs and web pages write in its place."""
_LAST = (1 << 63) - 1
_MOST_COMMANDS = 2
"""The most commands that a line names for an option that another command has."""
_MAY_BE_EMPTY = frozenset({"--bootstrap-server", "--cluster-name", "--group", "--key", "--path-group"})
"""Options of text whose empty value means something, or whose command has a line of its own about it."""
_UNITS = {"MS": "ms", "SECONDS": "seconds", "MIN": "minutes"}
"""Metavars of options whose numbers have a unit, and the unit as ``plain_number`` names it."""
_WRITING = ("--execute", "--yes")
"""Options that let a command write without a question. A person who knows one command tries it at another."""


def usage_line(error: Any, given: Sequence[str], command: object = None) -> str:
    """Returns one line for a usage error. ``given``: the words of the command line. ``command``: the root of the
    commands, for errors that do not have theirs."""
    context = error.ctx
    name = getattr(error, "option_name", None)
    if name is not None and hasattr(error, "possibilities"):
        if whole := _name_with_a_dash(name, given):
            return f"no such option {whole}: a name that begins with - stands after --, as the last word"
        return f"no such option {name}{_option_meant(name, context, given, command)}"
    where = f" (see {context.command_path} --help)" if context else ""
    message = str(getattr(error, "message", ""))
    param = getattr(error, "param", None)
    if message.startswith(_INPUT) and param is not None:
        option, value = _option(param.opts, given)
        unit = _UNITS.get(str(param.metavar), "")
        if unit and (hint := plain_number(unit, value.strip(" '"))):
            return f"{option}{value}: expected a whole number without a unit{hint}{where}"
        return f"{option}{value}: expected {_expected(message.removeprefix(_INPUT))}{where}"
    text = str(error.format_message()).rstrip(".")
    text = re.sub(r" \((did you mean [^()]*\?)\)$", r": \1", re.sub(r"\. Did you", ": did you", text))
    if (missing := _NO_COMMAND.match(text)) and context:
        from odradek.cli.usage.kafka_options import other_command

        if form := other_command(context.command_path, missing[1]):
            return f"no such command {missing[1]!r}: here, {form}"
        if command is not None:
            from odradek.cli.usage.command_words import command_meant

            if meant := command_meant(command, given, context.command_path, missing[1]):
                return f"no such command {missing[1]!r}{meant}"
    if (extra := _EXTRA.match(text)) and context:
        meant = meant_by(extra[1], context.command, context.command_path, given)
        return f"unexpected argument {extra[1] or NO_NAME}{meant}{where}"
    if flag := _FLAG.fullmatch(text):
        return f"{flag[1]} takes no value: write {flag[1]} alone{where}"
    if (lacking := _NO_VALUE.fullmatch(text)) and command is not None:
        return _line_without_a_value(lacking[1], *_command_of(command, given))
    if param is not None and "--data-dir" in param.opts and (folder := _folder(context.command, given)):
        return f"missing option --data-dir: is {folder} meant? Here, --data-dir {folder}{where}"
    lacks_option = type(error).__name__ == "MissingParameter" and getattr(param, "param_type_name", "") == "option"
    if param is not None and lacks_option and (word := _stray_word(context.command, given, str(param.metavar))):
        if context.command_path == "odradek transactions abort" and param.opts[0] == "--topic":
            return (
                "missing option --topic: abort ends a hanging transaction of one partition; that of a transactional id "
                f"is ended by odradek transactions force-terminate --transactional-id {word}"
            )
        return f"missing option {param.opts[0]}: is {word} meant? Here, {param.opts[0]} {word}{where}"
    return text[:1].lower() + text[1:] + where


def _name_with_a_dash(option: str, given: Sequence[str]) -> str:
    """Returns the word of which the parser has named the first letter, such as ``-orders``; empty for an option."""
    if len(option) != 2 or option in given:
        return ""
    return next((word for word in given if word.startswith(option) and "=" not in word), "")


def _option_meant(name: str, context: Any, given: Sequence[str], root: object) -> str:
    """Returns what to write for an option that the command does not have, as the end of a line."""
    if context is None:
        return _form(name, [], (), "")
    command, path = context.command, context.command_path
    known = [one for param in command.params for one in param.opts if one[:1] == "-"]
    commands = command.list_commands(context) if hasattr(command, "list_commands") else ()
    if form := _negation(name, command) or _form(name, known, commands, path):
        return form
    if commands:
        from odradek.cli.usage.command_words import option_before_command

        before = "" if root is None else option_before_command(root, given, name)
        return before or f": a command is missing before it: {', '.join(commands)}"
    if argument := _argument_of(name, command):
        return f": {argument} stands without it: {path} {argument}"
    if name in _WRITING and (own := next((one for one in known if one in _WRITING), "")):
        return f": here, {own}"
    return f"{_commands_with(name, context)} (see {path} --help)"


def _argument_of(option: str, command: object) -> str:
    """Returns the argument that an option names, such as TOPIC for ``--topic``; empty without one."""
    names = [str(one.metavar) for one in arguments_of(command)]
    return next((name for name in names if name.casefold() == option.strip("-").casefold()), "")


def _negation(name: str, command: Any) -> str:
    """Returns what to write for ``--no-FLAG`` of a flag of the command; empty for another option."""
    flag = f"--{name.removeprefix('--no-')}"
    flags = [one for one in command.params if one.param_type_name == "option" and one.is_flag]
    is_negation = name.startswith("--no-") and any(flag in one.opts for one in flags)
    return f": without {flag} it is off: leave both out" if is_negation else ""


def _commands_with(option: str, context: Any) -> str:
    """Returns the neighbouring commands that have an option, as a part of a line; empty without one."""
    parent = context.parent
    if parent is None or parent.parent is None:  # the commands of the root have little in common
        return ""
    found = [
        f"{parent.command_path} {name}"
        for name in parent.command.list_commands(parent)
        if any(option in param.opts for param in parent.command.get_command(parent, name).params)
    ]
    return (
        f": {' and '.join(found)} {'has' if len(found) == 1 else 'have'} it" if 0 < len(found) <= _MOST_COMMANDS else ""
    )


def _line_without_a_value(option: str, command: Any, path: str) -> str:
    metavar = next((f" {one.metavar}" for one in command.params if option in one.opts and one.metavar), "")
    return f"{option} needs a value: {option}{metavar} (see {path} --help)"


def _folder(command: Any, given: Sequence[str]) -> str:
    """Returns the first word after the command that is a folder; empty without one."""
    words = list(given)
    after = words[words.index(command.name) + 1 :] if command.name in words else []
    return next((word for word in after if word[:1] != "-" and Path(word).is_dir()), "")


def _stray_word(command: Any, given: Sequence[str], metavar: str) -> str:
    """Returns the word that may be the value of an option that is missing: one of its choices, or the first word that
    is no command, no argument, no option and no value of an option; empty if there is none. ``metavar``: the option's.
    """
    takes_value = options_with_values(command)
    words = list(given)
    at = words.index(command.name) + 1 if command.name in words else len(words)
    found = []
    while at < len(words):
        if not words[at].startswith("-"):
            found.append(words[at])
        at += 2 if words[at] in takes_value else 1
    own = arguments_of(command)
    chosen = [word for word in found if "|" in metavar and word in metavar.split("|")]
    rest = [] if any(one.nargs == -1 for one in own) else found[len(own) :]
    return next(iter([*chosen, *rest]), "")


def _form(name: str, known: Sequence[str], commands: Sequence[str], path: str) -> str:
    """Returns what a person may have meant by an option, as the end of the line; empty if nothing is similar.

    ``known``: the command's options. ``commands``: the commands that may follow. ``path``: the words before."""
    from odradek.cli.usage.kafka_options import other_form
    from odradek.text.similar_names import nearest

    if (begin := name.partition(":")[0]) in known:
        return f": write {begin} VALUE, with a space"
    words = {option: _words(option) for option in known if option.startswith("--")}
    given = _words(name)
    if same := [option for option, one in words.items() if one == given]:  # --partition, --partitions
        return f" (did you mean {same[0]}?)"
    if form := other_form(name, commands, path):
        return form
    within = [option for option, one in words.items() if given and set(given) <= set(one)]
    if len(within) > 1:
        return f": one of {', '.join(within)}"
    begun = [option for option, one in words.items() if one[:1] == given[:1]]  # --before for --before-offset
    return nearest(name, [*known, _HELP]) or (f" (did you mean {begun[0]}?)" if len(begun) == 1 else "")


def _words(option: str) -> list[str]:
    """Returns the words of an option without the endings of plurals."""
    return [word.removesuffix("s") for word in option.partition("=")[0].strip("-").split("-") if word]


def odd_number(command: object, given: Sequence[str], odd: re.Pattern[str]) -> str:
    """Returns the error line of a whole number in the form ``odd``, such as ``1.000``, or beyond 64 bits; empty without
    one.

    typer's parser takes ``1.000`` for 1, where half of Europe writes a thousand."""
    for option, value, path in _options_of_type(int, command, given):
        text = value.strip().strip("'")
        if not odd.fullmatch(text):
            continue
        if not text.lstrip("+-").isdigit():
            return f"{option}{value}: expected a whole number (see {path} --help)"
        if not -_LAST - 1 <= int(text) <= _LAST:
            bound = f"at least {-_LAST - 1}" if int(text) < 0 else f"at most {_most(command, given, option)}"
            return f"{option}{value}: expected a whole number of {bound} (see {path} --help)"
    return ""


def _most(command: object, given: Sequence[str], option: str) -> int:
    """Returns the largest value of an option of whole numbers."""
    named, _ = _command_of(command, given)
    param = next(one for one in named.params if option in one.opts)
    most = getattr(getattr(param.type_descriptor, "parameter_info", None), "max", None)
    return _LAST if most is None else int(most)


def odd_text(command: object, given: Sequence[str]) -> str:
    """Returns the error line of an option whose value is empty, or of a path of several lines; empty without one.

    The parser would take an empty path for the current folder, where ``--data-dir "$DIR"`` of a script without DIR
    would write. An empty text would count as none, so ``--from "$START"`` would do something else. A path with a line
    end would be cut in a message of one line."""
    for option, value, path in _options_of_type(Path, command, given):
        if value == " ''":
            return f"{option} is empty: give a path (see {path} --help)"
        if _LINE_END.search(value):
            return f"{option}{value}: the path has a line end: remove it (see {path} --help)"
        path_text = value[2:-1]
        if path_text != path_text.strip(" ") and not Path(path_text).exists():
            return f"{option}{value}: the path begins or ends with a space: remove it (see {path} --help)"
    named, path = _command_of(command, given)
    files = next(
        (one for one in named.params if one.param_type_name == "argument" and "FILE" in str(one.metavar)), None
    )
    if files is not None and (word := next((word for word in given if {"\n", "\r"} & set(word)), None)) is not None:
        return f"{files.metavar} {word!r}: the path has a line end: remove it (see {path} --help)"
    params = {name: param for param in named.params if param.param_type_name == "option" for name in param.opts}
    for at, word in enumerate(given):
        name, equals, value = word.partition("=")
        param = params.get(name)
        if param is None or param.is_flag or _may_be_empty(param, path):
            continue
        value = value if equals else "".join(given[at + 1 : at + 2])
        if not equals and value in params and value[:2] == "--":
            return f"{name} needs a value before {value}: {name} {param.metavar or 'VALUE'} (see {path} --help)"
        if not value and (equals or at + 1 < len(given)):
            return f"{name} is empty: give {param.metavar or 'a value'} (see {path} --help)"
        if "[," in str(param.metavar) and value and not value.strip(" ,"):
            return f"{name} {value!r} names nothing: give {param.metavar} (see {path} --help)"
        if "URI" in str(param.metavar) and {"\n", "\r"} & set(value):
            return f"{name} {value!r}: the path has a line end: remove it (see {path} --help)"
    return ""


def _may_be_empty(param: Any, path: str) -> bool:
    """Whether an empty value of an option means something. A pipeline commits to its group, and needs its name."""
    if "--group" in param.opts and path.startswith("odradek pipeline"):
        return False
    return bool(_MAY_BE_EMPTY & set(param.opts))


def mistyped_option(command: Any, given: Sequence[str]) -> str:
    """Returns the error line of an option with one dash, with a dash of a text program, or with ``=`` as a word of its
    own; empty without one.

    The parser reads ``-bootstrap-server`` as ``-b ootstrap-server``, and ``–group`` as an argument."""
    command, path = _command_of(command, given)
    takes_value = {name: not one.is_flag for one in command.params if one.param_type_name == "option"
                   for name in one.opts}  # fmt: skip
    before = ""
    for word in given:
        if word == "--":
            break
        if word == "=" and takes_value.get(before):
            return f"a = with spaces stands after {before}: write {before} VALUE (see {path} --help)"
        name, is_value = word.partition("=")[0], takes_value.get(before, False)
        meant = f"--{name.lstrip(DASHES)}"
        if not is_value and name != meant and name[:1] in DASHES and meant in takes_value:
            dash = "has one dash" if name[0] == "-" else f"has another dash, U+{ord(name[0]):04X}"
            return f"{name} {dash}: write {meant} (see {path} --help)"
        before = word
    return ""


def repeated_option(command: object, given: Sequence[str]) -> str:
    """Returns the error line of an option that has two values and takes one; empty without one.

    The parser takes the last value. A person who adds ``-b test:9092`` before a line with ``-b production:9092`` would
    change the other cluster."""
    command, path = _command_of(command, given)
    seen: dict[int, tuple[str, str]] = {}
    for param, name, value in _values(command, given):
        if param.multiple:
            continue
        before, first = seen.setdefault(id(param), (name, value))
        if first != value:
            also = "" if before == name else f" (also as {before})"
            return f"{name} is given twice{also}, with {first!r} and {value!r}: leave one out (see {path} --help)"
    return ""


def option_of_value(command: object, given: Sequence[str], text: str) -> str:
    """Returns the option whose value is the path of a message: ``PATH: No such file``, ``PATH cannot be used``. Empty
    without one, or if the message names an option."""
    if "--" in text:
        return ""
    command, _ = _command_of(command, given)
    return next(
        (name for _, name, value in _values(command, given)
         if value and re.match(rf"{re.escape(value)}(?: cannot be used|: [A-Z])", text)), ""
    )  # fmt: skip


def option_in_words(command: object, given: Sequence[str], text: str) -> str:
    """Returns a text that begins with the words of an option, such as ``task size``, with the option in their place;
    empty for another text. Modules below the command line do not know the form of its options."""
    command, _ = _command_of(command, given)
    for param, name, value in _values(command, given):
        for option in param.opts:
            words = option.strip("-").replace("-", " ")
            rest = text.removeprefix(words)
            if rest != text and rest.startswith((": ", f" {value!r}: ", f" {value}: ")):
                return name + rest
    return ""


def option_has(given: Sequence[str], option: str, value: str) -> bool:
    """Whether the command line has this option with ``value=…``."""
    values = [*(given[at + 1] for at, word in enumerate(given[:-1]) if word == option),
              *(word.removeprefix(f"{option}=") for word in given if word.startswith(f"{option}="))]  # fmt: skip
    return any(one.partition("=")[0] == value for one in values)


def _values(command: Any, given: Sequence[str]) -> Iterator[tuple[Any, str, str]]:
    """Yields the options with values: the parameter, the name as the command line has it, and the value."""
    params = {name: param for param in command.params if param.param_type_name == "option" for name in param.opts}
    at = 0
    while at < len(given) and given[at] != "--":
        name, equals, value = given[at].partition("=")
        param = params.get(name)
        if param is not None and not param.is_flag and (equals or at + 1 < len(given)):
            at += not equals
            yield param, name, value if equals else given[at]
        at += 1


def _command_of(command: Any, given: Sequence[str]) -> tuple[Any, str]:
    """Returns the command that the words name, and its path with spaces."""
    path = ["odradek"]
    for word in given:
        if not hasattr(command, "get_command") or (subcommand := command.get_command(Context(command), word)) is None:
            break
        command, path = subcommand, [*path, word]
    return command, " ".join(path)


def _options_of_type(kind: type, command: Any, given: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields the options of the command line whose values have this type: name, value as ``_option``, and the path of
    the command."""
    command, path = _command_of(command, given)
    for param in command.params:
        if getattr(getattr(param, "type_descriptor", None), "annotation", None) is kind:
            yield *_option(param.opts, given), path


def _option(names: Sequence[str], given: Sequence[str]) -> tuple[str, str]:
    """Returns the name of an option as the command line has it, and its value, quoted; without a value if the words do
    not show it. Of several values the last one counts."""
    for at, word in reversed(list(enumerate(given))):
        name, equals, value = word.partition("=")
        if name in names:
            if equals:
                return name, f" {value!r}"
            return name, f" {given[at + 1]!r}" if at + 1 < len(given) else ""
    return names[0], ""


def _expected(text: str) -> str:
    for pattern, plain in _EXPECTED:
        if match := pattern.match(text):
            return match.expand(plain)
    return text
