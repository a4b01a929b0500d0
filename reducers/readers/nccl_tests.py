"""Output of nccl-tests and rccl-tests: every test of a file, its rows, its devices, and how it ended.

A launch that failed has no bandwidth: it is never read as 0 GB/s.

Source: the columns are those that nccl-tests prints (src/common.cu, versions 2.0 to 2.17) and rccl-tests after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, as_text, lines_of, number, shown

_BRACKET = r"\[[\w.@,-]*\d\](?:<std(?:out|err|diag)>)?:?"
_TAG = rf"(?:{_BRACKET}|[^<>\s]*<std(?:out|err)>:)"
_PREFIX = re.compile(
    rf"^\s*(?:{_TAG}\s?|\d+:\s|\d{{4}}-\d\d-\d\dT[\d:.]+(?:Z|[-+]\d\d:?\d\d)\s|[\w.-]+:\s(?=\s*(?:#|\d+\s)))+"
)
_TAG_INSIDE = re.compile(_BRACKET)
_RANK = re.compile(
    r"#\s*Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?Pid\s+(?P<pid>\d+)\s+on\s+(?P<host>\S+)\s+"
    r"device\s+(?P<device>\d+)\s+\[(?P<bus>[^\]]*)\]\s*(?P<name>.*)"
)
_PARAMETERS = re.compile(r"#\s*nThread\s+\d+")
_PARAMETER = re.compile(r"([A-Za-z][A-Za-z ]*?):?\s+(\d+)(?:\((\w+)\))?")
_PROGRAM = re.compile(r"\b([a-z_]+)_perf\b")
_WRONG = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s*(\w*)")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
_VERSION = re.compile(
    r"^#?\s*(nccl-tests version .*|rccl-tests.*version.*|(?:NCCL|RCCL|HIP|ROCm|CUDA) version\b.*|Librccl path.*)",
    re.IGNORECASE,
)
_FAILURE = re.compile(
    r"Test (?:NCCL |CUDA |HIP )?failure|NCCL WARN|start failed on|alloc failed|launch failed|Segmentation fault|"
    r"srun: error|slurmstepd: error|Connection (?:refused|timed out)|command not found|No such file or directory|"
    r"unhandled (?:system|cuda|hip) error|error while loading shared libraries|out of memory|"
    r"(?:mpirun|mpiexec|prterun|prun|orted)\b.*(?:noticed|error|abort|exit|fail|unable)|Aborted|"
    r"not enough slots|Permission denied",
    re.IGNORECASE,
)
_DEBUG = re.compile(r"NCCL (?:INFO|TRACE)|RCCL INFO")
_ROW = re.compile(r"\s*\d+\s+\d+\s")
# Row layouts by their number of columns, for tables whose head is missing: leading columns, then two sides.
_BY_COUNT = {
    13: ("size", "count", "type", "redop", "root"),
    12: ("size", "count", "type", "redop"),
    11: ("size", "count", "type"),
}
_SIDE = ("time", "algbw", "busbw", "#wrong")


class Ending(StrEnum):
    """How a test ended: with its summary, with an error, or without either (the file is cut, or it hung)."""

    COMPLETE = "complete"
    FAILED = "failed"
    CUT = "cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One timing of a row: microseconds, GB/s; ``wrong`` is absent where the values were not checked."""

    time_us: float
    algbw_gb_s: float
    busbw_gb_s: float
    wrong: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One message size: ``size_bytes`` per rank as printed, ``count`` elements."""

    line: int
    size_bytes: int
    count: int
    dtype: str | None = None
    redop: str | None = None
    root: int | None = None
    out_of_place: Side | None = None
    in_place: Side | None = None

    @property
    def busbw_gb_s(self) -> float:
        """The better of both timings, GB/s."""
        return max(side.busbw_gb_s for side in (self.out_of_place, self.in_place) if side is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One rank of the test, as its head lists it."""

    rank: int
    host: str
    device: int
    pid: int
    bus: str
    name: str
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A line that says that something failed."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One collective's table. ``collective`` is absent where neither the head nor a command line names it."""

    __test__ = False  # not a test of ours

    line: int
    ending: Ending
    collective: str | None = None
    parameters: dict[str, int] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    rows: tuple[Row, ...] = ()
    out_of_bounds: int | None = None
    out_of_bounds_verdict: str | None = None
    avg_busbw_gb_s: float | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names in rank order, each once."""
        return tuple(dict.fromkeys(device.host for device in self.devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTests:
    """A whole file. No test and at least one failure: the launch failed, and there is no result."""

    tests: tuple[Test, ...]
    versions: tuple[str, ...] = ()
    launch_failures: tuple[Failure, ...] = ()
    debug_lines: int = 0
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host for test in self.tests for host in test.hosts))


def stripped(line: str) -> str:
    """``line`` without the prefixes that launchers put before it."""
    return _PREFIX.sub("", line, count=1)


def looks_like(text: str) -> bool:
    """Whether ``text`` holds an nccl-tests head or table, or is the short message of a launch that failed."""
    head = text[:200_000]
    if re.search(r"#\s*nThread\s+\d+\s+nGpus|#\s+size\s+count\s+type|Collective test starting:", head):
        return True
    return len(text) < 2000 and bool(re.search(r"start failed on|alloc failed on|_perf\b.*(?:not found|error)", text))


@dataclass(slots=True, kw_only=True)
class _Open:
    """The test that is being read."""

    line: int
    collective: str | None = None
    parameters: dict[str, int] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    wrong: tuple[int, str] | None = None
    average: float | None = None
    concluded: bool = False
    failures: list[Failure] = field(default_factory=list)

    def closed(self) -> Test:
        whole = self.average is not None or self.concluded
        ending = Ending.COMPLETE if whole else Ending.FAILED if self.failures else Ending.CUT
        return Test(
            line=self.line,
            ending=ending,
            collective=self.collective,
            parameters=self.parameters,
            devices=tuple(self.devices),
            rows=tuple(self.rows),
            out_of_bounds=self.wrong[0] if self.wrong else None,
            out_of_bounds_verdict=self.wrong[1] or None if self.wrong else None,
            avg_busbw_gb_s=self.average,
            failures=tuple(self.failures),
        )


class _Reader:
    def __init__(self) -> None:
        self.tests: list[Test] = []
        self.open: _Open | None = None
        self.named: str | None = None  # the program that a command line named
        self.versions: list[str] = []
        self.launch: list[Failure] = []
        self.debug = 0
        self.unread = UnreadList()

    def start(self, line: int) -> _Open:
        if self.open is not None:
            self.tests.append(self.open.closed())
        self.open = _Open(line=line, collective=self.named)
        return self.open

    def current(self, line: int) -> _Open:
        return self.open if self.open is not None else self.start(line)

    def take(self, line: int, raw: str) -> None:
        text = stripped(raw)
        if _DEBUG.search(raw):
            self.debug += 1
        elif text.lstrip().startswith("#"):
            self.head(line, text.strip())
        elif _ROW.match(_TAG_INSIDE.sub(" ", text)) and (self.open is not None or len(text.split()) in _BY_COUNT):
            self.row(line, text)
        elif _FAILURE.search(raw):
            self.fail(line, raw)
        else:
            self.other(line, text)

    def head(self, line: int, text: str) -> None:
        if match := _RANK.match(text):
            self.current(line).devices.append(_device(match))
        elif "Collective test starting" in text:
            self.start(line).collective = (_PROGRAM.findall(text) or [None])[0]
        elif _PARAMETERS.match(text):
            self.parameters(line, text)
        elif re.match(r"#\s*size\s+count", text):
            self.current(line).columns = _columns(text)
        elif _VERSION.match(text):
            self.version(text)
        else:
            self.foot(line, text)

    def parameters(self, line: int, text: str) -> None:
        if self.open is None or self.open.parameters or self.open.rows:
            self.start(line)
        found = _PARAMETER.findall(text.lstrip("# "))
        self.current(line).parameters = {name.strip().replace(" ", "_"): int(value[:18]) for name, value, _ in found}

    def foot(self, line: int, text: str) -> None:
        if match := _WRONG.match(text):
            self.current(line).wrong = (int(match[1][:18]), match[2])
        elif match := _AVERAGE.match(text):
            self.current(line).average = number(match[1])
            if number(match[1]) is None:
                self.unread.add(line, text, "the average bus bandwidth is not a number")
        elif "Collective test concluded" in text and self.open is not None:
            self.open.concluded = True

    def row(self, line: int, text: str) -> None:
        test = self.current(line)
        row, why = _row(line, _TAG_INSIDE.sub(" ", text).split(), test.columns)
        if row is None:
            self.unread.add(line, text, why)
        else:
            test.rows.append(row)

    def version(self, text: str) -> None:
        found = shown(text.lstrip("# "))
        if found not in self.versions:
            self.versions.append(found)

    def fail(self, line: int, raw: str) -> None:
        failure = Failure(line=line, text=shown(raw))
        if self.open is None or self.open.average is not None or self.open.concluded:
            self.launch.append(failure)
        else:
            self.open.failures.append(failure)

    def other(self, line: int, text: str) -> None:
        if _VERSION.match(text.strip()):
            self.version(text.strip())
        elif names := _PROGRAM.findall(text):
            self.named = names[-1]
        elif text.strip() and not re.fullmatch(r"[\s*=-]*", text):
            self.unread.add(line, text, "neither a head, a row, nor a known failure")


def read_nccl_tests(data: bytes, name: str = "input") -> NcclTests:
    """Every test in the output, in its order.

    Raises:
        UnreadableError: there is neither a test nor a failure in it.
    """
    reader = _Reader()
    for line, text in lines_of(as_text(data)):
        reader.take(line, text)
    if reader.open is not None:
        reader.tests.append(reader.open.closed())
    tests = tuple(test for test in reader.tests if _says_something(test))
    if not tests and not reader.launch:
        raise UnreadableError(
            f"{name}: has no nccl-tests head ('# nThread ...'), table or known failure message; "
            "give the test's whole output"
        )
    return NcclTests(
        tests=tests,
        versions=tuple(reader.versions),
        launch_failures=tuple(reader.launch),
        debug_lines=reader.debug,
        not_understood=reader.unread.done(),
    )


def _says_something(test: Test) -> bool:
    """False for what one line out of place began."""
    found = (test.collective, test.parameters, test.rows, test.devices, test.failures)
    return any(found) or test.avg_busbw_gb_s is not None


def _device(match: re.Match[str]) -> Device:
    group = match["group"]
    return Device(
        rank=int(match["rank"][:9]),
        host=match["host"],
        device=int(match["device"][:9]),
        pid=int(match["pid"][:18]),
        bus=match["bus"],
        name=match["name"].strip(),
        group=int(group[:9]) if group else None,
    )


def _columns(text: str) -> tuple[str, ...]:
    names = text.replace("# wrong", "#wrong").lstrip("# ").split()
    return tuple("#wrong" if name == "error" else name for name in names)


def _row(line: int, words: list[str], columns: tuple[str, ...]) -> tuple[Row | None, str]:
    """The row, or None and why not."""
    if len(words) != len(columns):
        lead = _BY_COUNT.get(len(words))
        if lead is None or columns:
            return None, f"{len(words)} columns where the head has {len(columns) or '11 to 13'}"
        columns = (*lead, *_SIDE, *_SIDE)
    first = columns.index("time") if "time" in columns else len(columns)
    lead_values = dict(zip(columns[:first], words, strict=False))
    size, count = (_int(lead_values.get(key, "")) for key in ("size", "count"))
    sides = _sides(columns[first:], words[first:])
    if size is None or count is None or not any(sides):
        return None, "size, count or times are not numbers"
    return Row(
        line=line,
        size_bytes=size,
        count=count,
        dtype=lead_values.get("type"),
        redop=lead_values.get("redop"),
        root=_int(lead_values.get("root", "")),
        out_of_place=sides[0],
        in_place=sides[1],
    ), ""


def _sides(names: tuple[str, ...], words: list[str]) -> tuple[Side | None, Side | None]:
    starts = [place for place, name in enumerate(names) if name == "time"][:2]
    found: list[Side | None] = [None, None]
    for place, start in enumerate(starts):
        stop = starts[place + 1] if place + 1 < len(starts) else len(names)
        found[place] = _side(dict(zip(names[start:stop], words[start:stop], strict=False)))
    return found[0], found[1]


def _side(values: dict[str, str]) -> Side | None:
    time_us, algbw, busbw = (number(values.get(key, "")) for key in ("time", "algbw", "busbw"))
    if time_us is None or algbw is None or busbw is None:
        return None
    wrong = number(values.get("#wrong", ""))
    return Side(time_us=time_us, algbw_gb_s=algbw, busbw_gb_s=busbw, wrong=int(wrong) if wrong is not None else None)


def _int(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None
