"""Where each rank sits: host, rack, rail, NIC, GPU, place in the mesh, shard; and where a group's collectives run.

A factor maps every column of a table to a label, None where it is not known or not one. Labels come from the run's
placement, its groups and, where the manifest holds one, its `topology`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Factors = dict[str, list[str | None]]

LAYERS = ("hosts", "local_ranks", "ranks")
"""Parts of a topology, the more specific later: a label of a rank replaces that of its host."""
PER_HOST = ("nic", "gpu")
"""Named anew on every host: `mlx5_0` of two hosts are two cards."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def rank_factors(
    ranks: Sequence[int], hosts: Sequence[str], groups: Mapping[str, Sequence[int]], manifest: Mapping[str, Any]
) -> Factors:
    """The factors of these ranks that tell at least two of them apart, hosts first.

    ``local_rank`` is the place on the host: one GPU index, and one rail where rails are wired by index. For each role
    with several groups, the role alone (`tp`) is the place inside the group, and `tp group` the group.
    """
    local = local_ranks(ranks, hosts, manifest)
    found: Factors = {"host": list(hosts), **_topology(ranks, hosts, local, manifest.get("topology"))}
    if max(local) > 0:
        found.setdefault("local_rank", [str(one) for one in local])
    for factor, labels in _mesh(ranks, groups).items():
        found.setdefault(factor, labels)
    return {factor: labels for factor, labels in found.items() if len(set(labels) - {None}) > 1 or None in labels}


def local_ranks(ranks: Sequence[int], hosts: Sequence[str], manifest: Mapping[str, Any]) -> list[int]:
    """The place of each rank on its host: as recorded where no two ranks of a host share one, else by order."""
    placed = {one.get("rank"): one.get("local_rank") for one in manifest.get("placement") or ()}
    recorded = [placed.get(rank) for rank in ranks]
    if None not in recorded and len(set(zip(hosts, recorded, strict=True))) == len(ranks):
        return [int(one) for one in recorded if one is not None]
    seen: dict[str, int] = {}
    counted = []
    for host in hosts:
        counted.append(seen.get(host, 0))
        seen[host] = counted[-1] + 1
    return counted


def _topology(ranks: Sequence[int], hosts: Sequence[str], local: Sequence[int], topology: Any) -> Factors:
    if not isinstance(topology, Mapping):
        return {}
    layers = [_mapping(topology.get(name)) for name in LAYERS]
    keys = [hosts, [str(one) for one in local], [str(one) for one in ranks]]
    told: list[dict[str, str]] = []
    for at in range(len(ranks)):
        own: dict[str, str] = {}
        for layer, names in zip(layers, keys, strict=True):
            own |= {str(key): str(value) for key, value in _mapping(layer.get(names[at])).items()}
        told.append({key: f"{hosts[at]}/{value}" if key in PER_HOST else value for key, value in own.items()})
    return {name: [own.get(name) for own in told] for name in dict.fromkeys(name for own in told for name in own)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mesh(ranks: Sequence[int], groups: Mapping[str, Sequence[int]]) -> Factors:
    """Roles of which every rank is in exactly one of several groups, such as ``tp`` of ``tp[0,1]`` and ``tp[2,3]``."""
    by_role: dict[str, dict[str, Sequence[int]]] = {}
    for name, members in groups.items():
        by_role.setdefault(name.partition("[")[0].partition("@")[0], {})[name] = members
    found: Factors = {}
    for role, own in by_role.items():
        place = {rank: (name, str(sorted(members).index(rank))) for name, members in own.items() for rank in members}
        if len(own) > 1 and sum(map(len, own.values())) == len(place) and all(rank in place for rank in ranks):
            found[role] = [place[rank][1] for rank in ranks]
            found[f"{role} group"] = [place[rank][0] for rank in ranks]
    return found


def collective_factors(
    cells: Sequence[tuple[str, int]],
    groups: Mapping[str, Sequence[int]],
    ranks: Sequence[int],
    factors: Mapping[str, Sequence[str | None]],
) -> Factors:
    """The factors of collectives by (group, bytes bin): the two, and each label that all ranks of the group share.

    A group across hosts has no host; one whose ranks all sit on one rail has that rail.
    """
    at = {rank: place for place, rank in enumerate(ranks)}
    found: Factors = {"group": [group for group, _ in cells], "bytes": [bytes_label(size) for _, size in cells]}
    for factor, labels in factors.items():
        if factor in ("group", "bytes") or factor.endswith(" group"):
            continue
        shared: list[str | None] = []
        for group, _ in cells:
            inside = {labels[at[rank]] for rank in groups.get(group, ()) if rank in at}
            shared.append(inside.pop() if len(inside) == 1 else None)
        if any(label is not None for label in shared):
            found[factor] = shared
    return found


def bytes_bin(payload_bytes: int) -> int:
    """The smallest power of two that holds the payload; 0 for none."""
    return 1 << (payload_bytes - 1).bit_length() if payload_bytes > 0 else 0


def bytes_label(bin_bytes: int) -> str:
    """``up to 4 MiB``; a bin reaches down to half of it."""
    if bin_bytes <= 0:
        return "none"
    place = min((bin_bytes.bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"up to {bin_bytes >> (10 * place)} {_UNITS[place]}"
