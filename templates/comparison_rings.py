"""Two steps as rings: the inner by kind (compute, communication, other, idle), the outer by what is in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from narrows.templates.figures import BLUE, GREEN, VERMILION, WIDTH_IN

KINDS = ("compute", "communication", "other", "idle")
COLOURS = {"compute": BLUE, "communication": VERMILION, "other": GREEN, "idle": "#BDBDBD"}
KIND_OF = {"compute": "compute", "transfer": "communication", "skew": "communication", "pipeline": "communication",
           "host": "idle", "residual": "idle"}  # fmt: skip
WORDS = {"skew": "waiting", "host": "late launches", "residual": "unmeasured"}
LABELLED = 0.04
"""A part below this share of its step gets no label; its slice stays."""


def parts_of(step: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """(kind, part, ms) in the order of the kinds; compute by the spans' names where these are known."""
    found: list[tuple[str, str, float]] = []
    for account, length in step["accounts_ms"].items():
        kind = KIND_OF.get(account, "other")
        if kind == "compute" and step["parts_ms"]:
            found += [(kind, name, ms) for name, ms in step["parts_ms"].items()]
        elif length > 0:
            found.append((kind, WORDS.get(account, account), length))
    return sorted(found, key=lambda one: (KINDS.index(one[0]), -one[2]))


def paint_rings(figure: Figure, shown: Mapping[str, Any]) -> None:
    """One pair of rings an arm, each normalised to its own step."""
    figure.set_size_inches(WIDTH_IN, 4.3)
    for axes, arm in zip(figure.subplots(1, 2), ("healthy", "regressed"), strict=True):
        _paint_pair(axes, arm, shown[arm]["typical"])
    handles = [Patch(color=COLOURS[kind], label=kind) for kind in KINDS]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(KINDS), fontsize=10)


def _paint_pair(axes: Axes, arm: str, step: Mapping[str, Any]) -> None:
    parts = parts_of(step)
    whole = sum(length for _, _, length in parts) or 1.0
    inner = [(kind, sum(length for own, _, length in parts if own == kind)) for kind in KINDS]
    inner = [(kind, length) for kind, length in inner if length > 0]
    common: Any = {"startangle": 90, "counterclock": False}
    axes.pie(
        [length for _, length in inner],
        radius=0.72,
        colors=[COLOURS[kind] for kind, _ in inner],
        labels=[f"{100 * length / whole:.0f} %" if length / whole >= LABELLED else "" for _, length in inner],
        labeldistance=0.78,
        textprops={"color": "white", "fontsize": 9.5, "horizontalalignment": "center", "verticalalignment": "center",
                   "fontweight": "bold"},
        wedgeprops={"width": 0.32, "edgecolor": "white"},
        **common,
    )  # fmt: skip
    axes.pie(
        [length for _, _, length in parts],
        radius=1.0,
        colors=_shades(parts),
        labels=[name if length / whole >= LABELLED else "" for _, name, length in parts],
        labeldistance=1.06,
        textprops={"fontsize": 9},
        wedgeprops={"width": 0.26, "edgecolor": "white"},
        **common,
    )
    axes.text(0, 0, f"{arm}\n{step['step_ms']:.1f} ms", ha="center", va="center", fontsize=10)


def _shades(parts: list[tuple[str, str, float]]) -> list[tuple[float, float, float]]:
    """The kind's colour, lighter for each further part of it."""
    found, seen = [], dict.fromkeys(KINDS, 0)
    for kind, _, _ in parts:
        lightness = min(0.6, 0.22 + 0.16 * seen[kind])
        seen[kind] += 1
        red, green, blue = (one + (1 - one) * lightness for one in to_rgb(COLOURS[kind]))
        found.append((red, green, blue))
    return found
