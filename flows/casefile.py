"""Case files: YAML that is refused whole, with every problem's line, key, rule and next move."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from narrows.flows.playbook import load_playbook
from narrows.inquiry.case import ArmSpec, Budget, Case, Cluster, Judging, Workload
from narrows.inquiry.design import ArmKind, Mode
from narrows.inquiry.errors import CaseError
from narrows.inquiry.workloads import builtin_name, check_workload

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
LAUNCHERS = ("local",)
DEVICES = ("emulated", "cpu", "cuda")
STATISTICS = ("mean", "median", "p25", "low50", "p95", "p99", "es95")
UNITS = {"device_hours": "device-hours", "ask_above_device_hours": "device-hours", "margin_percent": "percent"}


@dataclass(slots=True)
class _Reader:
    """A mapping of the file with the lines of its keys; collects problems instead of stopping at the first."""

    path: Path
    problems: list[str] = field(default_factory=list)

    def say(self, line: int, key: str, problem: str) -> None:
        self.problems.append(f"{self.path}:{line}: {key}: {problem}")


@dataclass(slots=True)
class _Section:
    reader: _Reader
    key: str
    line: int
    items: dict[str, Any]
    lines: dict[str, int]
    used: set[str] = field(default_factory=set)

    def name(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key

    def say(self, key: str, problem: str) -> None:
        self.reader.say(self.lines.get(key, self.line), self.name(key), problem)

    def take(
        self, key: str, accepts: Callable[[Any], bool], expected: str, default: Any = None, *, needed: bool = False
    ) -> Any:
        """The value of ``key`` if it is acceptable, else ``default`` with the problem noted."""
        self.used.add(key)
        if key not in self.items:
            if needed:
                self.reader.say(self.line, self.name(key), f"is missing; expected {expected}")
            return default
        value = self.items[key]
        if not accepts(value):
            self.say(key, f"is {_show(value)}; expected {expected}")
            return default
        return value

    def section(self, key: str, *, needed: bool = False) -> _Section:
        value = self.take(key, lambda v: isinstance(v, _Node), "a mapping", needed=needed)
        if isinstance(value, _Node):
            return _Section(self.reader, self.name(key), self.lines[key], value.items, value.lines)
        return _Section(self.reader, self.name(key), self.lines.get(key, self.line), {}, {})

    def done(self, known: tuple[str, ...]) -> None:
        """Notes every key that nothing asked for."""
        for key in self.items:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "expected one of " + ", ".join(known)
                self.say(key, f"is an unknown key; {hint}")


@dataclass(slots=True)
class _Node:
    """A YAML mapping with the line of each key."""

    items: dict[str, Any]
    lines: dict[str, int]


def _show(value: Any) -> str:
    text = repr(_bare(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _bare(value: Any) -> Any:
    if isinstance(value, _Node):
        return {key: _bare(item) for key, item in value.items.items()}
    return [_bare(item) for item in value] if isinstance(value, list) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(least: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _parse(path: Path) -> _Section:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CaseError(f"{path}: there is no such case file; `narrows demo` writes examples to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"{path}: cannot be read ({error}); expected a YAML file in UTF-8") from None
    reader = _Reader(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = _convert(node, reader) if node is not None else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise CaseError(f"{path}:{line}: not YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(value, _Node):
        raise CaseError(f"{path}:1: holds {_show(value)}; expected a mapping with case, question, runs, workload, ...")
    return _Section(reader, "", 1, value.items, value.lines)


def _convert(node: yaml.Node, reader: _Reader) -> Any:
    if isinstance(node, yaml.MappingNode):
        items: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in items:
                reader.say(line, key, f"stands twice (first in line {lines[key]}); keep one")
            items[key], lines[key] = _convert(value_node, reader), line
        return _Node(items, lines)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(one, reader) for one in node.value]
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()


def load_case(path: Path, *, recorded: bool = True) -> Case:
    """The checked case; ``recorded`` false: its runs are yet to be made. Raises ``CaseError`` with one line for each problem; nothing is half-read."""
    path = path.resolve()
    root = _parse(path)
    known = ("case", "question", "runs", "workload", "cluster", "budget", "judge")
    name = root.take("case", lambda v: isinstance(v, str) and bool(NAME.fullmatch(v)),
                     "a name of small letters, digits and dashes, such as packing-regression", "case", needed=True)  # fmt: skip
    question = root.take(
        "question", _is_text, "a sentence, such as: Median step time rose after the upgrade", "", needed=True
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


def _runs(section: _Section, base: Path, *, recorded: bool) -> dict[str, tuple[str, ...]]:
    found = {}
    for arm in ("healthy", "regressed"):
        value = section.take(
            arm, lambda v: _is_text(v) or (_is_texts(v) and v), "a run directory, or a list of them", needed=True
        )
        paths = [value] if isinstance(value, str) else list(value or ())
        for one in paths if recorded else ():
            if not (base / one).is_dir():
                section.say(arm, f"{one} is no folder under {base}; expected a run directory written by narrows")
            elif not (base / one / "manifest.json").is_file():
                section.say(
                    arm, f"{one} holds no manifest.json; expected a run directory, for example from `narrows run`"
                )
        found[arm] = tuple(str((base / one).resolve()) for one in paths)
    if found.get("healthy") and found["healthy"] == found.get("regressed"):
        section.say("regressed", "is the same run as healthy; expected the run that got slower")
    section.done(("healthy", "regressed"))
    return found


def _cluster(section: _Section) -> Cluster:
    launcher = section.take("launcher", lambda v: v in LAUNCHERS, f"one of {', '.join(LAUNCHERS)}", "local")
    nodes = section.take("nodes", _is_count(1), "a whole number of at least 1", 1, needed=True)
    ranks = section.take("ranks_per_node", _is_count(1), "a whole number of at least 1", 1, needed=True)
    hosts = section.take(
        "hosts", lambda v: _is_texts(v) and bool(v), "a list of host names", [f"n{i}" for i in range(nodes)]
    )
    device = section.take("device", lambda v: v in DEVICES, f"one of {', '.join(DEVICES)}", "emulated")
    if len(set(hosts)) != len(hosts):
        section.say("hosts", f"names a host twice in {hosts}; expected each host once")
    if len(hosts) < nodes:
        section.say(
            "hosts",
            f"names {len(hosts)} for {nodes} nodes; expected at least {nodes} hosts, spares after the job's own",
        )
    section.done(("launcher", "nodes", "ranks_per_node", "hosts", "device"))
    return Cluster(launcher=launcher, nodes=nodes, ranks_per_node=ranks, hosts=tuple(hosts), device=device)


def _workload(section: _Section, base: Path, cluster: Cluster) -> Workload:
    program = section.take("program", _is_text, "step (built in), or the path of your script", "step", needed=True)
    builtin = builtin_name(program)
    if builtin == "collective":
        section.say("program", "collective is a sweep, not a training step; expected step, or the path of your script")
    if builtin is None and not (base / program).is_file():
        section.say("program", f"{program} is no file under {base} and no built-in program; expected step, or a script")
    config = _config(section, "config", builtin)
    args = section.take("args", _is_texts, "a list of arguments, each a text", [])
    if builtin and args:
        section.say("args", "is for your own script; a built-in program takes its settings under config")
    arms = {arm: _arm(section, arm, builtin, config, cluster) for arm in ("healthy", "regressed", "perturbed")}
    kind = _kind(section, arms)
    section.done(("program", "config", "args", "healthy", "regressed", "perturbed"))
    return Workload(
        program=builtin or str((base / program).resolve()), builtin=builtin is not None, kind=kind, config=config,
        args=tuple(args), healthy=arms["healthy"] or ArmSpec(), regressed=arms["regressed"] or ArmSpec(),
        perturbed=arms["perturbed"],
    )  # fmt: skip


def _config(section: _Section, key: str, builtin: str | None) -> dict[str, Any]:
    value = section.take(key, lambda v: isinstance(v, _Node), "a mapping of workload settings")
    if value is None:
        return {}
    if builtin is None:
        section.say(key, "is for built-in programs; give your script's settings as args, or env in an arm")
        return {}
    return dict(_bare(value))


def _arm(section: _Section, arm: str, builtin: str | None, config: dict[str, Any], cluster: Cluster) -> ArmSpec | None:
    if arm == "healthy" and section.items.get(arm) == "historical":
        section.used.add(arm)
        return None
    if arm == "perturbed" and arm not in section.items:
        return None
    inside = section.section(arm, needed=arm != "perturbed")
    hosts = inside.take("hosts", lambda v: _is_texts(v) and bool(v), "a list of host names", [])
    _check_hosts(inside, hosts, cluster)
    if builtin:
        own = {key: _bare(value) for key, value in inside.items.items() if key != "hosts"}
        for problem in check_workload(builtin, {**config, **own}):
            named = problem.partition(" = ")[0].partition(".")[0]
            inside.say(named, problem.partition(" ")[2] if problem.startswith(named) else problem)
        return ArmSpec(config=own, hosts=tuple(hosts))
    args = inside.take("args", _is_texts, "a list of arguments, each a text", [])
    env = inside.take("env", lambda v: isinstance(v, _Node), "a mapping of environment variables")
    inside.done(("args", "env", "hosts"))
    pairs = {key: str(value) for key, value in _bare(env).items()} if env else {}
    return ArmSpec(args=tuple(args), env=pairs, hosts=tuple(hosts))


def _check_hosts(section: _Section, hosts: list[str], cluster: Cluster) -> None:
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


def _kind(section: _Section, arms: dict[str, ArmSpec | None]) -> ArmKind:
    healthy, regressed = arms["healthy"], arms["regressed"]
    if healthy is None:
        return ArmKind.HISTORICAL
    if regressed is None or healthy == regressed:
        if not section.reader.problems:
            section.say(
                "regressed", "sets the same as healthy; two arms must differ in something, else nothing is compared"
            )
        return ArmKind.CONFIG
    if healthy.hosts or regressed.hosts:
        same = (healthy.config, healthy.args, healthy.env) == (regressed.config, regressed.args, regressed.env)
        if not same or not (healthy.hosts and regressed.hosts):
            section.say(
                "regressed", "changes hosts and something else; a placement arm differs in hosts alone, on both sides"
            )
        return ArmKind.PLACEMENT
    return ArmKind.CONFIG


def _budget(section: _Section) -> Budget:
    def amount(key: str, default: float) -> float:
        wrong_unit = "device-hours as a number, for example 0.5"
        return float(section.take(key, lambda v: _is_number(v) and v >= 0, wrong_unit, default))

    total, line = amount("device_hours", 1.0), amount("ask_above_device_hours", 0.25)
    section.done(("device_hours", "ask_above_device_hours"))
    return Budget(device_hours=total, ask_above_device_hours=line)


def _judging(section: _Section, workload: Workload) -> Judging:
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
    found = Judging(
        margin_percent=float(section.take("margin_percent", lambda v: _is_number(v) and 0 < v <= 100,
                                          "a percentage of the healthy step, above 0 and at most 100", plain.margin_percent)),
        statistic=section.take("statistic", lambda v: v in STATISTICS, f"one of {', '.join(STATISTICS)}", plain.statistic),
        alpha=float(section.take("alpha", lambda v: _is_number(v) and 0 < v <= 0.2, "a number above 0 and at most 0.2", plain.alpha)),
        mode=Mode(chosen),
        pairs=section.take("pairs", _is_count(4), "a whole number of at least 4", plain.pairs if mode is Mode.SWITCHBACK else 4),
        steps=section.take("steps", _is_count(4), "a whole number of at least 4", plain.steps),
        washout=section.take("washout", _is_count(0), "a whole number of at least 0", plain.washout),
        soak_steps=section.take("soak_steps", _is_count(8), "a whole number of at least 8", plain.soak_steps),
        seed=section.take("seed", _is_count(0), "a whole number of at least 0", plain.seed),
        start_s=float(section.take("start_s", lambda v: _is_number(v) and v >= 0, "seconds as a number", plain.start_s)),
    )  # fmt: skip
    if found.washout >= found.steps:
        section.say("washout", f"is {found.washout} of {found.steps} steps; expected fewer than steps")
    section.done(keys)
    return found
