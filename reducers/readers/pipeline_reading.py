"""A pipeline-parallel timeline as a reading: how much its stragglers cost, and which worker, stage or kind costs it."""

from __future__ import annotations

from dataclasses import dataclass

from narrows.reducers.pipeline_replay import STRAGGLING, Straggling, TimelineError, pipeline_straggling
from narrows.reducers.readers.common import NotUnderstood, UnreadableError
from narrows.reducers.readers.operation_timeline import read_operation_timeline

_HALF = 0.5  # Source: Lin et al., OSDI 2025: more than half of the loss is the cause


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReading:
    """``culprit`` is what carries more than half of the loss; None where nothing does, or no claim may be made."""

    operations: int
    workers: int
    stages: int
    straggling: Straggling
    culprit: str | None
    not_understood: NotUnderstood


def read_pipeline(data: bytes, name: str = "input") -> PipelineReading:
    """The replayed timeline of the file.

    Raises:
        UnreadableError: it is no operation timeline, or its operations do not fit together.
    """
    timeline = read_operation_timeline(data, name)
    try:
        found = pipeline_straggling(timeline)
    except TimelineError as error:
        raise UnreadableError(f"{name}: {error}") from None
    return PipelineReading(
        operations=len(timeline),
        workers=len(timeline.workers),
        stages=len({stage for _, stage in timeline.workers}),
        straggling=found,
        culprit=_culprit(found),
        not_understood=timeline.not_understood,
    )


def _culprit(found: Straggling) -> str | None:
    if not found.trusted or found.slowdown < STRAGGLING:
        return None
    if found.worker_shares is not None and found.worker_shares.removal > _HALF:
        return ", ".join(found.worst_workers)
    if found.stage_shares is not None and found.stage_shares.removal > _HALF:
        return f"stage {max(found.of_stage)}"
    return None
