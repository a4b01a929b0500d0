"""Process groups by role, and the sequence numbers that identify a collective on all its ranks."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

DEFAULT_GROUP = "dp"
WORLD_GROUP = "world"

MESH_PREFIX = "mesh_"
"""DeviceMesh describes the groups of its dimension ``tp`` as ``mesh_tp``."""


class Groups:
    """The groups that this process knows: their role names and members, and how many operations each has seen.

    Names are unique within the process. Counters outlive recorders, because ranks count operations, not files.
    """

    def __init__(self) -> None:
        self.members: dict[str, tuple[int, ...]] = {}
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._wanted: dict[str, str] = {}
        self._counters: defaultdict[object, Iterator[int]] = defaultdict(itertools.count)

    def forget(self) -> None:
        """As if no group had ever been seen: a forked process takes part in nothing of its parent's."""
        self.__init__()  # type: ignore[misc]  # the same object, because other modules hold it

    def declare(self, name: str, ranks: Iterable[int]) -> None:
        """A group that no process group stands for (an emulated one) has these global ranks."""
        self.members[name] = tuple(ranks)

    def name(self, group: Any, role: str) -> str:
        """``group`` is called ``role`` from now on, or the role with a suffix where another group has that name.

        Returns the name given.
        """
        key = _process_group(group)
        if key is None:
            self._wanted[DEFAULT_GROUP] = role
            return role
        taken = {name for other, name in self._names.items() if other is not key}
        name = role if role not in taken else f"{role}-{key.group_name}"
        self._names[key] = name
        self.members[name] = _ranks(key)
        return name

    def of(self, group: Any) -> str:
        """The name of ``group``: a name itself, a process group, or None for the default group."""
        if isinstance(group, str):
            return group
        key = group if group is not None else _process_group(None)
        if key is None:
            return self._wanted.get(DEFAULT_GROUP, DEFAULT_GROUP)
        known = self._names.get(key)
        return known if known is not None else self.name(key, self._default_role(key))

    def next_sequence(self, key: object) -> int:
        """How many operations of this key came before, and one more from now on."""
        return next(self._counters[key])

    def next_message(self, name: str, op: str, rank: int, peer: int) -> int:
        """How many messages went the same way between the two ranks in this group before: sends meet receives by it."""
        ends = (rank, peer) if op == "send" else (peer, rank)
        return self.next_sequence((name, *ends))

    def _default_role(self, group: Any) -> str:
        """``dp`` for the group of all ranks, ``world`` where a device mesh gives the roles; a mesh's group has the name
        of its dimension, any other the name that torch counts it by."""
        if group is _process_group(None):
            told = self._wanted.get(DEFAULT_GROUP, DEFAULT_GROUP)
            return WORLD_GROUP if told == DEFAULT_GROUP and _mesh_exists() else told
        description = str(getattr(group, "group_desc", ""))
        if description.startswith(MESH_PREFIX):
            return description.removeprefix(MESH_PREFIX)
        return f"group{group.group_name}"


def _mesh_exists() -> bool:
    """Whether some dimension of a device mesh has groups of its own."""
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    return any(str(getattr(known, "group_desc", "")).startswith(MESH_PREFIX) for known in c10d._world.pg_map)


def _process_group(group: Any) -> Any:
    """The process group meant by ``group``, where None is the default one, which may not exist yet."""
    if group is not None:
        return group
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return None if c10d is None else c10d._world.default_pg


def _ranks(group: Any) -> tuple[int, ...]:
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    return tuple(c10d.get_process_group_ranks(group))


groups = Groups()
