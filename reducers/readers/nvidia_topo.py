"""``nvidia-smi topo -m``: how each pair of GPUs and NICs is connected, and the CPUs that each GPU is near."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, as_text

_DEVICE = re.compile(r"(?:GPU|NIC)\d+|(?:mlx|bnxt|rdma|cxi|hfi|ib)\w*\d")
_LINK = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|PIN|NV\d+|PSB|N/A")
_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A GPU's CPU cores and NUMA node, as printed."""

    cpus: str | None = None
    numa: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopoMatrix:
    """``links[a][b]`` is NV18, PIX, SYS, ... between two devices; ``nics`` NIC name -> device."""

    devices: tuple[str, ...]
    links: dict[str, dict[str, str]]
    near: dict[str, Near] = field(default_factory=dict)
    nics: dict[str, str] = field(default_factory=dict)
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)


def looks_like(text: str) -> bool:
    return any(_head(line) for line in as_text(text.encode()).splitlines()[:400])


def _head(line: str) -> list[str]:
    """The device names of a head line, in its columns; none for another line."""
    words = line.split()
    if not words or not re.fullmatch(r"GPU\d+", words[0]):
        return []
    names = []
    for word in words:
        if not _DEVICE.fullmatch(word):
            break
        names.append(word)
    return names if not any(_LINK.fullmatch(word) for word in words[1:]) else []


def read_topo(data: bytes, name: str = "input") -> TopoMatrix:
    """The matrix in ``data``.

    Raises:
        UnreadableError: no line lists the devices.
    """
    unread = UnreadList()
    columns: list[str] = []
    links: dict[str, dict[str, str]] = {}
    near: dict[str, Near] = {}
    nics: dict[str, str] = {}
    for line, text in enumerate(as_text(data).splitlines(), start=1):
        words = text.split()
        if not columns:
            columns = _head(text)
        elif match := _LEGEND.match(text):
            nics[match[1]] = match[2]
        elif words and _DEVICE.fullmatch(words[0]) and words[0] not in links:
            row = words[1 : 1 + len(columns)]
            if len(row) < len(columns) or not all(_LINK.fullmatch(word) for word in row):
                unread.add(line, text, f"a row without a link to each of {len(columns)} devices")
                continue
            links[words[0]] = {other: link for other, link in zip(columns, row, strict=True) if link != "X"}
            rest = words[1 + len(columns) :]
            if rest and words[0].startswith("GPU"):
                near[words[0]] = Near(cpus=rest[0], numa=rest[1] if len(rest) > 1 else None)
    if not columns:
        raise UnreadableError(f"{name}: no line lists GPU0 and the others; give the output of nvidia-smi topo -m")
    return TopoMatrix(devices=tuple(columns), links=links, near=near, nics=nics, not_understood=unread.done())
