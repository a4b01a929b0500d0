"""`narrows compare` as a command: what it prints and writes, its gate, its case file, and what it refuses."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows.casefile import UNKNOWN_DIFFERENCE, load_case
from narrows.flows.commands import check
from narrows.flows.compare_command import compare
from narrows.flows.compare_inputs import Kind, kind_of
from narrows.inquiry.design import ArmKind
from narrows.inquiry.errors import CaseError, NarrowsError, RunDirectoryError

RecordPair = Callable[..., tuple[Path, Path]]
MEGATRON = " iteration {step:8d}/ 100 | elapsed time per iteration (ms): {ms:.1f} | lm loss: 6.5E+00 | grad norm: 1.0 |"


def built_in(config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"config": config or {}, "manifest": {"program": "step", **more}}


@pytest.fixture
def runs(tmp_path: Path, record_pair: RecordPair, recorded_arm: Any) -> tuple[Path, Path]:
    """Eight pairs in turns; every rank computes 3 ms longer under another packing."""
    slow = {"compute": lambda _rank, step: 11.0 + 0.002 * (step // 12), "pairs": 8}
    before = recorded_arm(pairs=8, **built_in({"packing": "snake", "layers": 6}))
    return record_pair(tmp_path, before, recorded_arm(**slow, **built_in({"packing": "greedy", "layers": 6})))


def write_log(path: Path, ms: float) -> Path:
    path.write_text("\n".join(MEGATRON.format(step=at, ms=ms + at % 3) for at in range(1, 30)) + "\n")
    return path


def test_it_prints_a_table_and_ends_with_0(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*runs) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("healthy against regressed: slower by ")
    assert lines[2].split() == ["account", "healthy", "regressed", "delta", "[90", "%]", "share"]
    assert lines[3].startswith("step")
    assert any(line.startswith("next:") for line in lines)


def test_json_is_one_object_and_nothing_else(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*runs, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["tested"], found["account"]) == ("slower", True, "compute")
    assert found["step_ms"]["delta"] == pytest.approx(3.0, rel=0.05)
    assert found["next"]["row"] == "compute-everywhere"


def test_markdown_and_the_page_are_written(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out" / "page.html"
    assert compare(*runs, markdown=True, html=page) == 0
    assert capsys.readouterr().out.startswith("# healthy against regressed")
    assert page.read_text().startswith("<!doctype html>")


def test_a_slower_fabric_stands_beside_what_its_configuration_lets_expect(
    tmp_path: Path, record_pair: RecordPair, recorded_arm: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fabric = {"fabric_mbit": 8000.0, "fabric_delay_us": 999.0}
    arms = [recorded_arm(service=lambda _rank, _step, ms=ms: ms, **built_in(fabric)) for ms in (2.0, 3.0)]
    runs = record_pair(tmp_path, *arms)
    page = tmp_path / "page.html"
    compare(*runs, markdown=True, html=page)
    cells = ["dp all_reduce, 4 ranks across hosts", "1.024 KB", "1", "1.536 KB", "6", "2000", "2000", "3000"]
    told = "regressed takes 1.5 times the expected"
    assert f"| {' | '.join([*cells, told])} |" in capsys.readouterr().out
    assert "".join(f"<td>{cell}</td>" for cell in [*cells, told]) in page.read_text()
    compare(*runs)
    assert f"exceeds:   dp all_reduce, 4 ranks across hosts, 1.024 KB: {told} 2000 us" in capsys.readouterr().out


@pytest.mark.parametrize(("gate", "code"), [(1.0, 4), (20.0, 4), (40.0, 0)])
def test_the_gate_finds_only_a_loss_above_it(gate: float, code: int, runs: tuple[Path, Path]) -> None:
    assert compare(*runs, gate=gate) == code


def test_the_gate_passes_the_faster_run(runs: tuple[Path, Path]) -> None:
    assert compare(runs[1], runs[0], gate=0.0) == 0


def test_its_case_file_is_accepted_and_holds_what_the_manifests_say(runs: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "cases" / "Slow packing.yaml"
    assert compare(*runs, case_out=path, statistic="median") == 0
    case = load_case(path)
    assert (case.name, case.workload.kind, case.judging.statistic) == ("slow-packing", ArmKind.CONFIG, "median")
    assert case.workload.config == {"layers": 6}
    assert case.workload.healthy.config == {"packing": "snake"}
    assert case.workload.regressed.config == {"packing": "greedy"}
    assert (case.cluster.nodes, case.cluster.ranks_per_node, case.cluster.hosts) == (2, 2, ("n0", "n1"))
    assert check(path, as_json=True) == 0


def test_an_existing_case_file_is_left_alone(runs: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    path.write_text("mine")
    with pytest.raises(CaseError, match="already there"):
        compare(*runs, case_out=path)
    assert path.read_text() == "mine"


def test_runs_that_differ_in_hosts_alone_become_a_placement_case(
    tmp_path: Path, record_pair: RecordPair, recorded_arm: Any
) -> None:
    moved = recorded_arm(hosts=("n0", "n0", "n2", "n2"), compute=lambda _rank, _step: 10.0, **built_in())
    healthy, regressed = record_pair(tmp_path, recorded_arm(**built_in()), moved)
    compare(healthy, regressed, case_out=tmp_path / "moved.yaml")
    case = load_case(tmp_path / "moved.yaml")
    assert case.workload.kind is ArmKind.PLACEMENT
    assert (case.workload.healthy.hosts, case.workload.regressed.hosts) == (("n0", "n1"), ("n0", "n2"))


def test_runs_of_equal_manifests_become_a_historical_case(
    tmp_path: Path, record_pair: RecordPair, recorded_arm: Any
) -> None:
    later = recorded_arm(compute=lambda _rank, _step: 10.0, **built_in())
    healthy, regressed = record_pair(tmp_path, recorded_arm(**built_in()), later)
    compare(healthy, regressed, case_out=tmp_path / "later.yaml")
    assert load_case(tmp_path / "later.yaml").workload.kind is ArmKind.HISTORICAL


def test_a_script_is_found_with_the_arguments_and_the_environment_that_differ(
    tmp_path: Path, record_pair: RecordPair, recorded_arm: Any
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('training')\n")

    def own(algorithm: str, *words: str) -> dict[str, Any]:
        manifest = {"program": str(script), "argv": ["python", str(script), "--layers", "4", *words], "device": "cpu",
                    "environment": {"NCCL_ALGO": algorithm, "MASTER_PORT": algorithm}}  # fmt: skip
        return {"manifest": manifest}

    slow = recorded_arm(compute=lambda _rank, _step: 10.0, **own("Tree", "--slow"))
    healthy, regressed = record_pair(tmp_path, recorded_arm(**own("Ring")), slow)
    compare(healthy, regressed, case_out=tmp_path / "own.yaml")
    found = yaml.safe_load((tmp_path / "own.yaml").read_text())["workload"]
    assert found == {
        "program": "train.py",
        "args": ["--layers", "4"],
        "healthy": {"env": {"NCCL_ALGO": "Ring"}},
        "regressed": {"args": ["--slow"], "env": {"NCCL_ALGO": "Tree"}},
    }
    assert load_case(tmp_path / "own.yaml").workload.builtin is False


def test_what_the_runs_do_not_tell_is_left_to_be_filled_in_and_check_asks_for_the_same(
    tmp_path: Path, record_pair: RecordPair, recorded_arm: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = {"manifest": {"program": "/nowhere/train.py", "argv": ["python", "-c", "pass"], "device": None}}
    slow = recorded_arm(compute=lambda _rank, _step: 10.0, **gone)
    healthy, regressed = record_pair(tmp_path, recorded_arm(**gone), slow)
    path = tmp_path / "own.yaml"
    compare(healthy, regressed, case_out=path)
    said = [line.removeprefix("narrows: ") for line in capsys.readouterr().err.splitlines()]
    assert [line.split(": ")[1] for line in said] == ["workload.program", "cluster.device"]
    with pytest.raises(CaseError) as refused:
        load_case(path)
    assert list(refused.value.places) == said
    lines = path.read_text().splitlines()
    open_lines = [at for at, line in enumerate(lines) if "FILL IN: " in line]
    assert len(open_lines) == 4  # the program, both arms, the device
    assert all(lines[at - 1].strip().startswith("# To be filled in") for at in open_lines)


def test_a_filled_in_case_is_accepted(tmp_path: Path, record_pair: RecordPair, recorded_arm: Any) -> None:
    gone = {"manifest": {"program": "/nowhere/train.py", "argv": ["python", "/nowhere/train.py"], "device": "cpu"}}
    slow = recorded_arm(compute=lambda _rank, _step: 10.0, **gone)
    healthy, regressed = record_pair(tmp_path, recorded_arm(**gone), slow)
    path = tmp_path / "own.yaml"
    compare(healthy, regressed, case_out=path)
    (tmp_path / "train.py").write_text("print('training')\n")
    path.write_text(re.sub(r"'FILL IN: the path.*'", "train.py", path.read_text()))
    assert load_case(path).workload.program == "train.py"


def test_a_case_without_a_known_difference_says_so_in_the_file_and_in_check(
    tmp_path: Path, record_pair: RecordPair, recorded_arm: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    later = recorded_arm(compute=lambda _rank, _step: 10.0, **built_in())
    healthy, regressed = record_pair(tmp_path, recorded_arm(**built_in()), later)
    path = tmp_path / "later.yaml"
    compare(healthy, regressed, case_out=path)
    assert f"# To be filled in: {UNKNOWN_DIFFERENCE}." in path.read_text()
    assert UNKNOWN_DIFFERENCE in capsys.readouterr().err
    assert check(path, as_json=False) == 0
    assert UNKNOWN_DIFFERENCE in capsys.readouterr().out


def test_hosts_of_unequal_size_make_no_case_and_leave_none_behind(
    tmp_path: Path, record_pair: RecordPair, recorded_arm: Any
) -> None:
    uneven = {"hosts": ("n0", "n0", "n0", "n1"), **built_in()}
    healthy, regressed = record_pair(tmp_path, recorded_arm(**uneven), recorded_arm(**uneven))
    with pytest.raises(CaseError, match="same number of ranks on each host"):
        compare(healthy, regressed, case_out=tmp_path / "own.yaml")
    assert not (tmp_path / "own.yaml").exists()


def test_a_topology_that_is_given_calls_the_slow_ranks_by_their_switch(
    tmp_path: Path, record_pair: RecordPair, recorded_arm: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {"hosts": tuple(f"n{at // 2}" for at in range(8)), "pairs": 8}
    slow = {"compute": lambda rank, _step: 13.0 if rank > 3 else 10.0}
    both = record_pair(tmp_path, recorded_arm(**common), recorded_arm(**common, **slow))
    topology = tmp_path / "topology.conf"
    topology.write_text("SwitchName=leaf1 Nodes=n[0-1]\nSwitchName=leaf2 Nodes=n[2-3]\n")
    assert compare(*both, as_json=True, topology=topology) == 0
    assert json.loads(capsys.readouterr().out)["culprit"] == {"kind": "switch", "members": ["leaf2"]}
    log = write_log(tmp_path / "a.log", 10)
    with pytest.raises(RunDirectoryError, match=r"--topology .* is for run directories"):
        compare(log, log, topology=topology)


def test_logs_are_compared_by_their_step_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    healthy, regressed = write_log(tmp_path / "a.log", 100.0), write_log(tmp_path / "b.log", 110.0)
    assert compare(healthy, regressed, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["status"], found["tested"]) == ("logs", "slower", False)
    assert found["step_ms"]["delta"] == pytest.approx(10.0)


def test_no_case_is_made_of_logs(tmp_path: Path) -> None:
    healthy, regressed = write_log(tmp_path / "a.log", 100.0), write_log(tmp_path / "b.log", 110.0)
    with pytest.raises(CaseError, match="needs run directories"):
        compare(healthy, regressed, case_out=tmp_path / "case.yaml")


def test_what_a_side_holds_is_told_by_content(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    trace, reduced = tmp_path / "t" / "one.json.gz", tmp_path / "r" / "one.reduced.json"
    for file in (trace, reduced):
        file.parent.mkdir()
    trace.write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": []}'))
    reduced.write_bytes(b'{"schema":1,"kind":"reduced_trace"}')
    log = write_log(tmp_path / "a.log", 100.0)
    assert [kind_of([one]) for one in (runs[0], runs[0].parent, trace.parent, reduced, log)] == [
        Kind.RUNS, Kind.RUNS, Kind.TRACES, Kind.REDUCED, Kind.LOGS,
    ]  # fmt: skip


def test_what_cannot_be_compared_is_refused_with_the_next_move(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    log, empty = write_log(tmp_path / "a.log", 100.0), tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(RunDirectoryError, match="is not there"):
        compare(tmp_path / "nowhere", runs[1])
    with pytest.raises(RunDirectoryError, match="nothing to read"):
        compare(empty, runs[1])
    with pytest.raises(RunDirectoryError, match="two sides of the same kind"):
        compare(log, runs[1])
    with pytest.raises(RunDirectoryError, match="mixed with other files"):
        compare([log, runs[0]], runs[1])
    with pytest.raises(ValueError, match="--statistic fastest: expected one of mean"):
        compare(*runs, statistic="fastest")
    with pytest.raises(ValueError, match="at least 0"):
        compare(*runs, gate=-1.0)


def test_every_key_of_the_json_object_is_documented(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "compare.md"
    section = page.read_text(encoding="utf-8").partition("## The JSON object")[2]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    compare(*runs, as_json=True)
    assert documented == list(json.loads(capsys.readouterr().out))


def test_a_log_of_ones_own_is_compared_by_a_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, base in (("before", 100), ("after", 130)):
        lines = [f"iter={at} took {base + at % 3} msec" for at in range(20)]
        (tmp_path / f"{name}.log").write_text("\n".join(lines))
    logs = tmp_path / "before.log", tmp_path / "after.log"
    with pytest.raises(RunDirectoryError, match="--pattern"):
        compare(*logs)
    assert compare(*logs, as_json=True, pattern=r"iter=(?P<step>\d+) took (?P<step_ms>\d+)") == 0
    assert json.loads(capsys.readouterr().out)["step_ms"]["delta"] == pytest.approx(30)


def test_thresholds_of_ones_own_decide_the_labels(
    tmp_path: Path, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("version: mine-1\nidle_share: 0\nlaunch_share: 0\n")  # whatever idles, waits for launches
    compare(*runs, as_json=True)
    usual = json.loads(capsys.readouterr().out)
    compare(*runs, as_json=True, thresholds=mine)
    found = json.loads(capsys.readouterr().out)
    assert (usual["delta_label"], found["delta_label"]) == ("compute", "launch")
    assert {one["version"] for one in found["labels"].values()} == {"mine-1"}
    mine.write_text("idle_shares: 0.1\n")
    with pytest.raises(NarrowsError, match=f"{mine}: no threshold is called idle_shares"):
        compare(*runs, thresholds=mine)
