"""The decision table: what the evidence at full scale says to try next, with its prediction and what rejects it.

Rows are read from the top; the first that fits is the next experiment. A scan chooses, it never supports a claim.
Source: docs/method.md, decision table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from narrows.inquiry.accounts import Account
from narrows.inquiry.scopes import Scope

RHO = 0.5
"""A mechanism is rejected at a scope where less than this share of its predicted effect appears."""
SKEW_SHARE = 0.3
AUTOCORRELATION_RISE = 0.25
TAIL_SHARE = 0.5
GROWTH_SHARE = 0.5
NOT_SOMEWHERE = ("all", "varies", "none", "link", "group")
"""Culprits other than these are some of the ranks: a rank, a host, a rack, a place in the mesh."""
SERVICE_RISE = 1.05
"""A group's service counts as slower from 5 % on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What the table looks at. Times in ms a step; ``culprit`` is all, varies, link, group, none, or the factor of
    the ranks that carry it: rank, host, rack, ...

    ``slower_groups`` are groups whose service after the last arrival rose, by whether they cross hosts.
    ``rise_of_autocorrelation``, ``tail_share`` and ``growth_share`` are None where the runs are too short to say.
    """

    delta_ms: float
    account: Account | None
    account_ms: float
    culprit: str
    members: tuple[str, ...] = ()
    work_changed: bool = False
    work_ms: float = 0.0
    heaviest_rank_up: bool = False
    skew_share: float = 0.0
    slower_inside_hosts: tuple[str, ...] = ()
    slower_across_hosts: tuple[str, ...] = ()
    num_groups: int = 1
    hidden_ms: float = 0.0
    rise_of_autocorrelation: float | None = None
    tail_share: float | None = None
    growth_share: float | None = None
    covered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NextExperiment:
    """What to run next. ``predicted_ms`` is what it shows if the reading is right, ``reject_below_ms`` the bound:
    an upper limit of the effect below it rejects the reading."""

    row: str
    evidence: str
    scope: Scope | None
    experiment: str
    prediction: str
    predicted_ms: float | None
    rejection: str
    reject_below_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: when it fits, and its texts, in which {ms}, {bound}, {who}, {account} and {more} are filled in."""

    name: str
    fits: Callable[[Signs], bool]
    evidence: str
    scope: Scope
    experiment: str
    prediction: str
    rejection: str
    predicts: Callable[[Signs], float] = lambda signs: signs.account_ms


def _local(*culprits: str) -> Callable[[Signs], bool]:
    return lambda signs: signs.account is Account.COMPUTE and signs.culprit in culprits


def _in(*accounts: Account) -> Callable[[Signs], bool]:
    return lambda signs: signs.account in accounts


def _transfer(also: Callable[[Signs], bool]) -> Callable[[Signs], bool]:
    return lambda signs: signs.account in (Account.TRANSFER, Account.PIPELINE) and also(signs)


def _above(value: float | None, limit: float) -> bool:
    return value is not None and value > limit


TABLE: tuple[Row, ...] = (
    Row(
        name="work",
        fits=lambda signs: signs.work_changed,
        evidence="the work of a step changed",
        scope=Scope.ONE_RANK,
        experiment="restore the healthy run's work on one rank",
        prediction="compute falls by {ms}",
        rejection="the upper bound of the fall is below {bound}",
        predicts=lambda signs: signs.work_ms,
    ),
    Row(
        name="grows",
        fits=lambda signs: _above(signs.growth_share, GROWTH_SHARE),
        evidence="the loss grows within a run",
        scope=Scope.ONE_RANK,
        experiment="run one rank for long, with its clocks and its allocator logged",
        prediction="the last third of the run is slower than the first by the same slope; a restart resets an "
        "allocator, not a warm device",
        rejection="the upper bound of the growth is below {bound}",
    ),
    Row(
        name="tail",
        fits=lambda signs: _above(signs.tail_share, TAIL_SHARE),
        evidence="the slowest 5 % of the steps carry more than half of the loss",
        scope=Scope.FULL,
        experiment="compare the tail (--statistic es95) and read the events of the slow steps",
        prediction="one account of the slow steps holds {ms} of the mean loss",
        rejection="the upper bound of that account is below {bound}",
    ),
    Row(
        name="compute-everywhere",
        fits=_local("all"),
        evidence="compute grew on every rank alike",
        scope=Scope.ONE_RANK,
        experiment="run both configurations on one rank with the same local shapes, in turns",
        prediction="the loss of {ms} is there on one rank",
        rejection="the upper bound of the loss on one rank is below {bound}",
    ),
    Row(
        name="compute-somewhere",
        fits=lambda signs: signs.account is Account.COMPUTE and signs.culprit not in NOT_SOMEWHERE,
        evidence="compute grew on {who} alone",
        scope=Scope.ONE_RANK,
        experiment="run the same work on one rank of {who} and on one elsewhere, in turns; then exchange places",
        prediction="{who} is slower by {ms} and the loss follows the hardware",
        rejection="the upper bound of the difference is below {bound}, or the loss follows the data shard",
    ),
    Row(
        name="imbalance",
        fits=lambda signs: signs.culprit == "varies" and signs.skew_share >= SKEW_SHARE and signs.heaviest_rank_up,
        evidence="ranks wait for a slowest rank that changes from step to step, and the heaviest rank got more work",
        scope=Scope.ONE_NODE,
        experiment="replay both ways of dealing out the work on one host",
        prediction="skew falls by {ms} with balanced work, and the service of the collectives stays",
        rejection="the upper bound of the fall is below {bound}",
    ),
    Row(
        name="jitter",
        fits=lambda signs: signs.culprit == "varies" and signs.skew_share >= SKEW_SHARE,
        evidence="ranks wait for a slowest rank that changes from step to step, at equal work",
        scope=Scope.ONE_NODE,
        experiment="run a loop of fixed work on every rank of one host, and look at the tail of its times",
        prediction="the tail of the loop grows; the skew of {ms} follows from it",
        rejection="the upper bound of the growth predicts less than {bound}",
    ),
    Row(
        name="host",
        fits=_in(Account.HOST),
        evidence="the device waits for the host to launch",
        scope=Scope.ONE_RANK,
        experiment="run one rank; then with the launches captured in a graph, or the process pinned to its CPUs",
        prediction="host falls by {ms}",
        rejection="the upper bound of the fall is below {bound}",
    ),
    Row(
        name="input",
        fits=_in(Account.INPUT),
        evidence="ranks wait for the data loader",
        scope=Scope.ONE_RANK,
        experiment="run one rank with synthetic tensors; then exchange the shards of two hosts",
        prediction="input falls to none, by {ms}",
        rejection="the upper bound of the fall is below {bound}",
    ),
    Row(
        name="copy-memory-checkpoint",
        fits=_in(Account.COPY, Account.MEMORY, Account.CHECKPOINT, Account.RECOVERY),
        evidence="{account} grew",
        scope=Scope.ONE_RANK,
        experiment="run one rank with pinned memory (copy), another allocator setting (memory), or without "
        "checkpoints and evaluations (checkpoint)",
        prediction="{account} falls by {ms}",
        rejection="the upper bound of the fall is below {bound}",
    ),
    Row(
        name="episodes",
        fits=_transfer(lambda signs: _above(signs.rise_of_autocorrelation, AUTOCORRELATION_RISE)),
        evidence="transfer grew, and slow steps come in runs",
        scope=Scope.TWO_NODES,
        experiment="run two hosts for at least five times as long as an episode recurs",
        prediction="the episodes are there again; their mean loss is {ms}",
        rejection="the upper bound of the loss is below {bound} over that length",
    ),
    Row(
        name="transfer-inside",
        fits=_transfer(lambda signs: bool(signs.slower_inside_hosts)),
        evidence="after the last arrival, collectives inside a host ({more}) take longer",
        scope=Scope.ONE_NODE,
        experiment="sweep the message sizes of that group on one host, both configurations in turns",
        prediction="the curve shifts, by {ms} over a step's messages",
        rejection="the curve is flat: the upper bound of its shift is below {bound}",
    ),
    Row(
        name="transfer-one-group",
        fits=_transfer(lambda signs: len(signs.slower_across_hosts) == 1 and signs.num_groups > 1),
        evidence="after the last arrival, only the collectives of {more} take longer",
        scope=Scope.TWO_NODES,
        experiment="run two hosts on that group's rail, then on another rail",
        prediction="the loss on that rail is {ms}, on the other none",
        rejection="the upper bound of the difference between the rails is below {bound}",
    ),
    Row(
        name="transfer-across",
        fits=_transfer(lambda signs: bool(signs.slower_across_hosts)),
        evidence="after the last arrival, collectives that cross hosts ({more}) take longer",
        scope=Scope.TWO_NODES,
        experiment="sweep the message sizes over two hosts; then exchange the rails or the hosts",
        prediction="the curve shifts, by {ms} over a step's messages, and follows the link or the host",
        rejection="the curve is flat: the upper bound of its shift is below {bound}",
    ),
    Row(
        name="overlap",
        fits=_transfer(lambda signs: signs.covered and signs.hidden_ms < 0),
        evidence="collectives take as long as before, but less of them is hidden under compute",
        scope=Scope.TWO_NODES,
        experiment="give back the order and the size of the buckets on two hosts",
        prediction="exposed transfer falls by {ms}, and what is hidden comes back",
        rejection="the upper bound of the fall is below {bound}",
    ),
    Row(
        name="transfer",
        fits=_transfer(lambda _: True),
        evidence="exposed transfer grew; which group it is does not show",
        scope=Scope.TWO_NODES,
        experiment="record every rank of two hosts, and sweep the message sizes of their groups",
        prediction="one group's service is longer, by {ms} over a step",
        rejection="the upper bound of every group's change is below {bound}",
    ),
)

NOTHING = NextExperiment(
    row="none",
    evidence="the second run is not slower by more than 1 % of the step",
    scope=None,
    experiment="nothing to look for",
    prediction="",
    predicted_ms=None,
    rejection="",
    reject_below_ms=None,
)


def unsettled(delta_ms: float, margin_ms: float) -> NextExperiment:
    """What to do where the runs settle neither a loss nor its absence."""
    return NextExperiment(
        row="more-pairs",
        evidence=f"the difference of {delta_ms:.3g} ms is neither above nor within {margin_ms:.3g} ms",
        scope=Scope.FULL,
        experiment="record at least 8 runs of each configuration, in turns",
        prediction=f"the interval lies above {margin_ms:.3g} ms if the loss is real",
        predicted_ms=max(delta_ms, margin_ms),
        rejection=f"the interval lies within {margin_ms:.3g} ms on both sides",
        reject_below_ms=margin_ms,
    )


def next_experiment(signs: Signs) -> NextExperiment:
    """The experiment of the first row that fits; more pairs where none does, or where no account stands out."""
    row = next((one for one in TABLE if one.fits(signs)), None)
    if row is None:
        return _more_pairs(signs)
    predicted = max(0.0, row.predicts(signs))
    who = ", ".join(signs.members) or "the suspect"
    account = signs.account.value if signs.account is not None else "the account"
    more = ", ".join((*signs.slower_inside_hosts, *signs.slower_across_hosts)) or "no group"
    words = {"ms": f"{predicted:.3g} ms", "bound": f"{RHO * predicted:.3g} ms", "who": who, "account": account}

    def filled(text: str) -> str:
        return text.format(**words, more=more)

    return NextExperiment(
        row=row.name,
        evidence=filled(row.evidence),
        scope=row.scope,
        experiment=filled(row.experiment),
        prediction=filled(row.prediction),
        predicted_ms=predicted,
        rejection=filled(row.rejection),
        reject_below_ms=RHO * predicted,
    )


def _more_pairs(signs: Signs) -> NextExperiment:
    return NextExperiment(
        row="more-evidence",
        evidence="no account stands out",
        scope=Scope.FULL,
        experiment="record at least 8 runs of each configuration, in turns, with spans and collectives of every rank",
        prediction=f"the loss of {signs.delta_ms:.3g} ms is there again, and one account holds more than half of it",
        predicted_ms=signs.delta_ms,
        rejection=f"the upper bound of the loss is below {RHO * signs.delta_ms:.3g} ms",
        reject_below_ms=RHO * signs.delta_ms,
    )
