"""Evidence files as the view reads them: every field may be absent, and then it is None or empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from narrows.inquiry.design import CONTROL, HEALTHY, PERTURBED, REGRESSED
from narrows.inquiry.docket import Docket, Kind
from narrows.templates.numbers import Number, bounds, number, real, reals

GIVEN = "given"
GIVEN_SOURCE = "evidence/given.json"
# The first of each pair is what the second is compared with.
_ORDER = (HEALTHY, "own", REGRESSED, CONTROL, "exchanged", PERTURBED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One evidence file. ``source`` is its path, relative to the case's directory."""

    name: str
    source: str
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in the order of comparison: the one that is compared with comes first."""
        names = list(_mapping(self.raw.get("arms")))
        return tuple(sorted(names, key=lambda one: _ORDER.index(one) if one in _ORDER else len(_ORDER)))

    @property
    def two_arms(self) -> tuple[str, str] | None:
        return (self.arms[0], self.arms[1]) if len(self.arms) >= 2 else None

    def arm(self, name: str) -> Mapping[str, Any]:
        return _mapping(_mapping(self.raw.get("arms")).get(name))

    def step_ms(self, arm: str) -> float | None:
        return real(self.arm(arm).get("step_ms"))

    def steps_ms(self, arm: str) -> tuple[float, ...]:
        return reals(self.arm(arm).get("steps_ms"))

    def accounts(self, arm: str, view: str) -> dict[str, float]:
        """ms per step by account, in this view; empty where the arm has no such ledger."""
        found = _mapping(_mapping(self.arm(arm).get("accounts")).get(view))
        return {str(key): value for key, raw in found.items() if (value := real(raw)) is not None}

    @property
    def views(self) -> tuple[str, ...]:
        """The views in which both arms have a ledger."""
        both = self.two_arms
        if both is None:
            return ()
        listed = self.raw.get("views") or list(_mapping(self.arm(both[0]).get("accounts")))
        return tuple(str(one) for one in listed if all(self.accounts(arm, str(one)) for arm in both))

    def pair_differences(self) -> tuple[float, ...]:
        """The step's differences, ms, one a pair, second arm minus first."""
        values = reals(_mapping(self.raw.get("difference")).get("step_ms"))
        return tuple(self._sign() * value for value in values)

    def difference(self, account: str | None = None, view: str = "") -> Number | None:
        """The mean change from the first arm to the second with its interval; of the step when no account is named."""
        both = self.two_arms
        if both is None:
            return None
        before, after = (self._level(one, account, view) for one in both)
        if before is None and after is None:
            return None
        pairs = _mapping(self.raw.get("difference"))
        intervals = _mapping(self.raw.get("intervals"))
        if account is None:
            samples, between = reals(pairs.get("step_ms")), bounds(intervals.get("step_ms"))
        else:
            samples = reals(_mapping(_mapping(pairs.get("accounts")).get(view)).get(account))
            between = bounds(_mapping(intervals.get(view)).get(account))
        sign = self._sign()
        mean = sign * sum(samples) / len(samples) if samples else (after or 0.0) - (before or 0.0)
        oriented = None if between is None else [sign * one for one in between]
        return number(mean, self.source, interval=oriented, signed=True)

    def _level(self, arm: str, account: str | None, view: str) -> float | None:
        return self.step_ms(arm) if account is None else self.accounts(arm, view).get(account)

    def _sign(self) -> float:
        """-1 where the file's differences are first minus second, so that every reader here sees second minus first."""
        samples = reals(_mapping(self.raw.get("difference")).get("step_ms"))
        both = self.two_arms
        before, after = (self.step_ms(both[0]), self.step_ms(both[1])) if both else (None, None)
        if not samples or before is None or after is None:
            return 1.0
        mean, expected = sum(samples) / len(samples), after - before
        return -1.0 if abs(mean + expected) < abs(mean - expected) else 1.0

    def quantile(self, arm: str, name: str) -> Number | None:
        return number(_mapping(self.arm(arm).get("quantiles_ms")).get(name), self.source)

    def last_arrivals(self, arm: str) -> dict[str, float]:
        """Each rank's share of the collectives at which it arrived last, 0 to 1, in rank order."""
        found = _mapping(self.arm(arm).get("last_arrivals"))
        known = {str(rank): value for rank, raw in found.items() if (value := real(raw)) is not None}
        total = sum(known.values())
        ordered = sorted(known, key=lambda rank: (not rank.isdigit(), int(rank) if rank.isdigit() else 0, rank))
        return {rank: known[rank] / total for rank in ordered} if total > 0 else {}

    def runs(self) -> tuple[tuple[str, str, str], ...]:
        """(arm, path, digest) of every run directory behind this file."""
        return tuple(
            (arm, str(run["path"]), str(run.get("digest") or ""))
            for arm in self.arms
            for run in self.arm(arm).get("runs") or ()
            if isinstance(run, Mapping) and run.get("path")
        )


def records(docket: Docket, evidence: Mapping[str, Any]) -> dict[str, Record]:
    """The evidence by experiment name, each under its own path; what was not read, under the path in the docket.

    The given runs come first, then the experiments in the order in which they were run.
    """
    paths = {
        str(entry.body["experiment"]): str(entry.body["file"])
        for entry in docket.of(Kind.EVIDENCE)
        if entry.body.get("experiment") and entry.body.get("file")
    }
    found = {}
    for key, value in evidence.items():
        raw = _mapping(value)
        name = str(raw.get("experiment") or PurePosixPath(key).stem)
        own = key if key.endswith(".json") else f"evidence/{name}.json"
        found[name] = Record(name=name, source=_relative(own), raw=raw)
    for name, path in paths.items():
        found.setdefault(name, Record(name=name, source=_relative(path)))
    order = [GIVEN, *paths]
    names = sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    return {name: found[name] for name in names}


def _relative(path: str) -> str:
    """A path that names no machine: an absolute one is cut to where the evidence folder begins."""
    pure = PurePosixPath(path)
    if not pure.is_absolute():
        return path
    parts = pure.parts
    start = len(parts) - 1 - parts[::-1].index("evidence") if "evidence" in parts else len(parts) - 1
    return "/".join(parts[start:])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
