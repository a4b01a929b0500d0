"""What a postmortem holds, as data: the view that the templates and the pictures read, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from narrows.inquiry.design import PERTURBED
from narrows.templates.numbers import Number

if TYPE_CHECKING:
    from narrows.templates.expected import ExpectedTable
    from narrows.templates.opinions import OpinionTable
    from narrows.templates.slow_steps import WindowTable


def arm_words(arm: str) -> str:
    """The name of an arm for people."""
    return "with the change" if arm == PERTURBED else arm


class Outcome(StrEnum):
    """How the investigation ended; ``running`` while its docket has no conclusion yet."""

    EXPLAINED = "explained"
    NO_REGRESSION = "no_regression"
    NOT_CLOSED = "not_closed"
    NOT_REPRODUCED = "not_reproduced"
    INCONCLUSIVE = "inconclusive"
    ABORTED = "aborted"
    UNTIL = "until"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One account of both arms, ms per step. ``share`` is its part of the change of the step, in percent."""

    account: str
    meaning: str
    before: Number
    after: Number
    difference: Number
    share: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTable:
    """The accounts of two arms in one view; ``total`` is the sum of the rows, ``step`` the measured step.

    ``step`` is None where it equals the sum to the digit shown. ``empty`` names the accounts that hold nothing.
    """

    view: str
    words: str
    before: str
    after: str
    rows: tuple[LedgerRow, ...]
    total: LedgerRow
    step: LedgerRow | None
    empty: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """The step of both runs and how sure the difference is. ``tested``: by replicates, against the margin."""

    healthy: Number | None
    regressed: Number | None
    difference: Number | None
    percent: Number | None
    margin: Number | None
    pairs: int
    tested: bool
    statistic: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A manifest field in which the two runs differ, and what the difference can touch."""

    field: str
    healthy: str
    regressed: str
    touches: str
    why: str
    matters: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """Executed work per step in both runs."""

    name: str
    healthy: Number | None
    regressed: Number | None
    ratio: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRow:
    """One hypothesis: what was registered, and what came of it.

    ``result`` is None where no number was judged, and ``finding`` then says what was found. ``cost`` holds
    device-hours, or the id of the hypothesis whose runs it shares. ``verdict`` is ``not judged`` while open;
    ``surprise`` says where it was not plainly the one hoped for.
    """

    id: str
    key: str
    rung: str
    scope: str
    claim: str
    prediction: str
    reject_if: str
    digest: str
    registered: str
    result: Number | None
    finding: str
    reason: str
    verdict: str
    surprise: str
    cost: str
    pairs: int | None
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopePoint:
    """A scope's measured effect beside what was predicted and what would have rejected it, ms per step."""

    label: str
    effect: Number
    predicted: tuple[float, float] | None
    boundary: float | None
    pairs: tuple[float, ...]
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    """An account's part of the improvement (before minus after, ms per step); ``share`` in percent of it."""

    account: str
    role: str
    change: Number
    share: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The perturbation: what was changed, what it gave back, and how the accounting closed.

    ``closing_accounts`` names the account that had to shrink, with that which shrinks together with it.
    """

    id: str
    claim: str
    scope: str
    change: tuple[str, ...]
    mitigation: bool
    verdict: str
    predicted: str
    reject_if: str
    improvement: Number | None
    account: str
    closing_accounts: str
    account_change: Number | None
    account_share: Number | None
    gap: Number | None
    closing: str
    closing_words: str
    rows: tuple[GapRow, ...]
    total: Number | None
    ledger_words: str
    rollback: str
    reopen: str
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The step times of one arm, ms, in the order in which they ran."""

    arm: str
    values_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The step times of two arms at one scope, with their quantiles."""

    label: str
    arms: tuple[Steps, ...]
    quantiles: tuple[tuple[str, tuple[Number | None, ...]], ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """The accounts of two or three arms side by side, ms per step; ``arms`` pairs each arm with its ledger."""

    title: str
    label: str
    arms: tuple[tuple[str, dict[str, float]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Who arrives last at collectives: each rank's share (0 to 1), in both arms."""

    label: str
    arms: tuple[tuple[str, dict[str, float]], ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """A metric, where it stood, and the range in which it is expected from now on."""

    metric: str
    now: Number | None
    expected: str
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A question put to a person, and the answer with its reason."""

    question: str
    decision: str
    who: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLink:
    """A file of the case, by relative path; empty where it lies outside of the case's own folders."""

    label: str
    path: str
    note: str
    manifests: tuple[FileLink, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture that this view can draw: ``figures/NAME.png``."""

    name: str
    alt: str

    @property
    def path(self) -> str:
        return f"figures/{self.name}.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostmortemView:
    """Everything that the postmortem shows. A pure view of the case, its docket and its evidence."""

    title: str
    question: str
    outcome: Outcome
    verdict: str
    conclusion: tuple[str, ...]
    caveats: tuple[str, ...]
    symptom: Symptom
    work: str
    counters: tuple[Counter, ...]
    differences: tuple[Difference, ...]
    equal_fields: int | None
    mechanism: str | None
    mechanism_words: str
    account: str | None
    culprit: str
    first_scope: str | None
    ledgers: tuple[LedgerTable, ...]
    notes: tuple[str, ...]
    tail: WindowTable | None
    opinions: OpinionTable | None
    expected: ExpectedTable | None
    ladder: tuple[LadderRow, ...]
    rejected: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    failures: tuple[str, ...]
    scopes: tuple[ScopePoint, ...]
    proofs: tuple[Proof, ...]
    distributions: tuple[Distribution, ...]
    bars: tuple[Bars, ...]
    arrivals: Arrivals | None
    reproducer: tuple[str, ...]
    reproducer_note: str
    movements: tuple[Movement, ...]
    rollback: str
    uncertainties: tuple[str, ...]
    reopen: tuple[str, ...]
    approvals: tuple[Approval, ...]
    files: tuple[FileLink, ...]
    pictures: tuple[Picture, ...]
    device_hours: float
    docket_lines: int
    docket_digest: str

    @property
    def proof(self) -> Proof | None:
        """The perturbation that was supported, else the one tried last."""
        good = [one for one in self.proofs if one.verdict == "supported"]
        return next(iter([*good, *self.proofs[::-1]]), None)

    def picture(self, name: str) -> Picture | None:
        return next((one for one in self.pictures if one.name == name), None)
