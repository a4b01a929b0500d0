"""Closing the account: did the part of the step that the hypothesis named shrink by what the step gained?

Everything here is before minus after: an improvement is positive, and newly exposed work is negative.
A step that got faster while the named account did not supports nothing, whatever the gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.verdict import Verdict
from narrows.reducers.estimates import Estimate, estimate, format_ms, interval_ms, samples, spread, t_quantile

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

TAU = 0.25
RHO = 0.5
# A gain this small beside the accounts is a rounding error, and no share of it means anything.
_NOTHING = 1e-12


class ClosingVerdict(StrEnum):
    """What the account says of a change that was meant to remove the cause."""

    CLOSED = "closed"
    PARTIAL = "partial"
    UNSUPPORTED = "unsupported"
    NO_EFFECT = "no_effect"


class Role(StrEnum):
    """What the hypothesis expected of an account."""

    PREDICTED = "predicted"
    EXPOSED = "exposed"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    """One account's part of the gain (ms a step, before minus after) with its 90 % interval."""

    account: str
    role: Role
    change_ms: float
    interval_ms: tuple[float, float] | None
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingResult:
    """Times in ms a step, before minus after; intervals at 90 %.

    `share` is the part of the improvement that the predicted accounts hold; `gap_ms` what they leave open.
    `exposed_ms` (never positive) is the newly exposed work that was declared beforehand, `covered_by_exposed` says
    that the account closes only with it, and `unexplained_offset_ms` is what the predicted accounts gave back
    outside of it. `table` lists every account given.
    """

    verdict: ClosingVerdict
    improvement_ms: float
    improvement_interval_ms: tuple[float, float] | None
    account_ms: float
    share: float | None
    share_interval: tuple[float, float] | None
    gap_ms: float
    gap_interval_ms: tuple[float, float] | None
    exposed_ms: float
    covered_by_exposed: bool
    unexplained_offset_ms: float | None
    tau: float
    floor_ms: float
    pairs_used: int
    table: tuple[GapRow, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedResult:
    """Whether a quantity stayed the same: supported within the margin, rejected outside of it, else inconclusive."""

    verdict: Verdict
    change_ms: float
    interval_ms: tuple[float, float] | None
    margin_ms: float
    reason: str


def closing_test(
    d_ms: npt.ArrayLike,
    c_ms: npt.ArrayLike,
    e_ms: npt.ArrayLike | None = None,
    *,
    tau: float = TAU,
    rho: float = RHO,
    alpha: float = 0.05,
    floor_ms: float = 0.0,
    name: str = "the predicted account",
) -> ClosingResult:
    """Judge pairs of the step's gain `d_ms`, the predicted accounts' gain `c_ms` and the newly exposed work `e_ms`.

    No effect: the gain is not shown to be above 0. Unsupported: the accounts hold less than `rho` of it. Closed: the
    gap between gain and accounts lies within `tau` of the gain, plus `floor_ms` for clocks and timers, by two
    one-sided tests; accounts that give back more than 1 + tau must be offset by `e_ms`. Otherwise partial.
    Raises `ValueError` for samples of different lengths.
    """
    d, c = samples(d_ms, "d_ms"), samples(c_ms, "c_ms")
    # Only work that appeared can have been exposed; work that vanished elsewhere is no excuse.
    e = np.minimum(0.0, samples(e_ms, "e_ms")) if e_ms is not None else np.zeros_like(d)
    if not d.size == c.size == e.size:
        raise ValueError(f"{d.size} gains, {c.size} account gains and {e.size} exposures: give one of each per pair")
    gain, gap = estimate(d, alpha), estimate(d - c, alpha)
    overshoot = float(c.mean()) > (1 + tau) * gain.mean
    closes = _within(d, d - c, tau, floor_ms, alpha)
    covered = not closes and overshoot and _within(d, d - c - e, tau, floor_ms, alpha)
    verdict = _verdict(gain, c - rho * d, alpha, closes=closes or covered)
    share, share_interval = _share(d, c, alpha)
    offset = float((c + e - d).mean()) if overshoot and not closes and not covered and gain.lower > 0 else None
    return ClosingResult(
        verdict=verdict,
        improvement_ms=gain.mean,
        improvement_interval_ms=_known(gain),
        account_ms=float(c.mean()),
        share=share,
        share_interval=share_interval,
        gap_ms=gap.mean,
        gap_interval_ms=_known(gap),
        exposed_ms=float(e.mean()),
        covered_by_exposed=covered and verdict is ClosingVerdict.CLOSED,
        unexplained_offset_ms=offset,
        tau=tau,
        floor_ms=floor_ms,
        pairs_used=gain.n,
        table=(),
        reason=_reason(verdict, gain, float(c.mean()), share, float(e.mean()) if covered else None, offset, name),
    )


def close_accounts(
    step_ms: npt.ArrayLike,
    accounts_ms: Mapping[str, npt.ArrayLike],
    predicted: Collection[str],
    exposed: Collection[str] = (),
    *,
    tau: float = TAU,
    rho: float = RHO,
    alpha: float = 0.05,
    floor_ms: float = 0.0,
) -> ClosingResult:
    """`closing_test` on the accounts of one ledger (each one gain a pair), with the table of where the gain lies.

    `predicted` names the accounts that the hypothesis expects to shrink, `exposed` those that it allowed to grow.
    Raises `ValueError` for an account that is not in the ledger or that plays both parts.
    """
    missing = [name for name in (*predicted, *exposed) if name not in accounts_ms]
    if missing or not predicted or set(predicted) & set(exposed):
        raise ValueError(
            f"predicted {sorted(predicted)} and exposed {sorted(exposed)} must be different accounts of the ledger, "
            f"at least one predicted; the ledger holds {', '.join(map(str, accounts_ms))}"
        )
    gains = {name: samples(values, str(name)) for name, values in accounts_ms.items()}
    result = closing_test(
        step_ms,
        np.sum([gains[name] for name in predicted], axis=0),
        np.sum([gains[name] for name in exposed], axis=0) if exposed else None,
        tau=tau,
        rho=rho,
        alpha=alpha,
        floor_ms=floor_ms,
        name=" and ".join(str(name) for name in accounts_ms if name in predicted),
    )
    rows = tuple(_gap_row(str(name), values, result, predicted, exposed, alpha) for name, values in gains.items())
    table = tuple(sorted(rows, key=lambda row: -abs(row.change_ms)))
    return _with_table(result, table)


def unchanged(x_ms: npt.ArrayLike, margin_ms: float, alpha: float = 0.05) -> UnchangedResult:
    """Does a quantity predicted to stay the same stay within the margin (ms, pair differences)?

    Raises `ValueError` for a margin that is not positive.
    """
    if not margin_ms > 0:
        raise ValueError(f"margin_ms={margin_ms}: equivalence needs a margin above 0; a quarter of the effect is usual")
    change = estimate(x_ms, alpha)
    verdict, where = Verdict.INCONCLUSIVE, "is not settled against"
    if change.n > 1 and -margin_ms < change.lower and change.upper < margin_ms:
        verdict, where = Verdict.SUPPORTED, "lies within"
    elif change.n > 1 and (change.lower > margin_ms or change.upper < -margin_ms):
        verdict, where = Verdict.REJECTED, "lies outside"
    shown = interval_ms(change.mean, *change.interval, beside=margin_ms)
    margin = format_ms(margin_ms, change.mean)[0]
    return UnchangedResult(
        verdict=verdict,
        change_ms=change.mean,
        interval_ms=_known(change),
        margin_ms=margin_ms,
        reason=f"{shown} {where} the margin of {margin} ms on both sides of 0 ({change.n} pairs)",
    )


def _within(d: Floats, gap: Floats, tau: float, floor_ms: float, alpha: float) -> bool:
    upper = estimate(gap - tau * d, alpha).upper
    lower = estimate(gap + tau * d, alpha).lower
    return upper < floor_ms and lower > -floor_ms


def _verdict(gain: Estimate, beyond_rho: Floats, alpha: float, *, closes: bool) -> ClosingVerdict:
    if not gain.lower > 0:
        return ClosingVerdict.NO_EFFECT
    # Before closing: a floor wider than the gain would close any account.
    if estimate(beyond_rho, alpha).upper < 0:
        return ClosingVerdict.UNSUPPORTED
    return ClosingVerdict.CLOSED if closes else ClosingVerdict.PARTIAL


def _share(d: Floats, c: Floats, alpha: float) -> tuple[float | None, tuple[float, float] | None]:
    """Ratio of the means with its interval by the delta method; nothing where there was no gain to share."""
    mean = float(d.mean())
    if abs(mean) <= _NOTHING * float(np.abs(c).max()):
        return None, None
    share = float(c.mean()) / mean
    if d.size < 2:
        return share, None
    half = t_quantile(alpha, d.size - 1) * spread(c - share * d) / math.sqrt(d.size) / abs(mean)
    return share, (share - half, share + half)


def _known(value: Estimate) -> tuple[float, float] | None:
    return value.interval if value.n > 1 else None


def _gap_row(
    name: str,
    values: Floats,
    result: ClosingResult,
    predicted: Collection[str],
    exposed: Collection[str],
    alpha: float,
) -> GapRow:
    change = estimate(values, alpha)
    role = Role.PREDICTED if name in predicted else Role.EXPOSED if name in exposed else Role.OTHER
    share = change.mean / result.improvement_ms if result.share is not None else None
    return GapRow(account=name, role=role, change_ms=change.mean, interval_ms=_known(change), share=share)


def _with_table(result: ClosingResult, table: tuple[GapRow, ...]) -> ClosingResult:
    """The result with its table, and the largest account outside the prediction named where the account is open."""
    other = next((row for row in table if row.role is not Role.PREDICTED and row.change_ms > 0), None)
    reason = result.reason
    if result.verdict in (ClosingVerdict.UNSUPPORTED, ClosingVerdict.PARTIAL) and other is not None:
        reason += f"; {other.account} holds {format_ms(other.change_ms, result.improvement_ms)[0]} ms of it"
    return replace(result, table=table, reason=reason)


def _reason(
    verdict: ClosingVerdict,
    gain: Estimate,
    account_ms: float,
    share: float | None,
    covered_ms: float | None,
    offset_ms: float | None,
    name: str,
) -> str:
    gained, moved = format_ms(gain.mean, account_ms)
    if verdict is ClosingVerdict.NO_EFFECT:
        shown = interval_ms(gain.mean, *gain.interval)
        return f"no improvement of the step is shown: {shown} over {gain.n} pairs"
    told = f"of {gained} ms gained, {name} holds {moved} ms ({(share or 0.0):.0%})"
    if verdict is ClosingVerdict.UNSUPPORTED:
        return f"{told}: the step changed, the predicted account did not"
    if verdict is ClosingVerdict.CLOSED:
        if covered_ms is None:
            return f"{told}: the account closes"
        return f"{told}, less {format_ms(-covered_ms, gain.mean)[0]} ms newly exposed as declared: the account closes"
    if offset_ms is not None:
        return f"{told}: {format_ms(offset_ms, gain.mean)[0]} ms were given back where nothing was declared"
    return f"{told}: the account is open"
