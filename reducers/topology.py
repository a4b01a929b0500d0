"""What a file tells of where hosts and GPUs sit: the topology of run directories, Slurm's switches, NCCL's PCI tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from narrows.reducers.coordinates import LAYERS
from narrows.reducers.readers.common import UnreadableError
from narrows.reducers.readers.nccl_topology import NcclTopology, TopologyDevice
from narrows.reducers.readers.reading import read_file
from narrows.reducers.readers.slurm import SlurmOutput, Switch

Topology = dict[str, dict[str, dict[str, str]]]
"""By layer (hosts, local ranks, ranks), then by the name there, the labels by coordinate."""


def read_topology(path: Path) -> Topology:
    """The labels that ``path`` gives to hosts, local ranks and ranks.

    From ``topology.conf`` of Slurm: the switch of each host, `switch 2` above it and so on, or its block. From NCCL's
    topology file: the NUMA node and the nearest network card of each GPU, by its index, for every host alike.

    Raises:
        UnreadableError: it is none of these, or labels nothing.
    """
    found = _own_form(path)
    if found is None:
        value = read_file(path).value
        if isinstance(value, SlurmOutput):
            found = {"hosts": _by_switch(value.switches)}
        elif isinstance(value, NcclTopology):
            found = {"local_ranks": dict(_by_gpu(value))}
        else:
            raise _refused(path, "is neither a topology in JSON, nor topology.conf, nor an NCCL topology")
    if not any(found.values()):
        raise _refused(path, "labels no host, local rank or rank")
    return found


def _refused(path: Path, why: str) -> UnreadableError:
    return UnreadableError(
        f'{path}: {why}; give {{"hosts": {{"n0": {{"rack": "r1"}}}}}}, as docs/run-directory.md says'
    )


def _own_form(path: Path) -> Topology | None:
    """The topology of run directories, or None where the file does not begin as JSON. Raises ``UnreadableError``."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be opened ({error.strerror})") from None
    if data.lstrip()[:1] != b"{":
        return None
    try:
        layers = msgspec.json.decode(data, type=dict[str, dict[str, dict[str, str | int]]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refused(path, str(error)) from None
    unknown = sorted(set(layers) - set(LAYERS))
    if unknown:
        raise _refused(path, f"{unknown[0]!r} is none of {', '.join(LAYERS)}")
    return {
        layer: {name: {key: str(label) for key, label in labels.items()} for name, labels in entries.items()}
        for layer, entries in layers.items()
    }


def _by_switch(switches: tuple[Switch, ...]) -> dict[str, dict[str, str]]:
    """The labels of each host: the leaf that it hangs on, then each level above it. A loop of switches ends."""
    above = {below: switch.name for switch in switches for below in switch.switches}
    labels: dict[str, dict[str, str]] = {}
    for switch in switches:
        chain = {switch.kind: switch.name}
        parent, seen = above.get(switch.name), {switch.name}
        while parent is not None and parent not in seen:
            chain[f"{switch.kind} {len(chain) + 1}"] = parent
            seen.add(parent)
            parent = above.get(parent)
        for host in switch.hosts:
            labels.setdefault(host, {}).update(chain)
    return labels


def _by_gpu(topology: NcclTopology) -> Iterator[tuple[str, dict[str, str]]]:
    for gpu in topology.gpus:
        if not gpu.name.isdigit():
            continue
        labels = {} if gpu.numa is None else {"numa": str(gpu.numa)}
        nic = _nearest(gpu, topology.nics)
        if nic is not None:
            labels["nic"] = nic.name
        if labels:
            yield gpu.name, labels


def _nearest(gpu: TopologyDevice, nics: tuple[TopologyDevice, ...]) -> TopologyDevice | None:
    """The card that shares the most PCI switches with the GPU; None where two share as many, or none shares one."""
    shared = [_common(gpu.path, nic.path) for nic in nics]
    most = max(shared, default=0)
    return nics[shared.index(most)] if most and shared.count(most) == 1 else None


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def with_topology(manifest: Mapping[str, Any], topology: Topology | None) -> Mapping[str, Any]:
    """The manifest with this topology instead of the recorded one, layer by layer."""
    if topology is None:
        return manifest
    recorded = manifest.get("topology")
    return {**manifest, "topology": {**(recorded if isinstance(recorded, Mapping) else {}), **topology}}
