"""Where this process stands: rank, host and device, and the process group of each set of active ranks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from narrows.experiments.plan import PlanError
from narrows.experiments.workload import SlowLink
from narrows.instruments.collectives import DESTROY_S

GROUP = "dp"
_RENDEZVOUS = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process among all that were launched; `hosts` holds every rank's host.

    `shared_clock` is true where all ranks run under one kernel, whatever their hosts are called.
    """

    rank: int
    hosts: tuple[str, ...]
    device: torch.device
    shared_clock: bool

    @property
    def host(self) -> str:
        return self.hosts[self.rank]

    @property
    def local_rank(self) -> int:
        """This rank's place among the ranks of its host."""
        return self.hosts[: self.rank].count(self.host)

    @property
    def world_size(self) -> int:
        return len(self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """One set of active ranks. `process_group` is None on ranks outside it, and where it has a single member."""

    name: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    device: torch.device
    process_group: Any

    def __len__(self) -> int:
        return len(self.ranks)

    def barrier(self) -> None:
        """Returns when every member has come. It is no part of the workload and is not recorded."""
        if self.process_group is not None:
            self.process_group.barrier().wait()

    def link_ns(self, link: SlowLink | None, op: str, payload_bytes: int) -> int:
        """What the modelled link adds to a collective of this team, in ns: 0 for a team that does not cross it."""
        crossed = set(self.hosts)
        if link is None or len(crossed) < 2 or (link.host and link.host not in crossed):
            return 0
        return link_time_ns(link, op, payload_bytes, len(self))


def link_time_ns(link: SlowLink, op: str, payload_bytes: int, num_ranks: int) -> int:
    """Time of one ring collective of `payload_bytes` (the whole buffer) over the link, in ns.

    All-reduce passes the data twice (reduce-scatter, all-gather): two delays and 2 (n-1)/n of the bytes; the others
    once. Source: bus bandwidth factors of nccl-tests, doc/PERFORMANCE.md.
    """
    share = 1.0 if op == "broadcast" else (num_ranks - 1) / num_ranks
    passes = 2 if op == "all_reduce" else 1
    seconds_on_wire = share * payload_bytes * 8 / (link.mbit * 1e6)
    return round(passes * (link.delay_us * 1e3 + seconds_on_wire * 1e9))


@contextmanager
def joined(device: str | None) -> Iterator[Place]:
    """This process's place in the launch that torchrun described, or in a launch of one.

    The host is NARROWS_HOST or the machine's name. Process groups are given up at the end: their threads must not
    outlive the interpreter, which would abort the process. Raises PlanError: there is no such device here.
    """
    if "RANK" not in os.environ:
        os.environ.update({**_RENDEZVOUS, "MASTER_PORT": str(_free_port())})
    kind = device or ("cuda" if torch.cuda.is_available() else "emulated")
    if kind == "cuda" and not torch.cuda.is_available():
        raise PlanError("device = 'cuda': torch finds no CUDA device here: expected cpu or emulated")
    where = torch.device("cpu")
    if kind == "cuda":
        where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(where)
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    try:
        yield _survey(where)
    finally:
        time.sleep(DESTROY_S)  # gloo's threads let go of the last operation first; else the destructor can hang
        dist.destroy_process_group()


def _survey(where: torch.device) -> Place:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (os.environ.get("NARROWS_HOST") or socket.gethostname(), _boot_id()))
    return Place(
        rank=dist.get_rank(),
        hosts=tuple(host for host, _ in found),
        device=where,
        shared_clock=len({boot for _, boot in found}) == 1,
    )


def make_teams(place: Place, active_sets: Iterable[Sequence[int]]) -> dict[tuple[int, ...], Team]:
    """A team for each distinct set of active ranks, by its ranks. The first is named `dp`, others `dp-0-1`.

    Every process of the launch must call this with the same sets, and each group has been used once on return.
    """
    teams: dict[tuple[int, ...], Team] = {}
    for ranks in (tuple(active) for active in active_sets):
        if ranks in teams:
            continue
        group = dist.new_group(list(ranks)) if len(ranks) > 1 else None
        member = place.rank in ranks
        teams[ranks] = Team(
            name=GROUP if not teams else "-".join((GROUP, *map(str, ranks))),
            ranks=ranks,
            hosts=tuple(place.hosts[rank] for rank in ranks),
            device=place.device,
            process_group=group if member else None,
        )
        if group is not None and member:
            group.allreduce([torch.zeros(1, device=place.device)]).wait()
    return teams


def meet() -> None:
    """Returns when every process of the launch has come; recorded nowhere."""
    dist.group.WORLD.barrier().wait()  # type: ignore[union-attr]  # joined() has made the default group


def _boot_id() -> str:
    """What tells one running kernel from another; the host name where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
