"""A hypothesis as data: what is claimed, what it predicts, and what would reject it. Never code."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from narrows.inquiry.accounts import Account
from narrows.inquiry.codec import digest
from narrows.inquiry.scopes import Rung, Scope

ANALYSIS_VERSION = "narrows-4"
"""Named in every registration; a change of the statistics or of the ledger's rules changes it."""


WARMUP_RULE = (
    "the first steps of a plan's segments, as marked; of other runs what MSER-5 on the log of step times cuts, at "
    "least 10 steps or a quarter and at most half, the longest cut of a block's runs for all, blind to the arms"
)

EXCLUSION_RULES = (
    "a launch that did not end well is left out whole, with all of its pairs",
    "on an emulated device, a step with a residual above 1 ms on some rank is left out, in both arms alike",
)
"""Rules that do not look at the arms; how many steps they took is in the evidence."""


class Comparison(StrEnum):
    """The closed set of comparisons that a criterion may use."""

    UPPER_BELOW = "upper bound below"
    LOWER_ABOVE = "lower bound above"
    EQUAL = "equal to"


class Ledger(StrEnum):
    """The view of the step in which an account is read."""

    RANK_MEAN = "rank_mean"
    CRITICAL_PATH = "critical_path"
    LEAST_WAITING = "least_waiting_rank"
    NAMED_RANKS = "named_ranks"


class Test(StrEnum):
    """Which registered analysis judges the hypothesis."""

    __test__ = False  # pytest collects classes named Test*

    REGRESSION = "regression"
    NUMERATOR = "numerator"
    ACCOUNT = "account"
    SCOPE = "scope"
    SENSITIVITY = "sensitivity"
    CURVE = "curve"
    SWAP = "swap"
    PERTURBATION = "perturbation"
    SCALE_UP = "scale_up"
    SOAK = "soak"
    UNCHANGED = "unchanged"
    CLOSING = "closing"
    RANGE = "range"
    ROLLOUT = "rollout"


class Basis(StrEnum):
    """What the hypothesis is judged on. Given evidence can screen a hypothesis out; it cannot support a cause."""

    GIVEN = "given"
    EXPERIMENT = "experiment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """``metric`` moves by between ``low`` and ``high`` (in ``unit``) from the first arm to the second."""

    metric: str
    unit: str
    low: float | None
    high: float | None

    def words(self) -> str:
        """For example ``step time +4.1 to +12.3 ms``."""
        low = None if self.low is None else f"{self.low:+.3g}"
        high = None if self.high is None else f"{self.high:+.3g}"
        if low is not None and high is not None:
            said = f"{self.metric} {low} to {high}"
        else:
            said = f"{self.metric} at least {low}" if low is not None else f"{self.metric} at most {high}"
        return f"{said} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionCriterion:
    """The observation that rejects the hypothesis, stated before it is made."""

    metric: str
    comparison: Comparison
    bound: float
    unit: str

    def words(self) -> str:
        """For example ``step time: upper bound below 4.1 ms``."""
        return f"{self.metric}: {self.comparison.value} {self.bound:.3g} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One claim with everything that its judgement will depend on.

    ``pi_ms`` is the predicted effect in milliseconds per step, ``kappa`` its ratio to the effect at full scale,
    ``rho`` the share of it below which the mechanism does not count as present. ``alpha`` is the error, in each
    direction, of all ``family`` hypotheses that are judged side by side with this one: Holm's step-down divides it.
    The prediction is on ``account`` plus the accounts ``together_with`` it, all in ``ledger``.
    """

    key: str
    rung: Rung
    test: Test
    basis: Basis
    claim: str
    mechanism: str
    prediction: Prediction
    reject_if: RejectionCriterion
    scope: Scope | None = None
    hosts: tuple[str, ...] = ()
    account: Account | None = None
    together_with: tuple[Account, ...] = ()
    ledger: Ledger = Ledger.RANK_MEAN
    ranks: tuple[int, ...] = ()
    experiment: str | None = None
    perturbation: str | None = None
    pi_ms: float | None = None
    pi_source: str = ""
    kappa: float = 1.0
    rho: float = 0.5
    tau_close: float = 0.25
    allowed_newly_exposed: tuple[Account, ...] = ()
    alpha: float = 0.05
    family: int = 1
    looks: tuple[int, ...] = (4, 6, 8, 12)
    steps: int | None = None
    statistic: str = "mean"
    warmup_rule: str = WARMUP_RULE
    exclusion_rules: tuple[str, ...] = EXCLUSION_RULES
    expected: str = "supported"
    order_seed: int = 0
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A hypothesis as it entered the docket: its number, its digest, and when.

    The digest covers the hypothesis, its number, the analysis version and the time; a changed record no longer
    matches it.
    """

    id: str
    hypothesis: Hypothesis
    created_ns: int
    analysis_version: str = ANALYSIS_VERSION
    sha256: str = field(default="")

    def sealed(self) -> Registration:
        """This record with its digest filled in."""
        return replace(self, sha256=self.computed())

    def computed(self) -> str:
        """The digest that the record ought to carry."""
        return digest(replace(self, sha256=""))
