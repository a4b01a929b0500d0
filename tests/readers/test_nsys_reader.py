from __future__ import annotations

import gzip
import random
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.reducers.readers.common import UnreadableError
from narrows.reducers.readers.nsys import covered, read_nsys
from narrows.reducers.readers.reading import read_file

ACTIVITY = '(start INTEGER, "end" INTEGER, deviceId INTEGER, streamId INTEGER, shortName INTEGER)'


def report(path: Path, *, kernels: list, copies: list = (), ranges: list = ()) -> Path:
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(1, "gemm"), (2, "ncclDevKernel_AllReduce"), (3, "step")]
        )
        base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL {ACTIVITY}")
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?)", kernels)
        base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY {ACTIVITY}")
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, 0)", copies)
        base.execute(
            'CREATE TABLE NVTX_EVENTS (start INTEGER, "end" INTEGER, eventType INTEGER, text TEXT, textId INTEGER)'
        )
        base.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", ranges)
        base.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        base.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.25.0')")
    base.close()
    return path


def test_busy_exposed_and_copied_time_are_unions_per_device(tmp_path):
    kernels = [(0, 100, 0, 7, 1), (50, 150, 0, 7, 1), (120, 200, 0, 8, 2), (0, 10, 1, 7, 2)]
    found = read_nsys(report(tmp_path / "r.sqlite", kernels=kernels, copies=[(190, 230, 0, 9), (300, 310, 0, 9)]))
    one = found.devices[0]
    assert (one.span_ns, one.busy_ns, one.idle_ns) == (310, 240, 70)
    assert (one.compute_ns, one.communication_ns, one.exposed_communication_ns) == (150, 80, 50)
    assert (one.copy_ns, one.exposed_copy_ns, one.kernels) == (50, 40, 3)
    assert (found.devices[1].compute_ns, found.devices[1].communication_ns) == (0, 10)
    assert [(kernel.name, kernel.device, kernel.stream, kernel.start_ns) for kernel in found.nccl] == [
        ("ncclDevKernel_AllReduce", 0, 8, 120),
        ("ncclDevKernel_AllReduce", 1, 7, 0),
    ]
    assert [(total.name, total.count, total.total_ns, total.longest_ns) for total in found.kernels[:1]] == [
        ("gemm", 2, 200, 100)
    ]
    assert (found.schema_version, found.missing) == ("3.25.0", ("CUPTI_ACTIVITY_KIND_MEMSET",))


def test_nvtx_ranges_are_totalled_by_text_registered_or_not(tmp_path):
    ranges = [
        (0, 10, 59, "fwd, op_id = 12", None),
        (20, 40, 59, "fwd, op_id = 13", None),
        (0, 5, 60, None, 3),
        (1, None, 59, "open", None),
        (9, 4, 59, "odd", None),
        (3, None, 34, "mark", None),
    ]
    found = read_nsys(report(tmp_path / "r.sqlite", kernels=[], ranges=ranges))
    assert [(one.text, one.count, one.total_ns, one.longest_ns) for one in found.nvtx] == [
        ("fwd", 2, 30, 20),
        ("step", 1, 5, 5),
    ]
    assert (found.nvtx_ranges, found.not_understood.count, found.devices) == (3, 1, {})


def test_rows_that_are_no_intervals_are_counted(tmp_path):
    found = read_nsys(report(tmp_path / "r.sqlite", kernels=[(5, 1, 0, 7, 1), ("x", 2, 0, 7, 1), (0, 1, 0, 7, 1)]))
    assert (found.not_understood.count, found.devices[0].kernels) == (2, 1)


def test_the_report_is_not_changed_and_a_strange_path_is_opened(tmp_path):
    path = report(tmp_path / "a b?#%41.sqlite", kernels=[(0, 1, 0, 7, 1)])
    before = path.read_bytes()
    assert read_nsys(path).devices[0].busy_ns == 1
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_an_export_is_read_also_where_it_is_compressed(tmp_path):
    plain = report(tmp_path / "r.sqlite", kernels=[(0, 4, 0, 7, 1)])
    packed = tmp_path / "r.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_file(packed).value == read_file(plain).value == read_nsys(plain)


def test_other_files_are_refused(tmp_path):
    text = tmp_path / "x.sqlite"
    text.write_text("hello")
    with pytest.raises(UnreadableError, match="no SQLite file"):
        read_nsys(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE t (x)")
    base.close()
    with pytest.raises(UnreadableError, match="no table that nsys exports"):
        read_nsys(other)
    with pytest.raises(UnreadableError, match="cannot be opened"):
        read_nsys(tmp_path / "absent")


def test_random_damage_raises_nothing_but_our_own_errors(tmp_path):
    whole = report(tmp_path / "r.sqlite", kernels=[(n, n + 5, 0, 7, 1) for n in range(200)]).read_bytes()
    rng = random.Random(3)
    path = tmp_path / "damaged.sqlite"
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]))
        try:
            read_nsys(path)
        except UnreadableError:
            refused += 1
    assert refused > 30


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_a_union_counts_every_nanosecond_once(spans):
    table = np.array([(start, start + length) for start, length in spans], dtype=np.int64).reshape(-1, 2)
    assert covered(table) == len({at for start, length in spans for at in range(start, start + length)})
