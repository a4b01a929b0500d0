"""Slurm's own words: ``scontrol show job``, ``node`` and ``partition``, ``sacct``, and ``topology.conf``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, as_text

_MOST_HOSTS = 100_000
_PAIR = re.compile(r"(?:^|\s)([A-Z][\w/:.]*)=")
_RECORD = {"JobId": "job", "NodeName": "node", "PartitionName": "partition"}
_TOPOLOGY = ("SwitchName", "BlockName")
_ABSENT = frozenset(("", "(null)", "N/A", "None", "Unknown", "NONE"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRecord:
    """One job, node or partition of ``scontrol``; ``facts`` as printed, what Slurm gives as null left out."""

    kind: str
    name: str
    line: int
    facts: dict[str, str]
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctRow:
    """One job or step of ``sacct``, by column."""

    line: int
    job: str | None
    facts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch or block: its hosts, and the switches below it."""

    name: str
    kind: str
    hosts: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOutput:
    """One output; only the parts of its kind are filled."""

    records: tuple[SlurmRecord, ...] = ()
    rows: tuple[SacctRow, ...] = ()
    columns: tuple[str, ...] = ()
    switches: tuple[Switch, ...] = ()
    block_sizes: tuple[int, ...] = ()
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)


def looks_like_scontrol(text: str) -> bool:
    return bool(re.search(r"^\s*(?:JobId|NodeName|PartitionName)=\S+ \w+=", text, re.MULTILINE))


def looks_like_sacct(text: str) -> bool:
    return bool(_sacct_head(text))


def looks_like_topology(text: str) -> bool:
    return bool(re.search(r"^\s*(?:SwitchName|BlockName)=\S+", text, re.MULTILINE))


def expanded(text: str) -> tuple[str, ...]:
    """``srv[1101-1103,1107],gpu1`` host by host, leading zeros kept.

    Raises:
        ValueError: the brackets do not close, or the list is longer than 100,000 hosts.
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        made = [""]
        for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", part):
            choices = list(_range(piece[1:-1])) if piece.startswith("[") else [piece]
            if len(made) * len(choices) + len(hosts) > _MOST_HOSTS:
                raise ValueError(f"{text[:80]}: more than {_MOST_HOSTS} hosts")
            made = [head + tail for head in made for tail in choices]
        hosts += made
    if text.count("[") != text.count("]"):
        raise ValueError(f"{text[:80]}: a bracket does not close")
    return tuple(hosts)


def _range(text: str) -> Iterator[str]:
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)-(\d+)", part.strip())
        if match is None:
            yield part.strip()
            continue
        first, last = int(match[1]), int(match[2])
        if last - first > _MOST_HOSTS:
            raise ValueError(f"{text[:80]}: more than {_MOST_HOSTS} hosts")
        yield from (f"{one:0{len(match[1])}d}" for one in range(first, last + 1))


def read_slurm(data: bytes, name: str = "input") -> SlurmOutput:
    """The output in ``data``, of whichever of the commands it is.

    Raises:
        UnreadableError: it is of none of them.
    """
    text = as_text(data)
    if looks_like_topology(text):
        return _read_topology(text)
    if looks_like_scontrol(text):
        return _read_scontrol(text)
    if looks_like_sacct(text):
        return _read_sacct(text)
    raise UnreadableError(
        f"{name}: is no scontrol show job, node or partition, no sacct table with a head, and no topology.conf"
    )


def _pairs(text: str) -> dict[str, str]:
    """``Key=value`` pairs of one text; a value may hold spaces and further equals signs."""
    found = list(_PAIR.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)] * bool(found)
    return {match[1]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}


def _hosts(facts: dict[str, str], line: int, unread: UnreadList) -> tuple[str, ...]:
    text = next((facts[key] for key in ("NodeList", "Nodes") if facts.get(key)), "")
    try:
        return expanded(text)
    except ValueError as error:
        unread.add(line, text, str(error))
        return ()


def _read_scontrol(text: str) -> SlurmOutput:
    unread = UnreadList()
    records: list[tuple[int, dict[str, str]]] = []
    for line, raw in enumerate(text.splitlines(), start=1):
        pairs = _pairs(raw)
        if not raw.strip():
            continue
        if pairs and next(iter(pairs)) in _RECORD:
            records.append((line, pairs))
        elif pairs and records:
            for key, value in pairs.items():
                records[-1][1].setdefault(key, value)
        elif not re.match(r"^\s*(?:Reason|Comment|Extra)\b", raw):
            unread.add(line, raw, "no Key=value, or before the first record")
    return SlurmOutput(records=tuple(_record(*one, unread) for one in records), not_understood=unread.done())


def _record(line: int, pairs: dict[str, str], unread: UnreadList) -> SlurmRecord:
    first = next(iter(pairs))
    facts = {key: value for key, value in pairs.items() if value not in _ABSENT and key != first}
    kind = _RECORD[first]
    hosts = (pairs[first],) if kind == "node" else _hosts(facts, line, unread)
    return SlurmRecord(kind=kind, name=pairs[first], line=line, facts=facts, hosts=hosts)


def _sacct_head(text: str) -> str:
    for line in text.splitlines()[:20]:
        words = set(re.split(r"[\s|#]+", line))
        if len(words & {"JobID", "JobIDRaw", "JobName", "State", "ExitCode", "Elapsed", "NodeList", "Account"}) >= 3:
            return line
    return ""


def _read_sacct(text: str) -> SlurmOutput:
    unread = UnreadList()
    lines = text.splitlines()
    head = _sacct_head(text)
    start = lines.index(head)
    cut = _delimiter(head)
    fixed = _widths(lines[start + 1]) if cut is None and start + 1 < len(lines) else []
    columns = head.split(cut) if cut else _cells(head, fixed) if fixed else head.split()
    columns = [column.strip() for column in columns]
    rows = []
    for line, raw in enumerate(lines[start + 1 :], start=start + 2):
        if not raw.strip() or set(raw.strip()) <= {"-", " "}:
            continue
        cells = raw.split(cut) if cut else _cells(raw, fixed) if fixed else raw.split()
        if len(cells) != len(columns):
            unread.add(line, raw, f"{len(cells)} columns where the head has {len(columns)}")
            continue
        pairs = zip(columns, (cell.strip() for cell in cells), strict=True)
        facts = {key: value for key, value in pairs if key and value not in _ABSENT}
        rows.append(SacctRow(line=line, job=facts.get("JobID") or facts.get("JobIDRaw"), facts=facts))
    return SlurmOutput(
        rows=tuple(rows), columns=tuple(column for column in columns if column), not_understood=unread.done()
    )


def _delimiter(head: str) -> str | None:
    """``|``, or the delimiter that the user chose; None for the table of fixed widths."""
    return next((mark for mark in ("|#", "|", "#", ",", ";", "\t") if mark in head), None)


def _widths(rule: str) -> list[tuple[int, int]]:
    """The columns of a table, by the dashes under its head."""
    return [match.span() for match in re.finditer(r"-+", rule)] if set(rule.strip()) <= {"-", " "} else []


def _cells(line: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    return [line[start:stop] for start, stop in spans]


def _read_topology(text: str) -> SlurmOutput:
    unread = UnreadList()
    switches: list[Switch] = []
    sizes: tuple[int, ...] = ()
    for line, raw in enumerate(text.splitlines(), start=1):
        body = raw.partition("#")[0].strip()
        pairs = _pairs(body)
        first = next(iter(pairs), "")
        if first == "BlockSizes" and re.fullmatch(r"[\d,\s]+", pairs[first]):
            sizes = tuple(int(one) for one in re.findall(r"\d{1,9}", pairs[first]))
        elif first in _TOPOLOGY:
            switches.append(_switch(pairs, first, line, unread))
        elif body:
            unread.add(line, raw, "neither SwitchName, BlockName nor BlockSizes")
    return SlurmOutput(switches=tuple(switches), block_sizes=sizes, not_understood=unread.done())


def _switch(pairs: dict[str, str], first: str, line: int, unread: UnreadList) -> Switch:
    lists = {}
    for key in ("Nodes", "Switches"):
        try:
            lists[key] = expanded(pairs.get(key, ""))
        except ValueError as error:
            unread.add(line, pairs[key], str(error))
            lists[key] = ()
    kind = "switch" if first == "SwitchName" else "block"
    return Switch(name=pairs[first], kind=kind, hosts=lists["Nodes"], switches=lists["Switches"])
