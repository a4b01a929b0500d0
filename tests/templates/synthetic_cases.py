"""Cases in memory: the real ladder asks, and a script answers with verdicts and evidence of the agreed shape."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.inquiry.case import ArmSpec, Budget, Case, Cluster, Judging, Workload
from narrows.inquiry.codec import digest, plain
from narrows.inquiry.conclusion import conclude
from narrows.inquiry.design import ArmKind, Experiment
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.hypotheses import Hypothesis, Ledger, Registration, Test
from narrows.inquiry.ladder import next_step
from narrows.inquiry.playbook import Play
from narrows.inquiry.scopes import Scope
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask, Judge, Launch, Register, Skip, Stop

START_NS = 1_780_000_000_000_000_000
DIRECTORY = Path("/srv/cases/packing")
HEALTHY = {"compute": 31.2, "transfer": 4.1, "skew": 3.0, "copy": 0.8, "input": 0.4, "host": 1.2, "residual": 0.5}
LOST = {"compute": 0.31, "transfer": 0.02, "skew": 6.92, "copy": 0.0, "input": -0.01, "host": 0.04, "residual": 0.22}
PLAY = Play(
    id="balance-cost",
    mechanism="imbalance",
    account=Account.SKEW,
    ledger=Ledger.RANK_MEAN,
    claim="Balancing the attention cost of the packs as well as their tokens takes the waiting away",
    mitigation=True,
    programs=("step",),
    config={"packing": "cost_balanced"},
    unchanged=(Account.TRANSFER,),
    rollback="Set the packing policy back to what the regressed run used.",
    reopen="the length distribution of the documents, or the number of ranks, changes",
)


def make_case(**changes: Any) -> Case:
    """Two nodes of two ranks, a change of the packing policy, one play that fits it."""
    fields: dict[str, Any] = {
        "name": "packing-regression",
        "question": "Median step time rose from 41 ms to 49 ms after the packing change",
        "runs": {"healthy": ("/data/runs/healthy",), "regressed": ("/data/runs/regressed",)},
        "workload": Workload(
            program="step",
            builtin=True,
            kind=ArmKind.CONFIG,
            healthy=ArmSpec(config={"packing": "snake"}),
            regressed=ArmSpec(config={"packing": "greedy"}),
        ),
        "cluster": Cluster(launcher="local", nodes=2, ranks_per_node=2, hosts=("n0", "n1", "n2"), device="emulated"),
        "budget": Budget(device_hours=0.5, ask_above_device_hours=0.012),
        "judging": Judging(statistic="low50", start_s=4.0),
        "playbook": (PLAY,),
    }
    return Case(**(fields | changes))


@dataclass(slots=True, kw_only=True)
class Answer:
    """What the script says of a hypothesis."""

    verdict: str
    effect_ms: float | None = None
    half_ms: float = 0.4
    reason: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Script:
    """The answers by hypothesis key, the findings, and how much of the loss each experiment shows."""

    answers: dict[str, Answer]
    findings: dict[str, dict[str, Any]]
    loss: float = 1.0
    shows: dict[str, float] = field(default_factory=dict)
    killed_in: str | None = None
    fails: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Played:
    """A case that was played through, with its docket and its evidence by name."""

    case: Case
    docket: Docket
    evidence: dict[str, dict[str, Any]]


def play(case: Case, script: Script) -> Played:
    """Follows the ladder until it stops, or until the experiment ``killed_in`` has been launched."""
    docket = Docket(None)
    played = Played(case=case, docket=docket, evidence={"given": given(script.loss)})
    _note(docket, Kind.OPENED, {"case": case.name, "margin_ms": 0.412, "accounts": list(HEALTHY), "emulated": True})
    while script.killed_in not in State.of(docket).launches:
        step = next_step(case, docket)
        if isinstance(step, Stop):
            body = {"status": "concluded", "reason": step.reason.value, "conclusion": conclude(State.of(docket))}
            _note(docket, Kind.CONCLUDED, body)
            return played
        _perform(played, script, step)
    return played


def _perform(played: Played, script: Script, step: Any) -> None:
    docket = played.docket
    if isinstance(step, Register):
        for hypothesis in step.hypotheses:
            number = len(docket.of(Kind.REGISTERED)) + 1
            record = Registration(id=f"H{number:02d}", hypothesis=hypothesis, created_ns=_now(docket)).sealed()
            _note(docket, Kind.REGISTERED, plain(record))
    elif isinstance(step, Skip):
        _note(docket, Kind.SKIPPED, {"rung": step.rung.value, "reason": step.reason})
    elif isinstance(step, Ask):
        _note(docket, Kind.ASKED, {"gate": step.gate, "question": step.question, "device_hours": step.device_hours})
        answer = {"gate": step.gate, "decision": "approve", "by": "ada", "reason": "the cluster is idle tonight"}
        _note(docket, Kind.ANSWERED, answer)
    elif isinstance(step, Launch):
        _launch(played, script, step)
    else:
        _judge(played, script, step)


def _launch(played: Played, script: Script, step: Launch) -> None:
    one = step.experiment
    launched = _note(played.docket, Kind.LAUNCHED, {"experiment": one.key, "launch": step.launch, "pairs": step.pairs})
    if one.key == script.killed_in:
        return
    if one.key in script.fails:
        reason = "rank 3 on n1 exited with 1; see /srv/cases/packing/experiments/logs/n1.log and /home/ada/x/core"
        _note(played.docket, Kind.FAILED, {"experiment": one.key, "launch": step.launch, "reason": reason})
        return
    evidence = measured(one, script.shows.get(one.key, 1.0), step.pairs)
    played.evidence[one.key] = evidence
    body = {
        "experiment": one.key,
        "launch": step.launch,
        "pairs": step.pairs,
        "file": f"evidence/parts/{one.key}-{step.launch}.json",
        "digest": evidence["digest"],
        "device_hours": round(one.device_hours(step.pairs, played.case.judging.start_s), 6),
        "started_ns": launched.at_ns + 1,
        "runs": [run for arm in evidence["arms"].values() for run in arm["runs"]],
    }
    _note(played.docket, Kind.EVIDENCE, body)


def _judge(played: Played, script: Script, step: Judge) -> None:
    docket = played.docket
    topics = {"given runs": ("manifest", "reference", "numerator"), "reconciliation": ("reconciliation", "opinions")}
    if step.experiment == "full-again":
        script.findings["reference"] = script.findings.pop("again")
        topics["experiment"] = ("reference",)
    for topic in topics.get(step.topic.value, ()):
        if topic in script.findings:
            numbers = script.findings[topic]
            file = f"evidence/{step.experiment or 'given'}.json"
            _note(docket, Kind.FINDING, {"topic": topic, "numbers": numbers, "file": file})
    state = State.of(docket)
    used = [
        {"experiment": step.experiment, "launch": one["launch"]}
        for one in state.evidence.get(step.experiment or "", ())
    ]
    for name in step.hypotheses:
        hypothesis = state.registrations[name].hypothesis
        answer = _answer(script, hypothesis, bool(used))
        effect, half = answer.effect_ms, answer.half_ms
        body = {
            "hypothesis": name,
            "verdict": answer.verdict,
            "effect_ms": effect,
            "interval_ms": None if effect is None else [effect - half, effect + half],
            "reason": answer.reason,
            "numbers": answer.numbers,
            "file": f"evidence/{step.experiment or 'given'}.json",
            "evidence": used,
        }
        _note(docket, Kind.VERDICT, body)


def _answer(script: Script, hypothesis: Hypothesis, measured_it: bool) -> Answer:
    if hypothesis.experiment is not None and not measured_it:
        return Answer(
            verdict="inconclusive", reason=f"could not be run: rank 3 of {hypothesis.experiment} exited with 1"
        )
    if hypothesis.key in script.answers:
        return script.answers[hypothesis.key]
    if hypothesis.test is Test.ACCOUNT:
        return Answer(verdict="rejected", effect_ms=0.1, half_ms=0.2, reason="it holds 1% of the loss")
    return Answer(verdict="supported", effect_ms=hypothesis.pi_ms, reason="it lies above half of the prediction")


def _now(docket: Docket) -> int:
    return START_NS + 20_000_000_000 * (len(docket) + 1)


def _note(docket: Docket, kind: Kind, body: dict[str, Any]) -> Any:
    return docket.append(kind, body, _now(docket))


def given(loss: float) -> dict[str, Any]:
    """The two runs as they were given: 8 pairs at full scale on four ranks."""
    after = {name: HEALTHY[name] + loss * LOST[name] for name in HEALTHY}
    found = evidence_file("given", {"healthy": HEALTHY, "regressed": after}, pairs=8, ranks=4)
    for arm in found["arms"]:
        found["arms"][arm]["runs"] = [{"path": f"/data/runs/{arm}", "digest": digest(arm)}]
    return found | {"expected": beside()}


def beside() -> dict[str, Any]:
    """What was expected of the collectives: one kind that a curve fits, and one without a basis."""
    reduce = {"group": "dp", "op": "all_reduce", "ranks": 4, "crosses_hosts": True}
    rows: list[dict[str, Any]] = [
        reduce | {
            "payload_bytes": 26_214_400, "rounds": 6, "sent_bytes": 39_321_600.0,
            "calls": {"healthy": 3.0, "regressed": 3.0}, "measured_us": {"healthy": 1370.0, "regressed": 1384.0},
            "slowest": {"healthy": "dp", "regressed": "dp"}, "exceeded": [], "expected_us": 1362.0,
            "basis": "curve over 3 sizes of the healthy run",
        },
        reduce | {
            "op": "barrier", "payload_bytes": 0, "rounds": 4, "sent_bytes": 0.0,
            "calls": {"healthy": 0.01, "regressed": None}, "measured_us": {"healthy": 41.0, "regressed": None},
            "slowest": {"healthy": "dp"}, "exceeded": [],
            "why_not": "no curve: it moves no bytes; no link stated",
        },
    ]  # fmt: skip
    hidden = {"service_ms": 4.11, "window_ms": 2.5, "exposed_ms": 4.1, "expected_exposed_ms": 4.0}
    arms = {arm: dict(hidden) for arm in ("healthy", "regressed")}
    overlap = {"group": "dp", "arms": arms, "basis": "expected services", "exceeded": []}
    bubble = {"why_not": "no pipeline group (pp) is on record"}
    sent = {"dp": {"healthy": 117_964_800.0, "regressed": 117_964_800.0}}
    return {"rows": rows, "left_out": 0, "sent": sent, "overlap": [overlap], "bubble": bubble}


def measured(one: Experiment, share: float, pairs: int) -> dict[str, Any]:
    """What an experiment yields; ``share`` is how much of the full-scale loss lies between its arms."""
    # At one node a max over fewer ranks loses less, and a change gives back its share of that.
    reached = 1.0 if one.before.name == "healthy" else (0.66 if one.scope is Scope.ONE_NODE else 1.0)
    lost = share if one.before.name == "healthy" else reached
    arms = {
        "healthy": HEALTHY,
        "regressed": {name: HEALTHY[name] + lost * LOST[name] for name in HEALTHY},
        "perturbed": {name: HEALTHY[name] + (reached - share) * LOST[name] for name in HEALTHY},
    }
    chosen = {name: arms[name] for name in (one.before.name, one.after.name)}
    return evidence_file(one.key, chosen, pairs=pairs, ranks=one.world_size)


def evidence_file(name: str, arms: dict[str, dict[str, float]], *, pairs: int, ranks: int) -> dict[str, Any]:
    """One evidence record, its differences second arm minus first, its keys in alphabetical order as on disk."""
    rng = random.Random(name)
    first, second = sorted(arms)
    drawn = [rng.gauss(0, 0.25) for _ in range(pairs)]
    noise = [one - sum(drawn) / pairs for one in drawn]
    step = [sum(arms[second].values()) - sum(arms[first].values()) + one for one in noise]
    tables = {view: _view_table(arms[first], arms[second], noise, view) for view in _VIEWS}
    return {
        "schema": 1,
        "kind": "evidence",
        "experiment": name,
        "statistic": "low50",
        "emulated": True,
        "mode": "switchback" if name != "given" else "given",
        "views": list(_VIEWS),
        "arms": {arm: _arm(name, arm, arms[arm], ranks, rng) for arm in sorted(arms)},
        "pairs": pairs,
        "difference": {"step_ms": step, "accounts": tables},
        "intervals": {
            "step_ms": _interval(step),
            **{
                view: {account: _interval(values) for account, values in table.items()}
                for view, table in tables.items()
            },
        },
        "losses": [],
        "coverage": 1.0,
        "digest": digest(name),
    }


_VIEWS = ("rank_mean", "critical_path", "least_waiting_rank")


def in_view(accounts: dict[str, float], view: str) -> dict[str, float]:
    """The same step in another view: what is skew in the mean over ranks is compute of the rank waited for."""
    found = {one.value: accounts.get(one.value, 0.0) for one in ACCOUNTS}
    if view != "rank_mean":
        kept = 0.0 if view == "critical_path" else 0.1 * found["skew"]
        found["compute"] += found["skew"] - kept
        found["skew"] = kept
    return found


def _view_table(
    before: dict[str, float], after: dict[str, float], noise: list[float], view: str
) -> dict[str, list[float]]:
    first, second = in_view(before, view), in_view(after, view)
    moving = "skew" if view == "rank_mean" else "compute"
    return {name: [second[name] - first[name] + (one if name == moving else 0.0) for one in noise] for name in first}


def _interval(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((one - mean) ** 2 for one in values) / (len(values) - 1) / len(values))
    return [mean - 2 * spread, mean + 2 * spread]


def _arm(name: str, arm: str, accounts: dict[str, float], ranks: int, rng: random.Random) -> dict[str, Any]:
    mean = sum(accounts.values())
    steps = [mean + rng.gauss(0, 1.1) + (4 if rng.random() < 0.04 else 0) for _ in range(104)]
    ordered = sorted(steps)
    last = [0.25 + 0.02 * (rank - (ranks - 1) / 2) for rank in range(ranks)]
    return {
        "runs": [{"path": f"experiments/{name}/launch-1/{arm}", "digest": digest([name, arm])}],
        "units": [{"launch": "1", "segment": 0, "pair": 0, "steps": 13, "step_ms": mean}],
        "step_ms": mean,
        "accounts": {view: in_view(accounts, view) for view in _VIEWS},
        "steps_ms": [round(one, 4) for one in steps],
        "quantiles_ms": {f"p{q:02d}": ordered[min(103, q * 104 // 100)] for q in (5, 50, 95, 99)},
        "work": {"valid_tokens": {"total": 16384.0, "max": 4096.0}},
        "loss": 2.31,
        "last_arrivals": {str(rank): share for rank, share in enumerate(last)},
        "hidden_ms": 2.2,
    }


REFERENCE: dict[str, Any] = {
    "delta_ms": 7.5,
    "d_ms": [7.2, 7.9, 7.4, 7.6, 7.3, 7.7, 7.5, 7.4],
    "interval_ms": [7.36, 7.64],
    "healthy_ms": 41.2,
    "regressed_ms": 48.7,
    "margin_ms": 0.412,
    "tested": True,
    "statistic": "low50",
}
MANIFEST: dict[str, Any] = {
    "differences": [
        {
            "field": "config.packing",
            "healthy": "snake",
            "regressed": "greedy",
            "kind": "numerator",
            "accounts": ["compute", "skew"],
            "scope": "one_node",
            "why": "how documents are dealt to ranks decides how long each rank computes",
        },
        {"field": "config.label", "healthy": "(absent)", "regressed": "friday", "kind": "harmless", "accounts": [],
         "scope": "full", "why": "a name for the reader"},
    ]
}  # fmt: skip
NUMERATOR: dict[str, Any] = {
    "changed": True,
    "counters": {
        "valid_tokens (total)": {"healthy": 16384.0, "regressed": 16384.0, "ratio": 1.0},
        "sum_sq_len (max)": {"healthy": 1.91e6, "regressed": 2.62e6, "ratio": 1.372},
    },
    "pi_ms": 0.3,
    "share": 0.04,
    "sentence": "the valid tokens are equal; the counters predict 4% of the loss, so the work does not explain it",
}
RECONCILIATION: dict[str, Any] = {
    "account": "skew",
    "mechanism": "imbalance",
    "view": "rank_mean",
    "share": 0.92,
    "shares": {"skew": 0.92, "compute": 0.04},
    "culprit": {"kind": "varies", "members": []},
    "ranks": [],
    "kappa": {"one_rank": 0.0, "one_node": 0.67, "two_nodes": 1.0},
    "kappa_source": "resampled local times",
    "sentence": "waiting for the last rank holds 92% of the loss",
}
OPINIONS: dict[str, Any] = {
    "accounts": [
        {"account": "compute", "critical_path": 0.964, "least_waiting_rank": 0.872, "removal": 0.97, "addition": 0.94,
         "replay": 0.955},
        {"account": "transfer", "critical_path": 0.003, "least_waiting_rank": 0.003, "removal": 0.05,
         "addition": 0.02, "replay": 0.035},
        {"account": "skew", "critical_path": 0.0, "least_waiting_rank": 0.092, "removal": None, "addition": None,
         "replay": None},
    ],
    "leading": dict.fromkeys(("critical_path", "least_waiting_rank", "replay"), "compute"),
    "agree": True,
    "sentence": "all three put compute first: 96% on the critical path, 87% on the rank that waits least, 96% in the "
                "what-if replay; waiting, 92% of the loss in the rank mean, is charged by path and "
                "replay to what was waited for",
    "healthy_ms": 41.1,
    "regressed_ms": 48.9,
    "replay_error": [0.002, -0.004],
    "steps": [58, 60],
    "why_not": None,
}  # fmt: skip
WITHHELD = "the replay of the regressed run differs from its measured steps by +4.1%; 3 % is allowed"
FINDINGS = {
    "manifest": MANIFEST,
    "reference": REFERENCE,
    "numerator": NUMERATOR,
    "reconciliation": RECONCILIATION,
    "opinions": OPINIONS,
}


def explained_script(change: str = "balance-cost") -> Script:
    """Packing imbalance: absent at one rank, present at one node, taken away by a balanced packer; the books close."""
    share = 4.95 / 7.5
    answers = {
        "regression": Answer(verdict="supported", effect_ms=7.5, half_ms=0.14, reason="7.5 ms lies above 0.41 ms"),
        "numerator": Answer(
            verdict="rejected", reason="the counters predict 4% of the loss", numbers={"share": 0.04}
        ),
        "account:skew": Answer(
            verdict="supported", effect_ms=6.92, half_ms=0.2, reason="skew changed by 6.92 ms, 92% of the loss"
        ),
        "scope:one_rank": Answer(
            verdict="rejected", effect_ms=0.12, half_ms=0.3, numbers={"pairs_used": 6},
            reason="0.12 ms [-0.18, 0.42] lies below half of the predicted 7.50 ms after 6 pairs",
        ),
        "scope:one_node": Answer(verdict="supported", effect_ms=4.95, half_ms=0.31, numbers={"pairs_used": 6},
                                 reason="4.95 ms lies above half of the predicted 5.03 ms after 6 pairs"),
        f"perturbation:{change}": Answer(verdict="supported", effect_ms=4.81, half_ms=0.3,
                                            numbers={"pairs_used": 6}),
        f"unchanged:{change}:transfer": Answer(verdict="supported", effect_ms=0.01, half_ms=0.08),
        f"closing:{change}": Answer(
            verdict="supported", effect_ms=4.43, reason="of 4.8 ms gained, skew holds 4.4 ms (92%): the account closes",
            numbers={"status": "closed", "share": 0.92, "share_interval": [0.88, 0.96], "gap_ms": 0.38,
                     "gap_interval_ms": [0.24, 0.52]},
        ),
        "scale_up:two_nodes": Answer(verdict="supported", effect_ms=7.21, half_ms=0.3, numbers={"pairs_used": 6},
                                     reason="7.21 ms lies above half of the predicted 7.18 ms; the same work"),
        "soak": Answer(verdict="supported", effect_ms=7.19, half_ms=0.2, numbers={"pairs_used": 4},
                       reason="7.19 ms lies above half of the predicted 7.18 ms; the slowest tenth gained 7.3 ms"),
    }  # fmt: skip
    shows = {
        "one_rank-regressed": 0.016,
        "one_node-regressed": share,
        f"{change}-one_node": 0.64,
        f"{change}-two_nodes": 0.96,
        "soak": 0.96,
    }
    return Script(answers=answers, findings=dict(FINDINGS), shows=shows)


def explained() -> Played:
    """The whole ladder, from the given runs to the soak."""
    return play(make_case(), explained_script())


def link() -> Played:
    """A slow link: only two nodes show it, and putting all ranks on one host takes it away."""
    colocate = Play(
        id="colocate",
        mechanism="link",
        account=Account.TRANSFER,
        ledger=Ledger.LEAST_WAITING,
        placement="colocate",
        claim="The same ranks on one host take the transfer away",
        mitigation=False,
        rollback="Nothing to roll back; the placement was a test.",
    )
    work = make_case().workload
    fault = ArmSpec(config={"slow_link": {"mbit": 700.0, "delay_us": 200.0}})
    case = make_case(
        name="slow-link",
        workload=replace(work, healthy=ArmSpec(), regressed=fault),
        playbook=(colocate,),
    )
    findings = FINDINGS | {
        "reconciliation": RECONCILIATION
        | {
            "account": "transfer",
            "mechanism": "link",
            "view": "least_waiting_rank",
            "culprit": {"kind": "link", "members": ["n0", "n1"]},
            "kappa": {"one_rank": 0.0, "one_node": 0.0, "two_nodes": 1.0},
        },
        "opinions": OPINIONS
        | {"agree": None, "sentence": f"the what-if replay is withheld: {WITHHELD}", "why_not": WITHHELD},
    }
    absent = Answer(verdict="rejected", effect_ms=0.02, half_ms=0.2, reason="it lies below half of the prediction")
    answers = {
        "regression": Answer(verdict="supported", effect_ms=7.5, half_ms=0.14),
        "numerator": Answer(verdict="rejected", reason="the work is equal", numbers={"share": None}),
        "account:transfer": Answer(verdict="supported", effect_ms=7.1, half_ms=0.2),
        "scope:one_rank": absent,
        "scope:one_node": absent,
        "curve": Answer(verdict="supported", reason="the time per byte grew", numbers={"bandwidth_ratio": 3.1}),
        "closing:colocate": Answer(verdict="supported", effect_ms=7.0, numbers={"status": "closed", "share": 0.98}),
    }
    return play(case, Script(answers=answers, findings=findings, shows={"one_rank-regressed": 0.0}))


def numerator() -> Played:
    """A fifth of padding: the executed work explains the loss, and one rank proves it."""
    work = make_case().workload
    arms = {"healthy": ArmSpec(config={"padding": 0.0}), "regressed": ArmSpec(config={"padding": 0.2})}
    findings = FINDINGS | {"numerator": NUMERATOR | {"pi_ms": 7.1, "share": 0.95}}
    answers = {
        "regression": Answer(verdict="supported", effect_ms=7.5, half_ms=0.14),
        "numerator": Answer(verdict="supported", effect_ms=7.1, reason="20% more is executed", numbers={"share": 0.95}),
        "closing:restore-work": Answer(verdict="supported", effect_ms=6.9, numbers={"status": "closed", "share": 0.97}),
    }
    case = make_case(name="padding", workload=replace(work, **arms))
    return play(case, Script(answers=answers, findings=findings))


def nothing() -> Played:
    """The two runs do not differ by more than the margin."""
    reference = REFERENCE | {
        "delta_ms": 0.05, "d_ms": [0.1, -0.1, 0.2, 0.0, 0.1, -0.1, 0.1, 0.1], "interval_ms": [-0.07, 0.17],
        "regressed_ms": 41.25,
    }  # fmt: skip
    answers = {
        "regression": Answer(
            verdict="rejected", effect_ms=0.05, half_ms=0.12, reason="0.05 ms [-0.07, 0.17] lies within the margin"
        ),
        "numerator": Answer(verdict="rejected", reason="the executed work is equal"),
    }
    case = make_case(question="Did the library upgrade slow the step down?")
    findings = {"reference": reference, "manifest": {"differences": [], "equal": 57}}
    return play(case, Script(answers=answers, findings=findings, loss=0.007))


def inconclusive() -> Played:
    """Noise as large as the loss: neither confirmed nor excluded, in the given runs and when measured again."""
    reference = REFERENCE | {"delta_ms": 0.9, "d_ms": [3.0, -1.2], "interval_ms": [-3.1, 4.9], "tested": False}
    del reference["healthy_ms"], reference["regressed_ms"]
    answers = {
        "regression": Answer(verdict="inconclusive", reason="2 pairs are too few"),
        "regression:again": Answer(
            verdict="inconclusive", effect_ms=0.3, half_ms=1.9,
            reason="0.3 ms [-1.6, 2.2] is not settled against the margin of 0.41 ms; 24 pairs would settle it",
        ),
        "numerator": Answer(verdict="rejected", reason="the runs carry no work counters to compare"),
    }  # fmt: skip
    again = REFERENCE | {"delta_ms": 0.3, "interval_ms": [-1.6, 2.2], "regressed_ms": 41.5, "tested": True}
    findings = {"reference": reference, "again": again}
    return play(make_case(), Script(answers=answers, findings=findings, shows={"full-again": 0.04}))


def killed() -> Played:
    """Stopped by a power cut while one node was being measured."""
    answers = {
        "regression": Answer(verdict="supported", effect_ms=7.5, half_ms=0.14),
        "numerator": Answer(verdict="rejected", reason="the work is equal"),
        "account:skew": Answer(verdict="supported", effect_ms=6.92, half_ms=0.2),
        "scope:one_rank": Answer(verdict="rejected", effect_ms=0.12, half_ms=0.3),
    }
    script = Script(
        answers=answers, findings=FINDINGS, shows={"one_rank-regressed": 0.016}, killed_in="one_node-regressed"
    )
    return play(make_case(), script)


def broken() -> Played:
    """The loss is real, but no experiment could be run to its end."""
    answers = {
        "regression": Answer(verdict="supported", effect_ms=7.5, half_ms=0.14),
        "numerator": Answer(verdict="rejected", reason="the work is equal"),
        "account:skew": Answer(verdict="supported", effect_ms=6.92, half_ms=0.2),
    }
    keys = ("one_rank-regressed", "one_node-regressed", "two_nodes-regressed")
    return play(make_case(), Script(answers=answers, findings=FINDINGS, fails=keys))


def empty() -> Played:
    """A docket without a line."""
    return Played(case=make_case(), docket=Docket(None), evidence={})


EVERY = {
    "explained": explained,
    "nothing": nothing,
    "inconclusive": inconclusive,
    "killed": killed,
    "broken": broken,
    "link": link,
    "numerator": numerator,
    "empty": empty,
}
