"""The pictures of a comparison, as SVG in data URIs: accounts, step times, lanes, rings and arrivals of both arms."""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from narrows.inquiry.accounts import ACCOUNTS
from narrows.templates.comparison_rings import paint_rings
from narrows.templates.figures import (
    ARM_COLOURS,
    ARM_DASHES,
    ARM_HATCHES,
    BLUE,
    GREEN,
    PURPLE,
    SMALLEST_SHARE,
    TITLE_CHARACTERS,
    VERMILION,
    WIDTH_IN,
)
from narrows.templates.numbers import fixed, significant

ARMS = ("healthy", "regressed")
MUTED = "#8A8A8A"
SHOWN = 0.97
STANDS_OUT = 1.5
MOST_LABELLED = 16
"""More ranks or collectives than this are not labelled one by one."""
BLOCK_COLOURS = {
    "compute": BLUE,
    "transfer": VERMILION,
    "waiting": "#F0C8AE",
    "input": PURPLE,
    "copy": GREEN,
}
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "narrows",
    "svg.fonttype": "path",  # the page must not depend on the reader's fonts
    "text.usetex": False,
    "text.parse_math": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A picture by its data URI. ``title`` is the finding that it shows, ``caption`` how to read it."""

    name: str
    title: str
    caption: str
    uri: str


Paint = Callable[[Figure], None]


def drawings(report: Mapping[str, Any]) -> tuple[Drawing, ...]:
    """Every picture for which the report holds data, the account bars first."""
    return tuple(
        Drawing(name=name, title=title, caption=caption, uri=_uri(title, paint))
        for name, title, caption, paint in _planned(report)
    )


def _planned(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Paint]]:
    shown = report["pictures"]
    if any(max(abs(one[arm]) for arm in ARMS) > 0 for name, one in report["accounts_ms"].items() if name != "residual"):
        caption = "Accounts above 0.4 % of the step; the text at a bar is its change."
        yield "accounts", _accounts_title(report), caption, lambda figure: _paint_accounts(figure, report)
    if all(len(shown[arm]["steps_ms"]) > 1 for arm in ARMS):
        caption = "Share of the steady steps that took no longer than a time. The slowest 3 % may lie outside."
        yield "steps", _steps_title(shown), caption, lambda figure: _paint_steps(figure, shown)
    steps = [shown[arm]["typical"] for arm in ARMS]
    if all(step and step["own"] for step in steps):
        lanes = (
            f"A typical step of {_places(*steps)}: what the rank itself does, and its collectives, waiting for the "
            "last rank (light) and transferring (dark). Both steps have the same scale."
        )
        yield "lanes", _lanes_title(shown), lanes, lambda figure: _paint_lanes(figure, shown)
    if all(steps):
        rings = (
            f"A typical step of {_places(*steps)}, each as a whole: inner ring by kind, outer ring by what is in "
            "it. Idle is a device without work because launches came late, and time in no measured span."
        )
        yield "rings", _rings_title(shown), rings, lambda figure: paint_rings(figure, shown)
    if all(shown[arm]["arrivals"] for arm in ARMS):
        caption = "Median time of each rank after the first arrival at each collective of a step; dark is late."
        yield "arrivals", _arrivals_title(shown), caption, lambda figure: _paint_arrivals(figure, shown)


def _uri(title: str, paint: Paint) -> str:
    # A reader's own matplotlibrc must not change the pictures; the context puts it back.
    known: Any = {
        str(key): rcParamsDefault[key] for key in rcParamsDefault if not str(key).startswith(("backend", "toolbar"))
    }
    written = io.BytesIO()
    with rc_context(rc=known | _STYLE):
        figure = Figure(figsize=(WIDTH_IN, 4.0), facecolor="white", layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        figure.suptitle(textwrap.fill(title, TITLE_CHARACTERS), x=0.012, ha="left", fontsize=12.5, fontweight="bold")
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(written.getvalue()).decode("ascii")


def _ms(value: float, *, signed: bool = False) -> str:
    return f"{fixed(value, min(2, significant(value)), signed=signed)} ms"


def _accounts_title(report: Mapping[str, Any]) -> str:
    delta = report["step_ms"]["delta"]
    if report["status"] == "same":
        return "Both runs spend their steps alike"
    if report["account"] is None:
        return f"No account holds the difference of {_ms(delta, signed=True)}"
    change = report["accounts_ms"][report["account"]]["delta"]
    held = _ms(change, signed=True)
    if abs(change) > STANDS_OUT * abs(delta):
        return f"{report['account'].capitalize()} changed by {held}, the step by {_ms(delta, signed=True)}"
    return f"{report['account'].capitalize()} holds {held} of the step's {_ms(delta, signed=True)}"


def _paint_accounts(figure: Figure, report: Mapping[str, Any]) -> None:
    accounts = report["accounts_ms"]
    longest = max(report["step_ms"][arm] for arm in ARMS)
    names = [
        str(one) for one in ACCOUNTS if max(abs(accounts[str(one)][arm]) for arm in ARMS) >= SMALLEST_SHARE * longest
    ] or [str(ACCOUNTS[0])]
    figure.set_size_inches(WIDTH_IN, 1.7 + 0.5 * len(names))
    axes = figure.subplots()
    for place, arm in enumerate(ARMS):
        spots = [index + (place - 0.5) * 0.4 for index in range(len(names))]
        axes.barh(spots, [accounts[name][arm] for name in names], height=0.37, color=ARM_COLOURS[arm],
                  hatch=ARM_HATCHES.get(arm), edgecolor="white", label=arm)  # fmt: skip
    for index, name in enumerate(names):
        change = accounts[name]["delta"]
        if abs(change) >= SMALLEST_SHARE * longest:
            end = max(0.0, accounts[name]["regressed"]) + 0.008 * longest
            axes.text(end, index + 0.2, _ms(change, signed=True), va="center", fontsize=9.5, color="#222222")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(right=1.18 * max(accounts[name][arm] for name in names for arm in ARMS))
    axes.set_xlabel("time per step (ms)")
    figure.legend(loc="outside lower center", ncols=len(ARMS), fontsize=10)  # any bar may be the longest


def _steps_title(shown: Mapping[str, Any]) -> str:
    first, second = (median(shown[arm]["steps_ms"]) for arm in ARMS)
    if abs(second - first) < 0.01 * first:
        return f"Half of the steps take {_ms(first)} or less in both runs"
    verb = "longer" if second > first else "less"
    return f"The median regressed step takes {_ms(abs(second - first))} {verb} than the healthy one"


def _paint_steps(figure: Figure, shown: Mapping[str, Any]) -> None:
    figure.set_size_inches(WIDTH_IN, 3.4)
    axes = figure.subplots()
    ordered = {arm: sorted(shown[arm]["steps_ms"]) for arm in ARMS}
    for arm, values in ordered.items():
        shares = [100 * (index + 1) / len(values) for index in range(len(values))]
        axes.step(values, shares, where="post", color=ARM_COLOURS[arm], linestyle=ARM_DASHES[arm], linewidth=2,
                  label=f"{arm} ({len(values)} steps)")  # fmt: skip
    low = min(values[0] for values in ordered.values())
    high = max(values[math.ceil(SHOWN * (len(values) - 1))] for values in ordered.values())
    margin = 0.08 * (high - low) or 1.0
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(0, 103)
    axes.axhline(50, color="#BBBBBB", linewidth=0.8, zorder=0)
    axes.set_xlabel("step time (ms)")
    axes.set_ylabel("share of steps (%)")
    figure.legend(loc="outside lower center", ncols=2, fontsize=10)


def _lanes_title(shown: Mapping[str, Any]) -> str:
    before, after = (shown[arm]["typical"] for arm in ARMS)
    change = 100 * (after["step_ms"] - before["step_ms"]) / before["step_ms"]
    return f"One typical step of {_place(after)}: {change:+.0f} %"


def _place(step: Mapping[str, Any]) -> str:
    return f"rank {step['rank']} ({step['host']})" if step["host"] else f"rank {step['rank']}"


def _places(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Whose steps are shown: the rank, or both where the same place of the job was another rank in the healthy run."""
    if _place(before) == _place(after):
        return _place(after)
    return f"{_place(after)}, and of {_place(before)}, which had its place in the healthy run"


def _paint_lanes(figure: Figure, shown: Mapping[str, Any]) -> None:
    """Two lanes an arm on one scale of time; the length of the healthy step is carried through."""
    figure.set_size_inches(WIDTH_IN, 3.6)
    axes = figure.subplots()
    spots, labels, kinds = [], [], set()
    for place, arm in enumerate(ARMS):
        step = shown[arm]["typical"]
        for lane, (name, blocks) in enumerate((("itself", step["own"]), ("collectives", step["communication"]))):
            spot = place * 2.5 + lane
            spots.append(spot)
            labels.append(f"{arm}\n{name}" if not lane else name)
            axes.barh(spot, step["step_ms"], height=0.8, color="#F4F4F4", zorder=0)
            kinds |= {kind for kind, _, _ in blocks}
            _paint_blocks(axes, blocks, spot)
        axes.plot([step["step_ms"]] * 2, [place * 2.5 - 0.5, place * 2.5 + 1.5], color="black", linewidth=1.2)
    length = shown["healthy"]["typical"]["step_ms"]
    axes.axvline(length, color=BLUE, linewidth=1.0, linestyle=":")
    axes.set_yticks(spots, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.03 * max(shown[arm]["typical"]["step_ms"] for arm in ARMS))
    axes.set_xlabel("time in the step (ms); dotted: the end of the healthy step")
    order = [*BLOCK_COLOURS, *sorted(kinds - set(BLOCK_COLOURS))]
    handles = [Patch(color=BLOCK_COLOURS.get(kind, MUTED), label=_kind_words(kind)) for kind in order if kind in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=max(1, len(handles)), fontsize=9)


def _paint_blocks(axes: Axes, blocks: list[list[Any]], spot: float) -> None:
    for kind, since, until in blocks:
        colour = BLOCK_COLOURS.get(kind, MUTED)
        axes.barh(spot, until - since, left=since, height=0.8, color=colour, edgecolor="white", linewidth=0.5)


def _kind_words(kind: str) -> str:
    return "waiting for the last rank" if kind == "waiting" else kind


def _rings_title(shown: Mapping[str, Any]) -> str:
    shares = []
    for arm in ARMS:
        step = shown[arm]["typical"]
        shares.append(100 * step["accounts_ms"]["compute"] / step["step_ms"])
    return f"Compute is {shares[0]:.0f} % of the healthy step and {shares[1]:.0f} % of the regressed one"


def _arrivals_title(shown: Mapping[str, Any]) -> str:
    table = shown["regressed"]["arrivals"]
    means = [sum(row) / len(row) for row in table["lateness_ms"]]
    late = [at for at, mean in enumerate(means) if mean > max(means) / STANDS_OUT]
    if 2 * len(late) > len(means) or not max(means):
        return f"No rank of the regressed run comes late by itself: at most {_ms(max(means))} on average"
    names = ", ".join(str(table["ranks"][at]) for at in late[:MOST_LABELLED])
    ranks = f"Rank {names} of the regressed run comes" if len(late) == 1 else f"Ranks {names} of the regressed run come"
    return f"{ranks} latest, up to {_ms(max(means))} after the first on average"


def _paint_arrivals(figure: Figure, shown: Mapping[str, Any]) -> None:
    """Ranks by collectives, one panel an arm, one scale of colour for both."""
    tables = [shown[arm]["arrivals"] for arm in ARMS]
    height = 0.28 * max(len(one["ranks"]) for one in tables)
    figure.set_size_inches(WIDTH_IN, 1.9 + min(6.0, max(1.1, height)))
    panels = figure.subplots(1, 2)
    highest = max(value for one in tables for row in one["lateness_ms"] for value in row) or 1.0
    image = None
    for axes, arm, one in zip(panels, ARMS, tables, strict=True):
        image = axes.imshow(one["lateness_ms"], aspect="auto", cmap="Oranges", vmin=0, vmax=highest,
                            interpolation="nearest")  # fmt: skip
        axes.set_title(arm, fontsize=11)
        axes.set_xlabel("collective of the step" + (f" ({one['more']} more)" if one["more"] else ""))
        _mark(axes, one)
    panels[0].set_ylabel("rank")
    assert image is not None
    figure.colorbar(image, ax=list(panels), label="late (ms)", shrink=0.9)


def _mark(axes: Axes, table: Mapping[str, Any]) -> None:
    ranks, count = table["ranks"], len(table["lateness_ms"][0])
    every = max(1, len(ranks) // MOST_LABELLED)
    axes.set_yticks(range(0, len(ranks), every), ranks[::every])
    axes.set_xticks(range(0, count, max(1, count // MOST_LABELLED)))
    for side in axes.spines.values():
        side.set_visible(False)
