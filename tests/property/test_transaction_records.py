"""The quick reader of ``__transaction_state`` and the reader by schema return the same result for any bytes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from odradek.codecs.transaction_state import (
    Transaction,
    TransactionState,
    UnreadableTransaction,
    _decode_by_schema,
    decode,
    encode_key,
    encode_value,
    encode_value_in_steps,
    stored_value,
)
from odradek.core.effects import result_of

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PARTITIONS = st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, (1 << 31) - 1)), max_size=6)
TRANSACTIONS = st.builds(
    Transaction,
    producer_id=INT64,
    previous_producer_id=st.integers(-1, 1 << 40),
    next_producer_id=st.integers(-1, 1 << 40),
    producer_epoch=st.integers(-1, 32_767),
    timeout_ms=st.integers(0, (1 << 31) - 1),
    state=st.sampled_from(TransactionState),
    partitions=PARTITIONS,
    start_ms=INT64,
    last_update_ms=INT64,
    client_version=st.integers(0, 2),
)
MANY = frozenset((f"t{number % 700}", number) for number in range(3000))


@given(transaction=TRANSACTIONS, version=st.integers(0, 1), name=st.text(max_size=8))
@example(Transaction(1, 2, 3, 4, 5, TransactionState.ONGOING, MANY, 6, 7, 2), 1, "many")
@example(Transaction(1, 2, 3, 4, 5, TransactionState.ONGOING, MANY, 6, 7, 2), 0, "many")
def test_a_state_is_read_as_it_was_written(transaction: Transaction, version: int, name: str) -> None:
    value = encode_value(transaction, version)
    assert decode(encode_key(name), value) == (name, stored_value(transaction, version))
    assert result_of(encode_value_in_steps(transaction, version)) == value


@given(
    transaction=TRANSACTIONS,
    changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 3),
    tail=st.binary(max_size=3),
    key=st.one_of(st.none(), st.text(max_size=4).map(encode_key), st.binary(max_size=6)),
)
def test_damaged_bytes_are_read_alike(
    transaction: Transaction, changes: list[tuple[int, int]], cut: int, tail: bytes, key: bytes | None
) -> None:
    value = bytearray(encode_value(transaction, 1))
    for at, byte in changes:
        value[at % len(value)] = byte
    damaged = bytes(value[: len(value) - cut]) + tail
    assert decode(key, damaged) == _decode_by_schema(key, damaged)


def test_records_without_a_readable_state_are_unreadable() -> None:
    assert decode(encode_key("t"), None) == ("t", None)
    for key, value in ((None, b""), (b"\0\1", b""), (encode_key("t"), b""), (encode_key("t"), b"\0\2")):
        assert isinstance(decode(key, value), UnreadableTransaction)
