"""``ibstat`` and ``ibstatus``: every port of every adapter, and which of them are not as the others."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, as_text, number

_CA = re.compile(r"^CA '([^']+)'\s*$")
_PORT = re.compile(r"^\s*Port (\d+):\s*$")
_STATUS = re.compile(r"^Infiniband device '([^']+)' port (\d+) status:\s*$")
_PAIR = re.compile(r"^\s+([A-Za-z][\w ]*?)\s*:\s*(.*?)\s*$")
_FACT = re.compile(r"ca type|number of ports|firmware version|hardware version|node guid|system image guid|"
                   r"base lid|lmc|sm lid|capability mask|port guid|default gid")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port: states in lower case, rate in Gbit/s. ``up`` is whether both states say so."""

    adapter: str
    port: int
    state: str | None = None
    physical_state: str | None = None
    rate_gbit_s: float | None = None
    link_layer: str | None = None
    adapter_type: str | None = None
    firmware: str | None = None

    @property
    def up(self) -> bool:
        return self.state == "active" and self.physical_state == "linkup"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortList:
    """All ports. ``down`` are not up; ``slower`` are up below the rate that most of their type and layer have."""

    ports: tuple[Port, ...]
    down: tuple[str, ...]
    slower: tuple[str, ...]
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)


def looks_like(text: str) -> bool:
    return bool(re.search(r"^CA '[^']+'\s*$|^Infiniband device '[^']+' port \d+ status:", text, re.MULTILINE))


def read_ports(data: bytes, name: str = "input") -> PortList:
    """Every port in ``data``.

    Raises:
        UnreadableError: no adapter is in it.
    """
    unread = UnreadList()
    adapter: dict[str, str] = {}
    found: list[dict[str, str]] = []
    for line, text in enumerate(as_text(data).splitlines(), start=1):
        if match := _CA.match(text):
            adapter = {"adapter": match[1]}
        elif match := _STATUS.match(text):
            adapter = {"adapter": match[1]}
            found.append({**adapter, "port": match[2]})
        elif (match := _PORT.match(text)) and adapter:
            found.append({**adapter, "port": match[1]})
        elif (match := _PAIR.match(text)) and adapter:
            inside = bool(found) and found[-1]["adapter"] == adapter["adapter"]
            _keep(found[-1] if inside else adapter, match, line, text, unread)
        elif text.strip():
            unread.add(line, text, "outside an adapter, and no head of one")
    if not found:
        raise UnreadableError(f"{name}: has no port of an adapter; give the output of ibstat or ibstatus")
    ports = tuple(_port(one) for one in found)
    return PortList(
        ports=ports,
        down=tuple(f"{one.adapter}/{one.port}" for one in ports if not one.up),
        slower=tuple(_slower(ports)),
        not_understood=unread.done(),
    )


_STATES = {
    "state": "state",
    "physical state": "physical",
    "phys state": "physical",
    "rate": "rate",
    "link layer": "layer",
    "ca type": "type",
    "firmware version": "firmware",
}


def _keep(place: dict[str, str], match: re.Match[str], line: int, text: str, unread: UnreadList) -> None:
    key = match[1].lower().replace("_", " ")
    if key in _STATES:
        place[_STATES[key]] = match[2]
    elif not _FACT.fullmatch(key):
        unread.add(line, text, "a fact that ibstat is not known to print")


def _port(found: dict[str, str]) -> Port:
    rate = re.match(r"[\d.]+", found.get("rate", ""))
    return Port(
        adapter=found["adapter"],
        port=int(found["port"][:9]),
        state=_state(found.get("state")),
        physical_state=_state(found.get("physical")),
        rate_gbit_s=number(rate[0]) if rate else None,
        link_layer=found.get("layer"),
        adapter_type=found.get("type"),
        firmware=found.get("firmware"),
    )


def _state(text: str | None) -> str | None:
    """``4: ACTIVE`` and ``Active`` alike."""
    return text.rpartition(":")[2].strip().lower() if text else None


def _slower(ports: tuple[Port, ...]) -> list[str]:
    by_kind: dict[tuple[str | None, str | None], list[Port]] = {}
    for port in ports:
        if port.up and port.rate_gbit_s is not None:
            by_kind.setdefault((port.adapter_type, port.link_layer), []).append(port)
    found = []
    for group in by_kind.values():
        rates = [port.rate_gbit_s or 0.0 for port in group]
        usual = max(set(rates), key=lambda rate: (rates.count(rate), rate))
        found += [f"{one.adapter}/{one.port}" for one in group if (one.rate_gbit_s or 0.0) < usual]
    return found
