"""The rule of everything that runs inside the user's calls: it may fail, it is reported once, training goes on."""

from __future__ import annotations

import sys

from narrows.instruments.recorder import current

HOOK_ERRORS = (ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What a hook of ours can raise when torch differs from what it expects."""

_reported: set[str] = set()


def report_once(part: str, problem: BaseException | str) -> None:
    """The first problem of ``part`` goes to stderr and, where a recorder is current, to events.jsonl."""
    if part in _reported:
        return
    _reported.add(part)
    text = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
    print(f"narrows: {part}: {text}; recording goes on without it", file=sys.stderr)
    recorder = current()
    if recorder is not None:
        recorder.event("not_recorded", text, part=part)
