"""A comparison for people: a table that can be read at a glance, then findings, one a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from narrows.inquiry.accounts import ACCOUNT_MEANINGS, Account
from narrows.templates import comparison_opinions
from narrows.templates.comparison_figures import Drawing, drawings
from narrows.templates.expected import table_of
from narrows.templates.numbers import fixed, significant
from narrows.templates.slow_steps import WindowTable

SHOWN_SHARE = 0.002
"""An account below this share of the longer step in both arms is folded into one row."""
VIEW_WORDS = {
    "rank_mean": "means over ranks",
    "critical_path": "along the critical path",
    "least_waiting_rank": "on the rank that waits least",
}
HEADS = ("account", "healthy", "regressed", "delta", "share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of the table, its figures as text; ``meaning`` says what the account holds."""

    name: str
    healthy: str
    regressed: str
    delta: str
    interval: str
    share: str
    meaning: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        return self.name, self.healthy, self.regressed, f"{self.delta} {self.interval}".rstrip(), self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one part of the evidence says; a ``head`` of one or two words, then sentences, one an entry."""

    head: str
    texts: tuple[str, ...]


def table(report: Mapping[str, Any]) -> tuple[Line, ...]:
    """The step first, then the accounts of the report's view by the size of their change; they add up to the step."""
    step, accounts = report["step_ms"], report["accounts_ms"]
    longest = max(step["healthy"], step["regressed"])
    places = max(1, significant(longest)) if longest >= 100 else 2
    wide = [name for name, one in accounts.items() if _largest(one) >= SHOWN_SHARE * longest]
    wide.sort(key=lambda name: -abs(accounts[name]["delta"]))
    lines = [_line("step", step, step, places, "")]
    if not has_accounts(report):
        return tuple(lines)
    lines += [_line(name, accounts[name], step, places, ACCOUNT_MEANINGS[Account(name)]) for name in wide]
    rest = [name for name in accounts if name not in wide]
    if any(_largest(accounts[name]) > 0 for name in rest):
        folded = {key: sum(accounts[name][key] for name in rest) for key in ("healthy", "regressed", "delta")}
        lines.append(_line("others", {**folded, "interval": None}, step, places, ", ".join(rest)))
    return tuple(lines)


def has_accounts(report: Mapping[str, Any]) -> bool:
    """Whether anything but the step was measured: logs hold nothing else."""
    return any(_largest(one) > 0 for name, one in report["accounts_ms"].items() if name != Account.RESIDUAL)


def _largest(one: Mapping[str, Any]) -> float:
    return float(max(abs(one["healthy"]), abs(one["regressed"])))


def _line(name: str, one: Mapping[str, Any], step: Mapping[str, Any], places: int, meaning: str) -> Line:
    low_high = one["interval"]
    counts = abs(step["delta"]) > 0.01 * step["healthy"]
    return Line(
        name=name,
        healthy=fixed(one["healthy"], places),
        regressed=fixed(one["regressed"], places),
        delta=fixed(one["delta"], places, signed=True),
        interval="" if low_high is None else f"[{', '.join(fixed(end, places, signed=True) for end in low_high)}]",
        share=f"{fixed(100 * one['delta'] / step['delta'], 0)} %" if counts else "-",
        meaning=meaning,
    )


def findings(report: Mapping[str, Any]) -> tuple[Finding, ...]:
    """What the evidence says, in the order in which it is to be read: work first, the next experiment last."""
    found = [
        Finding(head="reading", texts=(report["reading"],)),
        Finding(head="follows", texts=(report["follows"],) if report["follows"] else ()),
        Finding(head="culprit", texts=(culprit_words(report),)),
        Finding(head="opinions", texts=(report["what_if"]["sentence"],) if report["what_if"] else ()),
        Finding(head="tail", texts=(report["tail"],) if report["tail"] else ()),
        Finding(head="exceeds", texts=_flagged(report)),
        Finding(head="how sure", texts=(report["certainty"],)),
        Finding(head="work", texts=(_work_words(report),)),
        Finding(head="manifests", texts=_difference_words(report)),
        Finding(head="label", texts=(_label_words(report),)),
        Finding(head="coverage", texts=_coverage_words(report)),
        Finding(head="not shown", texts=tuple(report["limits"]) or ("nothing known is missing",)),
    ]
    return tuple(one for one in found if one.texts)


def _flagged(report: Mapping[str, Any]) -> tuple[str, ...]:
    """The collectives that take more than they should."""
    expected = table_of(report.get("expected"), None)
    return () if expected is None else expected.flagged


def culprit_words(report: Mapping[str, Any]) -> str:
    """Whom the change follows, in words."""
    kind, members = report["culprit"]["kind"], ", ".join(map(str, report["culprit"]["members"]))
    if kind == "rail" and all(isinstance(one, int) for one in report["culprit"]["members"]):
        return f"the rail of ranks {members}"
    return {
        "none": "nobody is named",
        "all": "every rank alike",
        "varies": "no rank for long: the slowest one changes from step to step",
        "link": f"the links between hosts {members}",
        "group": f"the collectives of {members}",
        "bytes": f"the collectives of {members}",
    }.get(kind, f"{kind} {members}")


def _work_words(report: Mapping[str, Any]) -> str:
    work = report["work"]
    return "not counted on both sides" if work is None else str(work["sentence"])


def _difference_words(report: Mapping[str, Any]) -> tuple[str, ...]:
    found = report["manifest_differences"]
    if report["source"] != "run directories":
        return (f"{report['source']} record none",)
    if not found:
        return ("no difference that could touch the step time is recorded",)
    possible = [one for one in found if one["possible"]]
    lines = [f"{one['field']}: {one['healthy']} -> {one['regressed']} ({one['why']})" for one in possible]
    out = [one["field"] for one in found if not one["possible"]]
    if out:
        lines.append(f"ruled out by the accounts that they could move: {', '.join(out)}")
    return tuple(lines)


def _label_words(report: Mapping[str, Any]) -> str:
    if not report["labels"]:
        return "none: step times alone"
    names = [_one_label(report["labels"][arm]) for arm in ("healthy", "regressed", "delta")]
    return (
        f"healthy {names[0]}, regressed {names[1]}; what changed: {names[2]} ({report['labels']['delta']['version']})"
    )


def _one_label(label: Mapping[str, Any]) -> str:
    extra = [label.get("sublabel") or "", "inferred" if label.get("inferred") else ""]
    words = ", ".join(filter(None, extra))
    return f"{label['label']}/{words}" if words else str(label["label"])


def _coverage_words(report: Mapping[str, Any]) -> tuple[str, ...]:
    coverage, steps = report["coverage"], report["window_steps"]
    matched = "no collective was matched" if coverage is None else f"{coverage:.0%} of the collective time is matched"
    counted = f"steps: {steps['healthy']} healthy, {steps['regressed']} regressed ({report['source']})"
    if has_accounts(report):
        counted += f"; {matched}"
    return counted, *(f"lost while reading: {loss}" for loss in report["losses"])


def next_words(report: Mapping[str, Any]) -> tuple[str, ...]:
    """The next experiment, what it shows if the reading is right, and what rejects the reading."""
    one = report["next"]
    if one["scope"] is None:
        return (f"{one['experiment']}: {one['evidence']}",)
    scope = "full scale" if one["scope"] == "full" else one["scope"].replace("_", " ")
    return (
        f"because {one['evidence']}: {one['experiment']} ({scope})",
        f"expected: {one['prediction']}",
        f"rejected if {one['rejection']}",
    )


def title(report: Mapping[str, Any]) -> str:
    """``HEALTHY against REGRESSED: slower by 10.2 %``."""
    step = report["step_ms"]
    percent = 100 * step["delta"] / step["healthy"]
    words = {"slower": f"slower by {percent:.1f} %", "faster": f"faster by {-percent:.1f} %", "same": "the same",
             "unclear": "not settled"}[report["status"]]  # fmt: skip
    first, second = _short_names(report["arms"]["healthy"], report["arms"]["regressed"])
    return f"{first} against {second}: {words}"


def _short_names(first: str, second: str) -> tuple[str, str]:
    """Both names without the folders that they share."""
    parts = first.split("/"), second.split("/")
    shared = 0
    while shared < min(map(len, parts)) - 1 and parts[0][shared] == parts[1][shared]:
        shared += 1
    shared = shared if shared > 1 or not first.startswith("/") else 0  # the root alone is no folder worth leaving out
    return "/".join(parts[0][shared:]), "/".join(parts[1][shared:])


def render_text(report: Mapping[str, Any]) -> str:
    """For a terminal: the table, then a line a finding."""
    lines = table(report)
    heads = [f"{head} [90 %]" if head == "delta" and report["step_ms"]["interval"] else head for head in HEADS]
    widths = [max(len(head), *(len(line.cells[at]) for line in lines)) for at, head in enumerate(heads)]
    rows = [_aligned(heads, widths), *(_aligned(line.cells, widths) for line in lines)]
    caption = f"ms a step, {report['statistic']} of each run's steps"
    if has_accounts(report):
        caption += f", accounts {VIEW_WORDS[report['view']]}"
    slow = comparison_opinions.slow_steps_of(report)
    parts = [*findings(report), Finding(head="next", texts=next_words(report))]
    told = [f"{part.head + ':' if not at else '':11}{text}" for part in parts for at, text in enumerate(part.texts)]
    return "\n".join([title(report), "", *rows, caption, "", *(_slow_lines(slow) if slow else ()), *told]) + "\n"


def _slow_lines(slow: WindowTable) -> list[str]:
    """The slow steps beside the typical one, healthy to regressed, and an empty line."""
    lines = [("ms", *slow.heads), *comparison_opinions.slow_rows(slow)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return [*(_aligned(line, widths) for line in lines), *slow.missing, ""]


def _aligned(cells: Sequence[str], widths: list[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in rest)]).rstrip()


def render_markdown(report: Mapping[str, Any]) -> str:
    """The table and the findings in markdown, ending in one newline."""
    return _environment().get_template("comparison.md.j2").render(**_context(report)).strip() + "\n"


def render_html(report: Mapping[str, Any]) -> str:
    """One page that needs nothing else: the table, the findings, and the pictures of ``report["pictures"]``."""
    shown: tuple[Drawing, ...] = drawings(report)
    return _environment().get_template("comparison.html.j2").render(**_context(report), drawings=shown)


def _context(report: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "report": report,
        "title": title(report),
        "lines": table(report),
        "findings": findings(report),
        "next": next_words(report),
        "view": VIEW_WORDS[report["view"]] if has_accounts(report) else None,
        "brackets": report["step_ms"]["interval"] is not None,
        "opinions": comparison_opinions.opinions_of(report),
        "expected": table_of(report.get("expected"), None),
        "slow": comparison_opinions.slow_steps_of(report),
    }


@cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("narrows.templates", "."),
        undefined=jinja2.StrictUndefined,
        autoescape=jinja2.select_autoescape(enabled_extensions=("html.j2",), default=False),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["cell"] = _cell
    found.globals["parts"] = comparison_opinions
    return found


def _cell(text: object) -> str:
    """Safe in a table's cell, and read by no renderer as a tag."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("&", "&amp;").replace("<", "&lt;")
