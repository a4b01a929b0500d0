"""Planted faults in real processes, investigated by the shipped loop: python benchmarks/proving_ground_processes.py

Each case starts torchrun, with gloo between the ranks and the emulated device, as a user's case does. ``--write`` puts
the table into docs/benchmarks.md. What was planted is known to the ranks and to the scoring alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from page import PAGE, put_section
from processes.cases import NOTHING, ProcessCase, lay_out, record
from processes.kinds import KINDS
from proving_ground import investigate, share
from simulation.scoring import culprit_shares, grade

from narrows.flows.session import Session
from narrows.inquiry.codec import plain
from narrows.inquiry.conclusion import conclude
from narrows.inquiry.docket import Kind as Entry

HEADING = "## Proving ground: real processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One investigation. ``slower`` is how much longer the recorded regressed step is, as a share; ``steps`` and
    ``device_time`` (start-ups included) are those of the search, as shares of eight pairs at full scale."""

    kind: str
    effect: float
    seed: int
    grade: str
    family: bool
    scope: bool
    culprit: bool
    slower: float
    steps: float
    device_time: float
    seconds: float
    load: float
    found: dict[str, Any]
    why: str


def play(name: str, effect: float, seed: int, folder: Path) -> Score:
    """The score of one case, recorded and investigated in ``folder``. Raises LaunchError: it could not be recorded."""
    began = time.monotonic()
    case = record(lay_out(name, effect, seed, folder))
    session, why = investigate(case)
    return _score(name, effect, seed, case, session, time.monotonic() - began, why)


def _score(name: str, effect: float, seed: int, case: ProcessCase, session: Session, seconds: float, why: str
           ) -> Score:  # fmt: skip
    state, kind = session.state, case.kind
    found: dict[str, Any] = plain(conclude(state))
    named = kind is not None and found["mechanism"] is not None
    shares = culprit_shares(kind, found["culprit"], case.hosts) if named else (None, None)
    arms = session.evidence("given")["arms"]
    loads = [float(entry.body["load_1m"]) for entry in session.docket.of(Entry.EVIDENCE)] or [os.getloadavg()[0]]
    return Score(
        kind=name, effect=effect, seed=seed, grade=grade(kind, found), found=found, why=why, seconds=seconds,
        family=kind is not None and found["account"] in kind.accounts,
        scope=kind is not None and found["first_scope"] in kind.scopes,
        culprit=all(one in (None, 1.0) for one in shares), load=fmean(loads),
        slower=arms["regressed"]["step_ms"] / arms["healthy"]["step_ms"] - 1,
        steps=case.cluster.rank_steps / case.full_scale_rank_steps,
        device_time=3600 * state.device_hours / case.full_scale_device_seconds,
    )  # fmt: skip


def table(scores: Sequence[Score]) -> Iterator[str]:
    """The markdown table, a row for each kind and effect."""
    yield ("| fault | cases | slower | cause | family | culprit | first scope | wrong | no cause named | closed "
           "| steps | device time | s | load |")  # fmt: skip
    yield "|---|" + "--:|" * 13
    for name, effect in dict.fromkeys((one.kind, one.effect) for one in scores):
        own = [one for one in scores if (one.kind, one.effect) == (name, effect)]
        named = [one for one in own if one.found["mechanism"] is not None]
        nothing = name == NOTHING
        fields = [
            name, str(len(own)), ", ".join(f"{one.slower:.0%}" for one in own),
            share([one.grade == "right" for one in own]),
            "-" if nothing else share([one.family for one in own]),
            "-" if nothing else share([one.culprit for one in named]),
            "-" if nothing else share([one.scope for one in named]),
            share([one.grade == "wrong" for one in own]), share([one.found["mechanism"] is None for one in own]),
            share([one.found["closing"] == "closed" for one in own if one.found["closing"] != "not_run"]),
            f"{fmean(one.steps for one in own):.2f}", f"{fmean(one.device_time for one in own):.2f}",
            f"{fmean(one.seconds for one in own):.0f}", f"{fmean(one.load for one in own):.1f}",
        ]  # fmt: skip
        yield f"| {' | '.join(fields)} |"


def section(scores: Sequence[Score], command: str) -> str:
    """The section of the page, heading included."""
    about = (
        f"`{command}`, {time.strftime('%Y-%m-%d')}, on {os.cpu_count()} CPUs, {platform.machine()}, "
        f"Python {platform.python_version()}, shared with other work.\n"
        "Faults planted in real processes: two hosts of two ranks and two spare hosts, as torchrun agents on this "
        "machine, with gloo and the emulated device; [the page](proving-ground.md) says what is counted.\n"
        "*Slower* is measured; steps and device time are those of the search, start-ups included in the latter, as "
        "shares of eight pairs at full scale in one launch; load is the mean over launches."
    )
    right = sum(one.grade == "right" and one.culprit for one in scores)
    wrong = sum(one.grade == "wrong" for one in scores)
    total = f"{len(scores)} cases: {right} right with their culprit, {wrong} wrong causes."
    return "\n\n".join([HEADING, about, total, "\n".join(table(scores))]) + "\n"


def report(one: Score) -> str:
    """One line on one case."""
    found, who = one.found, one.found["culprit"]
    return (
        f"{one.kind} {one.seed} ({one.slower:+.1%}): {one.grade}{'' if one.culprit else ' (not the culprit)'}: "
        f"{found['account']}/{found['mechanism']} at {found['first_scope']}, culprit {who['kind']} {who['members']}, "
        f"closing {found['closing']}; {one.seconds:.0f} s, load {one.load:.1f}; {one.why}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS), metavar="KIND")
    parser.add_argument("--effect", type=float, default=0.12, metavar="SHARE", help="of the step (default 0.12)")
    parser.add_argument("--seeds", type=int, default=1, help="cases of each kind (default 1)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--aa", type=int, default=2, help="cases without a fault (default 2)")
    parser.add_argument("--keep", type=Path, help="keep the case folders here")
    parser.add_argument("--json", type=Path, help="add every score to this file; cases that it holds are not played")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    return parser.parse_args()


def main() -> int:
    """Plays what was asked for; 0 when no case named a wrong cause."""
    args = _arguments()
    known = args.json.read_text(encoding="utf-8").splitlines() if args.json and args.json.exists() else []
    scores = [Score(**json.loads(line)) for line in known]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    wanted = [(name, args.effect, seed) for seed in seeds for name in args.kinds]
    wanted += [(NOTHING, 0.0, seed) for seed in range(args.first_seed, args.first_seed + args.aa)]
    played = {(one.kind, one.effect, one.seed) for one in scores}
    for name, effect, seed in wanted:
        if (name, effect, seed) in played:
            continue
        with tempfile.TemporaryDirectory(prefix="proving-") as temporary:
            root = args.keep.absolute() if args.keep else Path(temporary)
            scores.append(play(name, effect, seed, root / f"{name}-{effect:g}-{seed}"))
        print(report(scores[-1]), flush=True)
        if args.json:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(scores[-1]), default=str) + "\n")
    print("\n".join(table(scores)))
    if args.write:
        put_section(
            PAGE, HEADING, section(scores, " ".join(["python benchmarks/proving_ground_processes.py", *sys.argv[1:]]))
        )
        print(f"written to {PAGE}")
    return int(any(one.grade == "wrong" for one in scores))


if __name__ == "__main__":
    sys.exit(main())
