"""Documents of a global batch, and the policies that deal them to the ranks.

Every policy deals the same documents whole, and keeps the tokens of the bins level; what differs is where the long
documents go. Attention costs the square of a document's length, so equal tokens are not equal work.
Nothing here depends on the process: the same arguments give the same bins on every rank and in every arm.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Bins = list[list[int]]
"""Document indices of each bin."""

LEVEL_TOLERANCE = 0.02
"""Tokens of a bin may differ from the mean by this fraction where the documents allow it."""
_SHORTEST = 8
_PARTNERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthModel:
    """Log-normal document lengths, capped; `mean_doc_tokens` is the mean before the cap."""

    mean_doc_tokens: int
    doc_sigma: float
    max_doc_tokens: int


def draw_documents(model: LengthModel, *, tokens: int, seed: int, batch: int) -> tuple[int, ...]:
    """Document lengths of one global batch, in tokens; they add up to `tokens` exactly (the last is cut to fit)."""
    rng = random.Random(f"{seed}:{batch}:documents")  # noqa: S311  # data, not secrets
    mu = math.log(model.mean_doc_tokens) - model.doc_sigma**2 / 2
    shortest = min(_SHORTEST, model.max_doc_tokens)
    lengths: list[int] = []
    room = tokens
    while room:
        drawn = round(rng.lognormvariate(mu, model.doc_sigma))
        lengths.append(min(max(drawn, shortest), model.max_doc_tokens, room))
        room -= lengths[-1]
    return tuple(lengths)


def pack(lengths: Sequence[int], *, num_shards: int, policy: str, seed: int, batch: int) -> tuple[tuple[int, ...], ...]:
    """Document indices of each shard, in ascending order.

    Which shard gets which bin changes with every batch, and over `num_shards` batches each gets each place once, so
    that a few batches on a few shards already have their share of the heavy bins.

    Raises ValueError: an unknown policy, or no shard.
    """
    if policy not in POLICIES:
        raise ValueError(f"packing = {policy!r} is unknown: expected one of {', '.join(POLICIES)}")
    if num_shards < 1:
        raise ValueError(f"num_shards = {num_shards} is out of range: expected 1 or more")
    rng = random.Random(f"{seed}:{batch}:bins")  # noqa: S311  # data, not secrets
    bins = POLICIES[policy](lengths, num_shards, rng)
    round_, turn = divmod(batch, num_shards)
    places = list(range(num_shards))
    random.Random(f"{seed}:{round_}:places").shuffle(places)  # noqa: S311  # data, not secrets
    return tuple(tuple(sorted(bins[place])) for place in places[turn:] + places[:turn])


def _greedy(lengths: Sequence[int], num_shards: int, _rng: random.Random) -> Bins:
    """Fills one bin after another with the longest documents that fit: level in tokens, uneven in their squares."""
    left = _descending(lengths)
    target = sum(lengths) // num_shards
    bins: Bins = []
    for _ in range(num_shards - 1):
        room, taken, rest = target, [], []
        for document in left:
            if lengths[document] <= room:
                taken.append(document)
                room -= lengths[document]
            else:
                rest.append(document)
        bins.append(taken)
        left = rest
    return _level([*bins, left], lengths)


def _snake(lengths: Sequence[int], num_shards: int, _rng: random.Random) -> Bins:
    """Deals documents by descending length, forwards and backwards in turn."""
    bins: Bins = [[] for _ in range(num_shards)]
    for place, document in enumerate(_descending(lengths)):
        lap, column = divmod(place, num_shards)
        bins[column if lap % 2 == 0 else num_shards - 1 - column].append(document)
    return _level(bins, lengths)


def _shuffled(lengths: Sequence[int], num_shards: int, rng: random.Random) -> Bins:
    """Cuts a random order of the documents into bins of about equal tokens."""
    order = list(range(len(lengths)))
    rng.shuffle(order)
    target = sum(lengths) / num_shards
    bins: Bins = [[] for _ in range(num_shards)]
    dealt = 0
    for document in order:
        bins[min(num_shards - 1, int((dealt + lengths[document] / 2) / target))].append(document)
        dealt += lengths[document]
    return _level(bins, lengths)


def _cost_balanced(lengths: Sequence[int], num_shards: int, rng: random.Random) -> Bins:
    """Levels squares as well as tokens, so that linear and quadratic cost are both balanced.

    The better of two starts after swapping: no start is better for every tail.
    """
    starts = (_snake(lengths, num_shards, rng), _level(_lightest(lengths, num_shards), lengths))
    dealt = [_trade_squares(bins, lengths) for bins in starts]
    return min(dealt, key=lambda bins: max(_squares(members, lengths) for members in bins))


def _lightest(lengths: Sequence[int], num_shards: int) -> Bins:
    """Puts each document, longest first, where the worse of tokens and squares stays lowest."""
    mean_tokens = max(1.0, sum(lengths) / num_shards)
    mean_squares = max(1.0, sum(n * n for n in lengths) / num_shards)
    bins: Bins = [[] for _ in range(num_shards)]
    tokens, squares = [0] * num_shards, [0] * num_shards
    for document in _descending(lengths):
        n = lengths[document]
        costs = [max((tokens[b] + n) / mean_tokens, (squares[b] + n * n) / mean_squares) for b in range(num_shards)]
        chosen = costs.index(min(costs))
        bins[chosen].append(document)
        tokens[chosen] += n
        squares[chosen] += n * n
    return bins


POLICIES: dict[str, Callable[[Sequence[int], int, random.Random], Bins]] = {
    "snake": _snake,
    "greedy": _greedy,
    "cost_balanced": _cost_balanced,
    "shuffled": _shuffled,
}


def _descending(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda document: (-lengths[document], document))


def _squares(members: Sequence[int], lengths: Sequence[int]) -> int:
    return sum(lengths[document] ** 2 for document in members)


def _level(bins: Bins, lengths: Sequence[int]) -> Bins:
    """Levels tokens between the fullest and the emptiest bin by the shortest documents that do it.

    Short documents carry almost no squares, so levelling leaves a policy's distribution of work as it was.
    """
    tokens = [sum(lengths[document] for document in members) for members in bins]
    allowed = LEVEL_TOLERANCE * sum(tokens) / len(bins)
    for _ in range(8 * len(bins)):
        full, empty = tokens.index(max(tokens)), tokens.index(min(tokens))
        gap = tokens[full] - tokens[empty]
        if gap <= allowed:
            break
        trade = _levelling_trade(bins[full], bins[empty], lengths, gap, allowed)
        if trade is None:
            break
        moved = _exchange(bins[full], bins[empty], trade, lengths)
        tokens[full] -= moved
        tokens[empty] += moved
    return bins


def _levelling_trade(
    full: list[int], empty: list[int], lengths: Sequence[int], gap: int, allowed: float
) -> tuple[int, int | None] | None:
    """The (document out of full, document out of empty or None) that levels best, shortest documents first."""
    options: list[tuple[bool, int, float, int, int]] = []
    for out in full:
        for back in (*empty, None):
            moved = lengths[out] - (0 if back is None else lengths[back])
            if 0 < moved < gap:
                miss = abs(gap - 2 * moved)
                size = lengths[out] + (0 if back is None else lengths[back])
                options.append(
                    (miss > allowed, size if miss <= allowed else 0, miss, out, -1 if back is None else back)
                )
    if not options:
        return None
    *_, out, back_or_none = min(options)
    return out, None if back_or_none < 0 else back_or_none


def _trade_squares(bins: Bins, lengths: Sequence[int]) -> Bins:
    """Swaps documents of nearly equal length out of the bin with most squares, into the lightest bin that takes one."""
    squares = [_squares(members, lengths) for members in bins]
    tokens = [sum(lengths[document] for document in members) for members in bins]
    allowed = LEVEL_TOLERANCE * sum(tokens) / len(bins)
    for _ in range(8 * len(bins)):
        heavy = squares.index(max(squares))
        for light in sorted(range(len(bins)), key=squares.__getitem__)[:_PARTNERS]:
            gap, lead = squares[heavy] - squares[light], tokens[heavy] - tokens[light]
            trade = _square_trade(bins[heavy], bins[light], lengths, gap, lead, allowed)
            if trade is not None:
                break
        else:
            break
        shift = lengths[trade[0]] ** 2 - lengths[trade[1]] ** 2
        moved = _exchange(bins[heavy], bins[light], trade, lengths)
        squares[heavy], squares[light] = squares[heavy] - shift, squares[light] + shift
        tokens[heavy], tokens[light] = tokens[heavy] - moved, tokens[light] + moved
    return bins


def _square_trade(
    heavy: list[int], light: list[int], lengths: Sequence[int], gap: int, lead: int, allowed: float
) -> tuple[int, int] | None:
    """The swap that halves the gap in squares best and keeps the tokens of the two bins level."""
    options: list[tuple[int, int, int]] = []
    for out in heavy:
        for back in light:
            moved = lengths[out] - lengths[back]
            shift = lengths[out] ** 2 - lengths[back] ** 2
            if 0 < shift < gap and abs(lead - 2 * moved) <= max(allowed, abs(lead)):
                options.append((abs(gap - 2 * shift), out, back))
    return min(options)[1:] if options else None


def _exchange(source: list[int], target: list[int], trade: tuple[int, int | None], lengths: Sequence[int]) -> int:
    """Tokens that moved from source to target."""
    out, back = trade
    source.remove(out)
    target.append(out)
    if back is None:
        return lengths[out]
    target.remove(back)
    source.append(back)
    return lengths[out] - lengths[back]
