"""The batches of a segment: the same documents in every arm, dealt to this rank by the arm's own policy."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from narrows.experiments.packing import LengthModel, draw_documents, pack
from narrows.experiments.plan import Segment
from narrows.experiments.workload import StepConfig, count_work


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatch:
    """One rank's share of one global batch. `documents` holds (index in the global batch, length)."""

    batch: int
    documents: tuple[tuple[int, int], ...]
    team_tokens: int
    model_loss: float
    useful: dict[str, int]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(length for _, length in self.documents)

    def micro(self, count: int) -> list[tuple[tuple[int, int], ...]]:
        """The documents in `count` micro-steps, every one of them in exactly one; empty micro-steps are left out."""
        return [part for start in range(count) if (part := self.documents[start::count])]


def rank_batches(
    config: StepConfig, segment: Segment, *, rank: int, ranks: tuple[int, ...], num_shards: int, seed: int
) -> list[RankBatch]:
    """The batches that `rank` plays in a segment, in order. Depends on nothing but its arguments."""
    numbers = range(segment.first_batch, segment.first_batch + segment.steps)
    return [_rank_batch(config, segment, rank, ranks, num_shards, seed, number) for number in numbers]


def _rank_batch(
    config: StepConfig, segment: Segment, rank: int, ranks: tuple[int, ...], num_shards: int, seed: int, batch: int
) -> RankBatch:
    tokens = num_shards * config.tokens_per_rank
    lengths, shards = _dealt(config.length_model, config.packing, tokens, num_shards, seed, batch)
    played = [document for member in ranks for document in shards[segment.shard(member)]]
    mine = tuple((document, lengths[document]) for document in shards[segment.shard(rank)])
    return RankBatch(
        batch=batch,
        documents=mine,
        team_tokens=sum(lengths[document] for document in played),
        model_loss=modelled_loss(((document, lengths[document]) for document in played), seed=seed, batch=batch),
        useful=count_work(config, [length for _, length in mine]),
    )


@functools.lru_cache(maxsize=256)
def _dealt(
    model: LengthModel, policy: str, tokens: int, num_shards: int, seed: int, batch: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    lengths = draw_documents(model, tokens=tokens, seed=seed, batch=batch)
    return lengths, pack(lengths, num_shards=num_shards, policy=policy, seed=seed, batch=batch)


def modelled_loss(documents: Iterable[tuple[int, int]], *, seed: int, batch: int) -> float:
    """A stand-in for the loss over these documents: their token-weighted mean, falling with the batch number.

    Bit for bit the same for the same documents, whichever rank played which.
    """
    ordered = sorted(documents)
    level = 2 + 4 * math.exp(-batch / 500)
    noise = random.Random(f"{seed}:{batch}:loss")  # noqa: S311  # data, not secrets
    offset = noise.uniform(-0.05, 0.05)
    parts = [length * (level + offset + (document * 2654435761 % 1000) / 1e4) for document, length in ordered]
    return math.fsum(parts) / sum(length for _, length in ordered)
