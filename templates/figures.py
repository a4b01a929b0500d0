"""The pictures of a postmortem: PNG files that say their finding in the title.

Drawn on matplotlib's Agg canvas without pyplot, so nothing is registered, shown or left behind. White background,
the Okabe-Ito colours (told apart by readers with any colour vision), and line styles or hatches beside the colours.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from narrows.inquiry.accounts import ACCOUNTS
from narrows.templates.numbers import fixed, significant
from narrows.templates.parts import Arrivals, Bars, Distribution, Picture, PostmortemView, ScopePoint, arm_words

FOLDER = "figures"
DPI = 110
WIDTH_IN = 8.0
TITLE_CHARACTERS = 72
LABEL_CHARACTERS = 84
SMALLEST_SHARE = 0.004
"""An account below this share of the longest step is left out of the picture; the table has it."""

SHOWN = 0.97
"""The share of the steps, fastest first, that the picture of their times has to hold."""

BLUE, VERMILION, GREEN, GREY, PURPLE = "#0072B2", "#D55E00", "#009E73", "#5A5A5A", "#CC79A7"
BAND = "#E4E4E4"
ARM_COLOURS = {
    "healthy": BLUE,
    "regressed": VERMILION,
    "perturbed": GREEN,
    "control": PURPLE,
    "own": BLUE,
    "exchanged": VERMILION,
}
Dash = Literal["-", "--", "-.", ":"]
ARM_DASHES: dict[str, Dash] = {
    "healthy": "-",
    "own": "-",
    "regressed": "--",
    "exchanged": "--",
    "perturbed": "-.",
    "control": ":",
}
ARM_HATCHES = {"regressed": "//", "perturbed": "..", "exchanged": "//"}
VERDICT_COLOURS = {"supported": VERMILION, "rejected": BLUE, "inconclusive": GREY}

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "text.usetex": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The bytes of a PNG file, and all that it shows: the same ``picture`` and ``part`` give the same bytes."""

    picture: Picture
    part: Any
    png: bytes


def draw_figures(view: PostmortemView, ahead: Mapping[str, Drawn] | None = None) -> dict[str, Drawn]:
    """Every picture of ``view`` by its name; what was drawn ``ahead`` and would look the same is not drawn again."""
    found = {}
    for picture in view.pictures:
        part_of, paint = _PAINTERS[picture.name]
        part, known = part_of(view), (ahead or {}).get(picture.name)
        if known is None or (known.picture, known.part) != (picture, part):
            known = Drawn(picture=picture, part=part, png=_png(picture.alt, paint, part))
        found[picture.name] = known
    return found


def write_figures(view: PostmortemView, directory: Path, ahead: Mapping[str, Drawn] | None = None) -> list[Path]:
    """Puts every picture of ``view`` into ``directory/figures`` and returns their paths, in the view's order."""
    paths = figure_paths(view, directory)
    for drawn, path in zip(draw_figures(view, ahead).values(), paths, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn.png)
    return paths


def figure_paths(view: PostmortemView, directory: Path) -> list[Path]:
    """Where ``write_figures`` puts the pictures of ``view``, in its order."""
    return [directory / FOLDER / f"{picture.name}.png" for picture in view.pictures]


def data_uri(path: Path) -> str:
    """The PNG at ``path`` as a data URI, for pages that cannot load files. Raises ``ValueError`` for another format."""
    data = path.read_bytes()
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError(f"{path.name} is not a PNG file; give one that write_figures wrote")
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")


def _png(title: str, paint: Callable[[Figure, Any], None], part: Any) -> bytes:
    # A reader's own matplotlibrc must not change the pictures; the context puts it back.
    with rc_context(rc=_defaults()):
        figure = Figure(figsize=(WIDTH_IN, 4.0), dpi=DPI, facecolor="white", layout="constrained")
        canvas = FigureCanvasAgg(figure)
        paint(figure, part)
        lines = textwrap.fill(title, TITLE_CHARACTERS)
        figure.suptitle(lines, x=0.012, ha="left", fontsize=12.5, fontweight="bold")
        data = BytesIO()
        # savefig would lay out and draw all of it twice
        canvas.print_png(data, metadata={"Software": None})  # type: ignore[no-untyped-call]
        return data.getvalue()


def _defaults() -> Any:
    """Matplotlib's own defaults under our style; typed loosely, for its stubs list every key of every version."""
    known: dict[str, Any] = {str(key): rcParamsDefault[key] for key in rcParamsDefault}
    return {key: value for key, value in known.items() if not key.startswith(("backend", "toolbar"))} | _STYLE


def _size(figure: Figure, height_in: float) -> None:
    figure.set_size_inches(WIDTH_IN, height_in)


def _dash(arm: str) -> Dash:
    return ARM_DASHES.get(arm, "-")


def _colour(arm: str) -> str:
    return ARM_COLOURS.get(arm, GREY)


def _paint_bars(figure: Figure, bars: Bars) -> None:
    """One group of bars an account, one bar an arm, the change of the last arm beside its group."""
    accounts = _shown_accounts(bars)
    count = len(bars.arms)
    height = 0.8 / count
    _size(figure, 1.4 + 0.24 * count * len(accounts))
    axes = figure.subplots()
    longest = max(values.get(one, 0.0) for _, values in bars.arms for one in accounts)
    for place, (arm, values) in enumerate(bars.arms):
        positions = [index + (place - (count - 1) / 2) * height for index in range(len(accounts))]
        widths = [values.get(one, 0.0) for one in accounts]
        axes.barh(
            positions,
            widths,
            height=height * 0.92,
            color=_colour(arm),
            hatch=ARM_HATCHES.get(arm),
            edgecolor="white",
            label=arm_words(arm),
        )
    for index, account in enumerate(accounts):
        _label_changes(axes, bars, account, index, longest)
    axes.set_yticks(range(len(accounts)), accounts)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * longest)
    axes.set_xlabel("time per step (ms)")
    axes.legend(loc="lower right", fontsize=10)


def _label_changes(axes: Axes, bars: Bars, account: str, index: int, longest: float) -> None:
    """Each later arm's change from the arm before it, at the end of its bar; nothing where it rounds to none."""
    count = len(bars.arms)
    height = 0.8 / count
    for place in range(1, count):
        before, after = bars.arms[place - 1][1].get(account, 0.0), bars.arms[place][1].get(account, 0.0)
        change = after - before
        if abs(change) < 0.004 * longest:
            continue
        text = f"{fixed(change, min(2, significant(change)), signed=True)} ms"
        spot = index + (place - (count - 1) / 2) * height
        axes.text(after + 0.008 * longest, spot, text, va="center", fontsize=9.5, color="#222222")


def _shown_accounts(bars: Bars) -> list[str]:
    """Accounts that are wide enough to see in any arm, in order of precedence."""
    longest = max(sum(values.values()) for _, values in bars.arms)
    names = [one.value for one in ACCOUNTS]
    names += sorted({name for _, values in bars.arms for name in values} - set(names))
    wide = [name for name in names if any(v.get(name, 0.0) >= SMALLEST_SHARE * longest for _, v in bars.arms)]
    return wide or names[:1]


def _paint_ecdf(figure: Figure, shown: tuple[Distribution, ...]) -> None:
    """The share of steps that took no longer than a time, for each arm; one panel a comparison."""
    _size(figure, 3.9)
    panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    for axes, one in zip(panels, shown, strict=True):
        _paint_steps(axes, one, LABEL_CHARACTERS // len(shown))
    panels[0].set_ylabel("share of steps (%)")
    arms = dict.fromkeys(arm.arm for one in shown for arm in one.arms)
    handles = [
        Line2D([], [], color=_colour(arm), linestyle=_dash(arm), linewidth=2, label=arm_words(arm)) for arm in arms
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=10)


def _line(arm: str) -> Line2D:
    return Line2D([], [], color=_colour(arm), linestyle=_dash(arm), linewidth=2, label=arm_words(arm))


def _paint_steps(axes: Axes, one: Distribution, label_characters: int) -> None:
    for arm in one.arms:
        ordered = sorted(arm.values_ms)
        shares = [100 * (index + 1) / len(ordered) for index in range(len(ordered))]
        axes.step(ordered, shares, where="post", color=_colour(arm.arm), linestyle=_dash(arm.arm), linewidth=2)
    low, high = _central(one)
    axes.set_xlim(low, high)
    axes.axhline(50, color="#BBBBBB", linewidth=0.8, zorder=0)
    axes.set_ylim(0, 103)
    label = textwrap.fill(f"{one.label}: {_counts(one, high)}", label_characters)
    axes.set_xlabel(f"step time (ms)\n{label}", fontsize=10)


def _counts(one: Distribution, high: float) -> str:
    """How many steps there are, and how many lie beyond the right edge."""
    counts = " and ".join(str(len(arm.values_ms)) for arm in one.arms)
    beyond = sum(value > high for arm in one.arms for value in arm.values_ms)
    return f"{counts} steps" + (f", {beyond} slower than shown" if beyond else "")


def _central(one: Distribution) -> tuple[float, float]:
    """The range that holds all but the slowest few percent of each arm, so that one stall does not squeeze the rest."""
    ordered = [sorted(arm.values_ms) for arm in one.arms]
    low, last = min(values[0] for values in ordered), max(values[int(SHOWN * (len(values) - 1))] for values in ordered)
    margin = 0.08 * (last - low) or 1.0
    return low - margin, last + margin


def _paint_scopes(figure: Figure, points: tuple[ScopePoint, ...]) -> None:
    """Each scope's pairs, mean and interval over the predicted range, with the bound that would have rejected it."""
    _size(figure, 2.1 + 0.62 * len(points))
    axes = figure.subplots()
    for index, point in enumerate(points):
        _paint_scope(axes, point, index)
    axes.axvline(0, color="#BBBBBB", linewidth=0.8, zorder=0)
    labels = [f"{one.label}\n{one.verdict}" for one in points]
    axes.set_yticks(range(len(points)), labels)
    axes.set_ylim(len(points) - 0.4, -0.6)
    axes.set_xlabel("step time lost (ms): regressed minus healthy")
    _scope_legend(figure)


def _paint_scope(axes: Axes, point: ScopePoint, index: int) -> None:
    colour = VERDICT_COLOURS.get(point.verdict, GREY)
    if point.predicted is not None:
        low, high = point.predicted
        axes.barh(index, high - low, left=low, height=0.62, color=BAND, zorder=1)
    if point.boundary is not None:
        axes.plot(
            [point.boundary] * 2, [index - 0.36, index + 0.36], color="black", linewidth=1.6, linestyle=":", zorder=3
        )
    axes.plot(
        point.pairs, [index + 0.18] * len(point.pairs), "o", color=colour, markersize=4, alpha=0.55, zorder=4, mew=0
    )
    if point.effect.interval is not None:
        axes.plot(point.effect.interval, [index - 0.08] * 2, color=colour, linewidth=3, zorder=5, solid_capstyle="butt")
    axes.plot([point.effect.value], [index - 0.08], "D", color=colour, markersize=7, mec="white", zorder=6)


def _scope_legend(figure: Figure) -> None:
    handles = [
        Patch(color=BAND, label="predicted"),
        Line2D([], [], color="black", linewidth=1.6, linestyle=":", label="rejected if the interval lies left of it"),
        Line2D([], [], color=GREY, linewidth=3, marker="D", mec="white", label="mean, 90 % interval"),
        Line2D([], [], color=GREY, linestyle="", marker="o", markersize=4, alpha=0.55, mew=0, label="single pairs"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, columnspacing=1.2)


def _paint_arrivals(figure: Figure, arrivals: Arrivals) -> None:
    """Each rank's share of last arrivals, both arms side by side, with the share that chance would give."""
    _size(figure, 3.6)
    axes = figure.subplots()
    _paint_shares(axes, arrivals)


def _paint_shares(axes: Axes, arrivals: Arrivals) -> None:
    ranks = list(dict.fromkeys(rank for _, shares in arrivals.arms for rank in shares))
    width = 0.8 / len(arrivals.arms)
    for place, (arm, shares) in enumerate(arrivals.arms):
        spots = [index + (place - (len(arrivals.arms) - 1) / 2) * width for index in range(len(ranks))]
        heights = [100 * shares.get(rank, 0.0) for rank in ranks]
        axes.bar(
            spots,
            heights,
            width=0.92 * width,
            color=_colour(arm),
            hatch=ARM_HATCHES.get(arm),
            edgecolor="white",
            label=arm_words(arm),
        )
    axes.axhline(100 / len(ranks), color="black", linewidth=1.2, linestyle=":", label="equal shares")
    # Hundreds of ranks do not each get a label.
    every = max(1, len(ranks) // 16)
    axes.set_xticks(range(0, len(ranks), every), ranks[::every])
    axes.set_xlabel("rank")
    axes.set_ylabel("arrives last (% of collectives)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=10)


_PAINTERS: dict[str, tuple[Callable[[PostmortemView], Any], Callable[[Figure, Any], None]]] = {
    "accounts": (lambda view: view.bars[0], _paint_bars),
    "proof": (lambda view: view.bars[1], _paint_bars),
    "ecdf": (lambda view: view.distributions, _paint_ecdf),
    "scopes": (lambda view: view.scopes, _paint_scopes),
    "arrivals": (lambda view: view.arrivals, _paint_arrivals),
}
"""By the picture's name, the part of the view that it shows, and how that is drawn."""
