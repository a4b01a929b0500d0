"""``narrows run``: the program runs as it would have, and its records lie where the last line says."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from narrows.flows import instrumented
from narrows.flows.instrumented import (
    bootstrap_folder,
    prepare,
    recording_environment,
    resolve,
    run_instrumented,
    summary,
)
from narrows.flows.processes import is_alive, wait_until
from narrows.inquiry.errors import LaunchError, RunDirectoryError

RUN = """
import sys
from pathlib import Path
from narrows.flows.instrumented import run_instrumented
sys.exit(run_instrumented(sys.argv[2:], Path(sys.argv[1])))
"""
NAP = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(300)"


def test_the_recorder_comes_first_on_the_path_and_keeps_the_users() -> None:
    env = recording_environment(Path("run"), {"PYTHONPATH": "/mine:/yours"})
    assert env["PYTHONPATH"] == f"{bootstrap_folder()}{os.pathsep}/mine:/yours"
    assert env["NARROWS_RUN_DIR"] == str(Path("run").absolute())
    assert recording_environment(Path("run"), {})["PYTHONPATH"] == str(bootstrap_folder())
    assert (bootstrap_folder() / "sitecustomize.py").is_file()


def test_torchrun_is_found_without_being_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert resolve(["torchrun", "a.py"]) == [sys.executable, "-m", "torch.distributed.run", "a.py"]


@pytest.mark.parametrize(
    ("argv", "error", "words"),
    [
        ([], ValueError, "nothing to run; write: narrows run -- torchrun"),
        (["train.py", "--lr", "1"], LaunchError, "write: narrows run -- python train.py --lr 1"),
        (["no-such-program"], LaunchError, "no program 'no-such-program' on PATH"),
    ],
)
def test_what_cannot_be_run_is_an_error_with_the_next_move(argv: list[str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        resolve(argv)


def test_a_folder_with_files_is_refused_unless_this_is_a_further_node(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    with pytest.raises(RunDirectoryError, match=r"is not empty.*--join"):
        prepare(tmp_path)
    assert prepare(tmp_path, join=True) == tmp_path
    with pytest.raises(RunDirectoryError, match="cannot use"):
        prepare(tmp_path / "manifest.json")


def test_without_a_name_each_run_gets_a_dated_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(instrumented.time, "strftime", lambda _: "runs/20261129-120000")
    assert [prepare(None).name for _ in range(3)] == ["20261129-120000", "20261129-120000-2", "20261129-120000-3"]


def test_the_last_line_counts_ranks_and_whole_steps(tmp_path: Path) -> None:
    for rank, text in enumerate(('{"schema":1}\n{"step":0}\n{"step":1}\n', '{"schema":1}\n{"step":0}\n{"ste')):
        folder = tmp_path / "ranks" / f"{rank:05}"
        folder.mkdir(parents=True)
        (folder / "steps.jsonl").write_text(text)
    assert summary(tmp_path) == f"narrows: {tmp_path}: 2 ranks, 1 to 2 steps recorded"


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(42)", 42),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
        ("import signal; raise SystemExit(len(signal.pthread_sigmask(signal.SIG_BLOCK, set())))", 0),
    ],
)
def test_the_exit_code_is_the_programs_and_an_unrecorded_run_leaves_a_hint(
    tmp_path: Path, program: str, code: int
) -> None:
    notes: list[str] = []
    folder = tmp_path / "run"
    assert run_instrumented([sys.executable, "-c", program], folder, note=notes.append) == code
    assert len(notes) == 1
    assert "no step was recorded" in notes[0]
    assert not folder.exists(), "an empty run directory was left"


def napping(run_dir: Path) -> list[str]:
    return [sys.executable, "-c", RUN, str(run_dir), sys.executable, "-c", NAP]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_sent_to_us_reaches_the_program(tmp_path: Path, signum: signal.Signals) -> None:
    pid_file = tmp_path / "pid"
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "run"), sys.executable, "-c", NAP, pid_file]
    ) as us:
        assert wait_until(lambda: pid_file.is_file() and pid_file.read_text() != "", 60)
        us.send_signal(signum)
    assert us.returncode == 128 + signum
    assert not is_alive(int(pid_file.read_text()))


def test_ctrl_c_at_a_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    count = (
        "import signal, sys, time, pathlib\nseen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "pathlib.Path(sys.argv[1]).write_text('x')\nend = time.monotonic() + 2\n"
        "while time.monotonic() < end: time.sleep(0.1)\nsys.exit(10 + len(seen))"
    )
    ready = tmp_path / "ready"
    pid, terminal = pty.fork()
    if pid == 0:
        argv = [sys.executable, "-c", RUN, str(tmp_path / "run"), sys.executable, "-c", count, str(ready)]
        os.execv(argv[0], argv)
    assert wait_until(ready.is_file, 60)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 11
    os.close(terminal)


def test_the_program_does_not_outlive_us(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "run"), sys.executable, "-c", NAP, pid_file]
    ) as us:
        assert wait_until(lambda: pid_file.is_file() and pid_file.read_text() != "", 60)
        us.kill()
    assert wait_until(lambda: not is_alive(int(pid_file.read_text())), 60)


TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.dist
def test_an_untouched_script_under_torchrun_is_recorded_on_every_rank(tmp_path: Path) -> None:
    script, folder, notes = tmp_path / "train.py", tmp_path / "run", []
    script.write_text(TRAIN)
    argv = ["torchrun", "--standalone", "--nproc-per-node", "2", str(script)]
    assert run_instrumented(argv, folder, note=notes.append) == 0
    assert json.loads((folder / "manifest.json").read_text())["kind"] == "manifest"
    ranks = sorted(path.parent.name for path in folder.glob("ranks/*/steps.jsonl"))
    assert ranks == ["00000", "00001"]
    assert "2 ranks" in notes[0]
    assert "steps recorded" in notes[0]
