"""Whatever a command is given: one clear line on standard error, an exit code that says whose fault it is."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows.cli import app, main
from narrows.inquiry.errors import LaunchError

BAD = ("nowhere", "empty", "empty.txt", "bytes.dat", "case.yaml/inside", "/proc/self/mem")
"""Nothing, an empty folder, an empty file, no text, a path through a file, and a file that refuses to be read."""

READS: dict[str, list[list[str]]] = {
    "check": [["{}"]],
    "investigate": [["{}", "--no-ui"]],
    "plan": [["{}"], ["case.yaml", "--pilot", "{}"]],
    "show": [["{}"]],
    "reproduce": [["{}"]],
    "compare": [["{}", "runs/regressed"], ["runs/healthy", "{}"], ["{}", "{}"],
                ["runs/healthy", "runs/regressed", "--topology", "{}"]],
    "manifest": [["{}"], ["runs/healthy", "{}"]],
    "reduce": [["{}"], ["case.yaml", "--thresholds", "{}"]],
    "read": [["{}"]],
    "compact": [["{}"]],
    "claims": [["show", "{}", "--claims", "claims"], ["accept", "{}", "--claims", "claims"], ["propose", "{}"]],
    "revalidate": [["{}", "--claims", "claims", "--no-ui"], ["--claims", "claims", "--run", "{}", "--no-ui"]],
    "canary-rollout": [["--upgraded", "n1", "--control", "n0", "--no-ui", option, "{}"]
                       for option in ("--case", "--baseline")],
}  # fmt: skip
"""How each command is given a path to read. ``{}`` stands for it."""

WRITES: dict[str, list[str]] = {
    "demo": ["nothing", "--no-ui", "--out", "{}"],
    "compare": ["runs/healthy", "runs/regressed", "--html", "{}"],
    "compare --case": ["runs/healthy", "runs/regressed", "--case", "{}"],
    "run": ["--out", "{}", "--", "true"],
    "canary-rollout": ["--upgraded", "n1", "--control", "n0", "--no-ui", "--workspace", "{}"],
    "watch": ["--once", "--strict", "--state", "{}"],
}
CANNOT_BE_WRITTEN = ("case.yaml/inside", "/proc/nowhere/file")
NUMBERS: dict[str, list[str]] = {
    "demo": ["--seed"],
    "compare": ["--gate"],
    "reduce": ["--workers"],
    "revalidate": ["--within", "--settle"],
    "watch": ["--interval"],
    "canary-rollout": ["--margin", "--max-pairs", "--steps", "--ranks-per-node", "--step-ms"],
}
NEEDED = {
    "compare": ["runs/healthy", "runs/regressed"],
    "reduce": ["empty.txt"],
    "canary-rollout": ["--upgraded", "n1", "--control", "n0"],
}
TAKES_NO_PATH = {"approve", "ui", "doctor"}
"""``doctor --folder`` reports on any folder that it is given, as a check that failed."""


@pytest.fixture
def workspace(
    tmp_path: Path, record_pair: Callable[..., Any], recorded_arm: type[Any], monkeypatch: pytest.MonkeyPatch
) -> Path:
    record_pair(tmp_path, recorded_arm(pairs=8), recorded_arm(pairs=8))
    case = {
        "case": "steady",
        "question": "Is the step slower since the upgrade?",
        "runs": {"healthy": "runs/healthy", "regressed": "runs/regressed"},
        "workload": {"program": "step", "healthy": {"packing": "snake"}, "regressed": {"packing": "greedy"}},
        "cluster": {"nodes": 2, "ranks_per_node": 2},
    }
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case))
    (tmp_path / "empty").mkdir()
    (tmp_path / "claims").mkdir()
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bytes.dat").write_bytes(bytes(range(256)) * 20)
    monkeypatch.setenv("NARROWS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Refusals:
    """Runs commands that have to be refused."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def code(self, *words: str) -> int:
        """The exit code; the lines on standard error are those of a refusal, without a traceback or error numbers."""
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        said = self._capsys.readouterr().err
        assert re.match(r"narrows: \S", said), (words, said)
        assert "Traceback" not in said, (words, said)
        assert "[Errno" not in said, (words, said)
        own = [line for line in said.splitlines() if line.startswith("narrows: ")]
        assert max(len(line) for line in own) < 700, own
        self.said = own[0]
        return int(ended.value.code or 0)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refusals:
    return Refusals(capsys)


def test_every_command_that_takes_a_path_is_tried_here() -> None:
    tried = {name.partition(" ")[0] for name in (*READS, *WRITES)} | TAKES_NO_PATH

    assert {name for name in app if not name.startswith("-")} == tried


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", sorted(READS))
def test_what_cannot_be_read_is_refused_by_name(name: str, bad: str, workspace: Path, refused: Refusals) -> None:
    for words in READS[name]:
        code = refused.code(name, *(bad if word == "{}" else word for word in words))
        assert code in (1, 2), (name, words)
        assert Path(bad).parts[0] in refused.said or Path(bad).name in refused.said, refused.said


@pytest.mark.parametrize("bad", CANNOT_BE_WRITTEN)
@pytest.mark.parametrize("name", sorted(WRITES))
def test_what_cannot_be_written_is_refused_by_name(name: str, bad: str, workspace: Path, refused: Refusals) -> None:
    code = refused.code(name.partition(" ")[0], *(bad if word == "{}" else word for word in WRITES[name]))
    assert code in (1, 2)
    assert bad.partition("/inside")[0].removesuffix("/file") in refused.said


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "many"])
@pytest.mark.parametrize(("name", "option"), [(name, one) for name, options in NUMBERS.items() for one in options])
def test_a_number_out_of_range_is_bad_usage(
    name: str, option: str, value: str, workspace: Path, refused: Refusals
) -> None:
    given = NEEDED.get(name, [])

    assert refused.code(name, *given, option, value) == 2
    assert option in refused.said
    assert value in refused.said


@pytest.mark.parametrize("name", ["reduce", "read", "compact", "run", "compare", "manifest", "check", "show"])
def test_a_command_without_what_it_works_on_is_bad_usage(name: str, workspace: Path, refused: Refusals) -> None:
    assert refused.code(name) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["investigate", "case.yaml", "--resume", "--fresh", "--no-ui"],
        ["run", "--join", "--", "true"],
        ["claims", "list", "packing", "--claims", "claims"],
        ["compare", "runs/healthy", "runs/regressed", "--statistic", "max"],
        ["read", "case.yaml", "--pattern", "("],
        ["plan", "case.yaml", "--pilot", "runs/healthy", "runs/healthy"],
        ["revalidate", "--claims", "claims", "--serve", "--cron", "every day"],
    ],
)
def test_options_that_contradict_each_other_are_bad_usage(words: list[str], workspace: Path, refused: Refusals) -> None:
    assert refused.code(*words) == 2
    assert not (workspace / "cases").exists()


def test_the_device_of_the_runs_is_checked_before_anything_begins(workspace: Path, refused: Refusals) -> None:
    case = yaml.safe_load((workspace / "case.yaml").read_text())
    (workspace / "case.yaml").write_text(yaml.safe_dump(case | {"cluster": case["cluster"] | {"device": "cpu"}}))

    assert refused.code("check", "case.yaml") == 2
    assert "cluster.device" in refused.said


def test_a_run_that_wrote_nothing_is_not_compacted(workspace: Path, refused: Refusals) -> None:
    (workspace / "empty" / "manifest.json").write_text('{"schema": 1, "kind": "manifest"}')

    assert refused.code("compact", "empty") == 1
    assert "no rank has written anything" in refused.said


def test_a_history_of_claims_that_is_no_text_is_named(workspace: Path, refused: Refusals) -> None:
    claim = Path(__file__).parents[1] / "claims" / "padding.yaml"
    (workspace / "claims" / "padding.yaml").write_bytes(claim.read_bytes())
    (workspace / "claims" / "history").mkdir()
    (workspace / "claims" / "history" / "padding.jsonl").write_bytes(b"\xff\xfe\n")

    assert refused.code("claims", "--claims", "claims") == 2
    assert "padding.jsonl" in refused.said


def test_a_demo_that_was_cut_while_it_recorded_can_be_started_again(
    workspace: Path, refused: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("narrows.flows.demo.launch", cut)
    assert refused.code("demo", "nothing", "--no-ui") == 130
    assert refused.said == "narrows: interrupted; nothing is kept: the same command starts over"

    def fail(*_: object, **__: object) -> None:
        raise LaunchError("n0: no such device")

    monkeypatch.setattr("narrows.flows.demo.launch", fail)
    assert refused.code("demo", "nothing", "--no-ui") == 1
    assert not (workspace / "narrows-demo" / "nothing").exists()


def test_an_interrupt_names_the_case_that_goes_on(
    workspace: Path, refused: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("narrows.flows.engine.run", cut)
    assert refused.code("investigate", "case.yaml", "--no-ui") == 130
    assert refused.said == "narrows: interrupted; `narrows investigate case.yaml --resume` goes on from here"


@pytest.mark.parametrize("words", [["show", "case.yaml"], ["check", "case.yaml"], ["manifest", "runs/healthy"]])
def test_an_interrupt_of_a_command_that_only_looks_promises_nothing(
    words: list[str], workspace: Path, refused: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"narrows.flows.commands.{words[0]}", cut)
    assert refused.code(*words) == 130
    assert refused.said == "narrows: interrupted"


def _narrows(*words: str, folder: Path, stdout: int | None) -> subprocess.Popen[bytes]:
    program = "from narrows.flows.cli import main; main()"
    command = [sys.executable, "-c", program, *words]
    return subprocess.Popen(command, cwd=folder, stdout=stdout, stderr=subprocess.PIPE)


def test_output_that_nobody_reads_any_more_ends_a_command_without_a_word(workspace: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = _narrows("manifest", "runs/healthy", folder=workspace, stdout=writer)
    os.close(writer)

    _, said = command.communicate(timeout=60)
    assert (command.returncode, said) == (141, b"")


def test_output_that_does_not_fit_on_the_disk_is_said(workspace: Path) -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(Path("/dev/full").open("wb"))
        command = _narrows("manifest", "runs/healthy", folder=workspace, stdout=full.fileno())
        _, said = command.communicate(timeout=60)

    assert command.returncode == 1
    assert said.startswith(b"narrows: no space left on device"), said
    assert b"Traceback" not in said
