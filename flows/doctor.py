"""`narrows doctor`: whether this machine, its server and its launcher are fit, and what to fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from narrows.flows.doctor_checks import Check, State, clocks, devices, launcher, limits, storage, versions
from narrows.flows.doctor_server import server
from narrows.flows.exits import DONE, FOUND

AREAS: tuple[tuple[str, Callable[[Path], Iterator[Check]]], ...] = (
    ("versions", versions),
    ("server", server),
    ("clock", clocks),
    ("storage", storage),
    ("devices", devices),
    ("limits", limits),
    ("launcher", launcher),
)


def examine(folder: Path, *, launch: bool = True) -> Iterator[Check]:
    """Every check in order, as it is made. Starts no server; ``launch`` starts two ranks for a few steps."""
    for name, area in AREAS:
        if name == "launcher" and not launch:
            continue
        yield from area(folder)


def doctor(folder: Path, *, launch: bool, as_json: bool) -> int:
    """Prints the checks as they are made. Exit code 4 where something is broken."""
    found = []
    for check in examine(folder, launch=launch):
        found.append(check)
        if not as_json:
            print(f"{check.state.value:5} {check.area:9} {check.text}", flush=True)
            if check.fix:
                print(f"{'':15} -> {check.fix}", flush=True)
    broken = sum(check.state is State.FAIL for check in found)
    doubts = sum(check.state is State.WARN for check in found)
    if as_json:
        from narrows.flows.commands import print_json

        print_json({"schema": 1, "kind": "doctor", "broken": broken, "warnings": doubts, "checks": found})
    else:
        print("nothing to fix" if not broken + doubts else f"{broken} to fix, {doubts} to look at")
    return FOUND if broken else DONE
