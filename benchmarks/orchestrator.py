"""What the orchestrator itself costs beside the experiments: python benchmarks/orchestrator.py --write

Plays a worked case to its end, without the Prefect server and with it, and takes from its wall time the time in which
its launches ran. What is left is the orchestrator's own: starting, registering, reducing, judging, the pages, the
postmortem. Its processor time is that of the command and of the server, less that of the launches.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import PAGE, put_section

HEADING = "## The orchestrator's own time"
LIMIT_PERCENT = 5.0

TIMED = {
    "narrows.flows.engine": {"launch": "launches", "_reduce": "reducing", "judge": "judging"},
    "narrows.flows.commands": {"open_session": "opening", "write_postmortem": "postmortem"},
    "narrows.flows.followed": {"write_postmortem": "postmortem", "_Follower.join": "the page's own end"},
    "narrows.flows.server": {"drain_workers": "last records", "await_records": "last records"},
}
"""What is timed, by the module that calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One investigation. ``launches_s`` is the time in which its experiments ran, of ``wall_s``."""

    how: str
    wall_s: float
    launches_s: float
    cpu_s: float
    server_cpu_s: float
    parts: dict[str, float]
    load_1m: float

    @property
    def own_s(self) -> float:
        return self.wall_s - self.launches_s

    @property
    def wall_percent(self) -> float:
        """The orchestrator's wall time as a share of that of the experiments."""
        return 100 * self.own_s / self.launches_s

    @property
    def cpu_percent(self) -> float:
        """Its processor time, the server's included, as a share of the wall time of the experiments."""
        return 100 * (self.cpu_s + self.server_cpu_s) / self.launches_s


def cpu_seconds(pid: int) -> float:
    """What the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def investigate(case_file: Path, how: str, result: Path) -> None:
    """Investigates in this process and writes what the parts of it took; ``how`` is plain or prefect."""
    began = time.time()
    spent: dict[str, float] = {}
    for module, functions in TIMED.items():
        if how == "prefect" or module not in ("narrows.flows.followed", "narrows.flows.server"):
            for name, part in functions.items():
                _time(importlib.import_module(module), name, part, spent)
    from narrows.flows import commands

    spent["imports"] = time.time() - began
    code = commands.investigate(
        case_file, yes=True, resume=False, fresh=False, until=None, no_ui=how == "plain", as_json=False
    )
    own = resource.getrusage(resource.RUSAGE_SELF)
    wall_s = time.time() - began
    result.write_text(
        json.dumps({"code": code, "wall_s": wall_s, "cpu_s": own.ru_utime + own.ru_stime, "parts": spent})
    )


def _time(module: Any, name: str, part: str, spent: dict[str, float]) -> None:
    """Makes the function ``name`` of ``module``, or ``CLASS.name``, add its wall time to ``spent``."""
    within, _, name = name.rpartition(".")
    owner = getattr(module, within) if within else module
    inner = getattr(owner, name)

    def outer(*args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        try:
            return inner(*args, **kwargs)
        finally:
            spent[part] = spent.get(part, 0.0) + time.monotonic() - began

    setattr(owner, name, outer)


def play(case_file: Path, how: str, server_pid: int | None, environment: dict[str, str]) -> Measured:
    """The case investigated from its beginning by a process of its own."""
    before = cpu_seconds(server_pid) if server_pid else 0.0
    result = case_file.parent / f"{how}.json"
    words = [sys.executable, __file__, case_file.name, "--inside", how, str(result)]
    subprocess.run(words, cwd=case_file.parent, env=environment, check=True, stdin=subprocess.DEVNULL)
    found = json.loads(result.read_text())
    assert found["code"] == 0, f"{case_file}: was not explained; see {case_file.parent / 'cases'}"
    return Measured(
        how=how,
        wall_s=found["wall_s"],
        launches_s=found["parts"].pop("launches"),
        cpu_s=found["cpu_s"],
        server_cpu_s=cpu_seconds(server_pid) - before if server_pid else 0.0,
        parts=found["parts"],
        load_1m=os.getloadavg()[0],
    )


def record(case: str, folder: Path) -> Path:
    """The worked case with both of its runs."""
    from narrows.flows import demo
    from narrows.flows.local_launcher import LocalLauncher

    case_file = demo.lay_out(case, folder)
    demo.record(case_file, LocalLauncher())
    return case_file


def measure(case: str, folder: Path) -> list[Measured]:
    """Without a server, then with one that runs already."""
    from narrows.flows.server import ensure_server

    source = record(case, folder / "recorded")
    found = []
    home = folder / "home"
    unlike_others = "PYTHONDONTWRITEBYTECODE"  # some machines set it, and each command would compile narrows again
    plain = {name: one for name, one in os.environ.items() if not name.startswith("PREFECT_") and name != unlike_others}
    for how in ("plain", "prefect"):
        work = folder / how
        shutil.copytree(source.parent, work)
        handle = ensure_server(home, note=print) if how == "prefect" else None
        try:
            pid = _pid(handle.folder) if handle and handle.folder else None
            environment = plain | {"NARROWS_HOME": str(home)}
            found.append(play(work / source.name, how, pid, environment))
        finally:
            if handle:
                handle.release()
        print("\n".join(lines(found[-1:])), flush=True)
    return found


def _pid(folder: Path) -> int:
    return int(json.loads((folder / "server.json").read_text())["pid"])


def lines(found: Sequence[Measured]) -> list[str]:
    """The markdown table, a row an investigation."""
    names = {"plain": "without a server", "prefect": "with the Prefect server"}
    rows = [
        "| investigation | experiments, s | orchestrator, s | share | its processor, s | the server's, s | load |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    rows += [
        f"| {names[one.how]} | {one.launches_s:.1f} | {one.own_s:.1f} | {one.wall_percent:.1f} % "
        f"| {one.cpu_s:.1f} | {one.server_cpu_s:.1f} | {one.load_1m:.1f} |"
        for one in found
    ]
    return rows


def parts(one: Measured) -> str:
    """What the orchestrator's time went to, the largest first."""
    ordered = sorted(one.parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in ordered if seconds >= 0.005)


def section(case: str, found: Sequence[Measured]) -> str:
    """The section of the page, heading included."""
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    about = (
        f"`python benchmarks/orchestrator.py --write`, {time.strftime('%Y-%m-%d')}, on {machine}.\n"
        f"The worked case `{case}` to its end: the time in which its experiments ran, and all the rest of the "
        "command's time, as a share of the former.\nThe server was running already."
    )
    details = "\n".join(f"- {one.how}: {parts(one)}" for one in found)
    return "\n\n".join([HEADING, about, "\n".join(lines(found)), "Parts, some inside others:", details]) + "\n"


def main() -> int:
    """Prints the shares; 0 when none is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", default="packing", help="the worked case (default packing)")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    parser.add_argument("--inside", nargs=2, metavar=("HOW", "RESULT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        investigate(Path(args.case), args.inside[0], Path(args.inside[1]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args.case, Path(folder))
    text = section(args.case, found)
    print(text)
    if args.write:
        put_section(PAGE, HEADING, text)
    return int(any(one.wall_percent > LIMIT_PERCENT for one in found))


if __name__ == "__main__":
    sys.exit(main())
