"""Real traces of many profilers, beside the repository in ../shared/data; skipped where they are not."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.ranks import across_ranks
from narrows.reducers.traces.reduce import reduce_file
from narrows.reducers.traces.reduced import Reduced, encode_reduced

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY.parent / "shared" / "data" / "kineto"
FILES = sorted(path for path in DATA.rglob("*") if path.is_file()) if DATA.is_dir() else []
REFUSED = {"simple_add_et": "execution trace", "memory_timeline": "memory timeline", ".tar.gz": "tar archive"}
TRACES = [path for path in FILES if not any(word in path.name for word in REFUSED)]

pytestmark = pytest.mark.skipif(not FILES, reason="the public traces are not here (../shared/data/kineto)")


@cache
def brute_force() -> ModuleType:
    spec = spec_from_file_location("field_brute_force", REPOSITORY / "tests" / "traces" / "brute_force.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["field_brute_force"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def reduced(part_of_name: str) -> Reduced:
    (path,) = [path for path in TRACES if part_of_name in str(path)]
    return reduce_file(path)


def names(path: Path) -> str:
    return path.name[-60:]


@pytest.mark.parametrize("path", TRACES, ids=names)
def test_the_accounts_of_a_real_trace_equal_a_brute_force_reading(path: Path) -> None:
    found = reduce_file(path)
    wanted, clipped_ns = brute_force().accounts(brute_force().events_of(path))
    assert {name: msgspec.structs.asdict(entry) for name, entry in found.devices.items()} == wanted
    assert found.quality.clipped_ns == clipped_ns
    assert not found.quality.truncated
    assert found.quality.repaired == found.quality.dropped == 0
    assert all(found.gaps[name].total_ns == entry.idle_ns for name, entry in found.devices.items())
    assert msgspec.json.decode(encode_reduced(found), type=Reduced) == found


@pytest.mark.parametrize("path", [path for path in FILES if path not in TRACES], ids=names)
def test_what_is_no_profiler_trace_is_refused_by_what_it_is(path: Path) -> None:
    says = next(text for word, text in REFUSED.items() if word in path.name)
    with pytest.raises(TraceError, match=says):
        reduce_file(path)


# Exact readings in us, where two widely used tools crash, round, or count host operators as kernels.
TRUTH = {
    "nccl_data": {"idle_ns": 503_051, "compute_ns": 115_656},
    "df_index_resolver": {"idle_ns": 732_352, "compute_ns": 620_516, "communication_ns": 357_343},
    "Qwen1.5": {"compute_ns": 45_433, "span_ns": 49_653},
    "36347a1_triton": {"busy_ns": 1.76},
    "critical_path_alexnet": {"span_ns": 12_920_244, "idle_ns": 12_854_103},
    "resnet_act_checkpoint": {"busy_ns": 84_002, "span_ns": 86_568},
}


@pytest.mark.parametrize("part_of_name", TRUTH)
def test_traces_that_other_tools_misread_come_out_right(part_of_name: str) -> None:
    (entry,) = reduced(part_of_name).devices.values()
    for key, wanted_us in TRUTH[part_of_name].items():
        assert getattr(entry, key) / 1000 == pytest.approx(wanted_us, abs=1 if wanted_us > 10 else 0.005)


def test_the_overlap_of_communication_and_compute_is_exact() -> None:
    (entry,) = reduced("nccl_data").devices.values()
    hidden = entry.communication_ns - entry.exposed_communication_ns
    assert 100 * hidden / entry.communication_ns == pytest.approx(15.61, abs=0.005)


def test_collectives_with_metadata_are_read_with_it() -> None:
    calls = reduced("nccl_data").collectives
    assert len(calls) == 21
    assert sum(call.op == "all_reduce" for call in calls) == 15
    assert sum(call.op == "broadcast" for call in calls) == 6
    assert {(call.group_role, call.group_size) for call in calls} == {("default_pg", 2)}


def test_collectives_launched_before_the_window_stay_without_metadata() -> None:
    found = reduced("resnet_act_checkpoint")
    assert len(found.collectives) == 17
    assert sum(call.group is not None for call in found.collectives) == 12
    assert found.quality.unlinked == 968
    assert found.outside["before"]["2"].busy_ns > 0


def test_a_rank_on_gloo_reports_its_collectives() -> None:
    found = reduced("05cd72f")
    assert (found.rank, found.world_size, found.backend, found.devices) == (34, 300, "gloo", {})
    assert found.host is not None
    assert found.host.num_collectives == 10


def test_eight_ranks_without_sequence_numbers_name_who_came_last_and_who_waited() -> None:
    found = across_ranks([reduce_file(path) for path in TRACES if "dlrm_kineto/worker" in str(path)])
    assert [entry.last_rank for entry in found.collectives] == [7, 7, 7, 7, 7, 5, 5, 4]
    skew_us = [entry.skew_ns // 1000 for entry in found.collectives]
    assert skew_us == [7624, 1101, 168, 125, 223, 534, 584, 885]
    assert max(entry.end_spread_ns for entry in found.collectives) <= 7_000
    assert (found.waits_most, found.last_most, found.conclusive, found.matched_by) == (1, 7, True, "order")


def test_two_down_sampled_ranks_of_128_are_not_paired() -> None:
    found = across_ranks([reduced("timeline_analysis_sampled_rank-0"), reduced("trace_filter_sampled_rank-1")])
    assert (found.matched_by, found.coverage, found.conclusive) == ("none", 0.0, False)
    assert found.notes
