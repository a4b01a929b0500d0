"""Which rank this process is, as its launcher said it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_WORLD_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_NODE_RANK_VARIABLES = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID", "OMPI_COMM_WORLD_NODE_RANK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A process's place in the job. ``node_rank`` is None where the launcher did not say it."""

    rank: int
    local_rank: int
    world_size: int
    host: str
    node_rank: int | None = None


def has_rank(environment: Mapping[str, str]) -> bool:
    """Whether a launcher told this process its rank."""
    return _first(environment, _RANK_VARIABLES) is not None


def placement(environment: Mapping[str, str] | None = None) -> Placement:
    """The place of this process: from torch's process group where one exists, else from the launcher's variables.

    A process that no launcher started is rank 0 of 1. The host is ``NARROWS_HOST`` or the machine's name.
    """
    variables = os.environ if environment is None else environment
    joined = _process_group_place() if environment is None else None
    rank = _first(variables, _RANK_VARIABLES) or 0
    world_size = _first(variables, _WORLD_VARIABLES) or 1
    if joined is not None:
        rank, world_size = joined
    return Placement(
        rank=rank,
        local_rank=_first(variables, _LOCAL_RANK_VARIABLES) or 0,
        world_size=max(world_size, rank + 1),
        host=variables.get("NARROWS_HOST") or socket.gethostname(),
        node_rank=_first(variables, _NODE_RANK_VARIABLES),
    )


def _process_group_place() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _first(variables: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = variables.get(name, "")
        if value.isdigit():
            return int(value)
    return None
