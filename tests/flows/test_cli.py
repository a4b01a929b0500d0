"""The command line: it teaches, says what is wrong in one line, and prints JSON that a program can read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows import demo
from narrows.flows.cli import app, main
from narrows.inquiry.scopes import Rung

CASE = {
    "case": "steady",
    "question": "Is the step slower since the upgrade?",
    "runs": {"healthy": "runs/healthy", "regressed": "runs/regressed"},
    "workload": {"program": "step", "healthy": {"packing": "snake"}, "regressed": {"packing": "greedy"}},
    "cluster": {"nodes": 2, "ranks_per_node": 2},
}
COMMANDS = sorted(name for name in app if not name.startswith("-"))


class Said:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Narrows = Callable[..., Said]


@pytest.fixture
def narrows(capsys: pytest.CaptureFixture[str]) -> Narrows:
    def call(*words: str | Path) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Said(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def case_file(tmp_path: Path, record_pair: Callable[..., Any], recorded_arm: type[Any]) -> Path:
    """Two runs of the same speed."""
    record_pair(tmp_path, recorded_arm(pairs=8), recorded_arm(pairs=8))
    path = tmp_path / "case.yaml"
    path.write_text(yaml.safe_dump(CASE))
    return path


@pytest.fixture
def finished(case_file: Path, narrows: Narrows) -> Path:
    assert narrows("investigate", case_file, "--no-ui").code == 0
    return case_file


# Help.


def test_all_commands_are_listed(narrows: Narrows) -> None:
    said = narrows("--help")
    assert said.code == 0
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", said.out)
    assert "Exit codes" in said.out
    assert {"demo", "investigate", "show", "check", "run", "manifest", "ui"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_teaches(name: str, narrows: Narrows) -> None:
    said = narrows(name, "--help")
    assert said.code == 0
    told = said.out.partition("Usage:")[2].partition("\n")[2]
    text = " ".join(re.split(r"\n\W*(?:Parameters|Arguments|Commands)\b", told)[0].split())
    assert len(re.findall(r"\w{3}[.;](?= |$)", text)) >= 2, text


def test_the_version_is_that_of_the_package(narrows: Narrows) -> None:
    said = narrows("--version")
    assert said.code == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", said.out)


def test_help_needs_neither_prefect_nor_torch_nor_pandas() -> None:
    program = (
        "import sys; from narrows.flows.cli import main\n"
        "try: main(['investigate', '--help'])\n"
        "except SystemExit: pass\n"
        "print('loaded', sorted({'prefect', 'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


# Wrong usage.


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["investigate"],
        ["investigate", "case.yaml", "--nonsense"],
        ["investigate", "case.yaml", "--until", "11"],
        ["investigate", "nowhere.yaml"],
        ["check"],
        ["check", "nowhere.yaml"],
        ["show"],
        ["show", "nowhere"],
        ["demo", "nonsense"],
        ["demo", "packing", "--seed", "many"],
        ["manifest"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_two(
    words: list[str], narrows: Narrows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = narrows(*words)
    assert said.code == 2
    assert said.out == ""
    assert re.fullmatch(r"narrows: \S.*\n", said.err), said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rung", ["3", "one rank", "3. one rank", " ONE RANK "])
def test_a_rung_is_named_by_its_number_or_its_name(rung: str) -> None:
    from narrows.flows.cli_find import _rung

    assert _rung(rung) is Rung.ONE_RANK


def test_debug_shows_where_it_came_from(case_file: Path) -> None:
    from narrows.inquiry.errors import CaseError

    case_file.write_text("")
    with pytest.raises(CaseError):
        main(["--debug", "check", str(case_file)])


def test_a_demo_does_not_write_into_a_folder_that_holds_something(narrows: Narrows, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    said = narrows("demo", "--out", tmp_path, "--no-ui")
    assert said.code == 2
    assert "is not empty" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# What commands print.


def test_the_demos_are_listed_with_what_they_show(narrows: Narrows) -> None:
    said = narrows("demo", "--list")
    assert said.code == 0
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines] == list(demo.names())
    assert lines[0].startswith("packing")
    listed = narrows("demo", "--list", "--json").json
    assert set(listed["demos"]) == set(demo.names())


def test_check_says_what_it_would_compare(case_file: Path, narrows: Narrows) -> None:
    said = narrows("check", case_file)
    assert said.code == 0
    assert "steady: a config comparison, 8 pairs" in said.out
    assert "scopes: one rank, one node, two nodes" in said.out
    found = narrows("check", case_file, "--json").json
    assert found["schema"] == 1
    assert (found["case"], found["arms"], found["pairs"]) == ("steady", "config", 8)
    assert found["scopes"] == ["one_rank", "one_node", "two_nodes"]
    assert found["step_ms"]["healthy"] == pytest.approx(found["step_ms"]["regressed"])
    assert not (case_file.parent / "cases").exists()


def test_an_investigation_prints_one_json_object_and_nothing_else(case_file: Path, narrows: Narrows) -> None:
    said = narrows("investigate", case_file, "--no-ui", "--json")
    assert said.code == 0
    assert said.json["case"] == "steady"
    assert said.json["status"] == "concluded"
    assert said.json["conclusion"]["regression"] == "none"
    assert said.json["conclusion"]["mechanism"] is None
    assert Path(said.json["postmortem"]).is_file()
    assert [row["id"] for row in said.json["hypotheses"]] == ["H01", "H02"]


def test_an_investigation_stops_after_the_rung_that_was_asked_for(case_file: Path, narrows: Narrows) -> None:
    assert narrows("investigate", case_file, "--no-ui", "--until", "manifest diff").code == 0
    found = narrows("show", case_file, "--json").json
    assert (found["status"], found["reason"]) == ("running", None)
    assert narrows("investigate", case_file, "--no-ui", "--resume").code == 0
    assert narrows("show", case_file, "--json").json["status"] == "concluded"


def test_a_case_is_shown_by_its_file_its_folder_or_its_name(
    finished: Path, narrows: Narrows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished.parent)
    found = [
        narrows("show", name, "--json").json for name in (finished, finished.parent / "cases" / "steady", "steady")
    ]
    assert found[0] == found[1] == found[2]
    said = narrows("show", "steady")
    assert said.code == 0
    assert "There is no regression" in said.out
    assert "postmortem: " in said.out


def test_showing_changes_nothing(finished: Path, narrows: Narrows) -> None:
    folder = finished.parent / "cases" / "steady"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    narrows("show", finished)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_case_that_was_not_begun_is_not_begun_by_looking_at_it(case_file: Path, narrows: Narrows) -> None:
    said = narrows("show", case_file)
    assert said.code == 2
    assert "steady: is not begun yet" in said.err
    assert not (case_file.parent / "cases").exists()


def test_a_finished_case_is_not_run_again_by_accident(finished: Path, narrows: Narrows) -> None:
    said = narrows("investigate", finished, "--no-ui")
    assert said.code == 2
    assert "is concluded already; `narrows show` prints it, or start over with --fresh" in said.err
    assert narrows("investigate", finished, "--no-ui", "--fresh").code == 0


def test_a_damaged_docket_is_an_error_that_names_the_line(finished: Path, narrows: Narrows) -> None:
    path = finished.parent / "cases" / "steady" / "docket.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"supported"', b'"rejected"').replace(b'"rejected"', b'"supported"', 1))
    said = narrows("show", finished)
    assert said.code == 1
    assert re.search(r"docket\.jsonl, line \d+: ", said.err)


# Manifests.


def test_one_manifest_is_printed_whole(finished: Path, narrows: Narrows) -> None:
    said = narrows("manifest", finished.parent / "runs" / "healthy")
    assert said.code == 0
    assert said.json["kind"] == "manifest"


def test_two_equal_manifests_pass_the_gate_and_different_ones_do_not(finished: Path, narrows: Narrows) -> None:
    runs = finished.parent / "runs"
    same = narrows("manifest", runs / "healthy", runs / "regressed")
    assert (same.code, "differ" in same.out) == (0, True)
    path = runs / "regressed" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"packages": {"torch": "9.9"}, "config": {"layers": 3}}))
    said = narrows("manifest", runs / "healthy", runs / "regressed")
    assert said.code == 4
    assert "layers" in said.out
    found = narrows("manifest", runs / "healthy", runs / "regressed", "--json")
    assert found.code == 4
    assert {one["field"].partition(".")[0] for one in found.json["differences"]} >= {"config", "packages"}


def test_a_run_that_is_not_there_is_an_error(tmp_path: Path, narrows: Narrows) -> None:
    said = narrows("manifest", tmp_path / "nowhere")
    assert said.code == 1
    assert "nowhere" in said.err
