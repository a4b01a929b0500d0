"""Planted faults on a simulated cluster, investigated by the shipped loop: python benchmarks/proving_ground.py --write

Every case is recorded, opened and played as a user's would be; only the launcher is simulated. ``--write`` puts the
tables into docs/benchmarks.md. What the simulator planted is known to the scoring alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from page import PAGE, put_section
from simulation.cases import NOTHING, SimulatedCase, make_case
from simulation.kinds import KINDS
from simulation.random_order import climb_in_random_order
from simulation.scoring import Score, baselines, culprit_shares, full_hosts, grade
from simulation.sweep import sweep_cost

from narrows.flows import engine
from narrows.flows.approval import Answer, Decision
from narrows.flows.session import Session, open_session
from narrows.inquiry.codec import plain
from narrows.inquiry.conclusion import conclude
from narrows.inquiry.errors import NarrowsError
from narrows.inquiry.hypotheses import Test
from narrows.inquiry.scopes import Rung, Scope
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask
from narrows.inquiry.verdict import Verdict

HEADING = "## Proving ground"
BASELINES = ("B0", "B0m", "B1", "B2", "B3", "B4", "B5")
VERIFYING = (Rung.SCALE_UP, Rung.SOAK)
"""Rungs that confirm a change that is found already; a person declines them here, so that the search alone is paid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One case to play."""

    name: str
    effect: float
    seed: int
    mode: str
    keep: Path | None = None


def play(task: Task) -> Score:
    """The investigation of one case, in a folder of its own, and its score."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="proving-") as temporary:
        folder = (task.keep or Path(temporary)) / f"{task.name}-{task.effect:g}-{task.seed}"
        began = time.monotonic()
        case = make_case(task.name, task.effect, task.seed, folder, mode=task.mode)
        session, why = investigate(case)
        return _score(task, case, session, time.monotonic() - began, why)


def investigate(case: SimulatedCase) -> tuple[Session, str]:
    """The session after the shipped loop has stopped, and what stopped it if that was an error."""
    session = open_session(case.case_file, case.cluster)
    session.say, session.ask = _quiet, _approve
    try:
        return session, engine.run(session).reason.value
    except (NarrowsError, ValueError, AssertionError) as error:
        return session, f"{type(error).__name__}: {error}"


def _quiet(_line: str) -> None:
    """Says nothing."""


def _approve(step: Ask) -> Answer:
    decision = Decision.SKIP if step.rung in VERIFYING else Decision.APPROVE
    return Answer(decision=decision, by="the benchmark")


def _score(task: Task, case: SimulatedCase, session: Session, seconds: float, why: str) -> Score:
    state = session.state
    found: dict[str, Any] = plain(conclude(state))
    precision, recall = (None, None)
    if case.kind is not None and found["mechanism"] is not None:
        precision, recall = culprit_shares(case.kind, found["culprit"], full_hosts(case.kind))
    verdicts = {number: one.verdict for number, one in state.judgements.items()
                if state.registrations[number].hypothesis.test is not Test.ACCOUNT}  # fmt: skip
    supported = [number for number, verdict in verdicts.items() if verdict is Verdict.SUPPORTED]
    random = climb_in_random_order(case, session)
    return Score(
        kind=task.name, effect=task.effect, seed=task.seed, grade=grade(case.kind, found),
        family=case.kind is not None and found["account"] in case.kind.accounts,
        scope=case.kind is not None and found["first_scope"] in case.kind.scopes,
        precision=precision, recall=recall, closing=str(found["closing"]),
        cost=case.cluster.device_seconds / case.full_scale_device_seconds,
        supported=len(supported), inconclusive=sum(v is Verdict.INCONCLUSIVE for v in verdicts.values()),
        wrong_supported=int(grade(case.kind, found) == "wrong"),
        verdicts=len(verdicts), seconds=seconds, found=found, why=why,
        baselines=baselines(case, session.evidence("given")) | {"B3": random.right}, sweep_cost=sweep_cost(case),
        climb_cost=random.cost,
        wrong_scopes=_wrong_scopes(case, session.state),
    )  # fmt: skip


def _wrong_scopes(case: SimulatedCase, state: State) -> int:
    """Scopes that were called to show the loss although nothing of the fault is there."""
    shown = [scope for scope in Scope if state.verdict(f"scope:{scope.value}") is Verdict.SUPPORTED]
    if case.kind is None:
        return len(shown)
    smallest = min(Scope(name) for name in case.kind.scopes)
    return sum(scope < smallest for scope in shown)


def tasks(args: argparse.Namespace) -> Iterator[Task]:
    """What was asked for, one effect after the other, then the cases without a fault."""
    for effect in args.effects:
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            for name in args.kinds:
                yield Task(name=name, effect=effect, seed=seed, mode=args.mode, keep=args.keep)
    for seed in range(args.first_seed, args.first_seed + args.aa):
        yield Task(name=NOTHING, effect=0.0, seed=seed, mode=args.mode, keep=args.keep)


def share(values: Sequence[bool]) -> str:
    return f"{sum(values) / len(values):.0%}" if values else "-"


def _mean(shares: Iterable[float | None]) -> str:
    known = [one for one in shares if one is not None]
    return f"{fmean(known):.0%}" if known else "-"


def by_kind(scores: Sequence[Score]) -> Iterator[str]:
    """A row for each kind and effect."""
    yield "| fault | effect | cases | cause | family | culprit | first scope | wrong | no cause named | closed | cost |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    effects = sorted({one.effect for one in scores}, reverse=True)
    for name in dict.fromkeys(one.kind for one in scores):
        for effect in effects:
            own = [one for one in scores if (one.kind, one.effect) == (name, effect)]
            if own:
                yield _row(name, effect, own)


def _row(name: str, effect: float, own: Sequence[Score]) -> str:
    named = [one for one in own if one.found["mechanism"] is not None]
    closed = [one.closing == "closed" for one in own if one.closing != "not_run"]
    fields = [
        name, f"{effect:.0%}", str(len(own)), share([one.grade == "right" for one in own]),
        "-" if name == NOTHING else share([one.family for one in own]),
        "-" if name == NOTHING else share([one.culprit for one in named]),
        "-" if name == NOTHING else share([one.scope for one in named]),
        share([one.grade == "wrong" for one in own]), share([one.found["mechanism"] is None for one in own]),
        share(closed), f"{fmean(one.cost for one in own):.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(fields)} |"


def summary(scores: Sequence[Score]) -> Iterator[str]:
    """A row for each effect: the shares that the method promises, and the baselines beside them."""
    yield ("| effect | cases | cause and culprit | cause | family | culprit: precision, recall | first scope "
           "| wrong cause | wrong scope | no cause named | closed, of those tried | device time | score | "
           + " | ".join(BASELINES) + " | device time of B3 |")  # fmt: skip
    yield "|--:|" + "--:|" * (13 + len(BASELINES))
    for effect in sorted({one.effect for one in scores}, reverse=True):
        own = [one for one in scores if one.effect == effect]
        nothing = all(one.kind == NOTHING for one in own)
        named = [one for one in own if one.found["mechanism"] is not None]
        right = [one.grade == "right" and (nothing or one.culprit) for one in own]
        fields = [
            "none" if nothing else f"{effect:.0%}", str(len(own)), share(right),
            share([one.grade == "right" for one in own]),
            "-" if nothing else share([one.family for one in own]),
            "-" if nothing else f"{_mean(one.precision for one in named)}, {_mean(one.recall for one in named)}",
            "-" if nothing else share([one.scope for one in named]),
            share([one.grade == "wrong" for one in own]), share([one.wrong_scopes > 0 for one in own]),
            share([one.found["mechanism"] is None for one in own]),
            share([one.closing == "closed" for one in own if one.closing != "not_run"]),
            f"{fmean(one.cost for one in own):.2f}", f"{fmean(one.points for one in own):.2f}",
            *(share([one.baselines[name] for one in own]) for name in BASELINES),
            f"{fmean(one.climb_cost for one in own):.2f}",
        ]  # fmt: skip
        yield f"| {' | '.join(fields)} |"


def section(scores: Sequence[Score], command: str) -> str:
    """The section of the page, heading included."""
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    about = (
        f"`{command}`, {time.strftime('%Y-%m-%d')}, on {machine}.\n"
        "Planted faults on a simulated cluster, investigated by the shipped loop; [the page](proving-ground.md) says "
        "what is planted and what the columns mean.\n"
        "Device time is that of the search, as a share of one experiment of eight pairs at full scale."
    )
    return "\n\n".join([HEADING, about, "\n".join(summary(scores)), "\n".join(by_kind(scores))]) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--effects", type=float, nargs="+", default=[0.12, 0.05, 0.02], metavar="SHARE")
    parser.add_argument("--seeds", type=int, default=2, help="cases of each kind and effect (default 2)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS), metavar="KIND")
    parser.add_argument("--aa", type=int, default=100, help="cases without a fault (default 100)")
    parser.add_argument("--hosts", type=int, default=16, help="hosts of the simulated job, two ranks each (default 16)")
    parser.add_argument("--mode", choices=("restart", "switchback"), default="restart")
    parser.add_argument("--jobs", type=int, default=1, help="cases played at a time (default 1)")
    parser.add_argument("--keep", type=Path, help="keep the case folders here")
    parser.add_argument("--json", type=Path, help="add every score to this file; cases that it holds are not played")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    return parser.parse_args()


def known(file: Path | None) -> list[Score]:
    """The scores of an earlier run."""
    if file is None or not file.exists():
        return []
    return [Score(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def report(one: Score) -> str:
    """One line on one case."""
    found, who = one.found, one.found["culprit"]
    return (
        f"{one.kind} {one.effect:g} {one.seed}: {one.grade}{'' if one.culprit else ' (not the culprit)'}: "
        f"{found['account']}/{found['mechanism']} at {found['first_scope']}, culprit {who['kind']} {who['members']}, "
        f"closing {one.closing}; cost {one.cost:.2f}, {one.seconds:.1f} s; {one.why}"
    )


def main() -> int:
    """Plays what was asked for; 0 when no case named a wrong cause."""
    args = _arguments()
    os.environ["PROVING_GROUND_HOSTS"] = str(args.hosts)  # read by every process that plays cases
    scores = known(args.json)
    played = {(one.kind, one.effect, one.seed) for one in scores}
    left = [task for task in tasks(args) if (task.name, task.effect, task.seed) not in played]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for one in pool.imap(play, left):
            scores.append(one)
            print(report(one), flush=True)
            if args.json:
                with args.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(one), default=str) + "\n")
    print("\n".join(["", *by_kind(scores), "", *summary(scores)]))
    if args.write:
        put_section(PAGE, HEADING, section(scores, " ".join(["python benchmarks/proving_ground.py", *sys.argv[1:]])))
        print(f"written to {PAGE}")
    return int(any(one.grade == "wrong" for one in scores))


if __name__ == "__main__":
    sys.exit(main())
