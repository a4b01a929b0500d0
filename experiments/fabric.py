"""The emulated fabric: ranks exchange when they arrived at each collective, and computed times say when it ends.

On a shared machine a small gloo all-reduce takes milliseconds that depend on who else runs. So the payload of an
emulated collective is not moved: one real all-gather for all that is outstanding carries the arrival times, and its own
time shows only where it is longer than the modelled collectives and what a host queues ahead.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from narrows.experiments.places import Team, link_time_ns
from narrows.experiments.workload import CollectiveConfig, SlowLink, StepConfig
from narrows.instruments import Recorder, Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A collective under way: when this rank arrived, what it costs after the last arrival, its record."""

    arrival_ns: int
    cost_ns: int
    token: Token


@dataclass(slots=True, kw_only=True)
class Fabric:
    """The collectives of one team on the emulated fabric, one after another as on one stream.

    A collective ends its own cost after its last member arrived and the one before it ended: the same instant on all
    members. `epoch_ns` is this rank's reading of a moment common to the team (0 where they share one clock).
    """

    team: Team
    config: StepConfig | CollectiveConfig
    recorder: Recorder
    seed: int
    epoch_ns: int = 0
    end_ns: int = 0
    flights: list[Flight] = field(default_factory=list)

    def issue(self, op: str, payload_bytes: int, arrival_ns: int) -> None:
        """This member arrives at the team's next collective. Members issue the same collectives in the same order."""
        token = self.recorder.enter(op, group=self.team.name, payload_bytes=payload_bytes, enter_ns=arrival_ns)
        cost_ns = round(self.cost_ns(op, payload_bytes) * self._noise(token.record.seq))
        self.flights.append(Flight(arrival_ns=arrival_ns, cost_ns=cost_ns, token=token))

    def finish(self) -> int:
        """When the last of the issued collectives ends, in ns; returns once every member has issued them."""
        for flight, arrived_ns in zip(self.flights, self._last_arrivals(), strict=True):
            self.end_ns = max(self.end_ns, arrived_ns) + flight.cost_ns
            flight.token.end(self.end_ns)
        self.flights.clear()
        return self.end_ns

    def cost_ns(self, op: str, payload_bytes: int) -> int:
        """Time of one collective after its last arrival: the fabric's, and the slow link's where it is crossed."""
        config = self.config
        fabric = SlowLink(mbit=config.fabric_mbit, delay_us=config.fabric_delay_us, host="")
        added = self.team.link_ns(config.slow_link, op, payload_bytes)
        return link_time_ns(fabric, op, payload_bytes, len(self.team)) + added

    def _noise(self, seq: int) -> float:
        """The same for all members, who count alike."""
        draw = random.Random(f"{self.seed}:{self.team.name}:{seq}")  # noqa: S311  # timing noise, not secrets
        return 1 + self.config.fabric_jitter * draw.expovariate(1)

    def _last_arrivals(self) -> list[int]:
        # float64 holds whole nanoseconds exactly for 104 days of uptime (2^53).
        mine = torch.tensor([flight.arrival_ns - self.epoch_ns for flight in self.flights], dtype=torch.float64)
        theirs = [torch.empty_like(mine) for _ in self.team.ranks]
        self.team.process_group.allgather([theirs], [mine]).wait()
        return [int(arrived) + self.epoch_ns for arrived in torch.stack(theirs).amax(dim=0).tolist()]
