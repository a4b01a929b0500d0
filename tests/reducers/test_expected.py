"""Expected beside measured: textbook formulas, what expectations rest on, and what is flagged in recorded runs."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.reducers.evidence import ArmRuns, build_evidence
from narrows.reducers.expected import RING_OPS, bubble_ms, bubble_share, exposed, known_op, rounds, sent_bytes
from narrows.reducers.expected_calls import measured_shapes
from narrows.reducers.expected_pipeline import pipeline
from narrows.reducers.expected_records import expected_beside, overlaps
from narrows.reducers.ledger import build_ledger
from narrows.reducers.rundir import read_run
from narrows.reducers.scaling import Link, transfer_us

MS = 1_000_000
SIZES = (100_000, 400_000, 900_000, 1_600_000)
ALPHA_US, US_A_BYTE = 150.0, 0.001
RANKS, BYTES = st.integers(1, 64), st.integers(0, 1 << 34)
LINK = Link(alpha_us=7.0, bytes_per_us=125.0)


@pytest.mark.parametrize(
    ("op", "ranks", "num_rounds", "num_bytes"),
    [
        ("all_reduce", 4, 6, 1500),
        ("all_gather", 4, 3, 750),
        ("reduce_scatter", 4, 3, 750),
        ("all_to_all", 4, 3, 750),
        ("broadcast", 4, 3, 1000),
        ("reduce", 4, 3, 1000),
        ("barrier", 5, 6, 0),
        ("send", 2, 1, 1000),
        ("all_reduce", 1, 0, 0),
    ],
)
def test_rounds_and_bytes_of_one_collective_of_1000_bytes(op, ranks, num_rounds, num_bytes):
    assert (rounds(op, ranks), sent_bytes(op, 1000, ranks)) == (num_rounds, num_bytes)


@given(st.sampled_from((*RING_OPS, "barrier")), RANKS, BYTES)
def test_the_alpha_beta_time_is_a_delay_a_round_and_the_bytes_at_the_rate_of_the_link(op, ranks, payload):
    expected = rounds(op, ranks) * LINK.alpha_us + sent_bytes(op, payload, ranks) / LINK.bytes_per_us
    assert transfer_us(op, payload, ranks, LINK) == pytest.approx(expected)


@given(RANKS, BYTES)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks, payload):
    halves = ("reduce_scatter", "all_gather")
    assert rounds("all_reduce", ranks) == sum(rounds(op, ranks) for op in halves)
    assert sent_bytes("all_reduce", payload, ranks) == pytest.approx(
        sum(sent_bytes(op, payload, ranks) for op in halves)
    )


def test_recorded_names_are_known_by_their_beginning():
    names = ("all_gather_into_tensor", "reduce_scatter_tensor", "isend", "irecv", "all_to_all_single", "gather")
    assert [known_op(one) for one in names] == ["all_gather", "reduce_scatter", "send", "recv", "all_to_all", None]


BATCHES = st.lists(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), min_size=1, max_size=5), min_size=1, max_size=5
)


def one_batch(calls, until):
    end = -np.inf
    for ready, service in calls:
        end = max(ready, end) + service
    return max(0.0, end - until)


@given(BATCHES, st.floats(0, 2e4))
def test_exposed_time_is_that_of_the_recursion_bucket_by_bucket(batches, until):
    batches = [sorted(batch) for batch in batches]
    first = np.cumsum([0, *(len(batch) for batch in batches)])[:-1]
    ready, service = np.array([call for batch in batches for call in batch]).T
    found = exposed(first, ready, service, np.full(len(batches), until))
    assert found == pytest.approx([one_batch(batch, until) for batch in batches], abs=1e-6)


def test_a_service_increase_is_hidden_as_long_as_compute_is_left():
    ready, until = np.array([0.0, 4.0]), np.array([10.0])
    times = [float(exposed(np.array([0]), ready, np.array([s, s]), until)[0]) for s in (2.0, 4.0, 6.0, 9.0)]
    assert times == [0.0, 0.0, 2.0, 8.0]  # not twice the increase


def test_the_bubble_of_equal_and_of_interleaved_stages():
    assert bubble_share(4, 8) == 3 / 11
    assert bubble_share(4, 8, 2) == 3 / 19
    assert bubble_share(1, 8) == 0
    assert bubble_ms([8.0] * 4, 8) == pytest.approx(3.0)  # (p - 1) / m of the compute
    assert bubble_ms([8.0] * 4, 8, 2) == pytest.approx(1.5)
    assert bubble_ms([4.0, 12.0], 4) == pytest.approx(5.0)  # 1 + 3 for the first, 3 x 3 for the others, less 8
    with pytest.raises(ValueError, match="0 microbatches"):
        bubble_share(4, 0)


@given(st.floats(0.1, 100), st.integers(1, 16), st.integers(1, 64), st.integers(1, 4))
def test_the_bubble_is_its_share_of_the_whole_pipelined_time(compute, stages, microbatches, chunks):
    waits = bubble_ms([compute] * stages, microbatches, chunks)
    assert waits / (waits + compute) == pytest.approx(bubble_share(stages, microbatches, chunks), abs=1e-9)


@pytest.mark.parametrize("op", RING_OPS[:-1])
def test_of_an_emulated_fabric_its_own_arithmetic_is_expected(op):
    from narrows.experiments.places import link_time_ns
    from narrows.experiments.workload import SlowLink
    from narrows.reducers.expected import Shape, basis_of

    manifest = {"emulated": True, "config": {"fabric_mbit": 8000.0, "fabric_delay_us": 100.0, "slow_link": None}}
    shape = Shape(group="dp", op=op, ranks=4, payload_bytes=196_608, crosses_hosts=False)
    found = basis_of([], manifest).expected_us(shape)
    real_ns = link_time_ns(SlowLink(mbit=8000.0, delay_us=100.0, host=""), op, 196_608, 4)
    assert found == (pytest.approx(real_ns / 1e3, rel=1e-5), "alpha-beta of the emulated fabric")
    inside = Shape(group="tp", op=op, ranks=2, payload_bytes=196_608, crosses_hosts=False)
    assert basis_of([], manifest).expected_us(inside) is None  # only data-parallel groups are on the fabric
    slower = manifest | {"config": manifest["config"] | {"slow_link": {"mbit": 500, "delay_us": 200, "host": ""}}}
    assert basis_of([], slower).expected_us(shape) is None


@pytest.fixture
def recorded(data_parallel, tmp_path):
    """Runs of 4 ranks on two hosts whose buckets have these sizes and take alpha + beta x size, times a factor."""

    def build(name, sizes=SIZES, factor=lambda _bucket, _step: 1.0, hosts=("n0", "n0", "n1", "n1"), **fields):
        def service(bucket, step):
            return round(1e3 * (ALPHA_US + US_A_BYTE * sizes[bucket]) * factor(bucket, step))

        run = data_parallel(
            num_buckets=len(sizes), service=service, **({"num_steps": 12, "washout": 2} | fields)
        ).build()
        run.hosts = dict(enumerate(hosts))
        for lines in run.calls.values():
            for line in lines:
                line["payload_bytes"] = sizes[line["seq"] % len(sizes)]
        return run

    def read(name, manifest=None, **fields):
        run = build(name, **fields)
        run.manifest = manifest or {}
        found = read_run(run.write(tmp_path / name))
        return found, build_ledger(found)

    return read


def rows_by_size(found):
    return {row["payload_bytes"]: row for row in found["rows"]}


def test_the_shapes_of_a_run_are_counted_and_timed(recorded):
    found = {one.shape.payload_bytes: one for one in measured_shapes(*recorded("healthy"))}
    assert set(found) == set(SIZES)
    for size, one in found.items():
        assert (one.shape.group, one.shape.op, one.shape.ranks, one.shape.crosses_hosts) == (
            "dp",
            "all_reduce",
            4,
            True,
        )
        assert (one.calls, one.num) == (1.0, 10)  # of 12 steps 2 are washout
        assert one.service_us == pytest.approx(ALPHA_US + US_A_BYTE * size)


def test_more_bytes_a_step_are_told_from_a_slower_link(recorded):
    sizes = {"healthy": SIZES, "regressed": (*SIZES, SIZES[1])}
    arms = {name: [recorded(name, sizes=own)] for name, own in sizes.items()}
    found = expected_beside(arms)
    assert found["sent"]["dp"] == {name: pytest.approx(1.5 * sum(own)) for name, own in sizes.items()}
    assert rows_by_size(found)[SIZES[1]]["calls"] == {"healthy": 1.0, "regressed": 2.0}
    assert [row["exceeded"] for row in found["rows"]] == [[]] * len(SIZES)


def test_a_planted_slow_link_exceeds_the_curve_of_the_healthy_run(recorded):
    arms = {"healthy": [recorded("healthy")], "regressed": [recorded("slow", factor=lambda *_: 2.0)]}
    found = expected_beside(arms)
    for size, row in rows_by_size(found).items():
        assert row["expected_us"] == pytest.approx(ALPHA_US + US_A_BYTE * size, rel=0.01)
        assert row["measured_us"]["regressed"] == pytest.approx(2 * row["measured_us"]["healthy"])
        assert (row["exceeded"], row["basis"]) == (["regressed"], "curve over 4 sizes of the healthy run")
    overlap = found["overlap"][0]
    assert (overlap["group"], overlap["exceeded"]) == ("dp", ["regressed"])
    assert overlap["arms"]["regressed"]["expected_exposed_ms"] < overlap["arms"]["regressed"]["exposed_ms"]


def test_where_only_the_large_sizes_slow_down_only_they_are_flagged(recorded):
    slow = recorded("slow", factor=lambda bucket, _step: 1.6 if bucket >= 2 else 1.0)
    found = rows_by_size(expected_beside({"healthy": [recorded("healthy")], "regressed": [slow]}))
    assert [bool(found[size]["exceeded"]) for size in SIZES] == [False, False, True, True]


@pytest.mark.parametrize("seed", range(8))
def test_two_runs_of_the_same_configuration_flag_nothing(recorded, seed):
    def noise(name):
        draw = random.Random(f"{seed}:{name}")
        times = [[draw.lognormvariate(0, 0.05) for _ in range(12)] for _ in SIZES]
        return lambda bucket, step: times[bucket][step]

    arms = {name: [recorded(name, factor=noise(name))] for name in ("healthy", "regressed")}
    found = expected_beside(arms)
    assert all("expected_us" in row for row in found["rows"])
    assert [one["exceeded"] for one in [*found["rows"], *found["overlap"]]] == [[]] * (len(SIZES) + 1)


def test_calls_of_which_half_are_slow_are_shown_and_not_flagged(recorded):
    busy = recorded("busy", factor=lambda _bucket, step: 3.0 if step in (2, 4, 6, 7, 8, 10) else 1.0)
    found = expected_beside({"healthy": [recorded("healthy")], "regressed": [busy]})
    for row in found["rows"]:
        assert row["measured_us"]["regressed"] > 2.9 * row["expected_us"]
        assert row["exceeded"] == []


def test_without_a_basis_the_time_is_absent_and_said_to_be(recorded):
    few = {"sizes": SIZES[:2]}
    arms = {"healthy": [recorded("healthy", **few)], "regressed": [recorded("slow", factor=lambda *_: 3.0, **few)]}
    found = expected_beside(arms)
    for row in found["rows"]:
        assert "expected_us" not in row
        assert row["exceeded"] == []
        assert row["why_not"] == "no curve: 2 sizes in the healthy run, 3 are needed; no link stated"
    assert found["overlap"][0]["basis"] == "services of the healthy run"


def test_sizes_that_lie_on_no_line_are_no_basis(recorded):
    bent = recorded("healthy", factor=lambda bucket, _step: (1.0, 3.0, 1.0, 3.0)[bucket])
    row = expected_beside({"healthy": [bent], "regressed": [bent]})["rows"][0]
    assert "expected_us" not in row
    assert "off a line; no link stated" in row["why_not"]


def test_a_size_beyond_the_curve_is_not_guessed(recorded):
    larger = recorded("larger", sizes=(*SIZES[:3], 3_000_000))
    found = rows_by_size(expected_beside({"healthy": [recorded("healthy")], "regressed": [larger]}))
    assert "from 100000 to 1600000 bytes" in found[3_000_000]["why_not"]
    assert found[3_000_000]["measured_us"]["healthy"] is None
    inside = expected_beside({"healthy": [recorded("again")], "regressed": [recorded("inside", sizes=(250_000,))]})
    assert rows_by_size(inside)[250_000]["expected_us"] == pytest.approx(ALPHA_US + US_A_BYTE * 250_000, rel=0.01)


def test_a_stated_link_holds_between_hosts_alone(recorded):
    link = Link(alpha_us=10.0, bytes_per_us=1250.0)
    for hosts, basis in ((("n0", "n0", "n1", "n1"), "alpha-beta of the stated link"), (("n0",) * 4, None)):
        one = [recorded(f"on-{len(set(hosts))}", sizes=SIZES[:1], hosts=hosts)]
        row = expected_beside({"healthy": one, "regressed": one}, link)["rows"][0]
        assert row.get("basis") == basis
    assert row["why_not"].endswith("the link is between hosts")


def overlapping(blank_run, tmp_path, ready, services, *, blocked, named=True):
    """Three steps of two ranks: backward until 10 ms, two all-reduces on one stream, rank 1 comes 1 ms later."""
    run = blank_run.of(2)
    for step in range(3):
        at, end = step * 40 * MS, -np.inf
        for bucket, (since, service) in enumerate(zip(ready, services, strict=True)):
            end = max(since + 1, end) + service
            for rank in (0, 1):
                run.call(rank, 2 * step + bucket, at + round((since + rank) * MS), at + round(end * MS), step=step)
        for rank in (0, 1):
            wait = [("wait", at + blocked * MS, at + round(end * MS))] if named and end > blocked else []
            run.step(rank, step, at, at + 40 * MS, [("backward", at, at + 10 * MS), *wait])
    found = read_run(run.write(tmp_path / "run"))
    return found, build_ledger(found)


def test_what_compute_there_is_hides_collectives(blank_run, tmp_path):
    run, ledger = overlapping(blank_run, tmp_path, (4, 8), (3, 4), blocked=10)
    shape = measured_shapes(run, ledger)[0].shape
    found = overlaps(run, ledger, {shape: 7000.0})["dp"]
    assert found.service_ms == pytest.approx(7)
    assert found.window_ms == pytest.approx(5)  # of backward, after the last rank came to the first bucket at 5
    assert found.exposed_ms == pytest.approx(3)  # 5 + 3, then 9 + 4
    assert found.expected_ms == pytest.approx(9)  # with 7 ms each: 5 + 7 + 7, beyond 10
    assert overlaps(run, ledger, {})["dp"].expected_ms is None


def test_collectives_that_come_when_compute_is_done_have_no_window(blank_run, tmp_path):
    run, ledger = overlapping(blank_run, tmp_path, (9, 9), (3, 4), blocked=10)
    shape = measured_shapes(run, ledger)[0].shape
    found = overlaps(run, ledger, {shape: 3500.0})["dp"]
    assert (found.window_ms, found.exposed_ms, found.expected_ms) == pytest.approx((0, 7, 7))


def test_without_waits_on_record_no_overlap_is_told(blank_run, tmp_path):
    assert overlaps(*overlapping(blank_run, tmp_path, (4, 8), (3, 4), blocked=10, named=False), {}) == {}


def two_stages(blank_run, path, config, *, peer_of=None, ranks=(0, 1)):
    """Two stages, two microbatches, forward 1 ms and backward 2 ms: all forward, then all backward; 9 ms a step."""
    run = blank_run.of(len(ranks), groups={"pp": list(ranks)}, manifest={"config": config})
    first, last = ranks[0], (peer_of or ranks[-1])

    def message(source, target, seq, sent, asked, got):
        run.call(source, seq, sent, sent + 1000, group="pp", op="send", p2p=True, peer=target, step=seq // 2)
        run.call(target, seq, asked, got, group="pp", op="recv", p2p=True, peer=source, step=seq // 2)

    for step in range(4):
        at = step * 9 * MS
        begin = at - 2 * MS if step else at  # the last stage goes on while the first ends its step
        for part in (0, 1):
            asked, sent = (begin, at + 2 * MS)[part], at + (1 + part) * MS
            message(first, last, 2 * step + part, sent, asked, max(asked, sent) + 1000)
            given_back, idle = at + (5 + 2 * part) * MS, at + (2, 7)[part] * MS
            message(last, first, 2 * step + part, given_back, idle, given_back + 1000)
        spans = {
            first: [("forward", at, at + 2 * MS), ("backward", at + 5 * MS, at + 9 * MS)],
            last: [("forward", at + MS, at + 3 * MS), ("backward", at + 3 * MS, at + 7 * MS)],
        }
        for rank in ranks:
            window = (begin, at + 7 * MS) if rank == last else (at, at + 9 * MS)
            run.step(rank, step, *window, spans.get(rank, spans[first]), warmup=step == 0)
    found = read_run(run.write(path))
    return found, build_ledger(found)


def test_the_bubble_of_a_recorded_pipeline_is_that_of_the_textbook(blank_run, tmp_path):
    found = pipeline(*two_stages(blank_run, tmp_path / "run", {"microbatches": 2}))
    assert not isinstance(found, str)
    assert (found.stages, found.microbatches, found.chunks) == (2, 2, 1)
    assert found.share == 1 / 3
    assert found.expected_ms == pytest.approx(3)  # (p - 1) / m of 6 ms
    assert found.waiting_ms == pytest.approx(3, rel=0.01)


def test_ranks_that_wait_longer_than_the_bubble_are_flagged(blank_run, tmp_path):
    usual = [two_stages(blank_run, tmp_path / "usual", {"microbatches": 2})]
    finer = [two_stages(blank_run, tmp_path / "finer", {"num_microbatches": 8})]
    found = expected_beside({"healthy": usual, "regressed": finer})["bubble"]
    assert found["exceeded"] == ["regressed"]
    assert found["arms"]["regressed"]["expected_ms"] == pytest.approx(0.75)


def test_a_bubble_needs_microbatches_a_group_and_neighbours(blank_run, tmp_path, recorded):
    assert "does not name the microbatches" in pipeline(*two_stages(blank_run, tmp_path / "a", {}))
    assert pipeline(*recorded("dp")) == "no pipeline group (pp) is on record"
    jump = two_stages(blank_run, tmp_path / "b", {"microbatches": 2}, ranks=(0, 1, 2, 3), peer_of=2)
    assert "neighbours" in pipeline(*jump)


def test_evidence_of_given_runs_holds_it_and_that_of_experiments_does_not(recorded_arm, tmp_path):
    healthy = recorded_arm().write(tmp_path / "healthy")
    regressed = recorded_arm(service=lambda _rank, _step: 5.0).write(tmp_path / "regressed", arm="regressed", turn=1)
    arms = [ArmRuns(name=path.name, paths=(path,)) for path in (healthy, regressed)]
    found = build_evidence("given", arms, statistic="mean", mode="given")["expected"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["rows"][0]["measured_us"] == {"healthy": 2000.0, "regressed": 5000.0}
    assert "expected" not in build_evidence("E1", arms, statistic="mean", mode="switchback")
