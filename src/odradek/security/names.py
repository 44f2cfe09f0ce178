"""Names of certificates' owners as Java prints them (RFC 2253), and Kafka's rules that make user names of them.

No package for certificates is needed: the name is read from the certificate's DER bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from odradek.core.errors import ConfigError

_KEYWORDS = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID",
}  # fmt: skip
"""The attributes that RFC 2253 names. Java prints the others by number, with their bytes."""
_STRINGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
_SEQUENCE, _SET, _OID, _VERSION, _OCTETS, _EXTENSIONS = 0x30, 0x31, 0x06, 0xA0, 0x04, 0xA3
_ALTERNATIVES = "2.5.29.17"
_SUBJECT = 4
"""The fields of a certificate before its subject, without the version: number, algorithm, issuer, validity."""
_ESCAPED = frozenset(',=+<>#;"\\')


class UnreadableName(ValueError):
    """A certificate whose subject cannot be read."""


def subject_name(certificate: bytes) -> str:
    """Returns the subject of a certificate in DER, as Java's ``X500Principal.getName()``. Raises UnreadableName."""
    try:
        whole = next(_parts(certificate))
        fields = _parts(next(_parts(whole.content)).content)
        field = next(fields)
        if field.tag == _VERSION:
            field = next(fields)
        for _ in range(_SUBJECT):
            field = next(fields)
        names = [_relative(one.content) for one in _parts(field.content) if one.tag == _SET]
    except (StopIteration, IndexError) as error:
        raise UnreadableName("the certificate is malformed") from error
    return ",".join(reversed(names))


def alternative_names(certificate: bytes) -> frozenset[bytes]:
    """Returns the alternative names of a certificate in DER, each with its tag. Raises UnreadableName."""
    try:
        fields = _parts(next(_parts(next(_parts(certificate)).content)).content)
        extensions = next((one for one in fields if one.tag == _EXTENSIONS), None)
        for extension in () if extensions is None else _parts(next(_parts(extensions.content)).content):
            number, *rest = _parts(extension.content)
            if number.tag == _OID and _oid(number.content) == _ALTERNATIVES:
                value = next(one for one in rest if one.tag == _OCTETS)
                return frozenset(one.whole for one in _parts(next(_parts(value.content)).content))
    except (StopIteration, IndexError, ValueError) as error:
        raise UnreadableName("the certificate is malformed") from error
    return frozenset()


class _DerElement(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def _parts(data: bytes) -> Iterator[_DerElement]:
    """Yields the elements of DER bytes. Raises UnreadableName."""
    at = 0
    while at < len(data):
        start, tag = at, data[at]
        if at + 1 >= len(data):
            raise UnreadableName("the certificate is malformed")
        size, at = data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            if not 0 < count <= 4 or at + count > len(data):
                raise UnreadableName("the certificate is malformed")
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + size > len(data):
            raise UnreadableName("the certificate is malformed")
        yield _DerElement(tag, data[at : at + size], data[start : at + size])
        at += size


def _relative(data: bytes) -> str:
    """Returns a relative name: usually one attribute, else several with + between them."""
    return "+".join(_attribute(one.content) for one in _parts(data))


def _attribute(data: bytes) -> str:
    number, value = list(_parts(data))[:2]
    if number.tag != _OID:
        raise UnreadableName("the certificate has a malformed name")
    oid = _oid(number.content)
    keyword = _KEYWORDS.get(oid)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or oid}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode(errors='replace'))}"


def _oid(data: bytes) -> str:
    numbers, value = [], 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escaped(text: str) -> str:
    marked = "".join("\\00" if one == "\0" else f"\\{one}" if one in _ESCAPED else one for one in text)
    begin = len(marked) - len(marked.lstrip(" \r"))
    end = len(marked.rstrip(" \r"))
    return "".join(f"\\{one}" if at < begin or at >= end else one for at, one in enumerate(marked))


# --- rules ------------------------------------------------------------------------------------------------------------

# As in Kafka's SslPrincipalMapper.
_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*(?P<rule>{_RULE})\s*(?:,\s*|$)")
_PARSER = re.compile(_RULE)
_NAMED_GROUP = re.compile(r"\(\?<([a-zA-Z]\w*)>")


class MappingRule(NamedTuple):
    """``pattern`` None: the rule DEFAULT, which takes the whole name. ``case``: L, U or ""."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Returns the user's name, or None if the rule does not match."""
        if self.pattern is None:
            return name
        if not self.pattern.fullmatch(name):
            return None
        user = self.pattern.sub(lambda match: _expanded(self.replacement, match), name)
        return {"L": user.lower(), "U": user.upper()}.get(self.case, user)


class MappingRules:
    """``ssl.principal.mapping.rules``. The first rule that matches makes the name."""

    def __init__(self, text: str) -> None:
        """Raises ConfigError for a text that Kafka would refuse."""
        self._rules = [rule for part in _SPLITTER.finditer(text.strip()) if (rule := _rule(part["rule"])) is not None]

    def user(self, name: str) -> str | None:
        """Returns the user's name for the name of a certificate, or None if no rule matches it."""
        return next((user for rule in self._rules if (user := rule.apply(name)) is not None), None)


def _rule(text: str) -> MappingRule | None:
    match = _PARSER.match(text)
    if match is None or match.end() != len(text):
        raise ConfigError(
            f"ssl.principal.mapping.rules: invalid rule {text!r}: expected DEFAULT, or RULE:PATTERN/NAME/ with L or U "
            "behind it"
        )
    if match[1]:
        return MappingRule()
    if match[2] is None:
        return None  # empty rules are ignored
    try:
        pattern = re.compile(_NAMED_GROUP.sub(r"(?P<\1>", match[2]), re.ASCII)  # as in Java
    except (re.error, ValueError) as error:
        raise ConfigError(f"ssl.principal.mapping.rules: the pattern {match[2]!r} is invalid: {error}") from None
    return MappingRule(pattern, match[3], match[4])


def _expanded(replacement: str, match: re.Match[str]) -> str:
    """Expands ``$1`` and ``\\$`` as Java does. As in Kafka, a group that does not exist stands as it is."""
    groups, out, at = match.re.groups, [], 0
    while at < len(replacement):
        one = replacement[at]
        at += 1
        if one == "\\" and at < len(replacement):
            out.append(replacement[at])
            at += 1
        elif one == "$" and at < len(replacement) and replacement[at].isdigit() and int(replacement[at]) <= groups:
            number = int(replacement[at])
            at += 1
            while at < len(replacement) and replacement[at].isdigit() and number * 10 + int(replacement[at]) <= groups:
                number = number * 10 + int(replacement[at])
                at += 1
            out.append(match[number] or "")
        else:
            out.append(one)
    return "".join(out)
