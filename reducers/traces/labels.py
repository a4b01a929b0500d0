"""Bottleneck labels: what a rank's step time mostly goes to, with the measurements that decided it.

Source: the rules and their thresholds are this project's (version bt-1), in docs/traces.md; no standard exists.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from narrows.reducers.traces.reduced import Label
from narrows.reducers.traces.times import Floats
from narrows.reducers.traces.times import Nanoseconds as Ints

SHORT_KERNEL_NS = 10_000
_RESAMPLES = 200
_LEAST_STEPS = 3


class Thresholds(Struct, frozen=True, kw_only=True):
    """When a share is large. All are shares of 1."""

    version: str = "bt-1"
    idle_share: float = 0.15
    short_kernel_share: float = 0.5
    launch_share: float = 0.5
    input_share_excludes_launch: float = 0.5
    input_share: float = 0.3
    communication_busy_share: float = 0.30
    exposed_communication_share: float = 0.15
    exposed_copy_share: float = 0.10
    stability: float = 0.8

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "version":
                if not (isinstance(value, str) and value):
                    raise ValueError(f"version: {value!r}; expected a text, such as 'mine-1'")
            elif isinstance(value, bool) or not (isinstance(value, int | float) and 0 <= value <= 1):
                raise ValueError(f"threshold {name}: {value!r}; expected a share from 0 to 1")


BT_1 = Thresholds()


def thresholds_from(values: Mapping[str, object]) -> Thresholds:
    """Thresholds with some replaced by a user's.

    Raises ValueError for a name that is none, or a value that is no share.
    """
    known = asdict(BT_1)
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"no threshold is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    changed = dict(values)
    if "version" not in changed and any(known[name] != value for name, value in changed.items()):
        changed["version"] = f"{BT_1.version}+user"
    return Thresholds(**{**known, **changed})


class StepSums(Struct, frozen=True, kw_only=True):
    """What labels are decided on, one row a step (or one row in all): nanoseconds and counts, shape (steps,)."""

    step: Floats
    busy: Floats
    communication: Floats
    exposed_communication: Floats
    exposed_copy: Floats
    kernels: Floats
    short_kernels: Floats
    gaps: Floats
    launch_gaps: Floats
    input_gaps: Floats

    def mean(self) -> dict[str, float]:
        """Mean of each over the steps."""
        return {name: float(row.mean()) for name, row in asdict(self).items()}

    def resampled_means(self, chosen: Ints) -> list[dict[str, float]]:
        """Mean of each over the steps of each row of ``chosen``, shape (resamples, steps): indices of steps."""
        means = {name: row[chosen].mean(axis=1).tolist() for name, row in asdict(self).items()}
        return [dict(zip(means, values, strict=True)) for values in zip(*means.values(), strict=True)]


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def measure(mean: Mapping[str, float]) -> dict[str, float]:
    """The shares that the rules look at."""
    return {
        "idle_share": max(0.0, 1 - _share(mean["busy"], mean["step"])) if mean["step"] > 0 else 0.0,
        "short_kernel_share": _share(mean["short_kernels"], mean["kernels"]),
        "launch_share": _share(mean["launch_gaps"], mean["gaps"]),
        "input_share": _share(mean["input_gaps"], mean["gaps"]),
        "communication_busy_share": _share(mean["communication"], mean["busy"]),
        "exposed_communication_share": _share(mean["exposed_communication"], mean["step"]),
        "exposed_copy_share": _share(mean["exposed_copy"], mean["step"]),
    }


def choose(shares: Mapping[str, float], limits: Thresholds, *, has_input_spans: bool) -> tuple[str, bool]:
    """The label, by the first rule that holds, and whether it was inferred without host spans."""
    idle = shares["idle_share"] >= limits.idle_share
    launches = (
        shares["short_kernel_share"] >= limits.short_kernel_share or shares["launch_share"] >= limits.launch_share
    )
    if idle and launches and shares["input_share"] < limits.input_share_excludes_launch:
        return "launch", False
    if idle and has_input_spans and shares["input_share"] >= limits.input_share:
        return "input", False
    if idle and not has_input_spans and shares["short_kernel_share"] < limits.short_kernel_share:
        return "input", True
    exposed = shares["exposed_communication_share"] >= limits.exposed_communication_share
    if exposed and shares["communication_busy_share"] >= limits.communication_busy_share:
        return "communication", False
    if shares["exposed_copy_share"] >= limits.exposed_copy_share:
        return "transfer", False
    return "compute", False


def label_steps(
    sums: StepSums, *, has_input_spans: bool, limits: Thresholds = BT_1, split: Mapping[str, float] | None = None
) -> Label:
    """The label of a rank. ``split`` gives skew and transfer of its collectives where other ranks are known."""
    shares = measure(sums.mean())
    name, inferred = choose(shares, limits, has_input_spans=has_input_spans)
    stability = _stability(sums, name, limits, has_input_spans=has_input_spans)
    sublabel = None
    if name == "communication":
        sublabel = max(split, key=lambda part: split[part]) if split else "unsplit"
    return Label(
        version=limits.version,
        label=name,
        sublabel=sublabel,
        inferred=inferred,
        measurements=shares,
        margins=_margins(shares, limits),
        stability=stability,
        borderline=stability is not None and stability < limits.stability,
    )


def _margins(shares: Mapping[str, float], limits: Thresholds) -> dict[str, float]:
    values = asdict(limits)
    return {name: share - values[name] for name, share in shares.items()}


def _stability(sums: StepSums, name: str, limits: Thresholds, *, has_input_spans: bool) -> float | None:
    """Share of resamples in blocks of steps, about sqrt(n) long, that get the same label."""
    num = len(sums.step)
    if num < _LEAST_STEPS:
        return None
    draw = random.Random(1)  # noqa: S311  # a fixed seed: the same trace gets the same label
    length = max(1, round(num**0.5))
    blocks = -(-num // length)
    firsts = np.array([draw.randrange(num) for _ in range(_RESAMPLES * blocks)], np.int64).reshape(_RESAMPLES, blocks)
    chosen = ((firsts[:, :, None] + np.arange(length)) % num).reshape(_RESAMPLES, -1)[:, :num]
    means = sums.resampled_means(chosen)
    same = sum(choose(measure(mean), limits, has_input_spans=has_input_spans)[0] == name for mean in means)
    return same / _RESAMPLES


_LEAST_CHANGE = 0.01


def delta_label(healthy: StepSums, regressed: StepSums, *, has_input_spans: bool, limits: Thresholds = BT_1) -> Label:
    """The same rules on what changed, as shares of the change of the step; ``none`` below 1 % of the healthy step.

    Only growth counts: an account that shrank explains nothing of a longer step.
    """
    before, after = healthy.mean(), regressed.mean()
    change = {name: max(0.0, after[name] - before[name]) for name in before}
    # The number of kernels may stay while all of them shorten: their share is taken from the regressed run.
    change |= {"kernels": after["kernels"], "short_kernels": after["short_kernels"]}
    shares = measure(change)
    if after["step"] - before["step"] < _LEAST_CHANGE * before["step"]:
        name, inferred = "none", False
    else:
        name, inferred = choose(shares, limits, has_input_spans=has_input_spans)
    sublabel = "unsplit" if name == "communication" else None
    margins = _margins(shares, limits)
    return Label(
        version=limits.version, label=name, sublabel=sublabel, inferred=inferred, measurements=shares, margins=margins
    )
