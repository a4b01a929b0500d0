from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.reducers.readers.common import UnreadableError
from narrows.reducers.readers.nccl_pairs import read_pairs
from narrows.reducers.readers.nccl_tests import Ending, NcclTests, read_nccl_tests

PARAMETERS = "# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1"
HEAD = "#       size   count    type   redop    root    time   algbw   busbw #wrong    time   algbw   busbw #wrong"
UNITS = "#        (B)  (elements)                        (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"


def output(
    hosts: tuple[str, ...] = ("a1", "a2"), collective: str = "all_reduce", average: float | None = 10.0, tail: str = ""
) -> str:
    ranks = "\n".join(
        f"#  Rank  {rank} Group  0 Pid  {70 + rank} on {host} device  0 [0000:0{rank}:00] Some GPU 80GB"
        for rank, host in enumerate(hosts)
    )
    row = "        1024     256   float     sum      -1   20.50    0.05    0.09      0   1.1e+07  0.05    0.10    N/A"
    end = f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {average}\n" if average is not None else ""
    name = f"# Collective test starting: {collective}_perf\n" if collective else ""
    return f"{name}{PARAMETERS}\n#\n# Using devices\n{ranks}\n#\n{HEAD}\n{UNITS}\n{row}\n{end}{tail}"


def read(text: str) -> NcclTests:
    return read_nccl_tests(text.encode(), "out.log")


def test_a_table_is_read_to_its_last_column():
    reading = read(output())
    (test,) = reading.tests
    (row,) = test.rows
    assert (test.collective, test.ending, test.hosts) == ("all_reduce", Ending.COMPLETE, ("a1", "a2"))
    assert test.parameters["maxBytes"] == 4096
    assert test.parameters["warmup_iters"] == 5
    assert (test.out_of_bounds, test.out_of_bounds_verdict, test.avg_busbw_gb_s) == (0, "OK", 10.0)
    assert (row.size_bytes, row.count, row.dtype, row.redop, row.root) == (1024, 256, "float", "sum", -1)
    assert row.out_of_place is not None
    assert row.in_place is not None
    assert (row.out_of_place.time_us, row.out_of_place.busbw_gb_s, row.out_of_place.wrong) == (20.5, 0.09, 0)
    assert (row.in_place.time_us, row.in_place.wrong) == (1.1e7, None)
    assert test.devices[1].name == "Some GPU 80GB"
    assert reading.not_understood.count == 0


@pytest.mark.parametrize(
    "prefix",
    [
        "0: ",
        "  12: ",
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[0] ",
        "[host@1,0]<stdout>:",
        "worker-0: ",
        "2024-05-01T10:11:12.123456Z ",
        "2024-05-01T10:11:12.123456Z [1,3]<stdout>:",
    ],
)
def test_the_prefixes_of_launchers_change_nothing(prefix):
    plain = read(output())
    prefixed = read("\n".join(prefix + line for line in output().splitlines()))
    assert prefixed == plain


@pytest.mark.parametrize("tag", ["[0]", " [0] ", "[1,0]<stdout>:"])
def test_a_tag_in_the_middle_of_a_row_is_taken_out(tag):
    assert read(output().replace("   sum      -1", f"   sum      -1{tag} ")).tests == read(output()).tests


def test_an_old_table_has_an_error_column_and_no_root():
    text = (
        f"{PARAMETERS}\n#   Rank  0 Pid 5 on box device  0 [0x00] GPU\n"
        "#   size   count   type   time   algbw   busbw  error     time   algbw   busbw  error\n"
        "   64   16   float   34.36   1.00   2.00   N/A   33.83   1.00   2.50   0e+00\n# Avg bus bandwidth    : 2.25\n"
    )
    (test,) = read(text).tests
    (row,) = test.rows
    assert (row.redop, row.root, row.busbw_gb_s) == (None, None, 2.5)
    assert row.out_of_place is not None
    assert row.in_place is not None
    assert (row.out_of_place.wrong, row.in_place.wrong) == (None, 0)
    assert test.devices[0].group is None


def test_several_collectives_in_one_file_stay_apart():
    reading = read(output(collective="all_reduce") + "\n" + output(collective="sendrecv", average=3.0))
    assert [(test.collective, test.avg_busbw_gb_s, len(test.rows)) for test in reading.tests] == [
        ("all_reduce", 10.0, 1),
        ("sendrecv", 3.0, 1),
    ]


def test_tests_without_names_are_parted_by_their_parameters_and_named_by_the_command():
    text = "mpirun -n 2 ./build/alltoall_perf -b 8\n" + output(collective="") + output(collective="")
    assert [test.collective for test in read(text).tests] == ["alltoall", "alltoall"]


def test_rccl_version_lines_without_a_hash_are_versions():
    reading = read("RCCL version : 2.22.3-develop:abc\nROCm version : 6.3.1\n" + output())
    assert reading.versions == ("RCCL version : 2.22.3-develop:abc", "ROCm version : 6.3.1")
    assert reading.not_understood.count == 0


def test_a_launch_that_failed_has_no_test_and_no_bandwidth():
    reading = read("start failed on node17: alloc failed on cxi0: request exceeds limits\n")
    assert reading.tests == ()
    assert [failure.line for failure in reading.launch_failures] == [1]


def test_a_test_that_dies_is_failed_and_one_without_an_end_is_cut():
    died = read(output(average=None, tail="a1: Test NCCL failure common.cu:1279 'remote process exited'\n"))
    cut = read(output(average=None))
    assert (died.tests[0].ending, died.tests[0].avg_busbw_gb_s) == (Ending.FAILED, None)
    assert died.tests[0].failures[0].text.startswith("a1: Test NCCL failure")
    assert cut.tests[0].ending is Ending.CUT


def test_values_out_of_bounds_are_counted():
    (test,) = read(output().replace("values : 0 OK", "values : 7 FAILED")).tests
    assert (test.out_of_bounds, test.out_of_bounds_verdict) == (7, "FAILED")


def test_what_is_no_part_of_the_output_is_shown_with_its_line():
    reading = read("a word from the sponsor\n" + output() + "   2048   512   float   sum   -1   20.50\n")
    first, second = reading.not_understood.first
    assert (first.line, first.text) == (1, "a word from the sponsor")
    assert "6 columns where the head has 13" in second.why


def test_a_file_of_something_else_is_refused_with_the_next_move():
    with pytest.raises(UnreadableError, match=r"x\.log: has no nccl-tests head.*give the test's whole output"):
        read_nccl_tests(b"PATH=/usr/bin\nHOME=/root\n", "x.log")


def pairs(speeds: dict[tuple[str, str], float | None]) -> dict[str, NcclTests]:
    return {f"{a}_{b}.log": read(output(hosts=(a, b), average=speed)) for (a, b), speed in speeds.items()}


NODES = tuple(f"n{place}" for place in range(6))
ALL_PAIRS = [(a, b) for at, a in enumerate(NODES) for b in NODES[at + 1 :]]


def test_the_nodes_common_to_failed_pairs_are_named_once_each():
    dead = {("n0", "n2"), ("n1", "n2"), ("n2", "n3"), ("n4", "n5"), ("n1", "n5")}
    reading = read_pairs(pairs({pair: None if pair in dead else 10.0 for pair in ALL_PAIRS}))
    assert [(one.host, one.trouble.value, one.bad, one.pairs) for one in reading.common] == [
        ("n2", "failed", 3, 5),
        ("n5", "failed", 2, 5),
    ]
    assert {one.hosts for one in reading.bad_pairs} == dead
    assert reading.unexplained == ()


def test_a_node_whose_every_pair_is_slow_is_named():
    reading = read_pairs(pairs({pair: 5.0 if "n3" in pair else 10.0 for pair in ALL_PAIRS}))
    assert [(one.host, one.trouble.value, one.bad) for one in reading.common] == [("n3", "slow", 5)]
    assert reading.unexplained == ()


def test_one_failed_pair_has_two_suspects_and_nobody_is_named():
    reading = read_pairs(pairs({pair: None if pair == ("n1", "n4") else 10.0 for pair in ALL_PAIRS}))
    assert reading.common == ()
    assert reading.unexplained == (("n1", "n4"),)


@given(st.lists(st.floats(9.0, 11.0), min_size=15, max_size=15))
def test_a_set_that_varies_by_a_tenth_names_nobody(speeds):
    reading = read_pairs(pairs(dict(zip(ALL_PAIRS, speeds, strict=True))))
    assert (reading.bad_pairs, reading.common) == ((), ())


def test_a_missing_collective_is_a_failed_pair_and_a_dead_launch_is_unplaced():
    both = {
        name: read(output(hosts=hosts) + output(hosts=hosts, collective="sendrecv"))
        for name, hosts in (("x", ("a", "b")), ("y", ("a", "c")), ("z", ("b", "c")))
    }
    both["x"] = read(output(hosts=("a", "b")))
    both["w"] = read("start failed on d: no room\n")
    reading = read_pairs(both)
    assert [(one.hosts, one.why) for one in reading.bad_pairs] == [
        (("a", "b"), ("sendrecv is missing; most pairs have it",))
    ]
    assert reading.unplaced == ("w",)


def test_a_test_of_three_hosts_is_no_pair():
    with pytest.raises(ValueError, match="two hosts"):
        read_pairs({"x": read(output(hosts=("a", "b", "c")))})


def test_a_lone_line_of_a_table_is_no_test():
    with pytest.raises(UnreadableError, match="no nccl-tests head"):
        read(f"{HEAD}\n# a comment\n")
