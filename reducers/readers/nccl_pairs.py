"""Which nodes are common to the failed and the slow ones of a set of pairwise nccl-tests runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from narrows.reducers.readers.nccl_tests import Ending, NcclTests

# A pair is slow when its bandwidth is below SLOW of the set's median and further below it than SPREADS scaled median
# absolute deviations: a wide set without an outlier names nobody, a tight one does not for a percent.
SLOW = 0.75
SPREADS = 6.0
MAD_TO_SIGMA = 1.4826  # Source: the normal distribution's quartile, 1 / 0.67449
FEWEST_PAIRS = 5  # a median of fewer says nothing about an outlier
FEWEST_COMMON = 2  # one bad pair has two suspects; a node in two bad pairs is common to them


class Trouble(StrEnum):
    """What is wrong with a pair."""

    FAILED = "failed"
    SLOW = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadPair:
    """A pair of hosts, and what in it was found; ``why`` in words."""

    hosts: tuple[str, str]
    trouble: Trouble
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonNode:
    """``bad`` of the node's ``pairs`` have the trouble; it explains those that no node before it does."""

    host: str
    trouble: Trouble
    bad: int
    pairs: int
    with_hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReading:
    """What a set of pairwise tests says. ``unplaced`` are files that name no two hosts: their launch failed."""

    pairs: int
    hosts: tuple[str, ...]
    median_busbw_gb_s: dict[str, float]
    bad_pairs: tuple[BadPair, ...]
    common: tuple[CommonNode, ...]
    unexplained: tuple[tuple[str, str], ...]
    unplaced: tuple[str, ...]


def read_pairs(outputs: Mapping[str, NcclTests]) -> PairReading:
    """File name -> reading, each of two hosts, to the pairs in trouble and the nodes common to them.

    Raises:
        ValueError: an output is of more than two hosts.
    """
    placed: dict[tuple[str, str], NcclTests] = {}
    unplaced = []
    for name, output in outputs.items():
        hosts = output.hosts
        if len(hosts) > 2:
            raise ValueError(f"{name}: is of {len(hosts)} hosts; a pairwise reading takes tests of two hosts each")
        if len(hosts) == 2:
            pair = (min(hosts), max(hosts))
            before = placed[pair].tests if pair in placed else ()
            placed[pair] = NcclTests(tests=(*before, *output.tests))
        else:
            unplaced.append(name)
    busbw = _bandwidths(placed)
    expected = _expected(placed.values())
    bad = [*_failed(placed, expected), *_slow(busbw)]
    common = [node for trouble in Trouble for node in _common(bad, trouble, list(placed))]
    named = {(node.host, node.trouble) for node in common}
    return PairReading(
        pairs=len(placed),
        hosts=tuple(sorted({host for pair in placed for host in pair})),
        median_busbw_gb_s={key: float(np.median(list(values.values()))) for key, values in busbw.items()},
        bad_pairs=tuple(bad),
        common=tuple(common),
        unexplained=tuple(one.hosts for one in bad if not any((host, one.trouble) in named for host in one.hosts)),
        unplaced=tuple(unplaced),
    )


def _bandwidths(placed: Mapping[tuple[str, str], NcclTests]) -> dict[str, dict[tuple[str, str], float]]:
    """Collective -> pair -> GB/s: the average that a complete test printed."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for pair, output in placed.items():
        for test in output.tests:
            if test.ending is Ending.COMPLETE and test.avg_busbw_gb_s is not None:
                found.setdefault(test.collective or "unnamed", {})[pair] = test.avg_busbw_gb_s
    return found


def _expected(outputs: Iterable[NcclTests]) -> set[str]:
    """The collectives that more than half of the pairs completed."""
    outputs = list(outputs)
    counts: dict[str, int] = {}
    for output in outputs:
        for name in {test.collective or "unnamed" for test in output.tests if test.ending is Ending.COMPLETE}:
            counts[name] = counts.get(name, 0) + 1
    return {name for name, count in counts.items() if count > len(outputs) / 2}


def _failed(placed: Mapping[tuple[str, str], NcclTests], expected: set[str]) -> list[BadPair]:
    found = []
    for pair, output in placed.items():
        why = [
            f"{test.collective or 'test'} {'failed: ' + test.failures[0].text if test.failures else 'has no end'}"
            for test in output.tests
            if test.ending is not Ending.COMPLETE
        ]
        started = {test.collective or "unnamed" for test in output.tests}
        why += [f"{name} is missing; most pairs have it" for name in sorted(expected - started)]
        if why:
            found.append(BadPair(hosts=pair, trouble=Trouble.FAILED, why=tuple(why)))
    return found


def _slow(busbw: Mapping[str, Mapping[tuple[str, str], float]]) -> list[BadPair]:
    why: dict[tuple[str, str], list[str]] = {}
    for name, by_pair in busbw.items():
        values = np.array(list(by_pair.values()))
        if len(values) < FEWEST_PAIRS:
            continue
        median = float(np.median(values))
        spread = MAD_TO_SIGMA * float(np.median(np.abs(values - median)))
        for pair, value in by_pair.items():
            if value < SLOW * median and median - value > SPREADS * spread:
                why.setdefault(pair, []).append(f"{name} {value:.2f} GB/s where the median is {median:.2f}")
    return [BadPair(hosts=pair, trouble=Trouble.SLOW, why=tuple(words)) for pair, words in why.items()]


def _common(bad: Sequence[BadPair], trouble: Trouble, pairs: Sequence[tuple[str, str]]) -> list[CommonNode]:
    """Greedy cover: the node with most bad pairs, then the next over what is left, while two pairs share one."""
    left = [one.hosts for one in bad if one.trouble is trouble]
    found = []
    while left:
        counts = {host: sum(host in pair for pair in left) for pair in left for host in pair}
        host = max(sorted(counts), key=counts.__getitem__)
        if counts[host] < FEWEST_COMMON:
            break
        others = tuple(sorted(pair[0] if pair[1] == host else pair[1] for pair in left if host in pair))
        mine = sum(host in pair for pair in pairs)
        found.append(CommonNode(host=host, trouble=trouble, bad=counts[host], pairs=mine, with_hosts=others))
        left = [pair for pair in left if host not in pair]
    return found
