"""The outcome of a canary roll-out, for a terminal and as a report: plain text and markdown of the same record."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from narrows.inquiry.rollout import Admission

Record = Mapping[str, Any]
NEXT = {
    Admission.ADMIT.value: "go on with the roll-out",
    Admission.REGRESSED.value: "hold the roll-out, and investigate the upgraded hosts against the control hosts",
    Admission.INCONCLUSIVE.value: "measure again, with more pairs, longer units, or on quieter hosts",
}
_WIDTH = 110
_BEFORE = "upgrade the hosts, then measure again without --before"
_LEAST_SHARE = 0.002
"""An account below this share of the step, in both sets, is left out of the table."""


def report_text(record: Record) -> str:
    """One screen: the outcome, step and accounts of both sets, who carries it, what tells the sets apart, limits."""
    sets = f"{_hosts(record['upgraded'])} against {_hosts(record['control'])}"
    lines = [f"canary-rollout: {sets}", f"{word(record).upper()}: {headline(record)}"]
    rows = table_rows(record)
    if rows:
        widths = [max(len(row[at]) for row in (_HEAD, *rows)) for at in range(len(_HEAD))]
        lines.append("")
        for row in (_HEAD, *rows):
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            lines.append("  ".join(cells).rstrip())
    if record["carried_by"]:
        lines += ["", f"carried by: {carried(record)}"]
    lines += _section("before the upgrade", _baseline_lines(record))
    lines += _section("what differs between the sets", _fingerprint_lines(record))
    lines += _section("what the pairs also show", record["findings"])
    lines += _section("what this cannot say", record["limits"])
    return "\n".join([*lines, "", f"next: {next_move(record)}", f"report: {record['report']}"]) + "\n"


def report_markdown(record: Record) -> str:
    """The report: everything that the terminal shows, and where the record is."""
    lines = [f"# Canary roll-out: {word(record)}", "", _cell(headline(record)) + ".", ""]
    lines += [f"- upgraded: {', '.join(record['upgraded'])}", f"- control: {', '.join(record['control'])}"]
    lines += [f"- registered, run and judged: `{record['folder']}/docket.jsonl`", f"- next: {next_move(record)}", ""]
    rows = table_rows(record)
    if rows:
        lines += [
            _line(_HEAD),
            _line(["-", *("-:" for _ in _HEAD[1:])]),
            *(_line([_cell(cell) for cell in row]) for row in rows),
        ]
        lines += [
            "",
            f"Step times are the {record['statistic']} of a unit; accounts stand in the view in which each closes.",
            "",
        ]
    for title, own in (
        ("Who carries it", [carried(record)] if record["carried_by"] else []),
        ("Before the upgrade", _baseline_lines(record)),
        ("What differs between the sets", _fingerprint_lines(record)),
        ("What the pairs also show", record["findings"]),
        ("What this cannot say", record["limits"]),
        ("The verdict", [record["sentence"]]),
    ):
        if own:
            lines += [f"## {title}", "", *(f"- {_cell(one)}" for one in own), ""]
    return "\n".join(lines)


def word(record: Record) -> str:
    """The outcome; a baseline has none."""
    return "baseline" if record["before"] else str(record["outcome"])


def headline(record: Record) -> str:
    """The difference with its interval, against the margin; how many more pairs where it is open."""
    if record["effect_ms"] is None:
        return str(record["sentence"])
    percent = (
        f", {record['effect_percent']:+.2f} % of the control's step" if record["effect_percent"] is not None else ""
    )
    less = " more than before the upgrade" if record["baseline"] else ""
    margin = (
        f"; the margin is {record['margin_percent']:g} % ({record['margin_ms']:.3g} ms)" if record["margin_ms"] else ""
    )
    said = f"{change(record)} ms a step{less}{percent}{margin}; {record['pairs']} pairs"
    if record["admitted_as"] and record["outcome"] == Admission.ADMIT.value:
        said = f"{record['admitted_as']}: {said}"
    return said + more(record)


def more(record: Record) -> str:
    """How many more pairs an open question takes; empty where it is not open."""
    if record["outcome"] != Admission.INCONCLUSIVE.value or record["before"]:
        return ""
    if record["more_pairs"]:
        total = record["pairs"] + record["more_pairs"]
        return f"; about {record['more_pairs']} more pairs would decide (--max-pairs {total})"
    if "sensitiv" in record["sentence"]:
        return "; the measurement was not shown to see a loss of the margin"
    return "; no number of pairs to 200 would decide at this noise"


def change(record: Record) -> str:
    """For example ``+4.10 [3.80, 4.40]``."""
    return _with_interval(record["effect_ms"], record["interval_ms"])


def _with_interval(effect_ms: float, interval_ms: Sequence[float] | None) -> str:
    low, high = interval_ms or (effect_ms, effect_ms)
    decimals = 2 if max(abs(effect_ms), abs(low), abs(high)) >= 1 else 3
    interval = f" [{low:.{decimals}f}, {high:.{decimals}f}]" if interval_ms else ""
    return f"{effect_ms:+.{decimals}f}{interval}"


def carried(record: Record) -> str:
    """Which of the upgraded hosts' own time it is, as far as the pairs show it."""
    one = record["carried_by"]
    names = {
        "all": "every upgraded host" if len(record["upgraded"]) > 1 else f"host {record['upgraded'][0]}",
        "host": f"host {', '.join(map(str, one['members']))}",
        "rank": f"rank {', '.join(map(str, one['members']))} of host {', '.join(one['hosts'])}",
        "varies": "no one host: the slowest changes from step to step",
    }
    return f"{names.get(one['kind'], 'the communication between the hosts')}; {one['sentence']}"


def next_move(record: Record) -> str:
    if record.get("new_case"):
        return f"hold the roll-out; look at {record['new_case']}, then narrows investigate {record['new_case']}"
    return _BEFORE if record["before"] else NEXT[record["outcome"]]


_HEAD = ("ms a step", "control", "upgraded", "difference")


def table_rows(record: Record) -> list[tuple[str, str, str, str]]:
    """The step, then each account that takes time; the difference is less that of the baseline where there is one."""
    steps = record["step_ms"]
    if not steps:
        return []
    shown = change(record) if record["effect_ms"] is not None else ""
    rows = [("step", f"{steps['control']:.2f}", f"{steps['upgraded']:.2f}", shown)]
    least = _LEAST_SHARE * steps["control"]
    for name, one in record["accounts_ms"].items():
        if max(abs(one["control"]), abs(one["upgraded"]), abs(one["change"])) >= least:
            rows.append((f"  {name}", f"{one['control']:.2f}", f"{one['upgraded']:.2f}", f"{one['change']:+.2f}"))
    return rows


def _baseline_lines(record: Record) -> list[str]:
    one = record["baseline"]
    if one is None:
        return []
    shown = _with_interval(one["effect_ms"], one["interval_ms"])
    lines = [f"the two sets differed by {shown} ms over {one['pairs']} pairs ({one['source']})"]
    for arm, table in one["changed"].items():
        lines += [
            f"{arm} {host}: {name}: {_or_none(values['was'])} -> {_or_none(values['now'])}"
            for host, fields in table.items()
            for name, values in fields.items()
        ]
    return lines


def _fingerprint_lines(record: Record) -> list[str]:
    return [
        f"{name}: {_side(sides['control'])} on the control hosts, {_side(sides['upgraded'])} on the upgraded ones"
        for name, sides in record["fingerprints"].items()
    ]


def _side(values: Mapping[str, Sequence[str]]) -> str:
    if len(values) == 1:
        return next(iter(values))
    return " and ".join(f"{value} ({_hosts(hosts)})" for value, hosts in values.items()) or "not there"


def _or_none(value: str | None) -> str:
    return value if value is not None else "not there"


def _hosts(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{', '.join(hosts[:4])} and {len(hosts) - 4} more"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    wrapped = [textwrap.fill(line, _WIDTH, initial_indent="- ", subsequent_indent="  ") for line in lines]
    return ["", f"{title}:", *wrapped] if lines else []


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").split())
