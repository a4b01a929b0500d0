"""Pipelines whose stragglers were planted: their timelines as parquet files, and their replay."""

from __future__ import annotations

import dataclasses
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.flows.read_command import read_files
from narrows.reducers.pipeline_replay import TimelineError, pipeline_straggling
from narrows.reducers.readers.common import NotUnderstood, UnreadableError
from narrows.reducers.readers.detect import Kind, detect
from narrows.reducers.readers.operation_timeline import OPERATIONS, OperationTimeline, read_operation_timeline

Op = tuple[str, int]  # kind, microbatch
FORWARD_S, BACKWARD_S, TRANSFER_S = 1.0, 2.0, 0.001


@dataclass(kw_only=True)
class Pipeline:
    """``factor``: (dp rank, stage, kind of operation, step) -> how many times as long as usual its compute takes."""

    dp_ranks: int = 2
    stages: int = 4
    microbatches: int = 8
    steps: int = 3
    factor: Callable[[int, int, str, int], float] = lambda _dp, _stage, _kind, _step: 1.0

    def rows(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for step in range(self.steps):
            done = {}
            for dp in range(self.dp_ranks):
                for stage, (ops, end) in enumerate(self._play(dp, step)):
                    rows += [one | {"dp_rank": dp, "stage": stage, "step": step} for one in ops]
                    done[dp, stage] = end
            for (dp, stage), end in done.items():
                until = max(done[other, stage] for other in range(self.dp_ranks)) + 0.1
                where = {"dp_rank": dp, "stage": stage, "step": step}
                rows.append(where | _row("grads-reduce-scatter", 0, end, until))
                rows.append(where | _row("optimizer", 0, until, until + 0.2))
        return rows

    def timeline(self) -> OperationTimeline:
        rows = self.rows()

        def column(name: str, kind: type) -> np.ndarray:
            return np.array([row[name] for row in rows], dtype=kind)

        return OperationTimeline(
            dp_rank_N=column("dp_rank", np.int64),
            stage_N=column("stage", np.int64),
            step_N=column("step", np.int64),
            seq_N=column("seq_id", np.int64),
            op_N=np.array([OPERATIONS.index(str(row["optype"])) for row in rows], dtype=np.int64),
            start_s_N=column("start_ts", np.float64),
            duration_s_N=column("duration", np.float64),
            not_understood=NotUnderstood(),
        )

    def _play(self, dp: int, step: int) -> list[tuple[list[dict[str, object]], float]]:
        programs = [self._program(stage) for stage in range(self.stages)]
        place, now = [0] * self.stages, [0.0] * self.stages
        posted: dict[tuple[str, int, int], float] = {}  # a call by its kind, sender and microbatch, and when it began
        rows: list[list[dict[str, object]]] = [[] for _ in programs]
        while any(at < len(program) for at, program in zip(place, programs, strict=True)):
            moved = False
            for stage, program in enumerate(programs):
                if place[stage] == len(program):
                    continue
                batch, start = program[place[stage]], now[stage]
                if batch[0][0].endswith("compute"):
                    ((kind, number),) = batch
                    usual = FORWARD_S if kind.startswith("forward") else BACKWARD_S
                    end = start + usual * self.factor(dp, stage, kind, step)
                else:
                    for kind, number in batch:
                        posted[kind, stage, number] = start
                    peers = [posted.get(self._peer(kind, stage, number)) for kind, number in batch]
                    if None in peers:
                        continue
                    end = max(start, *(peer for peer in peers if peer is not None)) + TRANSFER_S
                rows[stage] += [_row(kind, number, start, end) for kind, number in batch]
                place[stage], now[stage], moved = place[stage] + 1, end, True
            assert moved, "the schedule is stuck"
        return list(zip(rows, now, strict=True))

    def _peer(self, kind: str, stage: int, number: int) -> tuple[str, int, int]:
        way, call = kind.split("-")
        onward = (way == "forward") == (call == "send")
        return f"{way}-{'recv' if call == 'send' else 'send'}", stage + (1 if onward else -1), number

    def _program(self, stage: int) -> list[list[Op]]:
        """Batches in the order of 1F1B: warm-up forwards, one forward and one backward in turn, the rest."""
        first, last = stage == 0, stage == self.stages - 1
        ahead = min(self.stages - stage - 1, self.microbatches)
        batches: list[list[Op]] = []
        for number in range(ahead):
            batches += [[("forward-recv", number)]] * (not first)
            batches += [[("forward-compute", number)], [("forward-send", number)]]
        rest = self.microbatches - ahead
        if rest and not first:
            batches.append([("forward-recv", ahead)])
        for number in range(rest):
            batches.append([("forward-compute", ahead + number)])
            if not last:
                batches.append([("forward-send", ahead + number), ("backward-recv", number)])
            batches.append([("backward-compute", number)])
            if not first:
                more = [("forward-recv", ahead + number + 1)] if number + 1 < rest else []
                batches.append([("backward-send", number), *more])
        for number in range(rest, self.microbatches):
            batches += [[("backward-recv", number)], [("backward-compute", number)]]
            batches += [[("backward-send", number)]] * (not first)
        return batches


def _row(kind: str, number: int, start: float, end: float) -> dict[str, object]:
    return {"optype": kind, "seq_id": number, "start_ts": start, "duration": end - start}


@settings(max_examples=15, deadline=None)
@given(stages=st.integers(2, 5), microbatches=st.integers(1, 9), dp_ranks=st.integers(1, 3))
def test_a_uniform_pipeline_has_no_straggler_and_takes_as_long_as_its_bubble_says(stages, microbatches, dp_ranks):
    pipeline = Pipeline(stages=stages, microbatches=microbatches, dp_ranks=dp_ranks, steps=2)
    found = pipeline_straggling(pipeline.timeline())
    assert found.slowdown == pytest.approx(1, rel=1e-9)
    assert found.launch_slowdown == pytest.approx(1, rel=1e-9)
    expected = (microbatches + stages - 1) * (FORWARD_S + BACKWARD_S) + 0.3
    assert found.ideal_s == pytest.approx(expected, rel=0.01)


def test_the_planted_slow_worker_carries_all_of_the_loss_and_no_other_worker_any():
    pipeline = Pipeline(
        dp_ranks=4, microbatches=12, factor=lambda dp, stage, _kind, _step: 2.0 if (dp, stage) == (1, 2) else 1.0
    )
    found = pipeline_straggling(pipeline.timeline())
    assert found.trusted
    assert found.worst_workers == ("dp rank 1, stage 2",)
    assert found.worker_shares is not None
    assert found.worker_shares.removal == pytest.approx(1, abs=0.05)
    assert found.stage_shares is not None
    assert found.stage_shares.removal == pytest.approx(0, abs=0.05)
    assert max(found.of_dp_rank, key=lambda one: found.of_dp_rank[one]) == 1
    assert max(found.of_stage, key=lambda one: found.of_stage[one]) == 2


def test_a_heavier_last_stage_is_told_from_a_slow_worker():
    pipeline = Pipeline(dp_ranks=4, factor=lambda _dp, stage, _kind, _step: 1.5 if stage == 3 else 1.0)
    found = pipeline_straggling(pipeline.timeline())
    assert found.stage_shares is not None
    assert found.worker_shares is not None
    assert found.stage_shares.removal > 0.8
    assert found.worker_shares.removal < 0.2
    assert max(found.of_stage, key=lambda one: found.of_stage[one]) == 3


def test_a_kind_of_operation_that_varies_is_named():
    pipeline = Pipeline(steps=4, factor=lambda dp, _s, kind, step: 2.0 if kind[0] == "b" and step == dp else 1.0)
    found = pipeline_straggling(pipeline.timeline())
    assert max(found.of_operation, key=lambda one: found.of_operation[one]) == "backward-compute"
    assert found.of_operation["forward-compute"] == pytest.approx(1, abs=1e-9)
    assert max(found.step_slowdowns, key=lambda one: found.step_slowdowns[one]) in (0, 1)


@settings(max_examples=10, deadline=None)
@given(factor=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_slowdown_depends_on_neither_the_unit_of_time_nor_the_order_of_rows(factor, seed):
    timeline = Pipeline(factor=lambda dp, stage, _kind, _step: 1 + 0.1 * dp + 0.2 * stage).timeline()
    order = np.random.default_rng(seed).permutation(len(timeline))
    fields = dataclasses.fields(timeline)
    mixed = {one.name: getattr(timeline, one.name)[order] for one in fields if one.name.endswith("_N")}
    moved = dataclasses.replace(
        timeline, **mixed | {name: mixed[name] * factor for name in ("start_s_N", "duration_s_N")}
    )
    assert pipeline_straggling(moved).slowdown == pytest.approx(pipeline_straggling(timeline).slowdown, rel=1e-6)


def test_a_launch_gap_that_the_operations_do_not_hold_makes_the_replay_untrusted():
    timeline = Pipeline().timeline()
    late = np.where(timeline.op_N == OPERATIONS.index("optimizer"), timeline.start_s_N + 10, timeline.start_s_N)
    found = pipeline_straggling(dataclasses.replace(timeline, start_s_N=late))
    assert found.launch_slowdown > 1.2
    assert not found.trusted


def test_a_send_whose_receiver_is_not_in_the_record_is_refused():
    timeline = Pipeline().timeline()
    keep = ~((timeline.op_N == OPERATIONS.index("forward-recv")) & (timeline.seq_N == 3) & (timeline.stage_N == 2))
    cut = {one.name: getattr(timeline, one.name) for one in dataclasses.fields(timeline)}
    cut = {name: value[keep] if name.endswith("_N") else value for name, value in cut.items()}
    with pytest.raises(TimelineError, match=r"forward-send 3 of dp rank 0, stage 1 has no partner"):
        pipeline_straggling(type(timeline)(**cut))


def test_an_operation_that_is_there_twice_is_refused():
    timeline = Pipeline(steps=1).timeline()
    twice = {one.name: getattr(timeline, one.name) for one in dataclasses.fields(timeline)}
    twice = {
        name: np.concatenate([value, value[:1]]) if name.endswith("_N") else value for name, value in twice.items()
    }
    with pytest.raises(TimelineError, match="twice"):
        pipeline_straggling(type(timeline)(**twice))


def written(rows: list[dict[str, object]]) -> bytes:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(rows), file)
    return file.getvalue()


def test_without_pyarrow_the_message_names_what_to_install(monkeypatch):
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert detect(b"PAR1 and more") is Kind.OPERATION_TIMELINE
    with pytest.raises(UnreadableError, match=r"t\.parquet: .*pip install 'narrows\[parquet\]'"):
        read_operation_timeline(b"PAR1 and more", "t.parquet")


def test_what_was_written_is_read_and_the_slow_worker_is_printed(tmp_path, capsys):
    slow = Pipeline(factor=lambda dp, stage, _kind, _step: 2.0 if (dp, stage) == (1, 0) else 1.0)
    path = tmp_path / "named-as-you-like"
    path.write_bytes(written(slow.rows()))
    assert read_files([path]) == 0
    out = capsys.readouterr().out
    assert "8 workers in 4 stages" in out
    assert "what carries more than half of it: dp rank 1, stage 0" in out


def test_unknown_kinds_of_operation_are_counted_and_the_others_read():
    rows = Pipeline().rows()
    read = read_operation_timeline(written([*rows, rows[0] | {"optype": "defrag"}]))
    assert len(read) == len(rows)
    assert (read.not_understood.count, read.not_understood.first[0].text) == (1, "defrag")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"duration": -1.0}, "duration is to hold seconds"),
        ({"start_ts": float("nan")}, "start_ts is to hold seconds"),
        ({"stage": -1}, "stage holds -1"),
        ({"stage": None}, "stage holds float64"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_column(change, message):
    rows = Pipeline(steps=1).rows()
    with pytest.raises(UnreadableError, match=message):
        read_operation_timeline(written([rows[0] | change, *rows[1:]]), "t.parquet")


def test_a_missing_column_is_named():
    rows = [{key: value for key, value in row.items() if key != "duration"} for row in Pipeline(steps=1).rows()]
    with pytest.raises(UnreadableError, match="without column duration"):
        read_operation_timeline(written(rows), "t.parquet")


def test_a_cut_file_is_refused_as_damaged():
    data = written(Pipeline(steps=1).rows())
    with pytest.raises(UnreadableError, match="damaged parquet"):
        read_operation_timeline(data[: len(data) // 2], "t.parquet")
