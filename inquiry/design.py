"""What is launched: arms that differ in exactly what they declare, in which order, on which ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from narrows.inquiry.codec import digest, plain
from narrows.inquiry.scopes import Placement, Rung, Scope

HEALTHY, REGRESSED, PERTURBED, CONTROL, DELAYED = "healthy", "regressed", "perturbed", "control", "delayed"

DELAY_KNOB = "injected_delay_ms"
DELAY_VARIABLE = "NARROWS_INJECTED_DELAY_MS"
"""What makes every rank wait at the end of each step: a setting of the built-in step, or a variable of the recorder."""


class Mode(StrEnum):
    """How the arms take turns."""

    SWITCHBACK = "switchback"
    RESTART = "restart"
    NODE_SET = "node_set"


class ArmKind(StrEnum):
    """How the two arms of a case come about; it decides how strong the comparison is."""

    CONFIG = "config"
    PLACEMENT = "placement"
    HISTORICAL = "historical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One launched configuration.

    ``config`` overrides the common workload; ``ranks`` are the ranks of the launch that take part (empty: all);
    ``shards`` says which share of the full-scale batch each taking-part rank plays.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Two arms, interleaved in pairs, at one scope. ``pairs`` is what one launch (or one block) yields first.

    ``rotations`` are further arms, each of which plays once beside every pair: with the two they are the rows of a
    Latin square of places and shards, and every pair stands for one square.
    ``differs`` is the declaration: the manifest fields in which the arms may differ. Evidence whose manifests
    differ elsewhere is refused. ``run_s`` is how long one run of the user's own script takes, where that is known.
    """

    key: str
    rung: Rung
    scope: Scope
    program: str
    before: Arm
    after: Arm
    placement: Placement
    mode: Mode
    device: str
    base: dict[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    num_shards: int = 1
    pairs: int = 6
    max_pairs: int = 12
    steps: int = 16
    washout: int = 3
    seed: int = 0
    sizes_bytes: tuple[int, ...] = ()
    expected_step_s: float = 0.05
    run_s: float | None = None
    rotations: tuple[Arm, ...] = ()

    def __post_init__(self) -> None:
        first, second = plain(self.before), plain(self.after)
        del first["name"], second["name"]
        if first == second:
            raise ValueError(
                f"{self.key}: the arms {self.before.name} and {self.after.name} are the same; nothing can differ"
            )
        if self.before.name == self.after.name:
            raise ValueError(f"{self.key}: both arms are named {self.before.name}")
        if self.pairs < 1 or self.steps <= self.washout:
            raise ValueError(f"{self.key}: {self.pairs} pairs of {self.steps} steps with {self.washout} washed out")

    @property
    def arms(self) -> tuple[Arm, ...]:
        return (self.before, self.after, *self.rotations)

    @property
    def world_size(self) -> int:
        return self.placement.world_size

    def device_hours(self, pairs: int, start_s: float) -> float:
        """Device-hours that ``pairs`` pairs cost, start-up of each launch included."""
        units = len(self.arms) * pairs
        if self.run_s is not None:
            seconds = units * self.run_s
        else:
            launches = units if self.mode is Mode.RESTART else 1
            seconds = launches * start_s + units * self.steps * self.expected_step_s
        return seconds * self.world_size / 3600

    def spec_digest(self) -> str:
        """The digest of the whole plan; the launch record carries it."""
        return digest(self)
