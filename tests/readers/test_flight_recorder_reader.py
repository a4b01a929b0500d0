from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path

import pytest

from narrows.reducers.readers.common import UnreadableError, UnsafePickleError
from narrows.reducers.readers.flight_reading import read_dumps
from narrows.reducers.readers.flight_recorder import Dump, rank_from_name, read_flight_recorder
from narrows.reducers.readers.safe_pickle import load_plain


def entry(seq: int, *, group: str = "7", op: str = "nccl:all_reduce", state: str = "scheduled", **more) -> dict:
    return {
        "record_id": seq, "pg_id": 3, "process_group": (group, "TP"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": op, "time_created_ns": 1_700_000_000_000_000_000 + seq, "duration_ms": None,
        "input_sizes": [[4, 2]], "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": state == "completed", "is_p2p": False, **more,
    }  # fmt: skip


def dump_value(entries: list, *, ranks: str = "[4, 5, 6]", version: str = "2.9", own: int | None = None) -> dict:
    groups = {"7": {"name": "7", "desc": "TP", "ranks": ranks}}
    if own is not None:
        groups["9"] = {"name": "9", "desc": "alone", "ranks": f"[{own}]"}
    status = {"3": {"last_enqueued_collective": 8, "last_started_collective": -1, "last_completed_collective": 7}}
    return {"version": version, "nccl_version": "2.27.3", "pg_config": groups, "pg_status": status, "entries": entries}


def dump(entries: list, rank: int | None = None, **more) -> Dump:
    return read_flight_recorder(pickle.dumps(dump_value(entries, **more), protocol=2), "dump", rank)


def test_a_pickle_and_its_json_read_the_same_but_for_times_that_json_writes_as_zero():
    value = dump_value([entry(8, time_discovered_started_ns=None)])
    as_json = json.loads(json.dumps(value))
    as_json["entries"][0]["time_discovered_started_ns"] = 0
    assert read_flight_recorder(json.dumps(as_json).encode()) == read_flight_recorder(pickle.dumps(value))


@pytest.mark.parametrize("version", ["2.0", "2.3", "2.4", "2.9", "2.10"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_version_and_protocol_is_read(version, protocol):
    reading = read_flight_recorder(pickle.dumps(dump_value([entry(8)], version=version), protocol=protocol))
    (one,) = reading.entries
    assert (reading.version, one.sequence, one.op, one.group, one.pending) == (version, 8, "nccl:all_reduce", "7", True)
    assert one.input_sizes == ((4, 2),)
    assert reading.groups["7"].ranks == (4, 5, 6)
    assert reading.status["3"]["last_started_collective"] == -1
    assert reading.not_understood.count == 0


def test_an_old_entry_has_one_sequence_number_and_no_name_of_its_group():
    old = entry(0)
    for key in ("collective_seq_id", "p2p_seq_id", "process_group"):
        del old[key]
    (one,) = dump([{**old, "seq_id": 11, "pg_id": 2}], version="2.0").entries
    assert (one.sequence, one.group) == (11, "2")


def test_send_and_receive_count_in_group_ranks():
    send = entry(8, op="nccl:send 0->2", is_p2p=True, p2p_seq_id=21)
    (one,) = dump([send]).entries
    assert (one.p2p, one.direction, one.peer, one.sequence) == (True, "send", 6, 21)


def test_the_rank_comes_from_the_caller_or_from_the_groups_and_is_else_absent():
    assert dump([], rank=5).rank == 5
    assert dump([], own=6).rank == 6
    assert dump([]).rank is None


def test_a_name_that_the_groups_contradict_is_not_believed():
    assert (dump([], rank=20240501, own=6).rank, dump([], rank=20240501, own=6).not_understood.count) == (6, 1)
    assert dump([], rank=20240501).rank is None
    assert dump([], rank=20240501, ranks="none").rank == 20240501


@pytest.mark.parametrize(
    ("name", "rank"),
    [("_dump_12", 12), ("nccl_trace_rank_3", 3), ("fr_7.json", 7), ("x_4.pkl.gz", 4), ("dump", None), ("a1b", None)],
)
def test_the_rank_of_a_file_name_is_its_last_number(name, rank):
    assert rank_from_name(name) == rank


def test_what_is_no_entry_is_counted_and_the_rest_is_read():
    reading = dump(["text", {"state": "scheduled"}, entry(3)])
    assert [one.sequence for one in reading.entries] == [3]
    assert reading.not_understood.count == 2


class Burglar:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_act_is_refused_and_nothing_runs(tmp_path, protocol):
    target = tmp_path / "broken-in"
    data = pickle.dumps({"version": "2.9", "entries": [Burglar(target)]}, protocol=protocol)
    with pytest.raises(UnsafePickleError, match="nothing was run"):
        read_flight_recorder(data, "evil")
    assert not target.exists()
    pickle.loads(data)  # the same bytes, loaded without care, do act: the test would see it
    assert target.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02U\x01xQ.",  # a persistent id
        b"\x80\x02\x82\x01.",  # the extension registry
        b"\x80\x02}}b.",  # BUILD
        b"(S'x'\nios\nsystem\n.",  # INST
    ],
)
def test_every_way_to_a_name_or_a_call_is_refused(data):
    with pytest.raises(UnsafePickleError):
        load_plain(data)


def test_tuples_too_deep_to_hash_are_refused():
    with pytest.raises(UnsafePickleError, match="deeper"):
        load_plain(b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"K\x01s.")


def test_a_memo_index_beyond_the_file_is_damage_not_memory():
    with pytest.raises(UnreadableError, match="memo index"):
        load_plain(b"\x80\x02}r\xff\xff\xff\x7f.")


def test_random_damage_raises_nothing_but_our_own_errors():
    rng = random.Random(7)
    whole = pickle.dumps(dump_value([entry(seq) for seq in range(6)]), protocol=4)
    texts = (whole, json.dumps(dump_value([entry(3)])).encode())
    refused = 0
    for place in range(600):
        data = bytearray(texts[place % 2])
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read_flight_recorder(bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]))
        except UnreadableError:
            refused += 1
    assert 100 < refused < 600


@pytest.mark.parametrize(
    "value", [[], {"entries": []}, {"version": "9.1", "entries": []}, {"version": "2.9", "entries": 4}]
)
def test_plain_data_that_is_no_dump_is_refused(value):
    with pytest.raises(UnreadableError):
        read_flight_recorder(pickle.dumps(value))


def reading(**ranks: list) -> object:
    return read_dumps({f"dump_{name[1:]}": dump(entries, int(name[1:])) for name, entries in ranks.items()})


def test_a_rank_with_nothing_pending_where_the_others_wait_is_missing_and_named():
    found = reading(r4=[entry(8)], r5=[entry(8)], r6=[])
    (group,) = found.groups
    assert (group.sequence, group.waiting, group.missing, group.behind) == (8, (4, 5), (6,), ())
    assert found.named == (6,)


def test_a_rank_that_holds_an_earlier_collective_is_behind_although_it_holds_most():
    found = reading(r4=[entry(8)], r5=[entry(8)], r6=[entry(5), entry(6), entry(7)])
    (group,) = found.groups
    assert (group.sequence, group.behind, group.missing) == (5, (6,), ())
    assert (found.named, found.most_pending) == ((6,), (6,))


def test_a_rank_that_is_done_with_the_collective_is_not_missing():
    found = reading(r4=[entry(8)], r5=[entry(8)], r6=[entry(8, state="completed")])
    assert found.named == ()
    assert found.together == ("7",)


def test_a_group_that_waits_as_a_whole_blames_nobody():
    found = reading(r4=[entry(8)], r5=[entry(8)], r6=[entry(8)])
    assert (found.groups, found.named, found.together) == ((), (), ("7",))


def test_two_culprits_of_two_groups_are_both_named():
    def member(rank: int, group: str, ranks: str, entries: list) -> Dump:
        value = dump_value(entries)
        value["pg_config"] = {group: {"name": group, "desc": "", "ranks": ranks}}
        return read_flight_recorder(pickle.dumps(value), "d", rank)

    dumps = {
        "0": member(0, "a", "[0, 1]", [entry(4, group="a")]),
        "1": member(1, "a", "[0, 1]", []),
        "2": member(2, "b", "[2, 3]", [entry(9, group="b")]),
        "3": member(3, "b", "[2, 3]", []),
    }
    assert read_dumps(dumps).named == (1, 3)


def test_who_only_waits_for_another_is_not_named():
    """5 is missing in a collective because it waits for 6's send: 6 is the one to look at."""
    receive = entry(2, op="nccl:recv 1<-2", is_p2p=True, p2p_seq_id=3)
    found = reading(r4=[entry(8)], r5=[receive], r6=[entry(8)])
    assert found.groups[0].missing == (5,)
    assert [(one.rank, one.waits_for) for one in found.peers] == [(5, 6)]
    assert 5 in found.blamed
    # 6 waits for 5 and 5 for 6: a ring, of which each is named.
    assert found.named == (5,)


def test_a_member_without_a_dump_is_said_to_be_possible():
    found = reading(r4=[entry(8)], r5=[entry(8)])
    assert found.no_dump == (6,)
    assert found.groups[0].no_dump == (6,)


def test_groups_that_a_gloo_dump_leaves_out_are_made_of_who_used_them():
    def gloo(rank: int, entries: list) -> Dump:
        return read_flight_recorder(pickle.dumps({**dump_value(entries), "pg_config": {}}), "d", rank)

    done = [entry(seq, state="completed") for seq in (1, 2)]
    found = read_dumps({"0": gloo(0, [*done, entry(3)]), "1": gloo(1, done)})
    assert found.named == (1,)


def test_two_dumps_of_one_rank_are_refused_and_one_of_nobody_is_set_aside():
    with pytest.raises(ValueError, match="second dump of rank 4"):
        read_dumps({"a": dump([], 4), "b": dump([], 4)})
    assert read_dumps({"a": dump([])}).unplaced == ("a",)
