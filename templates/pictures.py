"""Which pictures a view can draw, and the finding that each one shows: its title, and its text where it is not seen."""

from __future__ import annotations

from statistics import median

from narrows.templates.numbers import Number, fixed, significant
from narrows.templates.parts import Arrivals, Bars, Distribution, LedgerTable, Picture, Proof, ScopePoint

STANDS_OUT = 1.5
"""A rank that arrives last this many times its fair share stands out."""


def pictures(
    distributions: tuple[Distribution, ...],
    bars: tuple[Bars, ...],
    scopes: tuple[ScopePoint, ...],
    arrivals: Arrivals | None,
) -> tuple[Picture, ...]:
    """The pictures in the order in which the postmortem shows them."""
    found = [Picture(name=name, alt=one.title) for name, one in zip(("accounts", "proof"), bars, strict=False)]
    if scopes:
        found.append(Picture(name="scopes", alt=scopes_title(scopes)))
    if distributions:
        found.append(Picture(name="ecdf", alt=steps_title(distributions[0])))
    if arrivals is not None:
        found.append(Picture(name="arrivals", alt=arrivals_title(arrivals)))
    return tuple(found)


def accounts_title(table: LedgerTable, *, pursued: bool) -> str:
    """``Skew holds 6.9 of the 7.5 ms that the step lost``."""
    top = max(table.rows, key=lambda row: row.difference.value)
    whole = table.total.difference
    if not pursued or whole.value <= 0 or top.difference.value <= 0:
        most = max(table.rows, key=lambda row: abs(row.difference.value))
        return f"The largest change of an account: {most.account}, by {_short(most.difference)}"
    held = fixed(top.difference.value, top.difference.decimals or 0)
    return f"{top.account.capitalize()} holds {held} of the {_short(whole, signed=False)} that the step lost"


def proof_title(proof: Proof) -> str:
    """``Skew gave back 4.43 of the 4.80 ms that the change gained at one node``."""
    row = next((one for one in proof.rows if one.account == proof.account), None)
    if row is None or proof.total is None:
        return f"The accounts with and without the change at {proof.scope}"
    if proof.total.value <= 0:
        return f"The step did not get faster with the change at {proof.scope}"
    gave, gained = row.change.unsigned.figure, proof.total.unsigned.short
    return f"{proof.account.capitalize()} gave back {gave} of the {gained} that the change gained at {proof.scope}"


def steps_title(one: Distribution) -> str:
    """What the medians of the two arms say."""
    first, second = (median(arm.values_ms) for arm in one.arms[:2])
    change = second - first
    places = significant(max(first, second))
    if abs(change) < 0.01 * first:
        return f"Half of the steps take {fixed(first, places)} ms or less in both runs"
    verb = "longer" if change > 0 else "less"
    gap = fixed(abs(change), min(2, significant(change)))
    return f"The median {one.arms[1].arm} step takes {gap} ms {verb} than the {one.arms[0].arm} one"


def scopes_title(points: tuple[ScopePoint, ...]) -> str:
    """``The loss appears at one node, not at one rank``."""
    shown = [one.label for one in points if one.verdict == "supported"]
    absent = [one.label for one in points if one.verdict == "rejected"]
    if not shown:
        return "The loss was not reproduced at any scope tested"
    ending = f", not at {' or '.join(absent)}" if absent else ""
    return f"The loss appears at {' and '.join(shown)}{ending}"


def arrivals_title(one: Arrivals) -> str:
    """Whether a rank arrives last much more often than its share."""
    (before, first), (_, second) = one.arms[:2]
    rank = max(second, key=lambda name: second[name])
    if second[rank] * len(second) < STANDS_OUT:
        return f"No rank stands out: rank {rank} arrives last most often, {100 * second[rank]:.0f} % of the time"
    here, there = f"{100 * second[rank]:.0f} %", f"{100 * first.get(rank, 0.0):.0f} %"
    return f"Rank {rank} arrives last {here} of the time ({before}: {there})"


def _short(number: Number, *, signed: bool = True) -> str:
    return Number(value=number.value, unit="ms", signed=signed, decimals=number.decimals).short
