from __future__ import annotations

import gzip
import io
import json
import os
import pickle
from pathlib import Path

import pytest

from narrows.flows.read_command import read_files
from narrows.reducers.readers.common import UnreadableError
from narrows.reducers.readers.reading import read_evidence, read_file

LOG = "".join(f"iter {n}: loss 3.{n}, time {100 + n}.50ms, mfu 20.0%\n" for n in range(4))


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def nccl(hosts: tuple[str, str], average: float | None) -> str:
    ranks = "".join(f"#  Rank  {n} Group  0 Pid 7 on {host} device  0 [0x01] GPU\n" for n, host in enumerate(hosts))
    end = f"# Avg bus bandwidth    : {average}\n" if average else "a: Test NCCL failure common.cu:1 'remote'\n"
    return f"# Collective test starting: sendrecv_perf\n# nThread 1 nGpus 1 minBytes 8\n{ranks}{end}"


def fr(entries: list) -> bytes:
    groups = {"7": {"name": "7", "desc": "TP", "ranks": "[0, 1, 2]"}}
    return pickle.dumps({"version": "2.9", "pg_config": groups, "pg_status": {}, "entries": entries}, protocol=2)


def pending(seq: int) -> dict:
    return {
        "process_group": ("7", "TP"),
        "collective_seq_id": seq,
        "profiling_name": "nccl:all_reduce",
        "state": "scheduled",
    }


def test_a_log_is_shown_at_a_glance(tmp_path, capsys):
    assert read_files([written(tmp_path / "x", LOG)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/x: training-log",
        "  format nanogpt: 4 of 4 lines are steps, 4 distinct steps",
        "  steps 0 to 3, median 102.5 ms (printed), the first report left out",
    ]


def test_the_machine_form_has_a_schema_and_no_null(tmp_path, capsys):
    good = written(tmp_path / "good", LOG + "e\n")
    bad = written(tmp_path / "bad", "hello\n")
    assert read_files([str(good), str(bad)], as_json=True) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["schema"], found["kind"], found["sets"], found["why_not"]) == (1, "read", {}, [])
    first, second = found["files"]
    assert (first["path"], first["kind"], first["not_understood"]) == (
        str(good),
        "training-log",
        {"count": 0, "first": []},
    )
    assert first["reading"]["steps"][1] == {"line": 2, "step": 1, "step_ms": 101.5, "loss": 3.1}
    assert set(second) == {"path", "error"}
    assert "null" not in out
    assert err.count("looked for:") == 1


def test_one_file_that_cannot_be_read_does_not_stop_the_others(tmp_path, capsys):
    good = written(tmp_path / "good", LOG)
    assert read_files([tmp_path / "absent", good, written(tmp_path / "cut", b"\x1f\x8b\x07\x00")]) == 1
    out, err = capsys.readouterr()
    assert "format nanogpt" in out
    assert "absent: cannot be opened (No such file or directory)" in err
    assert "cut: begins as gzip but does not decompress" in err
    assert "Traceback" not in err


def test_a_torn_gzip_is_read_to_its_cut_and_said_to_be_torn(tmp_path, capsys):
    whole = gzip.compress((LOG * 50).encode(), compresslevel=0)
    for cut in (len(whole) - 30, len(whole) // 2):
        assert read_files([written(tmp_path / "log.gz", whole[:cut])]) == 0
        assert "its gzip is torn" in capsys.readouterr().out
    assert read_files([written(tmp_path / "log.gz", whole + whole)]) == 0
    out = capsys.readouterr().out
    assert "400 of 400 lines" in out
    assert "gzip is torn" not in out


def test_the_dumps_of_a_folder_are_read_together_by_the_ranks_of_their_names(tmp_path, capsys):
    for rank, entries in enumerate(([pending(8)], [], [pending(8)])):
        written(tmp_path / f"_dump_{rank}", fr(entries))
    assert read_files([tmp_path]) == 0
    assert "look first at: rank 1" in capsys.readouterr().out
    read_files([tmp_path], as_json=True)
    together = json.loads(capsys.readouterr().out)["sets"]["flight_recorder"]
    assert (together["named"], together["groups"][0]["missing"]) == ([1], [1])


def test_pairwise_tests_are_read_together(tmp_path, capsys):
    for name, hosts, average in (
        ("1", ("a", "b"), None),
        ("2", ("a", "c"), None),
        ("3", ("b", "c"), 9.5),
        ("4", ("b", "d"), 9.6),
    ):
        written(tmp_path / name, nccl(hosts, average))
    read_files([tmp_path])
    assert "a is common to 2 failed pairs of its 2 (with b, c)" in capsys.readouterr().out


def test_two_dumps_of_one_rank_are_said_not_to_go_together(tmp_path, capsys):
    paths = [written(tmp_path / name, fr([pending(8)])) for name in ("a_1", "b_1")]
    assert read_files(paths) == 0
    assert "not read together" in capsys.readouterr().out


def test_a_pattern_reads_any_text_as_a_log(tmp_path, capsys):
    path = written(tmp_path / "own", "epoch 7 in 1.5 s\n")
    assert read_files([path], pattern=r"epoch (?P<step>\d+) in (?P<step_s>[\d.]+) s") == 0
    assert "format pattern" in capsys.readouterr().out


def test_a_profiler_trace_is_sent_to_its_own_command(tmp_path):
    with pytest.raises(UnreadableError, match="narrows reduce"):
        read_file(written(tmp_path / "t.json", '{"traceEvents": []}'))
    whole = gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + b'{"ph": "X"},' * 10)
    with pytest.raises(UnreadableError, match="narrows reduce"):
        read_file(written(tmp_path / "t.json.gz", whole[:-20]))


def test_a_pickle_that_would_act_is_refused_by_the_command_too(tmp_path, capsys):
    target = tmp_path / "made"
    evil = written(
        tmp_path / "evil", f"\x80\x02cos\nmkdir\nX{chr(len(str(target)))}\0\0\0{target}\x85R.".encode("latin-1")
    )
    assert read_files([evil]) == 1
    assert "nothing was run" in capsys.readouterr().err
    assert not target.exists()


def test_names_from_a_file_reach_the_terminal_without_codes_and_in_its_encoding(tmp_path, capsys, monkeypatch):
    op = {**pending(8), "profiling_name": "red\x1b[31m\ud800\u2588"}
    path = written(tmp_path / "_dump_0", fr([op]))
    ascii_out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", ascii_out)
    assert read_files([path]) == 0
    assert read_files([path], as_json=True) == 0
    ascii_out.seek(0)
    text, machine = ascii_out.read().rsplit("{", 1)[0], ascii_out.buffer.getvalue().decode().splitlines()[-1]
    assert "red?[31m?\\u2588" in text
    assert json.loads(machine)["files"][0]["reading"]["entries"][0]["op"] == op["profiling_name"]


def test_a_pipe_is_read_as_a_file_is(tmp_path, capsys):
    """As a shell's <(command) gives it: it can be read once, from front to back."""
    ends = os.pipe()
    os.write(ends[1], LOG.encode())
    os.close(ends[1])
    try:
        assert read_files([Path(f"/dev/fd/{ends[0]}")]) == 0
    finally:
        os.close(ends[0])
    assert "4 of 4 lines are steps" in capsys.readouterr().out


def test_nothing_at_all_is_said_to_be_nothing(tmp_path, capsys):
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for name, data, said in (
        ("empty", b"", "is empty;"),
        ("nul", b"\x00" * 50, "holds nothing, or NUL bytes alone"),
        ("cut.gz", gzip.compress(LOG.encode())[:12], "torn before anything in it is whole"),
        ("cut.sqlite", b"SQLite format 3\x00" + b"\x10\x00" * 40, "is a damaged SQLite file"),
    ):
        assert read_files([written(tmp_path / name, data)]) == 1
        assert f"{tmp_path / name}: " in (err := capsys.readouterr().err)
        assert said in err
        assert "looked for" not in err
    assert read_files([tmp_path / "folder"]) == 1
    assert "is a folder without files" in capsys.readouterr().err
    with pytest.raises(ValueError, match="give files"):
        read_files([])


def test_what_may_not_be_opened_is_refused_and_the_rest_is_read(tmp_path, capsys, monkeypatch):
    """The tests may run as one whom every file opens to, so the system's refusal is given by hand."""

    def refuse(self, *_args, **_options):
        raise PermissionError(13, "Permission denied", str(self))

    good = written(tmp_path / "good", LOG)
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert read_files([tmp_path / "closed", good]) == 1
    out, err = capsys.readouterr()
    assert "format nanogpt" in out
    assert f"{tmp_path}/closed: " in err
    monkeypatch.setattr(Path, "is_dir", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    assert read_files([good]) == 1
    assert f"{good}: cannot be opened (Permission denied)" in capsys.readouterr().err


def test_the_steps_of_a_log_that_starts_over_are_told_from_least_to_most(tmp_path, capsys):
    read_files([written(tmp_path / "x", LOG + "iter 0: loss 3.2, time 120.00ms, mfu 20%\n")])
    assert "steps 0 to 3" in capsys.readouterr().out


def test_every_refusal_names_its_file(tmp_path):
    paths = [
        written(tmp_path / f"f{n}", data)
        for n, data in enumerate((b"", b"\x80\x02.", b"<nvidia_smi_log>", b"\xff" * 9))
    ]
    evidence = read_evidence(paths)
    assert [one.path for one in evidence.refusals] == paths
    assert all(str(one.path) in one.why for one in evidence.refusals)
