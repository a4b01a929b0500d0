"""Launch plans, and jobs of real processes: what they give back, and that nothing of them is ever left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.flows import local_launcher, node_agent
from narrows.flows.failures import error_message, exception_line
from narrows.flows.launching import (
    LaunchCancelledError,
    LaunchFailedError,
    LaunchPlan,
    LaunchSilenceError,
    LaunchTimeoutError,
    launch,
)
from narrows.flows.local_launcher import LocalLauncher, free_port, share_gpus
from narrows.flows.processes import Ending, Job, Limits, LineTail, is_alive, marked_pids, supervise, wait_until
from narrows.inquiry.errors import LaunchError

# A rank that never imports torch: only the agents pay for it. Each writes its pid first.
RANK = """
import os, pathlib, sys, time
rank, here = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
(here / f"pid-{rank}").write_text(str(os.getpid()))
print("rank", rank, "of", os.environ["WORLD_SIZE"], "on", os.environ["NARROWS_HOST"], os.environ["OMP_NUM_THREADS"])
"""
SLEEP = RANK + "time.sleep(300)\n"


def plan_of(tmp_path: Path, program: str, **given: object) -> LaunchPlan:
    script = tmp_path / "program.py"
    script.write_text(program)
    return LaunchPlan(
        **{
            "name": "job",
            "hosts": (("n0", (0, 1)),),
            "argv": (str(script), str(tmp_path)),
            "log_dir": str(tmp_path / "logs"),
            "timeout_s": 120.0,
            **given,
        }
    )


def rank_pids(tmp_path: Path, num: int) -> list[int]:
    def written() -> bool:
        return all(
            (tmp_path / f"pid-{rank}").is_file() and (tmp_path / f"pid-{rank}").read_text() for rank in range(num)
        )

    assert wait_until(written, 90), "the ranks did not start"
    return [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(num)]


def gone(pids: list[int], timeout_s: float = 60) -> bool:
    return wait_until(lambda: not any(is_alive(pid) for pid in pids), timeout_s)


# --- plans ---


hosts = st.lists(st.integers(1, 5), min_size=1, max_size=6).map(
    lambda sizes: tuple((f"n{i}", tuple(range(sum(sizes[:i]), sum(sizes[: i + 1])))) for i in range(len(sizes)))
)


@given(hosts, st.dictionaries(st.sampled_from(["A", "B", "NCCL_DEBUG"]), st.text()), st.text(min_size=1))
def test_a_plan_survives_its_own_json(hosts: tuple, env: dict[str, str], argument: str) -> None:
    plan = LaunchPlan(
        name="p", hosts=hosts, argv=("x.py", argument), log_dir="/l", env=env, silence_s=3.5, watch=("/w",)
    )
    assert LaunchPlan.from_json(plan.to_json()) == plan
    assert [plan.host_of(rank) for rank in range(plan.world_size)] == [h for h, ranks in hosts for _ in ranks]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hosts": ()}, "hosts is empty"),
        ({"hosts": (("n0", ()),)}, "host n0 has no ranks"),
        ({"hosts": (("n0", (0,)), ("n0", (1,)))}, "repeat"),
        ({"hosts": (("n0", (0, 2)),)}, r"\[0, 2\]; torchrun numbers them 0 to 1"),
        ({"hosts": (("n0", (1,)), ("n1", (0,)))}, r"\[1, 0\]"),
        ({"hosts": (("a/b", (0,)),)}, "slash"),
        ({"argv": ()}, "argv is empty"),
        ({"log_dir": "logs"}, "must be absolute"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0"),
        ({"silence_s": -1.0}, "silence_s is -1.0"),
        ({"env": {"A": 1}}, "env A is 1; it must be text"),
        ({"env": {"NARROWS_HOST": "x"}}, "set by the node agent"),
        ({"host_env": {"n9": {}}}, "n9"),
        ({"master_port": 70000}, "no port"),
    ],
)
def test_an_impossible_plan_is_refused_with_the_reason(tmp_path: Path, given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan_of(tmp_path, "", **given)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a launch plan"),
        ('{"kind": "launch", "schema": 2}', "schema 2"),
        ('{"kind": "launch", "schema": 1, "hots": []}', "unknown keys.*hots"),
        ('{"kind": "launch", "schema": 1, "name": "x"}', "lacks.*argv"),
        ('{"kind": "launch", "schema": 1, "name": "x", "argv": ["a"], "log_dir": "/l", "hosts": [1]}', "list of"),
    ],
)
def test_text_that_is_no_plan_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LaunchPlan.from_json(text)


def test_the_agent_of_each_node_gets_its_own_place(tmp_path: Path) -> None:
    import json

    plan = json.loads(plan_of(tmp_path, "", hosts=(("n0", (0,)), ("n1", (1, 2))), master_port=1234).to_json())
    argv = node_agent.torchrun_argv(plan, "n1", tmp_path)
    assert argv[argv.index("--node-rank") + 1] == "1"
    assert argv[argv.index("--nproc-per-node") + 1] == "2"
    assert argv[argv.index("--max-restarts") + 1] == "0"
    assert "rdzv" not in " ".join(argv), "ranks must be placed by the plan, not by the order of joining"
    with pytest.raises(ValueError, match="host 'n7' is not in the plan, which has n0, n1"):
        node_agent.torchrun_argv(plan, "n7", tmp_path)


def test_the_plans_environment_wins_over_the_inherited_one(tmp_path: Path) -> None:
    plan = {"env": {"A": "plan", "B": "plan"}, "host_env": {"n0": {"B": "host"}}}
    env = node_agent.agent_env(plan, "n0", tmp_path, {"A": "old", "C": "old"})
    assert (env["A"], env["B"], env["C"], env["NARROWS_HOST"]) == ("plan", "host", "old", "n0")
    assert env["OMP_NUM_THREADS"] == "1"
    assert node_agent.agent_env({}, "n0", tmp_path, {"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"


def test_nodes_on_one_machine_share_its_gpus_only_when_there_are_enough(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "", hosts=(("n0", (0,)), ("n1", (1, 2))))
    assert share_gpus(plan, {}, 2) == {}
    shares = {"n0": {"CUDA_VISIBLE_DEVICES": "0"}, "n1": {"CUDA_VISIBLE_DEVICES": "1,2"}}
    assert share_gpus(plan, {}, 4) == shares
    assert share_gpus(plan, {"CUDA_VISIBLE_DEVICES": "7,5,3"}, 8)["n1"]["CUDA_VISIBLE_DEVICES"] == "5,3"


# --- reading failures ---


def test_the_last_exception_of_a_log_is_found_behind_prefixes_and_warnings() -> None:
    text = (
        "Traceback (most recent call last):\n  File 'a'\nKeyError: 'first'\n\nDuring handling ...\n"
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'b'\n[rank1]: ValueError: the cause\n"
        "[rank1]:[W1] Warning: destroy_process_group() was not called\n"
    )
    assert exception_line(text) == "ValueError: the cause"
    assert exception_line("nothing to see\n") is None


def test_an_error_file_gives_the_first_line_of_its_message(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text('{"message": {"message": "ValueError: bad\\nmore", "extraInfo": {}}}')
    assert error_message(path) == "ValueError: bad"
    path.write_text('{"message": "plain"}')
    assert error_message(path) == "plain"
    path.write_text("{torn")
    assert error_message(path) is None


def test_a_tail_hands_out_whole_lines_once_and_the_torn_one_at_the_end(tmp_path: Path) -> None:
    tail = LineTail(tmp_path / "log")
    assert tail.lines() == []
    with tail.path.open("ab", buffering=0) as log:
        log.write(b"one\ntw")
        assert tail.lines() == ["one"]
        log.write(b"o\r\n\xff\nthree")
        assert tail.lines() == ["two", "\ufffd"]
        assert tail.lines() == []
        assert tail.lines(last=True) == ["three"]
        assert tail.lines(last=True) == []


# --- processes without torch ---


def start(job: Job, tmp_path: Path, program: str, name: str = "p") -> int:
    argv = [sys.executable, "-c", program, str(tmp_path)]
    return job.start(
        name, argv, env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"}, log_file=tmp_path / f"{name}.log"
    ).pid


# The shape of torchrun: a child in a session of its own, which a signal to the parent's group does not reach.
FAMILY = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
(pathlib.Path(sys.argv[1]) / "pid-0").write_text(str(child.pid))
{then}
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(300)"


@pytest.mark.parametrize("then", ["time.sleep(300)", "sys.exit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_a_child_that_ignores_sigterm_in_its_own_session_is_not_left(tmp_path: Path, then: str) -> None:
    job = Job()
    start(job, tmp_path, FAMILY.format(child=STUBBORN, then=then))
    child = rank_pids(tmp_path, 1)
    ending = supervise(job, Limits(timeout_s=0.5, grace_s=0.5, settle_s=0))
    assert ending is (Ending.TIMED_OUT if "sleep" in then else Ending.EXITED)
    assert not is_alive(child[0])
    assert marked_pids(job.mark) == []


def test_the_first_bad_exit_ends_the_others_and_says_who_it_was(tmp_path: Path) -> None:
    job = Job()
    start(job, tmp_path, "import time; time.sleep(300)", "good")
    start(job, tmp_path, "raise SystemExit(7)", "bad")
    assert supervise(job, Limits(settle_s=0)) is Ending.EXITED
    assert job.own_exits == {"bad": 7}
    assert job.over()


def test_silence_is_noticed_and_a_growing_watched_file_is_a_sign_of_life(tmp_path: Path) -> None:
    busy = "import pathlib, sys, time\np = pathlib.Path(sys.argv[1]) / 'run'\nfor i in range(12):\n"
    busy += "    p.open('a').write('x')\n    time.sleep(0.5)\n"
    job = Job()
    start(job, tmp_path, busy)
    assert supervise(job, Limits(silence_s=3.0, watch=(tmp_path / "run",))) is Ending.EXITED
    job = Job()
    start(job, tmp_path, "import time; time.sleep(300)")
    assert supervise(job, Limits(silence_s=1.0, watch=(tmp_path / "absent",))) is Ending.SILENT
    assert marked_pids(job.mark) == []


class Interrupted(BaseException):
    """Stands for Prefect's TerminationSignal, which is no Exception."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted, OSError])
def test_whatever_is_raised_while_waiting_nothing_is_left(tmp_path: Path, error: type[BaseException]) -> None:
    job = Job()
    pid = start(job, tmp_path, "import time; time.sleep(300)")

    def tick() -> None:
        if not job.own_exits and job.members["p"].poll() is None:
            raise error

    with pytest.raises(error):
        supervise(job, Limits(), tick)
    assert not is_alive(pid)


def test_a_second_interrupt_during_the_grace_kills_at_once(tmp_path: Path) -> None:
    job = Job()
    start(job, tmp_path, FAMILY.format(child=STUBBORN, then="time.sleep(300)"))
    child = rank_pids(tmp_path, 1)[0]
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            supervise(job, Limits(timeout_s=0.1, grace_s=120))
    finally:
        timer.cancel()
    assert time.monotonic() - began < 60
    assert not is_alive(child)


def test_a_job_is_only_started_from_the_main_thread(tmp_path: Path) -> None:
    errors: list[str] = []

    def elsewhere() -> None:
        try:
            start(Job(), tmp_path, "pass")
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=elsewhere, name="worker-3")
    thread.start()
    thread.join()
    assert errors == ["starting a job must be called from the main thread, not from 'worker-3'"]


# --- torchrun ---


@pytest.mark.dist
def test_two_nodes_of_unequal_size_run_with_the_ranks_that_the_plan_says(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, RANK, hosts=(("n0", (0,)), ("n1", (1, 2))))
    lines: list[str] = []
    result = launch(LocalLauncher(), plan, on_line=lines.append)
    assert result.returncode == 0
    assert lines == ["rank 0 of 3 on n0 1"]
    said = {path: Path(path).read_text() for path in result.log_files if path.endswith("stdout.log")}
    assert sorted(said.values()) == ["rank 0 of 3 on n0 1\n", "rank 1 of 3 on n1 1\n", "rank 2 of 3 on n1 1\n"]
    with pytest.raises(LaunchError, match="holds another launch"):
        LocalLauncher().submit(plan)


@pytest.mark.dist
def test_a_failed_rank_is_named_with_its_host_message_and_log(tmp_path: Path) -> None:
    program = RANK + "if rank == 1:\n    raise ValueError('planted')\ntime.sleep(300)\n"
    with pytest.raises(
        LaunchFailedError, match=r"rank 1 on n1 ended with exit code 1: ValueError: planted \(log: "
    ) as info:
        launch(LocalLauncher(), plan_of(tmp_path, program, hosts=(("n0", (0,)), ("n1", (1,)))))
    first = info.value.result.failures[0]
    assert (first.host, first.rank, first.exit_code) == ("n1", 1, 1)
    assert "planted" in Path(first.log_path).read_text()
    assert gone(rank_pids(tmp_path, 2), 1)


@pytest.mark.dist
def test_a_rank_killed_by_a_signal_after_a_port_clash_is_reported_as_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    program = RANK + "if rank == 0:\n    os.kill(os.getpid(), 9)\ntime.sleep(300)\n"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.getsockname()[1], free_port()]
        monkeypatch.setattr(local_launcher, "free_port", lambda: ports.pop(0))
        with LocalLauncher().submit(plan_of(tmp_path, program)) as handle:
            result = handle.result()
    assert ports == [], "the clash was not noticed"
    assert (result.returncode, result.failures[0].rank) == (-9, 0)
    assert result.failures[0].message.startswith("killed by SIGKILL")


@pytest.mark.dist
def test_time_silence_and_cancel_each_end_a_hanging_job_and_say_so(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SLEEP, silence_s=6.0)
    with pytest.raises(LaunchSilenceError, match="job on n0 gave no sign of life for 6 s"):
        launch(LocalLauncher(), plan)  # on a busy machine perhaps before there are ranks
    assert gone([int(path.read_text()) for path in tmp_path.glob("pid-*")], 1)
    with pytest.raises(LaunchTimeoutError, match=r"its limit is 1 s.*logs: "):
        launch(LocalLauncher(), plan_of(tmp_path, SLEEP, log_dir=str(tmp_path / "2"), timeout_s=1.0))
    (tmp_path / "pid-1").unlink(missing_ok=True)
    with pytest.raises(LaunchCancelledError, match="was cancelled"):
        launch(
            LocalLauncher(),
            plan_of(tmp_path, SLEEP, log_dir=str(tmp_path / "3")),
            cancelled=(tmp_path / "pid-1").exists,
        )
    assert gone(rank_pids(tmp_path, 2), 1)


ORCHESTRATOR = """
import sys
from pathlib import Path
from narrows.flows.launching import LaunchPlan, launch
from narrows.flows.local_launcher import LocalLauncher
launch(LocalLauncher(), LaunchPlan.from_json(Path(sys.argv[1]).read_text()))
"""


@pytest.mark.dist
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_an_orchestrator_that_is_killed(tmp_path: Path, signum: signal.Signals) -> None:
    (tmp_path / "job.json").write_text(plan_of(tmp_path, SLEEP, hosts=(("n0", (0,)), ("n1", (1,)))).to_json())
    orchestrator = subprocess.Popen(
        [sys.executable, "-c", ORCHESTRATOR, str(tmp_path / "job.json")], stderr=subprocess.DEVNULL
    )
    ranks = rank_pids(tmp_path, 2)
    agents = [_parent(pid) for pid in ranks]
    assert len({orchestrator.pid, *agents, *ranks}) == 5
    orchestrator.send_signal(signum)
    assert orchestrator.wait(60) != 0
    assert gone([*agents, *ranks])


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
