"""Tables of where the step's time went, from one evidence file: exact sums, the residual always among the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable

from narrows.inquiry.accounts import ACCOUNT_MEANINGS, ACCOUNTS, Account
from narrows.inquiry.design import REGRESSED
from narrows.inquiry.hypotheses import Ledger
from narrows.templates.evidence import Record
from narrows.templates.numbers import Number, number, share, significant
from narrows.templates.parts import Bars, GapRow, LedgerRow, LedgerTable

VIEW_WORDS: dict[str, str] = {
    Ledger.RANK_MEAN.value: "every rank's own time, averaged over ranks",
    Ledger.CRITICAL_PATH.value: "only what the step had to wait for; a wait is charged to what made the last rank late",
    Ledger.LEAST_WAITING.value: "the rank that waited least for others, step by step",
    Ledger.NAMED_RANKS.value: "the ranks that the hypothesis names",
}
NOTHING_MS = 5e-4


def ledger_table(record: Record, view: str, *, shares: bool) -> LedgerTable | None:
    """Both arms' accounts in ``view``; None where the file has no such ledger. ``shares`` are of the step's change."""
    both = record.two_arms
    if both is None or view not in record.views:
        return None
    before, after = (record.accounts(one, view) for one in both)
    change = sum(after.values()) - sum(before.values())
    places = _places(change)
    found = _ordered({*before, *after})
    full = [one for one in found if _holds(before, after, one) or one == Account.RESIDUAL.value]
    rows = tuple(_row(record, view, one, places, change if shares else None) for one in full)
    return LedgerTable(
        view=view,
        words=VIEW_WORDS.get(view, view.replace("_", " ")),
        before=both[0],
        after=both[1],
        rows=rows,
        total=_total(record, before, after, places, shares=shares),
        step=_measured(record, before, after, places),
        empty=tuple(one for one in found if one not in full),
        source=record.source,
    )


def _places(change: float) -> int:
    """One number of decimals for the whole table, so that its columns add up by eye."""
    return min(2, max(1, significant(change))) if change else 1


def _holds(before: dict[str, float], after: dict[str, float], account: str) -> bool:
    return max(abs(before.get(account, 0.0)), abs(after.get(account, 0.0))) >= NOTHING_MS


def _ordered(names: Iterable[str]) -> list[str]:
    """Known accounts in their order of precedence; any other after them; the residual is never left out."""
    known = [one.value for one in ACCOUNTS]
    present = {*names, Account.RESIDUAL.value}
    return [one for one in known if one in present] + sorted(present - set(known))


def _row(record: Record, view: str, account: str, places: int, change: float | None) -> LedgerRow:
    both = record.two_arms
    assert both is not None
    first, second = (record.accounts(one, view).get(account, 0.0) for one in both)
    paired = record.difference(account, view)
    interval = paired.interval if paired else None
    return LedgerRow(
        account=account,
        meaning=meaning(account),
        before=_fixed(first, record, places),
        after=_fixed(second, record, places),
        difference=_fixed(second - first, record, places, interval, signed=True),
        share=share(second - first, change, record.source) if change is not None else None,
    )


def meaning(account: str) -> str:
    """What the account holds, in words."""
    return ACCOUNT_MEANINGS[Account(account)] if account in set(Account) else account


def _total(
    record: Record, before: dict[str, float], after: dict[str, float], places: int, *, shares: bool
) -> LedgerRow:
    first, second = sum(before.values()), sum(after.values())
    paired = record.difference()
    interval = paired.interval if paired else None
    return LedgerRow(
        account="sum",
        meaning="the step",
        before=_fixed(first, record, places),
        after=_fixed(second, record, places),
        difference=_fixed(second - first, record, places, interval, signed=True),
        share=share(1.0, 1.0, record.source) if shares else None,
    )


def _measured(record: Record, before: dict[str, float], after: dict[str, float], places: int) -> LedgerRow | None:
    """The measured step, where it is not the sum to the digit shown."""
    both = record.two_arms
    assert both is not None
    steps = [record.step_ms(one) for one in both]
    sums = [sum(before.values()), sum(after.values())]
    if steps[0] is None or steps[1] is None:
        return None
    if all(math.isclose(s, t, abs_tol=0.6 * 10.0**-places) for s, t in zip(steps, sums, strict=True) if s is not None):
        return None
    paired = record.difference()
    return LedgerRow(
        account="step, measured",
        meaning="the step by the clock, from the first start to the last end",
        before=_fixed(steps[0], record, places),
        after=_fixed(steps[1], record, places),
        difference=_fixed(steps[1] - steps[0], record, places, paired.interval if paired else None, signed=True),
        share=None,
    )


def _fixed(
    value: float, record: Record, places: int, interval: tuple[float, float] | None = None, *, signed: bool = False
) -> Number:
    # Columns add up by the arms' means. Where units without a partner put that mean outside the pairs' interval, the
    # interval is not about it and is left out.
    slack = 0.5 * 10.0**-places
    fits = interval is not None and interval[0] - slack <= value <= interval[1] + slack
    found = number(value, record.source, interval=interval if fits else None, signed=signed, decimals=places)
    assert found is not None, value
    return found


def gap_rows(record: Record, view: str, predicted: str, exposed: Iterable[str] = ()) -> tuple[GapRow, ...]:
    """Where the improvement came from: what each account gave back, ms per step, the predicted account first."""
    both = record.two_arms
    if both is None or view not in record.views:
        return ()
    before, after = (record.accounts(one, view) for one in both)
    sign, allowed = gain_sign(record), set(exposed)
    whole = sign * (sum(after.values()) - sum(before.values()))
    places = _places(whole)
    rows = []
    for account in _ordered({*before, *after}):
        if not _holds(before, after, account) and account not in (predicted, Account.RESIDUAL.value):
            continue
        paired = record.difference(account, view)
        found = paired.interval if paired else None
        value = sign * (after.get(account, 0.0) - before.get(account, 0.0))
        change = _fixed(value, record, places, _turned(found, sign), signed=True)
        role = "predicted to shrink" if account == predicted else "allowed to grow" if account in allowed else ""
        rows.append(GapRow(account=account, role=role, change=change, share=share(value, whole, record.source)))
    return tuple(sorted(rows, key=lambda row: row.account != predicted))


def gain_sign(record: Record) -> float:
    """What turns a change into a gain: -1 where the second arm is the change, +1 where the healthy work is restored."""
    both = record.two_arms
    return 1.0 if both is not None and both[1] == REGRESSED else -1.0


def _turned(interval: tuple[float, float] | None, sign: float) -> tuple[float, float] | None:
    if interval is None:
        return None
    low, high = sorted(sign * one for one in interval)
    return low, high


def gap_total(record: Record, view: str) -> Number | None:
    """The improvement of the step, ms, in the decimals of the gap table."""
    both = record.two_arms
    if both is None or view not in record.views:
        return None
    before, after = (sum(record.accounts(one, view).values()) for one in both)
    sign, paired = gain_sign(record), record.difference()
    value = sign * (after - before)
    return _fixed(value, record, _places(value), _turned(paired.interval if paired else None, sign), signed=True)


def bars(title: str, label: str, view: str, sources: Iterable[tuple[Record, tuple[str, ...]]]) -> Bars | None:
    """The named arms' accounts from one or more files; None when fewer than two arms have a ledger."""
    found: list[tuple[str, dict[str, float]]] = []
    for record, arms in sources:
        for arm in arms:
            accounts = record.accounts(arm, view)
            if accounts and arm not in {name for name, _ in found}:
                found.append((arm, accounts))
    return Bars(title=title, label=label, arms=tuple(found)) if len(found) > 1 else None
