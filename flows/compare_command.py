"""The body of `narrows compare`: two arms described side by side, from what was recorded; nothing is launched."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from narrows.flows.compare_inputs import compare_inputs, runs_of
from narrows.flows.exits import DONE, FOUND
from narrows.flows.thresholds import thresholds_of
from narrows.inquiry.errors import CaseError
from narrows.reducers.compared_parts import Comparison
from narrows.reducers.compared_plain import report, with_pictures
from narrows.reducers.units import Statistic


def compare(
    healthy: Sequence[Path] | Path,
    regressed: Sequence[Path] | Path,
    *,
    markdown: bool = False,
    as_json: bool = False,
    html: Path | None = None,
    case_out: Path | None = None,
    statistic: str = "mean",
    gate: float | None = None,
    topology: Path | None = None,
    thresholds: Path | None = None,
    pattern: str | None = None,
) -> int:
    """Prints the comparison; writes a page to ``html`` and a case file to ``case_out``.

    0, or 4 where the second arm is slower by more than ``gate`` percent: by the lower end of the interval where the
    difference is tested, else by the mean. Raises ``NarrowsError`` for input that cannot be read or compared, or a
    case that cannot be written; ``ValueError`` for an unknown statistic or a gate below 0.
    """
    if statistic not in tuple(Statistic):
        raise ValueError(f"--statistic {statistic}: expected one of {', '.join(Statistic)}")
    if gate is not None and gate < 0:
        raise ValueError(f"--gate {gate:g}: expected a percentage of the healthy step, at least 0")
    first, second = _paths(healthy), _paths(regressed)
    found = compare_inputs(first, second, statistic, topology, thresholds_of(thresholds), pattern)
    _write(found, html, case_out, first, second)
    if as_json:
        print(json.dumps(report(found), indent=2, allow_nan=False))
    else:
        print(_text(found, markdown=markdown), end="")
    return FOUND if gate is not None and exceeds(found, gate) else DONE


def exceeds(found: Comparison, gate_percent: float) -> bool:
    """Whether the loss is above the gate: its lower bound where it is tested, else the loss itself."""
    low = found.step.interval[0] if found.tested and found.step.interval is not None else found.step.delta
    return low > gate_percent / 100 * found.step.healthy


def _paths(given: Sequence[Path] | Path) -> tuple[Path, ...]:
    return (given,) if isinstance(given, Path) else tuple(given)


def _write(
    found: Comparison, html: Path | None, case_out: Path | None, first: Sequence[Path], second: Sequence[Path]
) -> None:
    """The files first: what is printed last is what the reader sees, and it stands only if they were written."""
    from narrows.templates.comparison import render_html

    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(render_html(with_pictures(found)), encoding="utf-8")
    if case_out is not None:
        if found.source != "run directories":
            raise CaseError(f"--case {case_out}: a case needs run directories with manifests; these are {found.source}")
        from narrows.flows.compare_case import write_case

        for line in write_case(case_out, found, runs_of(first), runs_of(second)):
            print(f"narrows: {line}", file=sys.stderr)


def _text(found: Comparison, *, markdown: bool) -> str:
    from narrows.templates.comparison import render_markdown, render_text

    return render_markdown(report(found)) if markdown else render_text(report(found))
