"""``nvidia-smi -q`` as text and XML: the facts of each GPU that a slow run is explained with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, as_text, number

Path = tuple[str, ...]
_ABSENT = {"", "n/a", "[n/a]", "unknown error", "requested functionality has been deprecated", "none"}
_QUANTITY = re.compile(r"^\s*(-?[\d.,]+)\s*([A-Za-z%/]*)\s*$")
_LARGEST_XML = 64 << 20
_DEEPEST_XML = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU. Units are in the names; what the driver gives as N/A is absent.

    ``slowdowns``: the clocks' event reasons that are active, idle and the application's own settings among them.
    """

    bus: str
    name: str | None = None
    uuid: str | None = None
    performance_state: str | None = None
    persistence: str | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_max_w: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    utilization_percent: float | None = None
    memory_total_mib: float | None = None
    memory_used_mib: float | None = None
    pcie_generation: float | None = None
    pcie_generation_max: float | None = None
    pcie_width: float | None = None
    pcie_width_max: float | None = None
    pcie_replays: float | None = None
    ecc_uncorrectable: float | None = None
    remapped_uncorrectable: float | None = None
    remap_pending: str | None = None
    slowdowns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiQuery:
    """The whole output. ``attached`` is how many GPUs it announces; fewer in ``gpus`` means that it is cut."""

    gpus: tuple[GpuFacts, ...]
    attached: int | None = None
    driver: str | None = None
    cuda: str | None = None
    taken: str | None = None
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)


# Fact -> the ends of the paths that it stands under, of old and new drivers, in text and in XML, the first found.
_WHERE: dict[str, tuple[Path, ...]] = {
    "name": (("product name",),),
    "uuid": (("gpu uuid",), ("uuid",)),
    "performance_state": (("performance state",),),
    "persistence": (("persistence mode",),),
    "temperature_c": (("temperature", "gpu current temp"), ("temperature", "gpu temp")),
    "memory_temperature_c": (("temperature", "memory current temp"), ("temperature", "memory temp")),
    "power_w": (
        ("gpu power readings", "average power draw"), ("gpu power readings", "instantaneous power draw"),
        ("gpu power readings", "instant power draw"),
        ("gpu power readings", "power draw"), ("power readings", "power draw"),
    ),
    "power_limit_w": (
        ("gpu power readings", "current power limit"), ("power readings", "enforced power limit"),
        ("power readings", "power limit"),
    ),
    "power_limit_max_w": (("gpu power readings", "max power limit"), ("power readings", "max power limit")),
    "sm_clock_mhz": (("clocks", "sm"), ("clocks", "sm clock")),
    "sm_clock_max_mhz": (("max clocks", "sm"), ("max clocks", "sm clock")),
    "memory_clock_mhz": (("clocks", "memory"), ("clocks", "mem clock")),
    "memory_clock_max_mhz": (("max clocks", "memory"), ("max clocks", "mem clock")),
    "utilization_percent": (("utilization", "gpu"), ("utilization", "gpu util")),
    "memory_total_mib": (("fb memory usage", "total"),),
    "memory_used_mib": (("fb memory usage", "used"),),
    "pcie_generation": (
        ("gpu link info", "pcie generation", "current"), ("pcie gen", "current link gen"),
    ),
    "pcie_generation_max": (("gpu link info", "pcie generation", "max"), ("pcie gen", "max link gen")),
    "pcie_width": (("gpu link info", "link width", "current"), ("link widths", "current link width")),
    "pcie_width_max": (("gpu link info", "link width", "max"), ("link widths", "max link width")),
    "pcie_replays": (("replays since reset",), ("replay counter",)),
    "ecc_uncorrectable": (
        ("volatile", "sram uncorrectable"), ("volatile", "dram uncorrectable"), ("volatile", "double bit", "total"),
    ),
    "remapped_uncorrectable": (("remapped rows", "uncorrectable error"), ("remapped rows", "remapped row unc")),
    "remap_pending": (("remapped rows", "pending"), ("remapped rows", "remapped row pending")),
}  # fmt: skip
_TEXTS = frozenset(("name", "uuid", "performance_state", "persistence", "remap_pending"))
_REASONS = frozenset(("clocks event reasons", "clocks throttle reasons"))


def looks_like_text(text: str) -> bool:
    return "NVSMI LOG" in text or bool(re.search(r"^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:", text, re.MULTILINE))


def looks_like_xml(text: str) -> bool:
    return "<nvidia_smi_log" in text


def read_nvidia_smi(data: bytes, name: str = "input") -> SmiQuery:
    """The query in ``data``, text or XML.

    Raises:
        UnreadableError: it is neither, the XML is cut, or it defines entities.
    """
    text = as_text(data)
    if looks_like_xml(text):
        return _read_xml(text, name)
    if looks_like_text(text):
        return _read_text(text)
    raise UnreadableError(f"{name}: is neither nvidia-smi -q text nor its XML; give the output of nvidia-smi -q -x")


def parsed_xml(text: str, name: str) -> ET.Element:
    """The root element. Entities are refused: they are how a small file becomes a large one.

    Raises:
        UnreadableError: not whole XML, too large, or with entities.
    """
    if "<!ENTITY" in text or len(text) > _LARGEST_XML:
        raise UnreadableError(f"{name}: defines XML entities or is too large; give the tool's own output")
    try:
        root = ET.fromstring(text[max(text.find("<"), 0) :])  # noqa: S314 - entities are refused above
    except (ET.ParseError, ValueError) as error:
        raise UnreadableError(f"{name}: is not whole XML ({error}); run the tool again") from None
    level, depth = [root], 0
    while level:
        level, depth = [child for node in level for child in node], depth + 1
        if depth > _DEEPEST_XML:
            raise UnreadableError(f"{name}: nests deeper than {_DEEPEST_XML} elements; give the tool's own output")
    return root


def _read_xml(text: str, name: str) -> SmiQuery:
    root = parsed_xml(text, name)
    unread = UnreadList()
    gpus = []
    for node in root.iter("gpu"):
        bus = node.get("id", "")
        if not bus:
            unread.add(0, "<gpu>", "a GPU without its id")
            continue
        gpus.append(_facts(bus, dict(_xml_paths(node, ()))))
    attached = _count(root.findtext("attached_gpus"))
    _check_count(attached, len(gpus), unread)
    return SmiQuery(
        gpus=tuple(gpus),
        attached=attached,
        driver=_known(root.findtext("driver_version")),
        cuda=_known(root.findtext("cuda_version")),
        taken=_known(root.findtext("timestamp")),
        not_understood=unread.done(),
    )


def _xml_paths(node: ET.Element, above: Path) -> Iterator[tuple[Path, str]]:
    for child in node:
        name = child.tag.replace("_", " ").lower()
        name = name.removeprefix("clocks event reason ").removeprefix("clocks throttle reason ")
        if len(child):
            yield from _xml_paths(child, (*above, name))
        elif child.text:
            yield (*above, name), child.text.strip()


def _read_text(text: str) -> SmiQuery:
    unread = UnreadList()
    heads: dict[str, str] = {}
    gpus: list[tuple[str, dict[Path, str]]] = []
    stack: list[tuple[int, str]] = []
    for line, raw in enumerate(text.splitlines(), start=1):
        indent, body = len(raw) - len(raw.lstrip()), raw.strip()
        if match := re.match(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f.]+)$", body):
            gpus.append((match[1], {}))
            stack = []
        elif " : " in f"{raw} ":
            key, _, value = (part.strip() for part in f"{raw} ".partition(" : "))
            stack = [one for one in stack if one[0] < indent]
            place = gpus[-1][1] if gpus else None
            path = (*(one[1] for one in stack), key.lower())
            if place is None:
                heads[key] = value
            else:
                place.setdefault(path, value)
        elif body and not body.startswith("="):
            stack = [one for one in stack if one[0] < indent] + [(indent, body.lower())]
            if not gpus:
                unread.add(line, raw, "before the first GPU, and not a head line")
    attached = _count(heads.get("Attached GPUs"))
    _check_count(attached, len(gpus), unread)
    return SmiQuery(
        gpus=tuple(_facts(bus, paths) for bus, paths in gpus),
        attached=attached,
        driver=_known(heads.get("Driver Version")),
        cuda=_known(heads.get("CUDA Version")),
        taken=_known(heads.get("Timestamp")),
        not_understood=unread.done(),
    )


def _facts(bus: str, paths: Mapping[Path, str]) -> GpuFacts:
    ends = _by_end(paths)
    values: dict[str, Any] = {}
    for fact, places in _WHERE.items():
        convert: Callable[[str | None], Any] = _known if fact in _TEXTS else _quantity
        found = (convert(ends.get(place)) for place in places)
        values[fact] = next((one for one in found if one is not None), None)
    return GpuFacts(bus=bus, slowdowns=tuple(_slowdowns(paths)), **values)


def _by_end(paths: Mapping[Path, str]) -> dict[Path, str]:
    """Every end of every path, up to three names; the first path with an end has it."""
    found: dict[Path, str] = {}
    for path, value in paths.items():
        for length in (1, 2, 3):
            if len(path) >= length and (length > 1 or len(path) <= 2):
                found.setdefault(path[-length:], value)
    return found


def _slowdowns(paths: Mapping[Path, str]) -> Iterator[str]:
    for path, value in paths.items():
        if value.lower() == "active" and any(part in _REASONS for part in path[:-1]):
            yield "idle" if path[-1] == "gpu idle" else path[-1]


def _known(text: str | None) -> str | None:
    return None if text is None or text.strip().lower() in _ABSENT else text.strip()


def _quantity(text: str | None) -> float | None:
    """``395.20 W`` to 395.2; ``16x`` to 16. None for anything else."""
    match = _QUANTITY.match(text or "")
    return number(match[1]) if match else None


def _check_count(attached: int | None, held: int, unread: UnreadList) -> None:
    if attached is not None and held != attached:
        unread.add(0, f"Attached GPUs: {attached}", f"holds {held}: the output is cut")


def _count(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,5}", text.strip()) else None
