"""The programs that torchrun starts, and what each of them leaves out of a full training step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One built-in experiment; `removes` says what of the full step it does without."""

    name: str
    module: str
    summary: str
    removes: str


PROGRAMS: tuple[Program, ...] = (
    Program(
        name="step",
        module="narrows.experiments.step",
        summary="data-parallel transformer training step on packed documents",
        removes="nothing; a smaller scope removes the links, hosts and ranks outside it",
    ),
    Program(
        name="collective",
        module="narrows.experiments.collective",
        summary="message-size sweep of one collective in one group",
        removes="compute, input, optimizer, and the overlap with them",
    ),
)
