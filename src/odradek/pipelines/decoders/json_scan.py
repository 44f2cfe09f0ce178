"""JSON scanners for bytes, in numba: names, values of any kind, strings, numbers, dates and timestamps.
``json_columns.py`` uses them.

Bytes are accessed by pointers: an array would cost reference counting in each call, and a sign check of each index.
A ``_past_…`` function returns the position after the text that it has read, or -1 if it refuses the text
(``_past_blanks`` never refuses). All functions are strict: they refuse invalid JSON and invalid UTF-8, and they may
refuse text beyond a limit.
"""

from __future__ import annotations

import numpy as np
from numba import types

from odradek.batches.kernels.kernel_arrays import Bytes, Long, Uint64s, Word
from odradek.batches.kernels.kernel_cache import kernel

MAX_SKIPPED_DEPTH = 256
"""Values of unknown names that are nested deeper than this are left to ``json_rows``."""
MAX_NAME = 10_000
MAX_DIGITS = 300

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _POINT = 34, 92, 44, 58, 45, 43, 46
_OPEN_LIST, _CLOSE_LIST, _OPEN, _CLOSE = 91, 93, 123, 125
_PLAIN_BYTE, _SPECIAL = 0, 1
_CLASSES = np.zeros(256, np.uint8)  # of a byte in a string: plain, or to be examined
_CLASSES[:32] = _CLASSES[128:] = _CLASSES[_QUOTE] = _CLASSES[_BACKSLASH] = _SPECIAL

_ESCAPES = np.zeros(256, np.uint8)
_ESCAPES[list(b'"\\/bfnrt')] = 1

_LEAST_POWER, _MOST_POWER = -342, 308


def _powers_of_five() -> Uint64s:
    """Returns the 128 highest bits of 5^q for each q as two numbers, rounded as Eisel and Lemire's algorithm needs."""
    table = np.zeros((_MOST_POWER - _LEAST_POWER + 1, 2), np.uint64)
    for q in range(_LEAST_POWER, _MOST_POWER + 1):
        power = 5 ** abs(q)
        if q < 0:
            exponent = (power - 1).bit_length()
            power = (1 << (exponent + 127 if q >= -27 else 2 * exponent + 128)) // power + 1
        size = power.bit_length()
        bits = power << (128 - size) if size <= 128 else power >> (size - 128)
        table[q - _LEAST_POWER] = bits >> 64, bits & 0xFFFFFFFFFFFFFFFF
    return table


_POWERS = _powers_of_five()
_TENS = np.array([10**n for n in range(20)], np.uint64)
_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])

_I64 = types.int64
_U64 = types.uint64
_BYTES = types.CPointer(types.uint8)
_INTS = types.CPointer(types.int64)
_PAIR = types.UniTuple(types.int64, 2)


@kernel(_I64(_BYTES, _I64, _I64))
def _past_blanks(data: Bytes, at: int, end: int) -> Long:
    while at < end and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@kernel(_I64(_BYTES, _I64, _I64))
def _hex4(data: Bytes, at: int, end: int) -> Long:
    """Returns the number in four hexadecimal digits; -1 if they are not hexadecimal."""
    if at + 4 > end:
        return -1
    value: Long = 0
    for i in range(at, at + 4):
        c = np.int64(data[i])
        if 48 <= c <= 57:
            digit = c - 48
        elif 65 <= c <= 70:
            digit = c - 55
        elif 97 <= c <= 102:
            digit = c - 87
        else:
            return -1
        value = value * 16 + digit
    return value


@kernel(_I64(_BYTES, _I64, _I64))
def _past_escape(data: Bytes, at: int, end: int) -> Long:
    """Returns the position after the escape at ``at``; -1 if it is invalid or half of a surrogate pair."""
    if at + 1 >= end:
        return -1
    c = data[at + 1]
    if c != 117:  # u
        return at + 2 if _ESCAPES[c] else -1
    code = _hex4(data, at + 2, end)
    if code < 0 or 0xDC00 <= code <= 0xDFFF:
        return -1
    at += 6
    if code < 0xD800 or code > 0xDBFF:
        return at
    if at + 1 >= end or data[at] != _BACKSLASH or data[at + 1] != 117:
        return -1
    low = _hex4(data, at + 2, end)
    return at + 6 if 0xDC00 <= low <= 0xDFFF else -1


@kernel(_I64(_BYTES, _I64, _I64))
def _past_character(data: Bytes, at: int, end: int) -> Long:
    """Returns the position after a character of several bytes; -1 if it is not UTF-8."""
    c = np.int64(data[at])
    low, high = 0x80, 0xBF
    if 0xC2 <= c <= 0xDF:
        more = 1
    elif 0xE0 <= c <= 0xEF:
        more = 2
        if c == 0xE0:
            low = 0xA0
        elif c == 0xED:
            high = 0x9F
    elif 0xF0 <= c <= 0xF4:
        more = 3
        if c == 0xF0:
            low = 0x90
        elif c == 0xF4:
            high = 0x8F
    else:
        return -1
    if at + more >= end:
        return -1
    if not low <= data[at + 1] <= high:
        return -1
    for i in range(at + 2, at + 1 + more):
        if not 0x80 <= data[i] <= 0xBF:
            return -1
    return at + 1 + more


@kernel(_PAIR(_BYTES, _I64, _I64))
def _past_string(data: Bytes, at: int, end: int) -> tuple[Long, Long]:
    """Begins after the opening quote. Returns the position after the closing quote (-1: invalid), and whether the
    string has escapes."""
    escaped = 0
    while True:
        while at < end and _CLASSES[data[at]] == _PLAIN_BYTE:
            at += 1
        if at >= end:
            return -1, escaped
        c = data[at]
        if c == _QUOTE:
            return at + 1, escaped
        if c == _BACKSLASH:
            escaped = 1
            at = _past_escape(data, at, end)
        elif c < 32:
            return -1, escaped
        else:
            at = _past_character(data, at, end)
        if at < 0:
            return -1, escaped


# Flags of a number. _WITH_FRACTION: it has a point or an exponent. _LONG: it has too many digits or characters.
_NEGATIVE, _WITH_FRACTION, _LONG = 1, 2, 4


@kernel(types.Tuple((_I64, _U64, _I64, _I64))(_BYTES, _I64, _I64))
def _number(data: Bytes, at: int, end: int) -> tuple[Long, Word, Long, Long]:
    """Returns the position after a number (-1: invalid), its digits as a number, its power of ten, and flags."""
    flags = 0
    digits = np.uint64(0)
    begin = at
    if data[at] == _MINUS:
        flags = _NEGATIVE
        at += 1
    first = at
    count = 0
    power: Long = 0
    while at < end and 48 <= data[at] <= 57:
        digits = digits * np.uint64(10) + np.uint64(data[at] - 48)
        at += 1
    whole = at - first
    if whole == 0 or (whole > 1 and data[first] == 48):
        return np.int64(-1), digits, power, flags
    count = 0 if data[first] == 48 else whole
    if at < end and data[at] == _POINT:
        flags |= _WITH_FRACTION
        at += 1
        from_here = at
        while at < end and 48 <= data[at] <= 57:
            digits = digits * np.uint64(10) + np.uint64(data[at] - 48)
            if count > 0 or data[at] != 48:
                count += 1
            at += 1
        if at == from_here:
            return np.int64(-1), digits, power, flags
        power = from_here - at
    if at < end and (data[at] == 101 or data[at] == 69):  # e E
        flags |= _WITH_FRACTION
        at += 1
        is_below = False
        if at < end and (data[at] == _PLUS or data[at] == _MINUS):
            is_below = data[at] == _MINUS
            at += 1
        from_here = at
        exponent: Long = 0
        while at < end and 48 <= data[at] <= 57:
            if exponent < 100_000:
                exponent = exponent * 10 + np.int64(data[at] - 48)
            at += 1
        if at == from_here:
            return np.int64(-1), digits, power, flags
        power += -exponent if is_below else exponent
    if count > 19 or at - begin > MAX_DIGITS:
        flags |= _LONG
    return at, digits, power, flags


@kernel(types.UniTuple(_U64, 2)(_U64, _U64))
def _product(a: Word, b: Word) -> tuple[Word, Word]:
    """Returns the high and the low half of a product."""
    low_mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_low, a_high, b_low, b_high = a & low_mask, a >> half, b & low_mask, b >> half
    low = a_low * b_low
    middle = a_high * b_low + (low >> half)
    other = a_low * b_high + (middle & low_mask)
    return a_high * b_high + (middle >> half) + (other >> half), (other << half) | (low & low_mask)


@kernel(_I64(_U64, _I64))
def _double_bits(digits: Word, power: int) -> Long:
    """Returns the bits of the double nearest to digits * 10^power, by Eisel and Lemire's algorithm. Returns -1 if that
    is uncertain, or if the number is too large or subnormal."""
    one = np.uint64(1)
    if digits == np.uint64(0):
        return 0
    if power < _LEAST_POWER or power > _MOST_POWER:
        return -1
    zeros = 0
    while not digits >> np.uint64(63):
        digits <<= one
        zeros += 1
    high, low = _product(digits, _POWERS[power - _LEAST_POWER, 0])
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        more, _ = _product(digits, _POWERS[power - _LEAST_POWER, 1])
        low += more
        if low < more:
            high += one
    if low == np.uint64(0xFFFFFFFFFFFFFFFF) and (power < -27 or power > 55):
        return -1
    upper = np.int64(high >> np.uint64(63))
    shift = np.uint64(upper + 9)
    mantissa = high >> shift
    exponent = ((217706 * power) >> 16) + 63 + upper - zeros + 1023
    if exponent <= 0:
        return -1
    is_middle = low <= one and -4 <= power <= 23 and mantissa & np.uint64(3) == one
    if is_middle and mantissa << shift == high:
        mantissa &= ~one
    mantissa = (mantissa + (mantissa & one)) >> one
    if mantissa >= np.uint64(1 << 53):
        mantissa = np.uint64(1 << 52)
        exponent += 1
    if exponent >= 0x7FF:
        return -1
    return np.int64(mantissa & np.uint64((1 << 52) - 1)) | (exponent << 52)


@kernel(_I64(_BYTES, _I64, _I64))
def _digits(data: Bytes, at: int, count: int) -> Long:
    value: Long = 0
    for i in range(at, at + count):
        c = np.int64(data[i]) - 48
        if c < 0 or c > 9:
            return -1
        value = value * 10 + c
    return value


_NO_DATE = -(1 << 40)


@kernel(_I64(_BYTES, _I64))
def _date(data: Bytes, at: int) -> Long:
    """Returns the days since 1970 of ``2024-05-31``. Returns ``_NO_DATE`` if the ten bytes at ``at`` are no date."""
    year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
    if year < 0 or month < 1 or month > 12 or day < 1 or data[at + 4] != _MINUS or data[at + 7] != _MINUS:
        return _NO_DATE
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _DAYS[month] + (1 if is_leap and month == 2 else 0):
        return _NO_DATE
    # Years begin in March, so a leap day is the last day of a year.
    shifted = year - (1 if month <= 2 else 0)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (9 if month <= 2 else -3)) + 2) // 5 + day - 1
    days: Long = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    return days


_NO_TIME = -(1 << 63) + 1
_MICROS_A_DAY = 86_400_000_000


@kernel(_I64(_BYTES, _I64, _I64, _I64))
def _timestamp(data: Bytes, at: int, size: int, zone: int) -> Long:
    """Returns the microseconds since 1970 of a text such as ``2024-05-31T12:00:00.5Z``, or ``_NO_TIME``. ``zone``: 0 if
    the text must have no zone, 1 if it must have one, 2 if a missing zone means UTC."""
    if size < 19 or size > 32 or (data[at + 10] != 84 and data[at + 10] != 32):  # T
        return _NO_TIME
    days = _date(data, at)
    hour, minute, second = _digits(data, at + 11, 2), _digits(data, at + 14, 2), _digits(data, at + 17, 2)
    if days == _NO_DATE or not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
        return _NO_TIME
    if data[at + 13] != _COLON or data[at + 16] != _COLON:
        return _NO_TIME
    end = at + size
    at += 19
    micros: Long = 0
    if at < end and data[at] == _POINT:
        at += 1
        unit = 100_000
        while at < end and 48 <= data[at] <= 57:
            micros += unit * (np.int64(data[at]) - 48)
            if unit == 0:
                return _NO_TIME
            unit //= 10
            at += 1
        if unit == 100_000:
            return _NO_TIME
    ahead = 0
    if at == end:
        if zone == 1:
            return _NO_TIME
    elif zone == 0:
        return _NO_TIME
    elif data[at] == 90 and at + 1 == end:  # Z
        ahead = 0
    elif at + 6 == end and (data[at] == _PLUS or data[at] == _MINUS) and data[at + 3] == _COLON:
        hours, minutes = _digits(data, at + 1, 2), _digits(data, at + 4, 2)
        if hours < 0 or hours > 17 or minutes < 0 or minutes > 59:
            return _NO_TIME
        ahead = (hours * 60 + minutes) * (-1 if data[at] == _MINUS else 1)
    else:
        return _NO_TIME
    seconds = hour * 3600 + minute * 60 + second - ahead * 60
    time: Long = days * _MICROS_A_DAY + seconds * 1_000_000 + micros
    return time


@kernel(_I64(_BYTES, _I64, _I64))
def _past_word(data: Bytes, at: int, end: int) -> Long:
    """Returns the position after ``true``, ``false`` or ``null``; -1 if there is no such literal."""
    if at + 4 <= end:
        a, b, c, d = data[at], data[at + 1], data[at + 2], data[at + 3]
        if a == 116 and b == 114 and c == 117 and d == 101:
            return at + 4
        if a == 110 and b == 117 and c == 108 and d == 108:
            return at + 4
        if a == 102 and b == 97 and c == 108 and d == 115 and at + 5 <= end and data[at + 4] == 101:
            return at + 5
    return -1


@kernel(_I64(_BYTES, _I64, _I64))
def _past_name(data: Bytes, at: int, end: int) -> Long:
    """Returns the position after a name, its colon and blanks; -1 if there is no name or it is too long."""
    if at >= end or data[at] != _QUOTE:
        return -1
    begin = at
    at = _past_string(data, at + 1, end)[0]
    if at < 0 or at - begin > MAX_NAME:
        return -1
    at = _past_blanks(data, at, end)
    if at >= end or data[at] != _COLON:
        return -1
    following: Long = _past_blanks(data, at + 1, end)
    return following


@kernel(_I64(_BYTES, _I64, _I64, _BYTES))
def _past_value(data: Bytes, at: int, end: int, stack: Bytes) -> Long:
    """Returns the position after any JSON value at ``at``; -1 if it is invalid or nested too deep."""
    depth = 0
    while True:
        # A value must begin here.
        if at >= end:
            return -1
        c = data[at]
        if c == _QUOTE:
            at = _past_string(data, at + 1, end)[0]
        elif c & 0xDF == _OPEN_LIST:  # the two brackets differ only in this bit
            closing = c + 2
            at = _past_blanks(data, at + 1, end)
            if at < end and data[at] == closing:
                at += 1
            else:
                if depth >= MAX_SKIPPED_DEPTH:
                    return -1
                stack[depth] = closing
                depth += 1
                if c == _OPEN:
                    at = _past_name(data, at, end)
                    if at < 0:
                        return -1
                continue
        elif c == _MINUS or 48 <= c <= 57:
            begin = at
            at = _number(data, at, end)[0]
            if at - begin > MAX_DIGITS:
                return -1
        else:
            at = _past_word(data, at, end)
        if at < 0:
            return -1
        # After a value.
        while depth > 0:
            at = _past_blanks(data, at, end)
            if at >= end:
                return -1
            if data[at] == _COMMA:
                at = _past_blanks(data, at + 1, end)
                if stack[depth - 1] == _CLOSE:
                    at = _past_name(data, at, end)
                    if at < 0:
                        return -1
                break
            if data[at] != stack[depth - 1]:
                return -1
            depth -= 1
            at += 1
        else:
            return at
