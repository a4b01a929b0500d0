"""Training logs to step records: which format was recognised, what each step took, and what went wrong in between."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, as_text, lines_of, shown
from narrows.reducers.readers.log_formats import FORMATS, Fields, Format, from_pattern

_WRAPPED = 3  # a line may be wrapped over this many more
_LONGEST = 2048  # characters of a line that are looked at; a step's line is shorter
_SAMPLE = 4000  # lines of each format that decide which one it is
_TIME = re.compile(
    r"(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_SOURCE_CODE = re.compile(r"\{[A-Za-z_][\w.\[\]()' +*/-]*(?:[:!][^}\s]*)?\}|^\s*(?:print0?|logger\.\w+|log)\(")
_LABEL = re.compile(r"^\s*(?:\[(?:rank|default)?(?P<a>\d+)\]|(?P<b>\d+)):\s|^\s*\[\d+,(?P<c>\d+)\]<std")
_FAILURE = re.compile(
    r"^(?:.*\b)?(?:Traceback \(most recent call last\)|[\w.]*(?:Error|Exception|Interrupt): |CUDA error|NCCL WARN|"
    r"Segmentation fault|Bus error|srun: error|slurmstepd: error|Watchdog caught|Out ?of ?[Mm]emory|oom-kill|"
    r"Unsupported ncclDataType|ChildFailedError|Signal \d+ \(SIG|Killed$|DUE TO TIME LIMIT)"
)
_FAILURES_KEPT = 20
_PYTHON_RUN = re.compile(
    r"Traceback \(most recent call last\)|torchrun|torch\.distributed|torchelastic|\[rank\d+\]:|"
    r"NCCL (?:INFO|WARN)|File \"[^\"\n]+\.py\", line \d+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStep:
    """One report of a step; what the line does not say is absent. ``rank``: the launcher's label of the line.

    ``unix_s`` is the line's own timestamp, read as UTC where it names no zone. ``tokens_per_s`` and ``tflops`` are as
    printed, which most formats do per GPU. ``skipped``: steps that the loss scaler left out.
    """

    line: int
    step: int
    step_ms: float | None = None
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    tflops: float | None = None
    skipped: int | None = None
    unix_s: float | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailure:
    """A line that tells of an error, in the order of the file: the first is closer to the cause than the last."""

    line: int
    text: str
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLog:
    """``format`` is absent where no line is of a known one: then there are failures, and no steps.

    ``timing``: ``printed`` (the log's own), ``smoothed`` (a progress bar's mean of the last steps), ``difference``
    (of a running total). ``median_step_ms`` leaves the first report out when there are three or more: it holds
    compilation, allocation and, in some formats, skipped steps.
    """

    steps: tuple[LogStep, ...]
    lines: int
    lines_matched: int
    format: str | None = None
    timing: str | None = None
    distinct_steps: int = 0
    total_steps: int | None = None
    median_step_ms: float | None = None
    source_lines: int = 0
    failures: tuple[LogFailure, ...] = ()
    failure_lines: int = 0
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)


def looks_like(text: str) -> bool:
    """Whether ``text`` holds steps of a known format, or the output of a training program that failed."""
    pieces = _pieces(text)
    failed = any(_FAILURE.search(piece) for _, piece in pieces)
    return _recognised(pieces) is not None or (failed and bool(_PYTHON_RUN.search(text)))


def _pieces(text: str) -> list[tuple[int, str]]:
    return [(line, piece[:_LONGEST]) for line, piece in lines_of(text)]


def read_log(data: bytes, name: str = "input", pattern: str | None = None) -> TrainingLog:
    """The steps of a training log, by the format that most of its lines have, or by the user's ``pattern``.

    Raises:
        UnreadableError: no line is of a known format, and none tells of a failure.
        ValueError: ``pattern`` is no regular expression with a group ``step``.
    """
    pieces = _pieces(as_text(data))
    chosen = from_pattern(pattern) if pattern is not None else _recognised(pieces)
    failures = [(line, text) for line, text in pieces if _FAILURE.search(text)]
    if chosen is None and not failures:
        known = ", ".join(one.name for one in FORMATS)
        raise UnreadableError(
            f"{name}: none of {len(pieces)} lines is a step of a known format ({known}); "
            r"give a pattern with named groups, as in 'step (?P<step>\d+) .* (?P<step_ms>[\d.]+) ms'"
        )
    unread = UnreadList()
    found = list(_steps(pieces, chosen, unread)) if chosen is not None else []
    if pattern is not None and not found:
        raise UnreadableError(
            f"{name}: the pattern {pattern!r} matches none of {len(pieces)} lines; try it on one of them"
        )
    steps = _differences(found) if chosen is not None and chosen.timing == "difference" else [one for one, _ in found]
    totals = [int(fields["total_steps"]) for _, fields in found if "total_steps" in fields]
    return TrainingLog(
        format=_dialect(chosen, pieces) if chosen is not None else None,
        timing=chosen.timing if chosen is not None and any(one.step_ms is not None for one in steps) else None,
        steps=tuple(steps),
        lines=len(pieces),
        lines_matched=len(steps),
        distinct_steps=len({one.step for one in steps}),
        total_steps=max(totals, default=None),
        median_step_ms=_median([one.step_ms for one in steps if one.step_ms is not None]),
        source_lines=sum(1 for _, text in pieces if _SOURCE_CODE.search(text)),
        failures=tuple(
            LogFailure(line=at, text=shown(text), rank=_rank(text)) for at, text in failures[:_FAILURES_KEPT]
        ),
        failure_lines=len(failures),
        not_understood=unread.done(),
    )


def _recognised(pieces: Sequence[tuple[int, str]]) -> Format | None:
    """The format with the most steps; a bare progress bar only where nothing else is there."""
    scores = {}
    for one in FORMATS:
        marked = [text for _, text in pieces if any(mark in text for mark in one.marks)][:_SAMPLE]
        scores[one.name] = sum(1 for text in marked if _fields(one, text) is not None)
    trainer = any("{'loss'" in text or "{'train_runtime'" in text for _, text in pieces)
    bars = {"tqdm"} if trainer else {"tqdm", "hf-trainer"}
    found = [one for one in FORMATS if scores[one.name]]
    certain = [one for one in found if one.name not in bars] or [one for one in found if one.name == "tqdm"]
    return max(certain, key=lambda one: scores[one.name], default=None)


def _fields(one: Format, text: str) -> Fields | None:
    if _SOURCE_CODE.search(text):
        return None
    return one.fields(text)


def _steps(pieces: Sequence[tuple[int, str]], one: Format, unread: UnreadList) -> Iterator[tuple[LogStep, Fields]]:
    for place, (line, text) in enumerate(pieces):
        if not any(mark in text for mark in one.marks) or _SOURCE_CODE.search(text):
            continue
        whole = _joined(pieces, place) if one.name == "megatron" else text
        fields = one.fields(whole)
        if fields is None:
            if one.name == "megatron" and "iteration" in text and "|" in text and "elapsed" in text:
                unread.add(line, text, "looks like a step, but has no 'iteration N/ M'")
        elif "step" in fields and 0 <= fields["step"] < 2**53:
            yield _step(line, text, fields), fields
        elif "step" not in fields and one.name != "hf-trainer":
            unread.add(line, text, "a step's line without the number of the step")


def _joined(pieces: Sequence[tuple[int, str]], place: int) -> str:
    """An iteration line that was wrapped, in one piece: it ends with a bar."""
    text = pieces[place][1]
    if not re.search(r"\biteration\s+\d+\s*/\s*\d+", text):
        return text
    for _, more in pieces[place + 1 : place + 1 + _WRAPPED]:
        begins = re.search(r"\biteration\s+\d+\s*/", more)
        if begins or "|" not in more or (text.rstrip().endswith("|") and not _goes_on(more)):
            break
        text += more
    return text


def _goes_on(text: str) -> bool:
    """Whether the first part before a bar is ``label: value``: the line before was cut at a bar by chance."""
    return bool(re.match(r"\s*[^|:]+:\s*[^|\s]+\s*\|", text))


def _step(line: int, text: str, fields: Fields) -> LogStep:
    known = {
        key: fields.get(key)
        for key in ("step_ms", "loss", "lr", "grad_norm", "tokens_per_s", "samples_per_s", "tflops")
    }
    skipped = fields.get("skipped")
    return LogStep(
        line=line,
        step=int(fields["step"]),
        **known,
        skipped=int(skipped) if skipped is not None else None,
        unix_s=_unix(text),
        rank=_rank(text),
    )


def _differences(found: Sequence[tuple[LogStep, Fields]]) -> list[LogStep]:
    """Step times from a running total: of neighbours alone, and only where it grows."""
    steps: list[LogStep] = []
    before: tuple[int, float] | None = None
    for one, fields in found:
        total = fields.get("cumulative_ms")
        step_ms = None
        if before is not None and total is not None and one.step == before[0] + 1 and total >= before[1]:
            step_ms = total - before[1]
        same = before is not None and one.step == before[0]
        steps.append(LogStep(line=one.line, step=one.step, step_ms=step_ms, unix_s=one.unix_s, rank=one.rank))
        if total is not None and not same:
            before = one.step, total
    return steps


def _median(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return float(np.median(values[1:] if len(values) >= 3 else values))


def _dialect(one: Format, pieces: Sequence[tuple[int, str]]) -> str:
    """Megatron-DeepSpeed writes Megatron's lines, with DeepSpeed's beside them; NeMo 1 writes Lightning's bars."""
    sign, name = {"megatron": ("deepspeed", "megatron-deepspeed"), "lightning": ("nemo", "nemo-1")}.get(
        one.name, ("", "")
    )
    return name if sign and any(sign in text.lower() for _, text in pieces) else one.name


def _rank(text: str) -> int | None:
    match = _LABEL.match(text)
    return int(next(group for group in match.groups() if group is not None)[:9]) if match else None


def _unix(text: str) -> float | None:
    match = _TIME.search(text)
    if match is None:
        return None
    fraction = (match["fraction"] or "0")[:6].ljust(6, "0")
    zone = (match["zone"] or "+00:00").replace("Z", "+00:00")
    try:
        at = datetime.fromisoformat(f"{match['date'].replace('/', '-')}T{match['time']}.{fraction}{zone}")
    except ValueError:
        return None
    return at.astimezone(UTC).timestamp()
