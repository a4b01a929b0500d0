"""Case files: YAML that is refused whole, with every problem's line, key, rule and next move."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from narrows.flows.checked_yaml import (
    Node,
    Section,
    bare,
    is_count,
    is_environment,
    is_hosts,
    is_number,
    is_text,
    is_texts,
    parse,
)
from narrows.flows.playbook import load_playbook
from narrows.inquiry.case import ArmSpec, Budget, Case, Cluster, Judging, StatedLink, Workload
from narrows.inquiry.design import ArmKind, Mode
from narrows.inquiry.errors import CaseError
from narrows.inquiry.findings import LEAST_STEPS, not_estimable
from narrows.inquiry.workloads import builtin_name, check_workload, defaults

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
LAUNCHERS = ("local",)
DEVICES = ("emulated", "cpu", "cuda")
UNKNOWN_DIFFERENCE = (
    "healthy is historical, so no cause can be tested against it: say what differs, as settings, args, env or hosts of "
    "healthy and regressed"
)
"""What a case without a healthy arm that can be run again lacks."""
STATISTICS = ("mean", "median", "p25", "low50", "p95", "p99", "es95")


def load_case(path: Path, *, recorded: bool = True) -> Case:
    """The checked case; ``recorded`` false: its runs are yet to be made.

    Raises ``CaseError`` with one line for each problem; nothing is half-read.
    """
    path = path.resolve()
    root = parse(path)
    known = ("case", "question", "runs", "workload", "cluster", "budget", "judge")
    named = "a name of small letters, digits and dashes, such as packing-regression"
    name = root.take("case", lambda v: isinstance(v, str) and bool(NAME.fullmatch(v)), named, "case", needed=True)
    question = root.take(
        "question", is_text, "a sentence, such as: Median step time rose after the upgrade", "", needed=True
    )
    runs = _runs(root.section("runs", needed=True), path.parent, recorded=recorded)
    cluster = _cluster(root.section("cluster", needed=True))
    workload = _workload(root.section("workload", needed=True), path.parent, cluster)
    budget = _budget(root.section("budget"))
    judging = _judging(root.section("judge"), workload)
    root.done(known)
    if root.reader.problems:
        places = tuple(sorted(root.reader.problems, key=_line_of))
        raise CaseError(places[0] + (f" (and {len(places) - 1} more)" if len(places) > 1 else ""), places)
    return Case(
        name=name, question=question, runs=runs, workload=workload, cluster=cluster, budget=budget, judging=judging,
        playbook=load_playbook(),
    )  # fmt: skip


def _line_of(problem: str) -> int:
    found = re.search(r":(\d+): ", problem)
    return int(found.group(1)) if found else 0


def _runs(section: Section, base: Path, *, recorded: bool) -> dict[str, tuple[str, ...]]:
    found = {}
    for arm in ("healthy", "regressed"):
        value = section.take(
            arm, lambda v: is_text(v) or (is_texts(v) and v), "a run directory, or a list of them", needed=True
        )
        paths = [value] if isinstance(value, str) else list(value or ())
        for one in paths if recorded else ():
            if not (base / one).is_dir():
                section.say(arm, f"{one} is no folder under {base}; expected a run directory written by narrows")
            elif not (base / one / "manifest.json").is_file():
                section.say(
                    arm, f"{one} holds no manifest.json; expected a run directory, for example from `narrows run`"
                )
        found[arm] = tuple(paths)
    if set(found["healthy"]) & set(found["regressed"]):
        section.say("regressed", "is the same run as healthy; expected the run that got slower")
    section.done(("healthy", "regressed"))
    return found


def _cluster(section: Section) -> Cluster:
    launcher = section.take("launcher", lambda v: v in LAUNCHERS, f"one of {', '.join(LAUNCHERS)}", "local")
    nodes = section.take("nodes", is_count(1), "a whole number of at least 1", 1, needed=True)
    ranks = section.take("ranks_per_node", is_count(1), "a whole number of at least 1", 1, needed=True)
    hosts = section.take("hosts", is_hosts, "a list of host names", [f"n{i}" for i in range(nodes)])
    device = section.take("device", lambda v: v in DEVICES, f"one of {', '.join(DEVICES)}", "emulated")
    if len(set(hosts)) != len(hosts):
        section.say("hosts", f"names a host twice in {hosts}; expected each host once")
    if len(hosts) < nodes:
        section.say(
            "hosts",
            f"names {len(hosts)} for {nodes} nodes; expected at least {nodes} hosts, spares after the job's own",
        )
    link = _link(section.section("link"))
    section.done(("launcher", "nodes", "ranks_per_node", "hosts", "device", "link"))
    return Cluster(launcher=launcher, nodes=nodes, ranks_per_node=ranks, hosts=tuple(hosts), device=device, link=link)


def _link(section: Section) -> StatedLink | None:
    alpha_us = section.take("alpha_us", lambda v: is_number(v) and v >= 0, "us a round, at least 0", 0, needed=True)
    gbit = section.take("gbit", lambda v: is_number(v) and v > 0, "Gbit/s, above 0", 1, needed=True)
    section.done(("alpha_us", "gbit"))
    return StatedLink(alpha_us=float(alpha_us), gbit=float(gbit)) if section.present else None


_WORKLOAD = ("program", "config", "args", "healthy", "regressed", "perturbed")


def _workload(section: Section, base: Path, cluster: Cluster) -> Workload:
    program = section.take("program", is_text, "step (built in), or the path of your script", "step", needed=True)
    builtin = builtin_name(program)
    if builtin == "collective":
        section.say("program", "collective is a sweep, not a training step; expected step, or the path of your script")
    if section.is_open("program") or (builtin is None and not (base / program).is_file()):
        if not section.is_open("program"):
            wrong = f"{program} is no file under {base} and no built-in program; expected step, or a script"
            section.say("program", wrong)
        section.done(_WORKLOAD)  # what the arms may hold depends on the program
        return Workload(program=program, builtin=True, kind=ArmKind.CONFIG, healthy=ArmSpec(), regressed=ArmSpec())
    config = _config(section, "config", builtin)
    args = section.take("args", is_texts, "a list of arguments, each a text", [])
    if builtin and args:
        section.say("args", "is for your own script; a built-in program takes its settings under config")
    arms = {arm: _arm(section, arm, builtin, config, cluster) for arm in ("healthy", "regressed", "perturbed")}
    kind = _kind(section, arms, {**defaults(builtin), **config} if builtin else {})
    section.done(_WORKLOAD)
    return Workload(
        program=builtin or program, builtin=builtin is not None, kind=kind, config=config,
        args=tuple(args), healthy=arms["healthy"] or ArmSpec(), regressed=arms["regressed"] or ArmSpec(),
        perturbed=arms["perturbed"],
    )  # fmt: skip


def _config(section: Section, key: str, builtin: str | None) -> dict[str, Any]:
    value = section.take(key, lambda v: isinstance(v, Node), "a mapping of workload settings")
    if value is None:
        return {}
    if builtin is None:
        section.say(key, "is for built-in programs; give your script's settings as args, or env in an arm")
        return {}
    return dict(bare(value))


def _arm(section: Section, arm: str, builtin: str | None, config: dict[str, Any], cluster: Cluster) -> ArmSpec | None:
    if arm == "healthy" and section.items.get(arm) == "historical":
        section.used.add(arm)
        return None
    if arm == "healthy" and isinstance(section.items.get(arm), str) and not section.is_open(arm):
        section.take(arm, lambda _v: False, "a mapping of the arm's settings, or the word historical")
        return ArmSpec()
    if arm == "perturbed" and arm not in section.items:
        return None
    inside = section.section(arm, needed=arm != "perturbed")
    hosts = inside.take("hosts", is_hosts, "a list of host names", [])
    _check_hosts(inside, hosts, cluster)
    if builtin:
        own = {key: bare(value) for key, value in inside.items.items() if key != "hosts"}
        for problem in check_workload(builtin, {**config, **own}):
            shared = _setting(problem) in config and _setting(problem) not in own
            _say_setting(section.section("config") if shared else inside, problem)
        return ArmSpec(config=own, hosts=tuple(hosts))
    args = inside.take("args", is_texts, "a list of arguments, each a text", [])
    env = inside.take("env", is_environment, "a mapping of environment variables, each a text")
    inside.done(("args", "env", "hosts"))
    pairs = {key: str(value) for key, value in bare(env).items()} if env else {}
    return ArmSpec(args=tuple(args), env=pairs, hosts=tuple(hosts))


def _setting(problem: str) -> str:
    """The setting that a problem begins with, without the key inside it."""
    return problem.partition(" = ")[0].partition(".")[0]


def _say_setting(section: Section, problem: str) -> None:
    """Notes a problem of a workload setting at its own line, once: settings that the arms share are met in each."""
    name, _, what = problem.partition(" = ")
    line = section.lines.get(_setting(problem), section.line)
    said = f"{section.reader.path}:{line}: {section.name(name)}: {what}"
    if said not in section.reader.problems:
        section.reader.problems.append(said)


def _check_hosts(section: Section, hosts: list[str], cluster: Cluster) -> None:
    if not hosts:
        return
    strangers = [host for host in hosts if host not in cluster.hosts]
    if strangers:
        section.say(
            "hosts", f"{', '.join(strangers)} is not among cluster.hosts ({', '.join(cluster.hosts)}); add it there"
        )
    if len(set(hosts)) != cluster.nodes:
        section.say(
            "hosts", f"names {len(set(hosts))} different hosts for {cluster.nodes} nodes; expected one host a node"
        )


def _kind(section: Section, arms: dict[str, ArmSpec | None], base: dict[str, Any]) -> ArmKind:
    """How the arms come about. ``base`` is what a built-in program runs with where an arm sets nothing."""
    healthy, regressed = arms["healthy"], arms["regressed"]
    if not section.reader.problems:
        _check_perturbed(section, arms["perturbed"], regressed, base)
    if healthy is None:
        return ArmKind.HISTORICAL
    if regressed is None or (_runs_with(healthy, base), healthy.hosts) == (
        _runs_with(regressed, base),
        regressed.hosts,
    ):
        if not section.reader.problems:
            section.say(
                "regressed", "sets the same as healthy; two arms must differ in something, else nothing is compared"
            )
        return ArmKind.CONFIG
    if healthy.hosts or regressed.hosts:
        same = _runs_with(healthy, base) == _runs_with(regressed, base)
        if not same or not (healthy.hosts and regressed.hosts):
            section.say(
                "regressed", "changes hosts and something else; a placement arm differs in hosts alone, on both sides"
            )
        return ArmKind.PLACEMENT
    return ArmKind.CONFIG


def _runs_with(arm: ArmSpec, base: dict[str, Any]) -> tuple[Any, ...]:
    """All that the arm's program is given: what it says, over what holds anyway."""
    return {**base, **arm.config}, arm.args, arm.env


def _check_perturbed(
    section: Section, perturbed: ArmSpec | None, regressed: ArmSpec | None, base: dict[str, Any]
) -> None:
    if perturbed is None or regressed is None:
        return
    if perturbed.hosts:
        section.say("perturbed", "sets hosts; it changes settings, and other hosts are tried by the playbook")
    elif _runs_with(perturbed, base) == _runs_with(regressed, base):
        section.say("perturbed", "sets the same as regressed; it names the change that should give the time back")


def _budget(section: Section) -> Budget:
    def amount(key: str, default: float) -> float:
        wrong_unit = "device-hours as a number, for example 0.5"
        return float(section.take(key, lambda v: is_number(v) and v >= 0, wrong_unit, default))

    total, line = amount("device_hours", 1.0), amount("ask_above_device_hours", 0.25)
    section.done(("device_hours", "ask_above_device_hours"))
    return Budget(device_hours=total, ask_above_device_hours=line)


def _judging(section: Section, workload: Workload) -> Judging:
    plain = Judging()
    keys = (
        "margin_percent",
        "statistic",
        "alpha",
        "mode",
        "pairs",
        "steps",
        "washout",
        "soak_steps",
        "seed",
        "start_s",
    )
    mode = Mode.SWITCHBACK if workload.builtin else Mode.RESTART
    chosen = section.take("mode", lambda v: v in ("switchback", "restart"), "switchback or restart", mode.value)
    if chosen == "switchback" and not workload.builtin:
        section.say("mode", "switchback needs a program that can change arms while it runs; your script restarts")
    first, last = plain.looks[0], plain.looks[-1]

    def number(key: str, accepts: Callable[[float], bool], expected: str) -> float:
        return float(section.take(key, lambda v: is_number(v) and accepts(v), expected, getattr(plain, key)))

    def count(key: str, least: int) -> int:
        return int(section.take(key, is_count(least), f"a whole number of at least {least}", getattr(plain, key)))

    found = Judging(
        margin_percent=number("margin_percent", lambda v: 0 < v <= 100,
                              "a percentage of the healthy step, above 0 and at most 100"),
        statistic=section.take("statistic", lambda v: v in STATISTICS, f"one of {', '.join(STATISTICS)}",
                               plain.statistic),
        alpha=(alpha := number("alpha", lambda v: 0 < v <= 0.2, "a number above 0 and at most 0.2")),
        scope_alpha=alpha if "alpha" in section.items else plain.scope_alpha,
        mode=Mode(chosen),
        pairs=section.take("pairs", is_count(first, last), f"a whole number from {first} to {last}",
                           plain.pairs if mode is Mode.SWITCHBACK else first),
        steps=count("steps", 4),
        washout=count("washout", 0),
        soak_steps=count("soak_steps", 8),
        seed=count("seed", 0),
        start_s=number("start_s", lambda v: v >= 0, "seconds as a number"),
    )  # fmt: skip
    if found.washout >= found.steps:
        section.say("washout", f"is {found.washout} of {found.steps} steps; expected fewer than steps")
    elif workload.builtin and (why := not_estimable(found.statistic, found.steps - found.washout)):
        section.say("statistic", f"is {why}; give steps of at least {LEAST_STEPS[found.statistic] + found.washout}")
    section.done(keys)
    return found
