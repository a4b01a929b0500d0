"""Traces and logs side by side: the same reading, with what they cannot say among the limits."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from narrows.reducers.compared_files import compare_step_times, compare_traces
from narrows.reducers.compared_plain import report
from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.reduced import KIND, SCHEMA, Accounts, Collective, Damage, Gaps, Kernel, Reduced, Step

MS = 1_000_000
NAMES = ("before", "after")


def accounts(compute: int, communication: int, span: int) -> Accounts:
    busy = compute + communication
    return Accounts(
        span_ns=span * MS, busy_ns=busy * MS, idle_ns=(span - busy) * MS, compute_ns=compute * MS,
        communication_ns=communication * MS, exposed_communication_ns=communication * MS, copy_ns=0, exposed_copy_ns=0,
    )  # fmt: skip


def trace(rank: int, own: dict[int, int], *, service: int = 2, steps: int = 3, input_ms: int = 0) -> Reduced:
    """A rank of a job whose ranks compute for ``own`` ms, then wait for the last in one collective a step."""
    last = max(own.values())
    length = last + service + input_ms + 2
    communication = last - own[rank] + service
    window = accounts(own[rank], communication, length)
    starts = [step * length * MS for step in range(steps)]
    calls = [
        Collective(op="all_reduce", start_ns=start + own[rank] * MS, end_ns=start + (last + service) * MS, on="0",
                   group="dp", group_ranks=f"{sorted(own)}", group_size=len(own), seq=seq, step=seq)
        for seq, start in enumerate(starts)
    ]  # fmt: skip
    return Reduced(
        schema=SCHEMA, kind=KIND, rank=rank, world_size=len(own), host_name="n0", backend="nccl", clock="unix_ns",
        devices={"0": accounts(steps * own[rank], steps * communication, steps * length)},
        steps=[Step(step=at, start_ns=start, host_ns=length * MS, devices={"0": window})
               for at, start in enumerate(starts)],
        outside={},
        gaps={"0": Gaps(num=steps, host_ns=2 * MS, input_ns=input_ms * MS, launch_ns=0, dependency_ns=0, queue_ns=0,
                        unlinked_ns=0)},
        collectives=calls,
        top_kernels=[Kernel(name="gemm", work="compute", num=steps, total_ns=steps * own[rank] * MS)],
        memory={}, host=None, label=None,
        quality=Damage(layout="lines", bytes=1, truncated=False, repaired=0, dropped=0, dropped_for={}, unlinked=0,
                       clipped_ns=0),
    )  # fmt: skip


def job(own: dict[int, int], **more: Any) -> list[Reduced]:
    return [trace(rank, own, **more) for rank in own]


USUAL = {0: 10, 1: 10, 2: 10}


def test_a_slow_rank_is_found_in_traces_and_its_time_told_from_the_waiting() -> None:
    found = compare_traces(job(USUAL), job(USUAL | {1: 15}), NAMES)
    assert (found.status, found.lead, found.tested) == ("slower", "compute", False)
    assert found.culprit == {"kind": "rank", "members": [1]}
    assert found.step.delta == pytest.approx(5.0)
    assert found.views["rank_mean"]["skew"].delta == pytest.approx(10 / 3)
    assert found.views["rank_mean"]["transfer"].delta == pytest.approx(0.0)
    assert report(found)["coverage"] == 1.0


def test_a_longer_service_in_traces_is_transfer() -> None:
    found = compare_traces(job(USUAL), job(USUAL, service=6), NAMES)
    assert (found.lead, found.next.row) == ("transfer", "transfer-inside")
    assert found.next.predicted_ms == pytest.approx(4.0)


def test_collectives_of_traces_stand_beside_what_is_expected_where_their_sizes_are_known() -> None:
    def sized(factor: int) -> list[Reduced]:
        sizes = (1_000_000, 2_000_000, 4_000_000)
        jobs = [job(USUAL, service=factor * (1 + at), steps=6) for at in range(3)]
        return [
            structs.replace(
                traces[0],
                collectives=[
                    structs.replace(call, payload_bytes=sizes[at], seq=3 * call.seq + at)
                    for at, one in enumerate(traces)
                    for call in one.collectives
                    if call.seq is not None
                ],
            )
            for traces in zip(*jobs, strict=True)
        ]

    found = compare_traces(sized(1), sized(2), NAMES).expected
    assert found is not None
    assert [row["payload_bytes"] for row in found["rows"]] == [4_000_000, 2_000_000, 1_000_000]
    assert [row["measured_us"] for row in found["rows"]][2] == {"healthy": 1000.0, "regressed": 2000.0}
    assert compare_traces(job(USUAL), job(USUAL), NAMES).expected is None  # their sizes are not on record


def test_a_longer_wait_for_data_in_traces_is_input() -> None:
    found = compare_traces(job(USUAL), job(USUAL, input_ms=5), NAMES)
    assert (found.lead, found.next.row) == ("input", "input")


def test_without_the_other_ranks_waiting_is_not_told_from_transfer_and_that_is_said() -> None:
    found = compare_traces(job(USUAL)[:1], job(USUAL | {1: 15})[:1], NAMES)
    assert found.lead == "transfer"
    assert found.lead_ms == pytest.approx(5.0)
    assert any("who came last is not known" in limit for limit in found.limits)


@pytest.mark.parametrize("arm", ["healthy", "regressed"])
def test_accounts_of_traces_add_up_to_the_step_in_every_view(arm: str) -> None:
    found = compare_traces(job(USUAL), job(USUAL | {1: 15}, input_ms=3), NAMES)
    for table in found.views.values():
        assert sum(getattr(one, arm) for one in table.values()) == pytest.approx(getattr(found.step, arm))


def test_swapping_traces_flips_the_signs() -> None:
    there = compare_traces(job(USUAL), job(USUAL | {1: 15}), NAMES)
    back = compare_traces(job(USUAL | {1: 15}), job(USUAL), NAMES)
    for name, change in there.accounts.items():
        assert back.accounts[name].delta == pytest.approx(-change.delta)


def test_traces_of_other_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="of the same ranks"):
        compare_traces(job(USUAL)[:2], job(USUAL)[1:], NAMES)
    with pytest.raises(TraceError, match="two traces are of rank 0"):
        compare_traces(job(USUAL)[:1] * 2, job(USUAL)[:2], NAMES)


def test_a_quantile_of_a_few_traced_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="only their mean"):
        compare_traces(job(USUAL), job(USUAL), NAMES, "p95")


def test_logs_say_how_much_slower_and_name_nothing() -> None:
    found = compare_step_times([[900.0, 100.0, 100.0, 101.0]], [[900.0, 110.0, 111.0, 110.0]], NAMES)
    assert found.status == "slower"
    assert found.step.delta == pytest.approx(10.0)
    assert (found.lead, found.culprit["kind"]) == (None, "none")
    assert report(found)["label"] is None
    assert any("step times alone" in limit for limit in found.limits)


def test_several_logs_an_arm_pair_but_are_not_known_to_have_taken_turns() -> None:
    found = compare_step_times([[1.0, 100.0 + at, 100.0] for at in range(4)], [[1.0, 120.0, 121.0]] * 4, NAMES)
    assert (found.pairs, found.tested) == (4, False)
    assert found.step.interval is not None


def test_a_log_without_step_times_is_refused() -> None:
    with pytest.raises(ValueError, match="after: log 1 holds no step time"):
        compare_step_times([[1.0, 2.0, 2.0]], [[]], NAMES)
