from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trace_makers as make

from narrows.flows.reduce_command import reduce_traces
from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.reduced import read_reduced


def rank_files(folder: Path, num: int = 2) -> list[Path]:
    return [make.write(folder / f"rank{rank}.json.gz", make.training(seed=rank), rank=rank) for rank in range(num)]


def test_the_json_of_one_trace_has_the_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reduce_traces(rank_files(tmp_path, 1), None, True, 1) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"schema", "rank", "devices", "steps", "collectives", "top_kernels", "memory", "label", "quality"} <= set(
        found
    )
    accounts = {"span", "busy", "idle", "compute", "communication", "exposed_communication", "copy", "exposed_copy"}
    assert set(found["devices"]["0"]) == {f"{name}_ns" for name in accounts}
    damage = {"truncated", "repaired", "dropped", "unlinked", "clipped_ns", "layout", "bytes"}
    assert damage <= set(found["quality"])
    assert (found["schema"], found["rank"]) == (1, 0)


def test_a_folder_stands_for_its_traces_and_processes_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_files(tmp_path)
    assert reduce_traces([tmp_path], None, True, 1) == 0
    alone = capsys.readouterr().out
    assert reduce_traces([tmp_path], None, True, 2) == 0
    assert capsys.readouterr().out == alone
    found = json.loads(alone)
    assert len(found["traces"]) == 2
    assert found["failed"] == {}
    assert found["across_ranks"]["ranks"] == [0, 1]


def test_results_are_written_beside_each_other_and_read_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert reduce_traces(rank_files(tmp_path), out, False, 1) == 0
    assert sorted(path.name for path in out.iterdir()) == ["rank0.reduced.json", "rank1.reduced.json"]
    assert read_reduced(out / "rank1.reduced.json").rank == 1


def test_one_file_that_is_no_trace_costs_only_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = rank_files(tmp_path, 1)
    other = tmp_path / "log.txt"
    other.write_text("step 1\n")
    assert reduce_traces([*files, other], None, False, 1) == 1
    printed = capsys.readouterr()
    assert "log.txt: not JSON" in printed.err
    assert " rank device" in printed.out
    with pytest.raises(TraceError, match="not JSON"):
        reduce_traces([other], None, False, 1)


def test_damage_is_said_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = rank_files(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-400])
    assert reduce_traces([path], None, False, 1) == 0
    assert "the file ends before its end" in capsys.readouterr().out


def test_a_users_thresholds_reach_the_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("version: ours-1\nidle_share: 1.0\nexposed_communication_share: 1.0\nexposed_copy_share: 1.0\n")
    assert reduce_traces(rank_files(tmp_path, 1), None, True, 1, thresholds=limits) == 0
    label = json.loads(capsys.readouterr().out)["label"]
    assert (label["version"], label["label"]) == ("ours-1", "compute")
    for text, said in (
        ("- 1\n", "mapping"),
        ("idle_share: true\n", "idle_share: True"),
        ("version: 2\n", "version: 2"),
        ("idle_share: 0.5\nidle_share: 0.1\n", "idle_share: stands twice"),
    ):
        limits.write_text(text)
        with pytest.raises(TraceError, match=said):
            reduce_traces(rank_files(tmp_path, 1), None, True, 1, thresholds=limits)


def test_one_trace_is_reduced_without_pandas_scipy_and_yaml(tmp_path: Path) -> None:
    (trace,) = rank_files(tmp_path, 1)
    program = (
        "import sys; from narrows.flows.cli import main\n"
        "try: main(['reduce', sys.argv[1]])\n"
        "except SystemExit: pass\n"
        "print('loaded', sorted({'prefect', 'torch', 'pandas', 'scipy', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, trace], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"
    assert len(done.stdout.splitlines()) > 2  # the table was printed


def test_an_empty_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no \.json"):
        reduce_traces([tmp_path], None, False, 1)
