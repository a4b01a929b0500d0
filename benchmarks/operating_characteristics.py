"""How often the verdicts are wrong, and how often they come: python benchmarks/operating_characteristics.py

Runs are simulated step by step: a run effect, a session that drifts over runs, steps that follow each other (AR(1)
of 0.8), heavy tails and stalls. The shipped rules judge their pair differences; beside them, on the same runs, stand
rules that are in use elsewhere.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.signal import lfilter

from narrows.inquiry.verdict import RegressionStatus, Verdict
from narrows.reducers.closing import closing_test
from narrows.reducers.comparison import judge_scope
from narrows.reducers.regression import confirm_regression
from narrows.reducers.sequential import LOOKS

Floats = np.ndarray[Any, np.dtype[np.float64]]
STEP_MS = 100.0
SIGNALS = (14.0, 8.2, 4.1, 2.7, 1.9, 1.36, 0.54)
"""Effects over the sd of a pair difference."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""What the scope shows of the effect; 0.5 is the boundary, where either verdict is an error."""
PEEKS = tuple(range(2, 13, 2))
ABBA, AABB = "ABBA", "AABB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Of log step times: sd of steps, of a run, of the session over runs; its drift a run; share of stalled steps."""

    step: float = 0.03
    run: float = 0.01
    session: float = 0.01
    drift: float = 0.001
    stalls: float = 0.01
    steps: int = 200


def run_steps(draw: np.random.Generator, noise: Noise, shape: tuple[int, int]) -> Floats:
    """Shape (experiments, runs, steps): step times in ms of runs in the order in which they ran, all of one arm."""
    shocks = stats.t.rvs(4, size=(*shape, noise.steps), random_state=draw) / np.sqrt(2)
    steps = lfilter([np.sqrt(1 - 0.8**2) * noise.step], [1, -0.8], shocks, axis=2)
    stalled = draw.random(steps.shape) < noise.stalls
    steps[stalled] += draw.exponential(0.2, int(stalled.sum()))
    session = lfilter([np.sqrt(1 - 0.9**2)], [1, -0.9], draw.normal(0, noise.session, shape), axis=1)
    level = draw.normal(0, noise.run, shape) + session + noise.drift * np.arange(shape[1])
    return np.asarray(STEP_MS * np.exp(steps + level[:, :, None]), dtype=np.float64)


def regressed_places(pairs: int, order: str, draw: np.random.Generator) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the runs, two a pair, are of the regressed arm."""
    if order == AABB:
        return np.arange(2 * pairs) >= pairs
    flips = np.repeat(draw.random(-(-pairs // 2)) < 0.5, 4)[: 2 * pairs]
    return np.resize(np.array([False, True, True, False]), 2 * pairs) ^ flips


def pair_differences(draw: np.random.Generator, noise: Noise, experiments: int, pairs: int) -> Floats:
    """Shape (experiments, pairs): differences of run means without any effect, in ms, in ABBA or BAAB order."""
    means = np.concatenate(
        [run_steps(draw, noise, (some, 2 * pairs)).mean(axis=2) for some in _chunks(experiments, 200)]
    )
    found = np.empty((experiments, pairs))
    for one in range(experiments):
        regressed = regressed_places(pairs, ABBA, draw).reshape(pairs, 2)
        own = means[one].reshape(pairs, 2)
        found[one] = np.where(regressed[:, 1], own[:, 1] - own[:, 0], own[:, 0] - own[:, 1])
    return found


def _chunks(total: int, size: int) -> list[int]:
    return [min(size, total - at) for at in range(0, total, size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of the experiments that ended so, and the mean number of pairs that they took."""

    supported: float
    rejected: float
    pairs: float


def scope_rates(scope: Floats, reference: Floats, signal: float, share: float) -> Rates:
    """``judge_scope`` on every experiment's scope pairs against its own reference of 8 pairs."""
    effect = signal * float(np.concatenate([scope, reference], axis=1).std())
    found = [judge_scope(own + share * effect, full + effect) for own, full in zip(scope, reference, strict=True)]
    return Rates(
        supported=float(np.mean([one.verdict is Verdict.SUPPORTED for one in found])),
        rejected=float(np.mean([one.verdict is Verdict.REJECTED for one in found])),
        pairs=float(np.mean([one.pairs_used for one in found])),
    )


def peeking_error(scope: Floats, reference: Floats, signal: float) -> float:
    """At the boundary: how often it is called supported where every second pair is looked at, without correction."""
    effect = signal * float(np.concatenate([scope, reference], axis=1).std())
    wrong = [
        any(
            judge_scope(own[:num] + effect / 2, full + effect, looks=(num,)).verdict is Verdict.SUPPORTED
            for num in PEEKS
        )
        for own, full in zip(scope, reference, strict=True)
    ]
    return float(np.mean(wrong))


def naive_errors(draw: np.random.Generator, noise: Noise, experiments: int) -> dict[str, float]:
    """Share of experiments of 8 pairs of identical runs that each rule calls different, at a two-sided 5 %."""
    called: dict[str, list[bool]] = {}

    def note(rule: str, p: float) -> None:
        called.setdefault(rule, []).append(bool(p < 0.05))

    for some in _chunks(experiments, 100):
        for steps in run_steps(draw, noise, (some, 16)):
            note("Mann-Whitney on all steps of two runs", stats.mannwhitneyu(steps[0], steps[1]).pvalue)
            for order in (AABB, ABBA):
                later = regressed_places(8, order, draw)
                one, other = steps[~later], steps[later]
                note(f"Mann-Whitney on pooled steps, {order}", stats.mannwhitneyu(one.ravel(), other.ravel()).pvalue)
                note(
                    f"Welch t on pooled steps, {order}", stats.ttest_ind(one.ravel(), other.ravel(), equal_var=False)[1]
                )
                note(f"Welch t on run means, {order}", stats.ttest_ind(one.mean(1), other.mean(1), equal_var=False)[1])
            own = steps.mean(axis=1).reshape(8, 2)
            sign = np.where(later.reshape(8, 2)[:, 1], 1, -1)
            note("paired t on 8 pairs, ABBA", stats.ttest_1samp(sign * (own[:, 1] - own[:, 0]), 0)[1])
    return {rule: float(np.mean(values)) for rule, values in called.items()}


def regression_rates(differences: Floats, effect_ms: float, margin_ms: float) -> dict[RegressionStatus, float]:
    """``confirm_regression`` on 8 pairs of every experiment."""
    found = [confirm_regression(own[:8] + effect_ms, margin_ms).verdict for own in differences]
    return {status: float(np.mean([one is status for one in found])) for status in RegressionStatus}


def closing_rates(
    draw: np.random.Generator, experiments: int, signal: float, *, accounts: int = 8, pairs: int = 6
) -> tuple[dict[str, float], dict[str, float]]:
    """``closing_test`` for the account that holds the gain, and for one that does not: shares of each verdict.

    The step's gain is the sum of all accounts' gains; ``signal`` is the gain over the sd of the step's pair gains.
    """
    true: list[str] = []
    wrong: list[str] = []
    for _ in range(experiments):
        gains = draw.normal(0, 1, (accounts, pairs)) * draw.dirichlet(np.full(accounts, 0.5))[:, None] ** 0.5
        gains[0] += signal
        step = gains.sum(axis=0)
        true.append(str(closing_test(step, gains[0]).verdict))
        wrong.append(str(closing_test(step, gains[int(draw.integers(1, accounts))]).verdict))
    return _shares(true), _shares(wrong)


def _shares(values: list[str]) -> dict[str, float]:
    return {name: values.count(name) / len(values) for name in sorted(set(values))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    draw, noise, num = np.random.default_rng(chosen.seed), Noise(), chosen.experiments
    differences = pair_differences(draw, noise, num, LOOKS[-1] + 8)
    # Scope and reference are different runs, as in an investigation.
    scope, reference = differences[:, : LOOKS[-1]], differences[:, LOOKS[-1] :]
    print(f"{num} experiments a cell; supported/rejected")
    print("| effect / sd of a pair | " + " | ".join(f"{share:g}" for share in SHARES) + " | mean pairs at 0 and 1 |")
    print("|---" * (len(SHARES) + 2) + "|")
    for signal in SIGNALS:
        rates = [scope_rates(scope, reference, signal, share) for share in SHARES]
        cells = " | ".join(f"{one.supported:.3f}/{one.rejected:.3f}" for one in rates)
        print(f"| {signal:g} | {cells} | {rates[0].pairs:.1f}, {rates[-1].pairs:.1f} |", flush=True)
    print(f"looking every 2 pairs without correction, at the boundary: {peeking_error(scope, reference, 2.7):.3f}")
    spread = float(differences.std())
    for label, effect in (("none", 0.0), ("3 sd", 3 * spread), ("margin", STEP_MS / 100)):
        rates_by = regression_rates(differences, effect, STEP_MS / 100)
        print(f"regression of {label}: " + ", ".join(f"{status} {rate:.3f}" for status, rate in rates_by.items()))
    for rule, rate in naive_errors(draw, noise, min(num, 1000)).items():
        print(f"| {rule} | {rate:.3f} |")
    for signal in (14.0, 8.0, 4.0):
        true, wrong = closing_rates(draw, num, signal)
        print(f"closing at gain / sd {signal:g}: true account {true}, wrong account {wrong}")


if __name__ == "__main__":
    main()
