"""Frames and headers read from bytes that arrive in any pieces, also from invalid bytes."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.wire import frames, schemas
from odradek.wire.frames import FrameError, FrameReader, RequestHead
from odradek.wire.schemas import Kind


@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_frames_are_read_from_any_pieces(contents: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames.frame(content) for content in contents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += list(reader.feed(stream[start:end]))
    assert found == contents
    assert reader.buffered == 0


class ReaderOfLongFrames(FrameReader):
    """For this reader most frames are long."""

    __slots__ = ()
    LONG_FRAME_BYTES = 20


@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_long_frames_are_read_from_any_pieces(contents: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames.frame(content) for content in contents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = ReaderOfLongFrames()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
        assert reader.buffered == end - sum(4 + len(frame) for frame in found)
    assert found == contents


def test_a_long_frame_is_in_memory_once() -> None:
    """A copy takes as long as serving hundreds of requests."""
    reader, pieces = FrameReader(), 20
    piece = bytes(1 << 20)
    tracemalloc.start()
    try:
        assert list(reader.feed((pieces << 20).to_bytes(4, "big"))) == []
        found = [frame for _ in range(pieces) for frame in reader.feed(piece)]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [type(frame) for frame in found] == [bytes]
    assert len(found[0]) == pieces << 20
    assert most < 1.5 * (pieces << 20)


def test_a_partial_frame_waits_for_the_rest() -> None:
    reader = FrameReader()
    stream = frames.frame(b"one") + frames.frame(b"second")[:-1]
    assert list(reader.feed(bytearray(stream))) == [b"one"]
    assert reader.buffered == 4 + 5
    assert list(reader.feed(memoryview(b"d"))) == [b"second"]
    assert list(reader.feed(b"")) == []


@pytest.mark.parametrize("size", [-1, -(1 << 31), 1001, (1 << 31) - 1])
def test_impossible_lengths_are_refused(size: int) -> None:
    reader = FrameReader(max_frame_bytes=1000)
    with pytest.raises(FrameError, match=str(size)):
        list(reader.feed(struct.pack(">i", size)))


def test_a_frame_of_the_largest_allowed_size_is_read() -> None:
    assert list(FrameReader(max_frame_bytes=1000).feed(frames.frame(bytes(1000)))) == [bytes(1000)]


@pytest.mark.parametrize("client_id", [None, "", "c", "ünïcode"])
@pytest.mark.parametrize(("api_key", "version"), [(8, 2), (8, 8), (18, 0), (18, 3), (3, 12)])
def test_request_headers_are_read_back(api_key: int, version: int, client_id: str | None) -> None:
    message = {"client_software_name": "n", "client_software_version": "1", "topics": [], "group_id": "g",
               "allow_auto_topic_creation": True, "include_topic_authorized_operations": False}  # fmt: skip
    request = frames.encode_request(api_key, version, 77, client_id, message | _commit_fields())
    (frame,) = FrameReader().feed(request)
    head = frames.read_request_head(frame)
    assert head == RequestHead(api_key, version, 77, client_id, head.body)
    _, size = schemas.decode(api_key, version, Kind.REQUEST, frame, head.body)
    assert head.body + size == len(frame)


def _commit_fields() -> dict[str, object]:
    return {
        "generation_id_or_member_epoch": 1,
        "member_id": "m",
        "group_instance_id": None,
        "retention_time": -1,
    }


def test_a_client_id_that_is_not_utf_8_is_accepted() -> None:
    head = frames.read_request_head(struct.pack(">hhih", 8, 2, 1, 2) + b"\xff\xfe")
    assert head.client_id == "\ufffd\ufffd"


def test_tags_in_a_header_are_skipped() -> None:
    head = struct.pack(">hhih", 8, 8, 1, 1) + b"c" + b"\x02" + b"\x00\x03abc" + b"\x81\x01\x00" + b"body"
    assert frames.read_request_head(head)[:4] == (8, 8, 1, "c")
    assert head[frames.read_request_head(head).body :] == b"body"


def test_of_an_unknown_version_the_header_is_read_up_to_the_client_id() -> None:
    head = frames.read_request_head(struct.pack(">hhih", 18, 99, 5, 1) + b"cXXXX")
    assert head == RequestHead(18, 99, 5, "c", 11)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\x08",
        struct.pack(">hhih", 8, 2, 1, 5) + b"four",
        struct.pack(">hhih", 8, 8, 1, -1),
        struct.pack(">hhih", 8, 8, 1, -1) + b"\x01\x00\x7f",
        struct.pack(">hhih", 8, 8, 1, -1) + b"\xff\xff\xff\xff\xff\x01",
        struct.pack(">hhih", 8, 8, 1, -1) + b"\x7f",
    ],
)
def test_invalid_headers_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        frames.read_request_head(data)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_header_or_a_frame_error(data: bytes) -> None:
    try:
        head = frames.read_request_head(data)
    except FrameError:
        return
    assert head.body <= len(data)


@given(st.binary(max_size=200), st.sampled_from([(8, 8), (8, 2), (9, 8), (11, 9), (18, 3), (1, 12), (0, 9)]))
def test_any_bytes_are_a_reply_or_a_value_error(data: bytes, which: tuple[int, int]) -> None:
    try:
        correlation_id, _ = frames.decode_reply(*which, data)
    except ValueError:
        return
    assert correlation_id == int.from_bytes(data[:4], "big", signed=True)


@pytest.mark.parametrize(("api_key", "version", "tags"), [(8, 7, 0), (8, 8, 1), (18, 3, 0), (18, 0, 0)])
def test_a_reply_header_has_the_form_of_its_version(api_key: int, version: int, tags: int) -> None:
    # A response header of ApiVersions never has tags: a client reads it before it knows any version.
    assert frames.reply_head(api_key, version, -2) == b"\xff\xff\xff\xfe" + bytes(tags)
