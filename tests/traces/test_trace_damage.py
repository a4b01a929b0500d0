from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
import trace_makers as make

from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.reader import Trace, read_trace
from narrows.reducers.traces.reduce import reduce_file, reduce_trace

EVENTS = make.training(steps=2, kernels=25)
NUM_DEVICE = 50
SLOW = [pytest.param(True, marks=pytest.mark.slow, id="full")]
LENGTHS = [pytest.param(False, id="short"), *SLOW]


def read_damaged(path: Path, text: bytes, chunk_bytes: int = 1 << 13) -> Trace | None:
    """Reads a damaged file and reduces it; None when it was refused as no trace at all."""
    path.write_bytes(text)
    try:
        trace = read_trace(path, chunk_bytes=chunk_bytes)
    except TraceError:
        return None
    reduce_trace(trace)
    return trace


def whole_before(text: bytes, cut: int) -> int:
    """How many device records lie whole before a cut."""
    full = 0
    at = 0
    while (at := text.find(b'"cat": "', at + 1)) >= 0:
        if text.startswith((b'"cat": "kernel"', b'"cat": "gpu_memcpy"'), at):
            full += text.index(b"\n  }", at) + 4 <= cut
    return full


@pytest.mark.parametrize("full", LENGTHS)
def test_a_truncated_file_keeps_exactly_its_whole_records_and_says_so(full: bool, tmp_path: Path) -> None:
    text = make.render(make.document(EVENTS), "kineto").encode()
    draw = random.Random(3)
    for _ in range(500 if full else 75):
        cut = draw.randrange(1000, len(text) - 1)
        trace = read_damaged(tmp_path / "cut.json", text[:cut], draw.choice([1 << 12, 1 << 22]))
        assert trace is not None
        assert trace.quality.truncated
        assert trace.quality.dropped == 0
        assert len(trace.columns.start) == whole_before(text, cut)


@pytest.mark.parametrize("full", LENGTHS)
def test_a_truncated_file_without_lines_keeps_its_whole_records(full: bool, tmp_path: Path) -> None:
    text = make.render(make.document(EVENTS), "minified").encode()
    draw = random.Random(4)
    starts = [at for at in range(len(text)) if text.startswith((b'"cat":"kernel"', b'"cat":"gpu_memcpy"'), at)]
    ends = [text.index(b"}}", at) + 2 for at in starts]
    for _ in range(500 if full else 75):
        cut = draw.randrange(1000, len(text) - 1)
        trace = read_damaged(tmp_path / "cut.json", text[:cut], draw.choice([1 << 12, 1 << 22]))
        assert trace is not None
        assert trace.quality.truncated
        assert len(trace.columns.start) == sum(end <= cut for end in ends)


@pytest.mark.parametrize("full", LENGTHS)
@pytest.mark.parametrize("layout", ["kineto", "minified"])
def test_flipped_bytes_cost_only_the_records_that_they_hit(layout: str, full: bool, tmp_path: Path) -> None:
    text = make.render(make.document(EVENTS), layout).encode()
    draw = random.Random(5)
    lost, flipped = 0, 0
    for _ in range(300 if full else 50):
        damaged = bytearray(text)
        flips = draw.randint(1, 20)
        for _ in range(flips):
            damaged[draw.randrange(500, len(text))] = draw.randrange(256)
        trace = read_damaged(tmp_path / "flipped.json", bytes(damaged), draw.choice([1 << 12, 1 << 22]))
        assert trace is not None
        missing = NUM_DEVICE - len(trace.columns.start)
        assert missing <= 2 * flips, "a flipped separator costs the two records beside it, nothing costs more"
        lost += missing
        flipped += flips
    assert lost < flipped / 3, "most bytes are not in a record of interest, and many in one are repaired"


@pytest.mark.parametrize("full", LENGTHS)
def test_a_torn_compressed_file_gives_what_was_inflated_and_says_so(full: bool, tmp_path: Path) -> None:
    packed = gzip.compress(make.render(make.document(EVENTS), "kineto").encode())
    draw = random.Random(6)
    found = 0
    for _ in range(120 if full else 30):
        trace = read_damaged(tmp_path / "torn.json.gz", packed[: draw.randrange(400, len(packed))], 1 << 12)
        if trace is not None:
            assert trace.quality.truncated
            found += len(trace.columns.start)
    assert found


def test_flipped_bytes_in_a_compressed_file_never_raise_anything_else(tmp_path: Path) -> None:
    packed = gzip.compress(make.render(make.document(EVENTS), "kineto").encode())
    draw = random.Random(7)
    for _ in range(30):
        damaged = bytearray(packed)
        damaged[draw.randrange(2, len(packed))] ^= 1 << draw.randrange(8)
        read_damaged(tmp_path / "flipped.json.gz", bytes(damaged))


def test_several_compressed_members_are_one_file(tmp_path: Path) -> None:
    text = make.render(make.document(EVENTS), "kineto").encode()
    path = tmp_path / "members.json.gz"
    path.write_bytes(gzip.compress(text[:9000]) + gzip.compress(text[9000:20000]) + gzip.compress(text[20000:]))
    trace = read_trace(path)
    assert not trace.quality.truncated
    assert len(trace.columns.start) == NUM_DEVICE


def test_a_compressed_file_needs_no_name_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(make.render(make.document(EVENTS), "compact").encode()))
    assert len(read_trace(path).columns.start) == NUM_DEVICE


DAMAGE = {
    "bad UTF-8": (b"gemm<float, 128>", b"gemm\xff\xfe<float>"),
    "a lone backslash": (b"gemm<float, 128>", rb"C:\Users\gemm"),
    "a half unicode escape": (b"gemm<float, 128>", rb"gemm \u00"),
    "a control character": (b"gemm<float, 128>", b"gemm\x01\x0b<float>"),
    "quotes inside": (b"gemm<float, 128>", b'gemm<"float">'),
    "nan": (b'"grid": [512, 1, 1]', b'"occupancy": nan, "warps": -nan'),
    "infinity": (b'"grid": [512, 1, 1]', b'"occupancy": inf, "warps": -inf'),
    "NaN": (b'"grid": [512, 1, 1]', b'"occupancy": NaN, "warps": Infinity'),
    "a trailing comma": (b'"Seq": 9', b'"Seq": 9,'),
    "a number beyond 64 bits": (b'"grid": [512, 1, 1]', b'"Comms Id": 340282366920938463463374607431768211456'),
    "a stream as text": (b'"stream": 7', b'"stream": "7"'),
    "arguments of a wrong type": (b'"context": 1', b'"correlation": [1, 2]'),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("layout", ["kineto", "compact"])
def test_a_record_that_a_profiler_wrote_wrongly_is_read(layout: str, kind: str, tmp_path: Path) -> None:
    before, after = DAMAGE[kind]
    events = make.training(steps=1, kernels=10)
    sound = make.write(tmp_path / "sound.json", events, layout)
    text = sound.read_bytes()
    at = text.rindex(before)
    path = tmp_path / "damaged.json"
    path.write_bytes(text[:at] + after + text[at + len(before) :])
    reduced = reduce_file(path)
    assert reduced.devices == reduce_file(sound).devices
    assert reduced.quality.dropped == 0
    assert not reduced.quality.truncated


def test_what_cannot_be_repaired_is_counted(tmp_path: Path) -> None:
    text = make.render(make.document(EVENTS), "kineto").encode()
    at = text.rindex(b'"name": "gemm')
    path = tmp_path / "damaged.json"
    path.write_bytes(text[:at] + b"name gemm {[" + text[at + 12 :])
    quality = read_trace(path).quality
    assert quality.dropped == 1
    assert quality.dropped_for == {"unreadable": 1}


def test_a_record_whose_opening_line_is_damaged_is_counted_as_lost(tmp_path: Path) -> None:
    text = make.render(make.document([make.kernel(10**9, 10, args={"n": n}) for n in range(5)]), "kineto").encode()
    third = [at for at in range(len(text)) if text.startswith(b"\n  {\n", at)][2]
    path = tmp_path / "damaged.json"
    path.write_bytes(text[: third + 3] + b"?" + text[third + 4 :])
    trace = read_trace(path)
    assert len(trace.columns.start) + trace.quality.dropped == 5
    assert trace.quality.dropped >= 1


@pytest.mark.parametrize("end", [b'[{"a":1},{"b":2}]', b'[{"a":1},{"b":2}]}'])
def test_a_file_cut_behind_a_nested_array_is_truncated(end: bytes, tmp_path: Path) -> None:
    text = make.render(make.document(EVENTS), "minified").encode()
    trace = read_damaged(tmp_path / "cut.json", text[: text.rindex(end) + len(end)])
    assert trace is not None
    assert trace.quality.truncated
