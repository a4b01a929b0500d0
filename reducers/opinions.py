"""Three opinions on which account holds the loss: the critical path, the rank that waits least, the what-if replay.

They rest on the same runs and may still differ: the path overstates a slow link beside compute, the rank that waits
least misses what strikes ranks in turn, and only the replay tells causes that overlap. They describe, they do not
decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.reducers.whatif import AGREEMENT

if TYPE_CHECKING:
    from collections.abc import Mapping

CRITICAL_PATH, LEAST_WAITING, REPLAY = "critical_path", "least_waiting_rank", "replay"
LEAST_REPLAYED = 0.5
"""Of the measured loss, what the replayed steps must have lost, so that they speak for it."""
_NAMES = {
    CRITICAL_PATH: "the critical path",
    LEAST_WAITING: "the rank that waits least",
    REPLAY: "the what-if replay",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """One account's share of the loss as each opinion has it; 1 is all of it.

    ``removal`` and ``addition`` are the replay's: with this account as in the healthy run, and with it alone as in the
    regressed. ``replay`` is their mean, None where they disagree: the account interacts with another. All three are
    None where the replay says nothing of the account.
    """

    account: str
    critical_path: float
    least_waiting_rank: float
    removal: float | None = None
    addition: float | None = None
    replay: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinions:
    """``leading`` names the account that each opinion puts first. ``agree`` is None where the replay is withheld:
    ``why_not`` says why, and ``accounts`` hold two opinions. Milliseconds are those of the replayed steps, of which
    ``steps`` counts each run's; ``replay_error`` is replayed over measured step, less 1, of each.
    """

    accounts: tuple[Opinion, ...]
    leading: dict[str, str]
    agree: bool | None
    sentence: str
    healthy_ms: float
    regressed_ms: float
    replay_error: tuple[float, float]
    steps: tuple[int, int]
    why_not: str | None


def opinions(evidence: Mapping[str, Any]) -> Opinions | None:
    """The opinions on evidence of a healthy and a regressed arm; None without a replay in it, or without a loss."""
    found, step = evidence.get("what_if"), evidence["difference"]["step_ms"]
    if found is None or not step or fmean(step) <= 0:
        return None
    why_not = found["why_not"] or _too_small(evidence, found)
    replayed = {} if why_not else {one["account"]: one for one in found["accounts"]}
    rows = tuple(_opinion(evidence, account.value, fmean(step), replayed.get(account.value)) for account in ACCOUNTS)
    tables = {
        CRITICAL_PATH: {one.account: one.critical_path for one in rows},
        LEAST_WAITING: {one.account: one.least_waiting_rank for one in rows},
        **(
            {}
            if why_not
            else {REPLAY: {name: (one["removal"] + one["addition"]) / 2 for name, one in replayed.items()}}
        ),
    }
    common = _common(tables)
    leading = {name: common or max(table, key=lambda one: table[one]) for name, table in tables.items()}
    return Opinions(
        accounts=rows,
        leading=leading,
        agree=None if why_not else common is not None,
        sentence=_sentence(rows, tables, leading, common, why_not)
        + ("" if why_not else _waiting(evidence, fmean(step))),
        healthy_ms=found["healthy_ms"],
        regressed_ms=found["regressed_ms"],
        replay_error=tuple(found["replay_error"]),
        steps=tuple(found["steps"]),
        why_not=why_not,
    )


def _too_small(evidence: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """Means of steps are replayed, so it is the change of the mean that they are held against."""
    healthy, regressed = evidence["arms"].values()
    measured, replayed = regressed["mean_ms"] - healthy["mean_ms"], found["regressed_ms"] - found["healthy_ms"]
    if replayed >= LEAST_REPLAYED * measured:
        return None
    return f"the replayed steps lost {replayed:.3g} ms, less than half of the {measured:.3g} ms of all steps"


def _opinion(evidence: Mapping[str, Any], account: str, delta: float, one: Mapping[str, Any] | None) -> Opinion:
    tables = evidence["difference"]["accounts"]
    seen = {view: fmean(tables[view][account]) / delta for view in (CRITICAL_PATH, LEAST_WAITING)}
    if one is None:
        return Opinion(account=account, **seen)
    return Opinion(account=account, **seen, removal=one["removal"], addition=one["addition"], replay=one["share"])


def _common(tables: Mapping[str, Mapping[str, float]]) -> str | None:
    """The account that every opinion puts first, or so near to its first that it could be; the one they give most."""
    near = [
        {name for name, share in table.items() if share >= max(table.values()) - AGREEMENT} for table in tables.values()
    ]
    shared = set.intersection(*near)
    return max(sorted(shared), key=lambda name: sum(table[name] for table in tables.values()), default=None)


def _sentence(
    rows: tuple[Opinion, ...],
    tables: Mapping[str, Mapping[str, float]],
    leading: Mapping[str, str],
    common: str | None,
    why_not: str | None,
) -> str:
    if why_not:
        return f"the what-if replay is withheld: {why_not}"
    told = [f"{_NAMES[name]} puts {leading[name]} first ({table[leading[name]]:.0%})" for name, table in tables.items()]
    if common is None:
        return f"the opinions differ: {', '.join(told)}"
    shares = ", ".join(f"{table[common]:.0%} on {_NAMES[name]}" for name, table in tables.items() if name != REPLAY)
    one = next(one for one in rows if one.account == common)
    replayed = _replayed(one)
    return f"all three put {common} first: {shares}, {replayed}"


def _waiting(evidence: Mapping[str, Any], delta: float) -> str:
    """Where the mean over ranks shows waiting, that these opinions have it under what was waited for."""
    table = evidence["difference"]["accounts"]["rank_mean"]
    share = sum(fmean(table[account]) for account in (Account.SKEW, Account.PIPELINE)) / delta
    if share <= AGREEMENT:
        return ""
    return f"; waiting, {share:.0%} of the loss in the rank mean, is charged by path and replay to what was waited for"


def _replayed(one: Opinion) -> str:
    if one.replay is not None:
        return f"{one.replay:.0%} in the what-if replay"
    return (
        f"{one.removal:.0%} when taken away and {one.addition:.0%} when put in alone in the what-if replay, "
        "so it interacts with another account"
    )
