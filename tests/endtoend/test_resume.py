"""An investigation that is killed, interrupted or stopped goes on where it was, and nothing is left running."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from narrows.flows.processes import wait_until
from narrows.inquiry.docket import Docket, Entry, Kind

pytestmark = pytest.mark.dist

PACKING = {"healthy": {"packing": "snake"}, "regressed": {"packing": "greedy"}}
JUDGE = {"statistic": "mean", "soak_steps": 128, "seed": 7}
WAIT_S = 240.0


@pytest.fixture
def case_file(write_case: Callable[..., Path], recorded: Callable[[Path], Path]) -> Path:
    """The packing question with a short soak, its runs recorded."""
    return recorded(write_case("packing", PACKING, judge=JUDGE))


def _entries(case_file: Path) -> list[Entry]:
    path = case_file.parent / "cases" / "packing" / "docket.jsonl"
    return list(Docket.open(path, repair=False).entries) if path.exists() else []


def _wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    wait_until(lambda: condition() or process.poll() is not None, WAIT_S)
    assert condition() or process.poll() is not None


def _in_a_launch(case_file: Path) -> bool:
    entries = _entries(case_file)
    return bool(entries) and entries[-1].kind is Kind.LAUNCHED


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_many_times_it_reaches_the_same_verdicts_and_repeats_no_experiment(
    cli: Any, investigated: Callable[..., Any], case_file: Path, tmp_path: Path, kills: int
) -> None:
    shutil.copytree(tmp_path, tmp_path / "unkilled")
    other = tmp_path / "unkilled" / "case.yaml"
    whole = investigated(other, cli("investigate", other, "--yes", "--no-ui"))
    assert whole.conclusion["closing"] == "closed", whole.told()

    killed = sum(_kill_at(cli, case_file, moment) for moment in _moments(whole.docket, kills))
    assert killed >= kills // 2  # where the last steps were faster this time, a late kill finds it over

    one = investigated(case_file, cli("investigate", case_file, "--yes", "--no-ui", *_resume(case_file)))
    assert one.verdicts() == whole.verdicts(), f"{one.told()}\n\nunkilled:\n{whole.told()}"
    assert {**one.conclusion, "culprit": None} == {**whole.conclusion, "culprit": None}
    _check_nothing_twice(one, killed)


def _resume(case_file: Path) -> list[str]:
    return ["--resume"] if _entries(case_file) else []


@dataclass(frozen=True, kw_only=True)
class Moment:
    """``after_s`` seconds after the docket's last line, once it has ``settled`` lines beside those of launches."""

    settled: int
    in_launch: bool
    after_s: float


def _settled(entries: Sequence[Entry]) -> int:
    return sum(entry.kind is not Kind.LAUNCHED for entry in entries)


def _moments(docket: Docket, kills: int) -> list[Moment]:
    """Points in time drawn evenly over an investigation, as places that another one of the same case will pass."""
    draw = random.Random(20)
    begin, end = docket.entries[0].at_ns, docket.entries[-1].at_ns
    found = []
    for at in sorted(draw.uniform(begin, end) for _ in range(kills)):
        before = [entry for entry in docket if entry.at_ns <= at]
        in_launch = before[-1].kind is Kind.LAUNCHED
        found.append(Moment(settled=_settled(before), in_launch=in_launch, after_s=(at - before[-1].at_ns) / 1e9))
    return found


def _kill_at(cli: Any, case_file: Path, moment: Moment) -> bool:
    """Starts or resumes the investigation and kills it at ``moment``; whether it still ran."""
    before = _entries(case_file)
    if before and before[-1].kind is Kind.CONCLUDED:
        return False

    def reached() -> bool:
        now = _entries(case_file)
        if _settled(now) > moment.settled:
            return True
        launched = len(now) > len(before) and now[-1].kind is Kind.LAUNCHED
        return _settled(now) == moment.settled and (launched or not moment.in_launch)

    process = cli.start("investigate", case_file, "--yes", "--no-ui", *_resume(case_file), out=cli.folder / "out.txt")
    _wait_for(process, reached)
    time.sleep(moment.after_s)
    running = process.poll() is None
    process.kill()
    _, said = process.communicate()
    assert running or process.returncode == 0, said
    cli.leaves_nothing()
    assert [entry.sha256 for entry in _entries(case_file)][: len(before)] == [entry.sha256 for entry in before]
    return running


def _check_nothing_twice(one: Any, kills: int) -> None:
    """Each pair of an experiment has one evidence; what was launched beyond that are the launches that were killed."""
    launched = {(entry.body["experiment"], entry.body["launch"]): entry for entry in one.docket.of(Kind.LAUNCHED)}
    kept = one.docket.of(Kind.EVIDENCE)
    assert len(launched) - len(kept) <= kills
    pairs: dict[str, int] = {}
    for entry in kept:
        name = entry.body["experiment"]
        assert launched[name, entry.body["launch"]].body["first_pair"] == pairs.get(name, 0)
        pairs[name] = pairs.get(name, 0) + entry.body["pairs"]
        folder = one.directory / launched[name, entry.body["launch"]].body["folder"]
        newest = max(path.stat().st_mtime_ns for path in folder.rglob("*.jsonl"))
        assert newest < entry.at_ns, f"{folder} was written to after its evidence was taken"
    assert not one.docket.of(Kind.FAILED), one.told()
    assert {str(path.parent.name) for path in one.directory.glob("experiments/*/launch-*")} == set(pairs)


def test_a_case_has_one_orchestrator_and_an_interrupt_leaves_nothing_running(cli: Any, case_file: Path) -> None:
    first = cli.start("investigate", case_file, "--yes", "--no-ui", out=cli.folder / "out.txt")
    _wait_for(first, lambda: _in_a_launch(case_file))

    second = cli("investigate", case_file, "--yes", "--no-ui", "--resume")
    assert second.code == 2
    assert second.err.startswith("narrows: packing: another process is investigating it")
    assert len(second.err.splitlines()) == 1
    assert first.poll() is None  # the first one was not disturbed

    _ends_cleanly(cli, first, signal.SIGINT)

    again = cli.start("investigate", case_file, "--yes", "--no-ui", "--resume", out=cli.folder / "out.txt")
    before = len(_entries(case_file))
    _wait_for(again, lambda: len(_entries(case_file)) > before and _in_a_launch(case_file))
    _ends_cleanly(cli, again, signal.SIGTERM)


def _ends_cleanly(cli: Any, process: subprocess.Popen[str], signum: signal.Signals) -> None:
    process.send_signal(signum)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    case_file = cli.folder / "case.yaml"
    assert said.splitlines() == [f"narrows: interrupted; `narrows investigate {case_file} --resume` goes on from here"]
    assert cli.left() == []  # its own end waits for everything that it started
    cli.leaves_nothing()


def test_it_stops_after_the_rung_that_was_asked_for_and_goes_on_from_there(
    cli: Any, investigated: Callable[..., Any], case_file: Path
) -> None:
    stopped = cli("investigate", case_file, "--yes", "--no-ui", "--until", "3")
    assert stopped.code == 0, stopped.err
    entries = _entries(case_file)
    registered = [entry.body["hypothesis"]["rung"] for entry in entries if entry.kind is Kind.REGISTERED]
    assert set(registered) == {"manifest diff", "wall-time reconciliation", "one rank"}
    assert not any(entry.kind is Kind.CONCLUDED for entry in entries)

    begun = cli("investigate", case_file, "--yes", "--no-ui")
    assert begun.code == 2
    assert "was begun already; continue it with --resume" in begun.err

    one = investigated(case_file, cli("investigate", case_file, "--yes", "--no-ui", "--resume"))
    assert [entry.sha256 for entry in one.docket.entries[: len(entries)]] == [entry.sha256 for entry in entries]
    assert one.conclusion["mechanism"] == "imbalance", one.told()
    assert one.launched.count("one_rank-regressed") == 1, one.told()
