"""Claim files as they are read: refused whole, with every problem's line, key, rule and what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from narrows.flows.casefile import DEVICES, LAUNCHERS, NAME, STATISTICS
from narrows.flows.checked_yaml import (
    HOST,
    Node,
    Section,
    bare,
    is_count,
    is_environment,
    is_number,
    is_text,
    is_texts,
    parse,
)
from narrows.inquiry.accounts import Account
from narrows.inquiry.case import ArmSpec, Budget, Judging
from narrows.inquiry.claim import AGE_LIMIT_DAYS, Claim, Dependency, Metric, MetricRange, Mitigation
from narrows.inquiry.design import Arm, Experiment, Mode
from narrows.inquiry.errors import CaseError
from narrows.inquiry.hypotheses import Ledger
from narrows.inquiry.plans import differing
from narrows.inquiry.scopes import SCOPE_RUNGS, Placement, Rung, Scope
from narrows.inquiry.workloads import BUILTIN, check_workload

KEYS = (
    "claim", "case", "case_file", "explanation", "mechanism", "account", "view", "culprit", "launcher", "reproducer",
    "remedy", "metrics", "depends_on", "mitigation", "confirmed", "age_limit_days", "budget", "judge",
)  # fmt: skip
_EXPERIMENT = (
    "key", "scope", "program", "config", "args", "arms", "hosts", "mode", "device", "shards", "pairs", "max_pairs",
    "steps", "washout", "seed", "step_s", "run_s",
)  # fmt: skip


def load_claim(path: Path) -> Claim:
    """The checked claim. Raises ``CaseError`` with one line for each problem; nothing is half-read."""
    path = path.resolve()
    root = parse(path)

    def word(key: str, expected: str, default: str | None = None) -> str:
        return str(root.take(key, is_text, expected, default or "", needed=default is None))

    name = str(
        root.take("claim", lambda v: isinstance(v, str) and bool(NAME.fullmatch(v)), "the claim's name", needed=True)
    )
    if name and path.name.split(".")[0] != name:
        root.say("claim", f"is {name!r} in {path.name}; a claim's file bears its name")
    base = path.parent.parent
    reproducer = _experiment(root.section("reproducer", needed=True), base, Rung.FULL)
    remedy = (
        _experiment(root.section("remedy"), base, Rung.PERTURBATION) if root.items.get("remedy") is not None else None
    )
    root.used.add("remedy")
    fields: dict[str, Any] = {
        "name": name,
        "case": word("case", "the name of the case that it comes from"),
        "case_file": word("case_file", "the case file, relative to the folder that holds claims"),
        "explanation": word("explanation", "a sentence: what causes the loss"),
        "mechanism": word("mechanism", "the mechanism, such as imbalance"),
        "account": _choice(root, "account", Account),
        "ledger": _choice(root, "view", Ledger),
        "culprit": _culprit(root.section("culprit")),
        "launcher": root.take("launcher", lambda v: v in LAUNCHERS, f"one of {', '.join(LAUNCHERS)}", LAUNCHERS[0]),
        "ranges": _metrics(root.section("metrics", needed=True), has_remedy=remedy is not None),
        "depends_on": _dependencies(root.section("depends_on", needed=True)),
        "mitigation": _mitigation(root.section("mitigation", needed=True)),
        "confirmed": _day(root),
        "age_limit_days": root.take("age_limit_days", is_count(1), "a whole number of days", AGE_LIMIT_DAYS),
        "budget": _budget(root.section("budget")),
        "judging": _judging(root.section("judge")),
    }
    root.done(KEYS)
    if root.reader.problems:
        places = tuple(sorted(root.reader.problems, key=_line_of))
        raise CaseError(places[0] + (f" (and {len(places) - 1} more)" if len(places) > 1 else ""), places)
    assert reproducer is not None
    return Claim(reproducer=reproducer, remedy=remedy, **fields)


def _line_of(problem: str) -> int:
    found = re.search(r":(\d+): ", problem)
    return int(found.group(1)) if found else 0


def _choice(section: Section, key: str, words: Any) -> Any:
    known = [one.value for one in words]
    value = section.take(key, lambda v: v in known, f"one of {', '.join(known)}", known[0], needed=True)
    return words(value)


def _day(root: Section) -> str:
    def is_day(value: Any) -> bool:
        if isinstance(value, date):
            return True
        try:
            return isinstance(value, str) and bool(date.fromisoformat(value))
        except ValueError:
            return False

    return str(root.take("confirmed", is_day, "the date of the last confirmation, such as 2026-12-02", "", needed=True))


def _culprit(section: Section) -> dict[str, Any]:
    kind = section.take("kind", is_text, "what the members are: rank, host, all or none", "none")
    members = section.take("members", lambda v: isinstance(v, list), "a list of ranks or host names", [])
    section.done(("kind", "members"))
    return {"kind": kind, "members": bare(members)}


def _metrics(section: Section, *, has_remedy: bool) -> tuple[MetricRange, ...]:
    known = tuple(one.value for one in Metric)
    found = [_metric(section.section(name), Metric(name)) for name in known if name in section.items]
    needed = [Metric.EFFECT.value, *([Metric.GAIN.value] if has_remedy else [])]
    for name in needed:
        if section.present and name not in section.items:
            section.say(name, "is missing; what is run again needs a range to be compared with")
    section.done(known)
    return tuple(found)


def _metric(section: Section, metric: Metric) -> MetricRange:
    def number(key: str, default: float | None = None, *, needed: bool = True) -> Any:
        return section.take(key, is_number, "a number", default, needed=needed)

    low, found = number("low", 0.0), number("found", 0.0)
    high = number("high", needed=metric is not Metric.SHARE)
    if metric is Metric.SHARE and not 0 < float(low) < 1:
        section.say("low", f"is {low:g}; expected a share between 0 and 1")
    elif high is not None and not low < high:
        section.say("high", f"is {high:g}; expected more than low, {low:g}")
    elif metric is not Metric.SHARE and high is not None and low < 0 < high:
        section.say("low", f"is {low:g}; a range that holds 0 accepts a loss that is not there")
    how = section.take("how", is_text, "how the range came about", "", needed=True)
    pairs = section.take(
        "pairs", lambda v: isinstance(v, list) and all(is_number(one) for one in v), "a list of numbers", []
    )
    section.done(("low", "high", "found", "how", "pairs"))
    return MetricRange(
        metric=metric, low=float(low), high=None if high is None else float(high), found=float(found), how=how,
        pairs=tuple(float(one) for one in pairs),
    )  # fmt: skip


def _dependencies(section: Section) -> tuple[Dependency, ...]:
    found = []
    for name in section.items:
        one = section.section(name)
        texts = one.take("confirmed", lambda v: is_texts(v) and bool(v), "a list of texts", [], needed=True)
        why = one.take("why", is_text, "why the explanation depends on it", "", needed=True)
        one.done(("confirmed", "why"))
        found.append(Dependency(field=name, confirmed=tuple(texts), why=why))
    return tuple(found)


def _mitigation(section: Section) -> Mitigation:
    change = section.take("change", is_text, "what was changed, or: none", "", needed=True)
    in_force = section.take("in_force", lambda v: isinstance(v, bool), "true or false", False, needed=True)
    rollback = section.take("rollback", is_text, "when and how it is taken back", "", needed=True)
    reopen = section.take("reopen", lambda v: isinstance(v, str), "what makes the question open again", "")
    section.done(("change", "in_force", "rollback", "reopen"))
    return Mitigation(change=change, in_force=in_force, rollback=rollback, reopen=reopen)


def _budget(section: Section) -> Budget:
    def amount(key: str, default: float) -> float:
        return float(section.take(key, lambda v: is_number(v) and v >= 0, "device-hours as a number", default))

    total, line = amount("device_hours", 1.0), amount("ask_above_device_hours", 0.25)
    section.done(("device_hours", "ask_above_device_hours"))
    return Budget(device_hours=total, ask_above_device_hours=line)


def _judging(section: Section) -> Judging:
    usual = Judging()
    names = ", ".join(STATISTICS)

    def number(key: str, accepts: Callable[[float], bool], expected: str) -> float:
        return float(section.take(key, lambda v: is_number(v) and accepts(v), expected, getattr(usual, key)))

    found = Judging(
        statistic=section.take("statistic", lambda v: v in STATISTICS, f"one of {names}", usual.statistic),
        alpha=number("alpha", lambda v: 0 < v <= 0.2, "a number above 0 and at most 0.2"),
        start_s=number("start_s", lambda v: v >= 0, "seconds as a number"),
    )
    section.done(("statistic", "alpha", "start_s"))
    return found


def _experiment(section: Section, base: Path, rung: Rung) -> Experiment | None:
    if not section.present:
        return None
    before = len(section.reader.problems)
    program = section.take("program", is_text, "step (built in), or the path of your script", "", needed=True)
    builtin = program in BUILTIN
    if program and not builtin and not (base / program).is_file():
        section.say("program", f"{program} is no file under {base} and no built-in program")
    config = bare(section.take("config", lambda v: isinstance(v, Node), "a mapping of settings", Node({}, {})))
    arms = _arms(section.section("arms", needed=True), program if builtin else None, config)
    where = _hosts(section)

    def whole(key: str, least: int, default: int | None = None) -> int:
        expected = f"a whole number of at least {least}"
        return int(section.take(key, is_count(least), expected, default or least, needed=default is None))

    def seconds(key: str, default: float | None) -> Any:
        return section.take(key, lambda v: is_number(v) and v > 0, "seconds as a number", default)

    scope, mode = _choice(section, "scope", Scope), _choice(section, "mode", Mode)
    values: dict[str, Any] = {
        "key": str(section.take("key", is_text, "the experiment's name", "again", needed=True)),
        "rung": rung if rung is Rung.PERTURBATION else SCOPE_RUNGS[scope],
        "scope": scope,
        "mode": mode,
        "device": section.take("device", lambda v: v in DEVICES, f"one of {', '.join(DEVICES)}", "", needed=True),
        "args": tuple(section.take("args", is_texts, "a list of arguments, each a text", [])),
        "num_shards": whole("shards", 1, 1),
        "pairs": whole("pairs", 4),
        "max_pairs": whole("max_pairs", 4, max(Judging().looks)),
        "steps": whole("steps", 1),
        "washout": whole("washout", 0),
        "seed": whole("seed", 0, 0),
        "expected_step_s": seconds("step_s", 0.05),
        "run_s": seconds("run_s", None),
    }
    section.done(_EXPERIMENT)
    if len(section.reader.problems) > before or len(arms) != 2 or where is None:
        return None
    try:
        return Experiment(
            program=program, base=config, before=arms[0], after=arms[1], placement=where, differs=_differs(mode, *arms),
            **values,
        )  # fmt: skip
    except ValueError as error:
        section.reader.say(section.line, section.key, str(error))
        return None


def _differs(mode: Mode, before: Arm, after: Arm) -> tuple[str, ...]:
    if mode is Mode.NODE_SET:
        return ("placement", "hosts", "groups")
    first, second = (ArmSpec(config=one.config, args=one.args, env=one.env) for one in (before, after))
    return differing(first, second)


def _hosts(section: Section) -> Placement | None:
    """``hosts: {n0: 2, n1: 2}``: so many consecutive ranks on each host, in this order."""
    expected = "a mapping from host names to numbers of ranks, such as {n0: 2, n1: 2}"
    node = section.take("hosts", lambda v: isinstance(v, Node) and bool(v.items), expected, needed=True)
    if node is None:
        return None
    hosts, first = [], 0
    for name, count in node.items.items():
        if not HOST.fullmatch(name) or not is_count(1)(count):
            section.say("hosts", f"has {name}: {count!r}; expected {expected}")
            return None
        hosts.append((name, tuple(range(first, first + count))))
        first += count
    return Placement(hosts=tuple(hosts))


def _arms(section: Section, builtin: str | None, config: dict[str, Any]) -> list[Arm]:
    if section.present and len(section.items) != 2:
        section.reader.say(section.line, section.key, f"names {len(section.items)} arms; expected two, the first one "
                           "to be compared with")  # fmt: skip
    return [_arm(section.section(name), name, builtin, config) for name in section.items]


def _arm(section: Section, name: str, builtin: str | None, config: dict[str, Any]) -> Arm:
    def numbers(key: str) -> tuple[int, ...]:
        accepts: Callable[[Any], bool] = lambda v: isinstance(v, list) and all(is_count(0)(one) for one in v)  # noqa: E731
        return tuple(section.take(key, accepts, "a list of ranks", []))

    own = bare(section.take("config", lambda v: isinstance(v, Node), "a mapping of settings", Node({}, {})))
    for problem in check_workload(builtin, {**config, **own}) if builtin else ():
        section.say("config", problem)
    args = section.take("args", is_texts, "a list of arguments, each a text", [])
    env = section.take("env", is_environment, "a mapping of environment variables, each a text")
    ranks, shards = numbers("ranks"), numbers("shards")
    section.done(("config", "args", "env", "ranks", "shards"))
    texts = {key: str(value) for key, value in bare(env).items()} if env else {}
    return Arm(name=name, config=own, args=tuple(args), env=texts, ranks=ranks, shards=shards)
