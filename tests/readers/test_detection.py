from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import sqlite3
from contextlib import closing

import pytest

from narrows.inquiry.errors import NarrowsError
from narrows.reducers.readers.detect import Kind, detect, looked_for
from narrows.reducers.readers.reading import READERS

NCCL = (
    "# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor)\n"
    "#  size count type redop root time algbw busbw #wrong\n"
)


def timeline() -> bytes:
    """One operation as a parquet file; only its first bytes where nothing can write one."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return b"PAR1 and columns"
    row = {"dp_rank": 0, "stage": 0, "step": 1, "optype": "optimizer", "seq_id": 0, "start_ts": 0.5, "duration": 1.5}
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist([row]), file)
    return file.getvalue()


def nsys_export() -> bytes:
    """An export with one kernel."""
    with closing(sqlite3.connect(":memory:")) as base:
        base.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end", deviceId, streamId, shortName)')
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 5, 0, 7, 1)")
        base.commit()
        return base.serialize()


SAMPLES: dict[Kind, list[bytes]] = {
    Kind.NSYS: [b"SQLite format 3\x00 and pages", nsys_export()],
    Kind.FLIGHT_RECORDER: [
        pickle.dumps({"version": "2.9", "entries": []}, protocol=2),
        json.dumps({"entries": [], "pg_config": {}, "version": "2.10"}).encode(),
        json.dumps({"entries": [], "pg_config": {}, "version": "2.10"}).encode("utf-16"),
    ],
    Kind.KINETO: [b'{"schemaVersion": 1, "traceEvents": []}', b'[{"ph": "X", "ts": 1, "name": "a"}]'],
    Kind.DCGM: [
        b'noise\n{"DCGM GPU Diagnostic": {"test_categories": []}}',
        b"+---+---+\n| Diagnostic                | Result                     |\n",
    ],
    Kind.NVIDIA_SMI: [
        b"==============NVSMI LOG==============\nGPU 00000000:53:00.0\n",
        b'<?xml version="1.0" ?>\n<nvidia_smi_log><gpu id="1"/></nvidia_smi_log>',
    ],
    Kind.NCCL_TOPOLOGY: [b'<system version="1"><cpu numaid="0"/></system>'],
    Kind.NVIDIA_TOPO: [b"\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tNV4\t0-3\nGPU1\tNV4\t X \t0-3\n"],
    Kind.PORTS: [
        b"CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n",
        b"Infiniband device 'mlx5_0' port 1 status:\n\tstate: 4: ACTIVE\n",
    ],
    Kind.NCCL_TESTS: [
        NCCL.encode(),
        "".join(f"[1,0]<stdout>:{x}\n" for x in NCCL.splitlines()).encode(),
        b"start failed on a: b\n",
    ],
    Kind.SLURM: [
        b"JobId=3 JobName=x\n   JobState=RUNNING\n",
        b"SwitchName=s1 Nodes=n[1-2]\n",
        b"JobID|JobName|State\n1|a|COMPLETED\n",
    ],
    Kind.OPERATION_TIMELINE: [timeline()],
    Kind.STEP_RECORDS: [
        b'not a record\n{"ts": 1.5, "step": 7, "step_ms": 80, "data_ms": 1}\n',
    ],
    Kind.TRAINING_LOG: [
        b"iter 10: loss 3.2, time 120.00ms, mfu 20%\n",
        b"[rank1]: Traceback (most recent call last):\n[rank1]: RuntimeError: x\n",
    ],
    Kind.UNKNOWN: [b"", b"hello\n", b'{"a": 1}', b"\x00\x01\x02", b"PATH=/usr/bin\n"],
}
PARAMETERS = [(kind, data) for kind, found in SAMPLES.items() for data in found]


@pytest.mark.parametrize(("kind", "data"), PARAMETERS)
def test_a_kind_is_told_by_its_content_also_within_gzip(kind, data):
    assert detect(data) is kind
    assert detect(gzip.compress(data)) is kind


@pytest.mark.parametrize(("kind", "data"), [(kind, data) for kind, data in PARAMETERS if kind in READERS])
def test_the_kind_of_text_outlives_how_it_was_stored(kind, data):
    """Line ends, marks of encodings, NULs that a crash or a rotation leaves at either end, gzip twice."""
    assert detect(gzip.compress(gzip.compress(data))) is kind
    if kind in (Kind.NSYS, Kind.OPERATION_TIMELINE):
        return
    text = data.decode()
    for stored in (
        text.replace("\n", "\r\n").encode(),
        text.encode("utf-16"),
        text.encode("utf-8-sig"),
        b"\x00" * 600 + data,
        data + b"\x00" * 600,
    ):
        assert detect(stored) is kind


def test_every_kind_says_what_was_looked_for():
    assert {line.partition(":")[0] for line in looked_for()} == {kind.value for kind in Kind} - {"unknown"}


def test_a_log_that_quotes_other_evidence_is_a_log():
    quoted = "NodeName=x in a message\nCA 'a' said\n<system>\n" + "iter 10: loss 3.2, time 120.00ms, mfu 20%\n" * 3
    assert detect(quoted.encode()) is Kind.TRAINING_LOG


def damaged(data: bytes, rng: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.randint(0, 8)):
        made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made[rng.randrange(3) : rng.choice((len(made), rng.randrange(1, len(made) + 1)))])


@pytest.mark.parametrize("kind", READERS)
def test_random_damage_raises_nothing_but_our_own_errors(kind):
    """Every reader is given every kind's damaged bytes: what detection lets through must be read or refused."""
    if kind is Kind.OPERATION_TIMELINE:
        pytest.importorskip("pyarrow")
    rng = random.Random(11)
    others = [data for _, data in PARAMETERS if data]
    outcomes = {"read": 0, "refused": 0}
    messages = []
    for _ in range(600):
        data = damaged(rng.choice(rng.choice((others, SAMPLES[kind]))), rng)
        try:
            detect(data)
            READERS[kind](data, "damaged")
            outcomes["read"] += 1
        except NarrowsError as error:
            outcomes["refused"] += 1
            messages.append(str(error))
    assert min(outcomes.values()) > 5
    assert all(message.startswith(("damaged: ", "input: ")) for message in messages)
