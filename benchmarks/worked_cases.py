"""Every worked case over several seeds, right or wrong: python benchmarks/worked_cases.py --seeds 5 --write

The cause of each is planted, so the answer is known. ``--write`` puts the table into docs/benchmarks.md, in place of
the one that is there. A wrong cause is worse than none: the two are counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import PAGE, put_section

PROGRAM = Path(sys.executable).with_name("narrows")
HEADING = "## Worked cases"
TIMEOUT_S = 900
FIRST_SEED = 1000

COMMON = {"regression": "confirmed", "numerator_changed": False, "perturbation": "supported", "closing": "closed"}
EXPECTED: dict[str, dict[str, Any]] = {
    "packing": COMMON
    | {"account": "skew", "mechanism": "imbalance", "first_scope": "one_node", "culprit": ("varies", [])},
    "slow-host": COMMON
    | {"account": "compute", "mechanism": "slow_host", "first_scope": "one_rank", "culprit": ("host", ["n2"])},
    "slow-link": COMMON
    | {"account": "transfer", "mechanism": "link", "first_scope": "two_nodes", "culprit": ("link", ["n0", "n1"])},
    "more-padding": COMMON
    | {"account": "compute", "mechanism": "numerator", "first_scope": "one_rank", "culprit": ("all", [])}
    | {"numerator_changed": True},
    "slow-input": COMMON
    | {"account": "input", "mechanism": "input", "first_scope": "one_rank", "culprit": ("all", [])},
    "nothing": {
        "regression": "none", "numerator_changed": False, "account": None, "mechanism": None, "first_scope": None,
        "culprit": ("none", []), "perturbation": "not_run", "closing": "not_run",
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of one case. ``found`` is its conclusion, empty where it came to none."""

    case: str
    seed: int
    seconds: float
    found: dict[str, Any]
    problem: str = ""

    @property
    def amiss(self) -> list[str]:
        """The fields that are not what was planted."""
        expected = EXPECTED[self.case]
        return [name for name in expected if name not in self.found or self.found[name] != expected[name]]

    @property
    def grade(self) -> str:
        """``right``; ``wrong`` when a cause is named that was not planted; else ``not found``."""
        if not self.amiss:
            return "right"
        named = self.found.get("mechanism")
        wrong = named is not None and {"mechanism", "culprit"} & set(self.amiss)
        return "wrong" if wrong else "not found"


def play(case: str, seed: int, folder: Path) -> Outcome:
    """The outcome of ``narrows demo`` in a new folder."""
    began = time.monotonic()
    words = ["demo", case, "--no-ui", "--json", "--seed", str(seed), "--out", str(folder)]
    done = subprocess.run(
        [str(PROGRAM), *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
    )
    seconds = time.monotonic() - began
    try:
        found = json.loads(done.stdout)["conclusion"]
    except (ValueError, KeyError):
        last = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        return Outcome(case=case, seed=seed, seconds=seconds, found={}, problem=last)
    culprit = found["culprit"]
    members = culprit["members"] if culprit["kind"] != "varies" else []
    return Outcome(case=case, seed=seed, seconds=seconds, found=found | {"culprit": (culprit["kind"], members)})


def lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The markdown table, a row a run."""
    yield "| case | seed | account | mechanism | first scope | culprit | perturbation | closing | outcome | s |"
    yield "|---|--:|---|---|---|---|---|---|---|--:|"
    for one in outcomes:
        fields = [str(one.found.get(name) or "-") for name in ("account", "mechanism", "first_scope")]
        kind, members = one.found.get("culprit", ("-", []))
        fields.append(" ".join([kind, *map(str, members)]))
        fields += [str(one.found.get(name, "-")) for name in ("perturbation", "closing")]
        grade = one.grade if one.grade == "right" else f"**{one.grade}** ({one.problem or ', '.join(one.amiss)})"
        yield f"| {one.case} | {one.seed} | {' | '.join(fields)} | {grade} | {one.seconds:.0f} |"


def totals(outcomes: Sequence[Outcome]) -> str:
    """One sentence: how many runs named the planted cause, another one, or none."""
    count = {grade: sum(one.grade == grade for one in outcomes) for grade in ("right", "wrong", "not found")}
    seconds = sorted(one.seconds for one in outcomes)
    return (
        f"{len(outcomes)} runs: {count['right']} right, {count['wrong']} wrong causes, "
        f"{count['not found']} without the whole answer; "
        f"{seconds[len(seconds) // 2]:.0f} s a run (median), {seconds[-1]:.0f} s at most."
    )


def section(outcomes: Sequence[Outcome]) -> str:
    """The section of the page, heading included."""
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    seeds = len({one.seed for one in outcomes})
    about = (
        f"`python benchmarks/worked_cases.py --seeds {seeds} --write`, {time.strftime('%Y-%m-%d')}, on {machine}.\n"
        "Each run records its own two runs, with documents, arm order and noise of its own, and investigates them "
        "without a server.\n"
        "The cause is planted, so the answer is known; `wrong` would be a cause that was not planted."
    )
    return "\n\n".join([HEADING, about, totals(outcomes), "\n".join(lines(outcomes))]) + "\n"


def main() -> int:
    """Plays what was asked for; 0 when no run named a wrong cause."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"which of {', '.join(EXPECTED)}; all by default")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each case (default 5)")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--keep", type=Path, help="keep the case folders here")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    args = parser.parse_args()
    if unknown := set(args.cases) - set(EXPECTED):
        parser.error(f"{', '.join(sorted(unknown))}: no such worked case; expected some of {', '.join(EXPECTED)}")
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = args.keep.absolute() if args.keep else Path(temporary)
        for case in args.cases or EXPECTED:
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                outcomes.append(play(case, seed, root / f"{case}-{seed}"))
                print(list(lines(outcomes))[-1], flush=True)
    print(totals(outcomes))
    if args.write:
        put_section(PAGE, HEADING, section(outcomes))
        print(f"written to {PAGE}")
    return int(any(one.grade == "wrong" for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
