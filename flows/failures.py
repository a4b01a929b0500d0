"""Who failed first in a torchrun job, and with what words: read from the logs that torchrun leaves."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from narrows.flows.launching import LaunchPlan, RankFailure

# torch/distributed/elastic/multiprocessing/errors/__init__.py, _FAILURE_FORMAT_TEMPLATE
_BLOCK = re.compile(
    r"time\s+: (?P<time>\S+)\n\s+host\s+: .*\n\s+rank\s+: (?P<rank>\d+) \(local_rank: (?P<local_rank>\d+)\)\n"
    r"\s+exitcode\s+: (?P<code>-?\d+) .*\n\s+error_file: (?P<error_file>.*)\n"
)
# What the survivors say when a peer is gone: a consequence, not the cause.
_CONSEQUENCE = re.compile(
    r"connection (closed|reset|refused)|broken pipe|remote process exited|store.*timeout", re.IGNORECASE
)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_STOPPED = -signal.SIGTERM  # torchrun stopped this rank because of another
_LOG_BYTES = 262_144


def read_failures(plan: LaunchPlan, bad_exits: Mapping[str, int]) -> tuple[RankFailure, ...]:
    """The processes that failed by themselves on the hosts in ``bad_exits`` (host to its agent's exit code).

    The cause comes first: by its words, then by the time that torchrun noted (whole seconds), then by rank.
    """
    found: list[RankFailure] = []
    for host, code in bad_exits.items():
        agent_log = Path(plan.log_dir) / host / "agent.log"
        text = tail_text(agent_log)
        ranks = [_rank_failure(plan, host, match) for match in _BLOCK.finditer(text)]
        failed = [failure for failure in ranks if failure.exit_code != _STOPPED] or ranks[-1:]
        found += failed or [_agent_failure(host, code, agent_log, text)]
    return tuple(sorted(found, key=_order))


def _order(failure: RankFailure) -> tuple[bool, float, int]:
    consequence = bool(_CONSEQUENCE.search(failure.message))
    return consequence, failure.unix_s or 0.0, -1 if failure.rank is None else failure.rank


def _rank_failure(plan: LaunchPlan, host: str, match: re.Match[str]) -> RankFailure:
    code, local_rank = int(match["code"]), match["local_rank"]
    error_file = Path(match["error_file"].strip())
    logs = sorted((Path(plan.log_dir) / host).glob(f"*/attempt_0/{local_rank}/stderr.log"))
    log = logs[-1] if logs else Path(plan.log_dir) / host / "agent.log"
    known = error_file.is_file()
    words = error_message(error_file) if known else None
    return RankFailure(
        host=host,
        rank=int(match["rank"]),
        exit_code=code,
        message=words or _last_words(code, tail_text(log) if logs else ""),
        log_path=str(log),
        error_file=str(error_file) if known else None,
        unix_s=datetime.strptime(match["time"], "%Y-%m-%d_%H:%M:%S").astimezone().timestamp(),
    )


def _agent_failure(host: str, code: int, log: Path, text: str) -> RankFailure:
    return RankFailure(host=host, exit_code=code, message=_last_words(code, text), log_path=str(log))


def _last_words(code: int, text: str) -> str:
    words = exception_line(text) or _last_line(text)
    if code < 0:
        killed = f"killed by {_signal_name(-code)}"
        return f"{killed}; its last words were: {words}" if words else killed
    return words or "no message"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def error_message(path: Path) -> str | None:
    """The first line of the message in a torchrun error file, or None when it cannot be read as one."""
    try:
        raw: Any = json.loads(path.read_text())["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    text = raw.get("message") if isinstance(raw, dict) else raw
    return str(text).strip().splitlines()[0] if text else None


def exception_line(text: str) -> str | None:
    """The line that names the exception of the last Python traceback in ``text``, if there is one."""
    text = _RANK_PREFIX.sub("", text)
    _, found, after = text.rpartition("Traceback (most recent call last):\n")
    lines = after.splitlines() if found else []
    return next((line.strip() for line in lines if line and not line[0].isspace()), None)


def _last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def tail_text(path: Path, num_bytes: int = _LOG_BYTES) -> str:
    """The last ``num_bytes`` of a log as text; empty when there is no such file."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - num_bytes))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
