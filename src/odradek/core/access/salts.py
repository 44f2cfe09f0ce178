"""The forms of salts: clients that make them from letters and digits, and clients that take random bytes."""

from __future__ import annotations

import string
from typing import NamedTuple

_DIGITS = string.digits + string.ascii_lowercase
_JAVA, _JAVA_BITS, _JAVA_SIZES = "java", 130, range(18, 27)
"""Apache Kafka's commands print a random number of 130 bits in base 36. So most of their salts have 25 or 26
characters, and the first of 26 is a 1. The shortest salt of ``_JAVA_SIZES`` is one among 36**8 of them."""
_ALPHABETS = {
    "digits": string.digits,
    "hex": string.digits + "abcdef",
    "upper hex": string.digits + "ABCDEF",
    "base 36": _DIGITS,
    "alphanumeric": string.digits + string.ascii_letters,
    "base64": string.digits + string.ascii_letters + "+/",
    "base64url": string.digits + string.ascii_letters + "-_",
    "printable": string.digits + string.ascii_letters + string.punctuation + " ",
}
"""From the narrowest to the widest."""
_BYTES_OF = {name: text.encode() for name, text in _ALPHABETS.items()}


class SaltForm(NamedTuple):
    """What salts of one origin have in common. ``alphabet``: "" for all bytes; "java": salts of Kafka's commands, and
    ``size`` is their largest size."""

    size: int
    alphabet: str = ""

    def salt(self, seed: bytes) -> bytes:
        """Returns the salt of this form that belongs to a seed. The salts of random seeds are as frequent as those that
        clients make."""
        import hashlib  # not before: it loads OpenSSL, which takes 2 MB and some milliseconds of a broker's start

        stream = hashlib.shake_256(seed)
        if not self.alphabet:
            return stream.digest(self.size)
        if self.alphabet == _JAVA:
            unused = -_JAVA_BITS % 8
            return _in_base_36(int.from_bytes(stream.digest((_JAVA_BITS + unused) // 8), "big") >> unused)
        letters, random = _BYTES_OF[self.alphabet], stream.digest(4 * self.size)
        places = (int.from_bytes(random[at : at + 4], "big") for at in range(0, len(random), 4))
        return bytes(letters[place * len(letters) >> 32] for place in places)


def salt_form(salt: bytes) -> SaltForm:
    """Returns the form of a salt: the narrowest alphabet that has all its characters."""
    if salt.translate(None, _BYTES_OF["printable"]) or not salt:
        return SaltForm(len(salt))
    is_in_base_36 = len(salt) in _JAVA_SIZES and not salt.translate(None, _BYTES_OF["base 36"]) and salt[:1] != b"0"
    if is_in_base_36 and int(salt, 36) >> _JAVA_BITS == 0:
        return SaltForm(_JAVA_SIZES[-1], _JAVA)
    return SaltForm(len(salt), next(name for name, letters in _BYTES_OF.items() if not salt.translate(None, letters)))


def _in_base_36(number: int) -> bytes:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.encode() or b"0"
