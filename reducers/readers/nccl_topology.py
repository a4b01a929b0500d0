"""NCCL and RCCL topology files (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``): GPUs and NICs, and where they hang."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, as_text, number, whole
from narrows.reducers.readers.nvidia_smi import parsed_xml

_KNOWN = frozenset(
    ("system", "group", "cpu", "pci", "gpu", "nic", "net", "nvlink", "xgmi", "c2c", "pcilink", "collnet", "gin")
)
# PCI classes of GPUs and of network adapters. Source: the PCI code and ID assignment, classes 02h, 03h and 12h.
_GPU_CLASSES, _NIC_CLASSES = ("0x03", "0x12"), ("0x02",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """GPU-to-GPU links to ``target`` (a PCI address), ``count`` of them."""

    kind: str
    target: str
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDevice:
    """A GPU or NIC. ``path`` lists the PCI addresses from the CPU down to it; speeds are its own."""

    kind: str
    name: str
    numa: int | None = None
    bus: str | None = None
    path: tuple[str, ...] = ()
    rank: int | None = None
    link_speed: str | None = None
    link_width: int | None = None
    net_speed_mbit_s: float | None = None
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTopology:
    """One system, or several where the file names groups."""

    devices: tuple[TopologyDevice, ...]
    cpus: int
    version: str | None = None
    groups: tuple[str, ...] = ()
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)

    @property
    def gpus(self) -> tuple[TopologyDevice, ...]:
        return tuple(one for one in self.devices if one.kind == "gpu")

    @property
    def nics(self) -> tuple[TopologyDevice, ...]:
        return tuple(one for one in self.devices if one.kind == "nic")


def looks_like(text: str) -> bool:
    return bool(re.search(r"<system\b[^>]*>", text[:20_000])) and ("<cpu" in text or "<group" in text)


def read_nccl_topology(data: bytes, name: str = "input") -> NcclTopology:
    """The topology in ``data``.

    Raises:
        UnreadableError: not whole XML, or its root is not a system.
    """
    root = parsed_xml(as_text(data), name)
    if root.tag != "system":
        raise UnreadableError(f"{name}: the root is <{root.tag}>, expected <system>; give an NCCL topology file")
    unread = UnreadList()
    for node in root.iter():
        if node.tag not in _KNOWN:
            unread.add(0, f"<{node.tag}>", "an element that NCCL topologies are not known to have")
    return NcclTopology(
        devices=tuple(_devices(root, None, ())),
        cpus=sum(1 for _ in root.iter("cpu")),
        version=root.get("version"),
        groups=tuple(node.get("name", "") for node in root.iter("group")),
        not_understood=unread.done(),
    )


def _devices(node: ET.Element, numa: int | None, path: tuple[str, ...]) -> Iterator[TopologyDevice]:
    """Walks without recursion: a hostile file may nest deeper than Python may."""
    left = [(node, numa, path)]
    while left:
        node, numa, path = left.pop()
        kind = _kind(node)
        if kind is not None:
            yield _device(node, kind, numa, path)
            if node.tag != "pci":
                continue
        if node.tag == "cpu":
            numa = whole(node.get("numaid"))
        if node.tag == "pci" and node.get("busid"):
            path = (*path, node.get("busid", ""))
        left += [(child, numa, path) for child in reversed(node) if not (kind and child.tag in ("gpu", "nic"))]


def _kind(node: ET.Element) -> str | None:
    """A device's own element, or a PCI leaf of its class in files that NCCL did not write itself."""
    if node.tag in ("gpu", "nic"):
        return node.tag
    if node.tag != "pci" or any(child.tag in ("gpu", "nic", "pci") for child in node):
        return None
    pci_class = node.get("class", "")
    return "gpu" if pci_class.startswith(_GPU_CLASSES) else "nic" if pci_class.startswith(_NIC_CLASSES) else None


def _device(node: ET.Element, kind: str, numa: int | None, path: tuple[str, ...]) -> TopologyDevice:
    nets = list(node.iter("net")) if kind == "nic" else []
    bus = node.get("busid") or (path[-1] if path else None)
    name = node.get("dev") or node.get("id") or (nets[0].get("name") if nets else None) or bus or ""
    return TopologyDevice(
        kind=kind,
        name=name,
        numa=numa,
        bus=bus,
        path=path if node.tag != "pci" else (*path, *([bus] if bus else [])),
        rank=whole(node.get("rank")),
        link_speed=node.get("link_speed"),
        link_width=whole(node.get("link_width")),
        net_speed_mbit_s=number(nets[0].get("speed", "")) if nets else None,
        links=tuple(
            Link(kind=child.tag, target=child.get("target", ""), count=whole(child.get("count")))
            for child in node
            if child.tag in ("nvlink", "xgmi", "c2c")
        ),
    )
