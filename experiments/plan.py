"""The segment plan: which arm runs when, on which ranks, over which batches. Read whole or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from narrows.inquiry.errors import NarrowsError

DEVICES = ("cuda", "cpu", "emulated")
Config = TypeVar("Config")
_SCHEMA = 1
_KEYS = {
    "schema", "kind", "experiment", "launch", "program", "out", "device", "seed", "base", "arms", "num_shards",
    "segments",
}  # fmt: skip
_SEGMENT_KEYS = {"segment", "pair", "arm", "steps", "washout", "first_batch", "active", "shards"}


class PlanError(NarrowsError):
    """A plan cannot be played. Names the file, the key, its value and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One unbroken stretch of one arm. `active` is None where every rank takes part."""

    segment: int
    pair: int
    arm: str
    steps: int
    washout: int
    first_batch: int
    active: tuple[int, ...] | None
    shards: Mapping[int, int] | None

    def ranks(self, world_size: int) -> tuple[int, ...]:
        """The global ranks that take part, ascending."""
        return tuple(range(world_size)) if self.active is None else self.active

    def shard(self, rank: int) -> int:
        """The shard of the full-scale batch that a rank plays: its own number unless the plan says otherwise."""
        return rank if self.shards is None else self.shards[rank]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One launch: its arms' whole configurations by name, and the segments in the order in which they run.

    `num_shards` is None where it is the number of ranks launched.
    """

    path: Path
    experiment: str
    launch: str
    program: str
    out: Path
    device: str | None
    seed: int
    arms: Mapping[str, Mapping[str, object]]
    num_shards: int | None
    segments: tuple[Segment, ...]

    def emulated(self, device_type: str) -> bool:
        """Whether the accelerator is emulated: where the plan says so, or says nothing and there is no GPU."""
        return self.device == "emulated" or (self.device is None and device_type != "cuda")

    def configs(self, make: Callable[[Mapping[str, object]], Config]) -> dict[str, Config]:
        """Every arm's configuration, as `make` checks it. Raises PlanError: `make` refused one."""
        configs = {}
        for arm, values in self.arms.items():
            try:
                configs[arm] = make(values)
            except ValueError as error:
                raise PlanError(f"{self.path}: arm {arm}: {error}") from None
        return configs

    def schedule(self) -> list[dict[str, object]]:
        """The order of the arms as it stands in every arm's manifest."""
        return [
            {"segment": s.segment, "pair": s.pair, "arm": s.arm, "steps": s.steps, "washout": s.washout}
            for s in self.segments
        ]

    def check_world(self, world_size: int) -> None:
        """Raises PlanError: a segment names ranks or shards that this launch does not have."""
        shards = self.num_shards or world_size
        for index, segment in enumerate(self.segments):
            ranks = segment.ranks(world_size)
            if max(ranks) >= world_size:
                raise PlanError(
                    f"{self.path}: segments[{index}].active = {list(ranks)} names a rank outside this launch: "
                    f"expected ranks from 0 to {world_size - 1}"
                )
            played = [segment.shard(rank) for rank in ranks]
            if max(played) >= shards or len(set(played)) < len(played):
                raise PlanError(
                    f"{self.path}: segments[{index}] plays shards {played}: "
                    f"expected different shards from 0 to {shards - 1}"
                )


def load_plan(path: str | Path, program: str) -> Plan:
    """The plan in a JSON file, for this program.

    Raises PlanError: it cannot be read, or is no plan for this program.
    """
    where = Path(path)
    try:
        return _plan(where, json.loads(where.read_text(encoding="utf-8")), program)
    except OSError as error:
        raise PlanError(f"{where}: cannot be read ({error.strerror}): expected a segment plan") from None
    except json.JSONDecodeError as error:
        raise PlanError(f"{where}: is not JSON ({error}): expected a segment plan") from None
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from None


def _plan(where: Path, raw: object, program: str) -> Plan:
    top = _mapping("the plan", raw)
    _only(top, _KEYS, "")
    if top.get("schema") != _SCHEMA or top.get("kind") != "plan":
        raise ValueError(
            f"schema = {top.get('schema')!r}, kind = {top.get('kind')!r}: expected schema {_SCHEMA} and kind 'plan'"
        )
    if top.get("program", program) != program:
        raise ValueError(f"program = {top['program']!r}: expected {program!r}, the program that was started")
    device = top.get("device")
    if device is not None and device not in DEVICES:
        raise ValueError(f"device = {device!r}: expected one of {', '.join(DEVICES)}")
    out = Path(_text(top, "out"))
    if not out.is_absolute():
        raise ValueError(f"out = {str(out)!r}: expected an absolute path")
    arms = _arms(top)
    segments = _segments(top, arms)
    return Plan(
        path=where,
        experiment=str(top.get("experiment", "")),
        launch=str(top.get("launch", 0)),
        program=program,
        out=out,
        device=device,
        seed=_whole("seed", top.get("seed", 0)),
        arms=arms,
        num_shards=_whole("num_shards", top["num_shards"], least=1) if "num_shards" in top else None,
        segments=segments,
    )


def _arms(top: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    base = _mapping("base", top.get("base", {}))
    arms = _mapping("arms", top.get("arms"))
    if not arms:
        raise ValueError("arms = {}: expected at least one arm")
    for name in arms:
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"arms: {name!r} is no name for a folder: expected letters, digits, '-' or '_'")
    return {name: {**base, **_mapping(f"arms.{name}", overrides)} for name, overrides in arms.items()}


def _segments(top: Mapping[str, Any], arms: Mapping[str, object]) -> tuple[Segment, ...]:
    raw = top.get("segments")
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"segments = {raw!r}: expected a non-empty list")
    segments = tuple(_segment(f"segments[{index}]", item, arms, index) for index, item in enumerate(raw))
    played: dict[int, Segment] = {}
    for index, segment in enumerate(segments):
        first = played.setdefault(segment.pair, segment)
        if (segment.first_batch, segment.steps) != (first.first_batch, first.steps):
            raise ValueError(
                f"segments[{index}] plays {segment.steps} batches from {segment.first_batch}: expected "
                f"{first.steps} from {first.first_batch}, as in the other segment of pair {segment.pair}"
            )
    if len({segment.segment for segment in segments}) < len(segments):
        raise ValueError("segments: two of them have the same number: expected a different 'segment' in each")
    return segments


def _segment(place: str, raw: object, arms: Mapping[str, object], index: int) -> Segment:
    item = _mapping(place, raw)
    _only(item, _SEGMENT_KEYS, f"{place}.")
    arm = item.get("arm")
    if arm not in arms:
        raise ValueError(f"{place}.arm = {arm!r}: expected one of {', '.join(arms)}")
    steps = _whole(f"{place}.steps", item.get("steps", 1), least=1)
    washout = _whole(f"{place}.washout", item.get("washout", 0))
    if washout >= steps:
        raise ValueError(f"{place}.washout = {washout}: expected less than steps = {steps}")
    active = _ranks(f"{place}.active", item["active"]) if item.get("active") is not None else None
    shards = _shards(f"{place}.shards", item["shards"]) if item.get("shards") is not None else None
    if shards is not None and active is not None and not set(active) <= set(shards):
        raise ValueError(f"{place}.shards = {item['shards']!r}: expected a shard for each of the ranks {list(active)}")
    return Segment(
        segment=_whole(f"{place}.segment", item.get("segment", index)),
        pair=_whole(f"{place}.pair", item.get("pair", 0)),
        arm=str(arm),
        steps=steps,
        washout=washout,
        first_batch=_whole(f"{place}.first_batch", item.get("first_batch", 0)),
        active=active,
        shards=shards,
    )


def _ranks(place: str, raw: object) -> tuple[int, ...]:
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"{place} = {raw!r}: expected a non-empty list of ranks")
    ranks = sorted({_whole(place, rank) for rank in raw})
    if len(ranks) < len(raw):
        raise ValueError(f"{place} = {raw!r}: expected each rank once")
    return tuple(ranks)


def _shards(place: str, raw: object) -> dict[int, int]:
    shards: dict[int, int] = {}
    for rank, shard in _mapping(place, raw).items():
        if not rank.isdigit():
            raise ValueError(f"{place}: {rank!r} is no rank: expected a whole number")
        shards[int(rank)] = _whole(f"{place}.{rank}", shard)
    return shards


def _mapping(place: str, raw: object) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"{place} = {raw!r}: expected a mapping")
    return raw


def _only(raw: Mapping[str, Any], known: set[str], prefix: str) -> None:
    for key in raw:
        if key not in known:
            raise ValueError(f"{prefix}{key} is an unknown key: expected one of {', '.join(sorted(known))}")


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} = {value!r}: expected a text")
    return value


def _whole(place: str, value: object, *, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{place} = {value!r}: expected a whole number from {least}")
    return value
