"""Case files: a good one of each kind loads; every bad one is refused whole, with place, key, rule and next move."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows.casefile import load_case
from narrows.flows.cli import main
from narrows.flows.session import read_given
from narrows.inquiry.case import StatedLink
from narrows.inquiry.design import ArmKind, Mode
from narrows.inquiry.errors import CaseError
from narrows.inquiry.scopes import Scope

GOOD = """\
case: packing
question: The step got slower after the packing change.
runs:
  healthy: runs/healthy
  regressed: runs/regressed
workload:
  program: step
  healthy: {packing: snake}
  regressed: {packing: greedy}
cluster:
  launcher: local
  nodes: 2
  ranks_per_node: 2
budget: {device_hours: 1.0, ask_above_device_hours: 0.5}
judge:
  margin_percent: 3
"""
OWN = {"program": "train.py", "args": ["--width", "8"], "healthy": {"args": ["--old"]},
       "regressed": {"env": {"NCCL_ALGO": "Tree", "LEVEL": 3}}}  # fmt: skip
PLACEMENT = {"program": "step", "healthy": {"hosts": ["n0", "n2"]}, "regressed": {"hosts": ["n0", "n1"]}}
FOUR_HOSTS = {"nodes": 2, "ranks_per_node": 2, "hosts": ["n0", "n1", "n2", "n3"]}

Runs = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path, record_pair: Runs) -> Path:
    record_pair(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    return tmp_path


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "case.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def changed(**sections: Any) -> str:
    """The good case with sections replaced; None takes one out."""
    value = yaml.safe_load(GOOD) | sections
    return yaml.safe_dump({key: one for key, one in value.items() if one is not None}, sort_keys=False)


def merged(section: str, **keys: Any) -> str:
    """The good case with keys of one section replaced; None takes one out."""
    value = yaml.safe_load(GOOD)
    value[section] = {key: one for key, one in (value[section] | keys).items() if one is not None}
    return yaml.safe_dump(value, sort_keys=False)


# Good files.


def test_a_good_case_of_config_arms_loads_with_its_defaults(folder: Path) -> None:
    case = load_case(write(folder, GOOD))
    assert (case.name, case.workload.kind, case.workload.builtin) == ("packing", ArmKind.CONFIG, True)
    assert case.runs["healthy"] == ("runs/healthy",)
    assert case.cluster.hosts == ("n0", "n1")
    assert case.scopes() == (Scope.ONE_RANK, Scope.ONE_NODE, Scope.TWO_NODES)
    assert (case.judging.mode, case.judging.margin_percent) == (Mode.SWITCHBACK, 3.0)
    assert case.playbook


def test_placement_arms_differ_in_hosts_alone(folder: Path) -> None:
    case = load_case(write(folder, changed(workload=PLACEMENT, cluster=FOUR_HOSTS)))
    assert case.workload.kind is ArmKind.PLACEMENT
    assert (case.healthy_hosts, case.full_hosts) == (("n0", "n2"), ("n0", "n1"))


def test_a_historical_healthy_run_is_named_so(folder: Path) -> None:
    case = load_case(write(folder, merged("workload", healthy="historical")))
    assert case.workload.kind is ArmKind.HISTORICAL
    assert case.workload.regressed.config == {"packing": "greedy"}
    with pytest.raises(CaseError, match=r"workload.healthy: is 'historic'; expected .*or the word historical"):
        load_case(write(folder, merged("workload", healthy="historic")))


def test_an_own_script_takes_arguments_and_environment_and_restarts(folder: Path) -> None:
    case = load_case(write(folder, changed(workload=OWN)))
    work = case.workload
    assert work.program == "train.py"
    assert (work.args, work.healthy.args) == (("--width", "8"), ("--old",))
    assert work.regressed.env == {"NCCL_ALGO": "Tree", "LEVEL": "3"}
    assert case.judging.mode is Mode.RESTART


def test_a_change_to_try_and_several_runs_an_arm_are_taken(folder: Path, record_pair: Runs) -> None:
    record_pair(folder / "more")
    runs = {"healthy": ["runs/healthy", "more/runs/healthy"], "regressed": "runs/regressed"}
    value = yaml.safe_load(merged("workload", perturbed={"packing": "cost_balanced"})) | {"runs": runs}
    case = load_case(write(folder, yaml.safe_dump(value)))
    assert case.workload.perturbed is not None
    assert len(case.runs["healthy"]) == 2


def test_the_same_text_has_the_same_digest_and_another_text_another(folder: Path) -> None:
    first = load_case(write(folder, GOOD)).digest()
    assert load_case(write(folder, "# a comment\n" + GOOD)).digest() == first
    assert load_case(write(folder, merged("judge", seed=1))).digest() != first


def test_every_worked_case_is_a_good_one(tmp_path: Path) -> None:
    from narrows.flows import demo

    for name in demo.names():
        case = load_case(demo.lay_out(name, tmp_path / name, seed=3), recorded=False)
        assert case.judging.seed == 3
        assert demo.headline(name).endswith(".")


def test_a_stated_link_is_what_collectives_between_hosts_are_expected_to_take(folder: Path) -> None:
    plain = load_case(write(folder, GOOD))
    case = load_case(write(folder, merged("cluster", link={"alpha_us": 5, "gbit": 200})))
    assert case.cluster.link == StatedLink(alpha_us=5.0, gbit=200.0)
    assert case.digest() != plain.digest()
    row = read_given(case, folder)["expected"]["rows"][0]
    assert row["basis"] == "alpha-beta of the stated link"
    assert row["expected_us"] == pytest.approx(6 * 5 + 1.5 * 1024 / 25_000)  # six rounds, 25 GB/s
    assert "no link stated" in read_given(plain, folder)["expected"]["rows"][0]["why_not"]


# Bad ones. Each: the text, and what its line says after the file's path.

BAD: dict[str, tuple[str | bytes, str]] = {
    "unknown key": (GOOD + "bugdet: {}\n", r"17: bugdet: is an unknown key; did you mean budget\?"),
    "unknown nested key": (
        merged("cluster", ranks_pernode=2),
        r"\d+: cluster\.ranks_pernode: is an unknown key; did you mean ranks_per_node\?",
    ),
    "unknown key far from all": (
        merged("budget", xyz=1),
        r"\d+: budget\.xyz: is an unknown key; expected one of device_hours",
    ),
    "unknown setting": (
        merged("workload", regressed={"pakcing": "greedy"}),
        r"\d+: workload\.regressed\.pakcing: 'greedy' is an unknown key: did you mean packing\?",
    ),
    "missing question": (changed(question=None), r"1: question: is missing; expected a sentence"),
    "missing section": (changed(cluster=None), r"1: cluster: is missing; expected a mapping"),
    "missing nested key": (
        merged("runs", regressed=None),
        r"\d+: runs\.regressed: is missing; expected a run directory",
    ),
    "missing arm": (merged("workload", regressed=None), r"\d+: workload\.regressed: is missing; expected a mapping"),
    "wrong type": (merged("cluster", nodes="two"), r"\d+: cluster\.nodes: is 'two'; expected a whole number"),
    "a number for a text": (changed(question=7), r"2: question: is 7; expected a sentence"),
    "true for a count": (
        merged("cluster", ranks_per_node=True),
        r"\d+: cluster\.ranks_per_node: is True; expected a whole",
    ),
    "unit in a value": (
        merged("budget", device_hours="5 h"),
        r"\d+: budget\.device_hours: is '5 h'; expected device-hours as a number",
    ),
    "wrong unit in a setting": (
        merged("workload", regressed={"loader_ms": 5}),
        r"\d+: workload\.regressed\.loader_ms: 5 has the wrong unit: expected loader_us, .* of us",
    ),
    "setting out of range": (
        merged("workload", regressed={"slow_host": {"host": "n1", "factor": 0.5}}),
        r"\d+: workload\.regressed\.slow_host\.factor: 0\.5 is out of range: expected a number from 1 to 100",
    ),
    "link without a rate": (
        merged("cluster", link={"alpha_us": 5}),
        r"\d+: cluster\.link\.gbit: is missing; expected Gbit/s, above 0",
    ),
    "link in another unit": (
        merged("cluster", link={"alpha_us": 5, "mbit": 200, "gbit": 0.2}),
        r"\d+: cluster\.link\.mbit: is an unknown key; did you mean gbit\?",
    ),
    "link that carries nothing": (
        merged("cluster", link={"alpha_us": 5, "gbit": 0}),
        r"\d+: cluster\.link\.gbit: is 0; expected Gbit/s, above 0",
    ),
    "negative budget": (merged("budget", device_hours=-1), r"\d+: budget\.device_hours: is -1; expected device-hours"),
    "infinite budget": (
        GOOD.replace("device_hours: 1.0", "device_hours: .inf"),
        r"14: budget\.device_hours: is inf; expected",
    ),
    "margin of nothing": (
        merged("judge", margin_percent=0),
        r"\d+: judge\.margin_percent: is 0; expected a percentage",
    ),
    "margin that is no number": (
        GOOD.replace("margin_percent: 3", "margin_percent: .nan"),
        r"16: judge\.margin_percent: is nan; expected a percentage",
    ),
    "too few pairs": (merged("judge", pairs=3), r"\d+: judge\.pairs: is 3; expected a whole number from 4 to 12"),
    "more pairs than the last look": (merged("judge", pairs=40), r"\d+: judge\.pairs: is 40; expected .* from 4 to 12"),
    "looks are not to be chosen": (merged("judge", looks=[2]), r"\d+: judge\.looks: is an unknown key"),
    "nothing left after washout": (merged("judge", steps=5, washout=5), r"\d+: judge\.washout: is 5 of 5 steps"),
    "unknown statistic": (
        merged("judge", statistic="max"),
        r"\d+: judge\.statistic: is 'max'; expected one of mean, median",
    ),
    "a tail that the planned steps cannot hold": (
        merged("judge", statistic="p95", steps=100),
        r"\d+: judge\.statistic: is not estimable: p95 needs 200 steps, the unit has 97; give steps of at least 203",
    ),
    "unknown launcher": (merged("cluster", launcher="pbs"), r"\d+: cluster\.launcher: is 'pbs'; expected one of local"),
    "unknown device": (
        merged("cluster", device="tpu"),
        r"\d+: cluster\.device: is 'tpu'; expected one of emulated, cpu, cuda",
    ),
    "unknown program": (
        merged("workload", program="stepp"),
        r"\d+: workload\.program: stepp is no file under .* and no built-in program",
    ),
    "a sweep as workload": (
        merged("workload", program="collective", healthy={}, regressed={"op": "broadcast"}),
        r"\d+: workload\.program: collective is a sweep",
    ),
    "two nodes on one host": (merged("cluster", hosts=["n0"]), r"\d+: cluster\.hosts: names 1 for 2 nodes"),
    "host named twice": (merged("cluster", hosts=["n0", "n0"]), r"\d+: cluster\.hosts: names a host twice"),
    "host that is no folder name": (
        merged("cluster", hosts=["../up", "n1"]),
        r"\d+: cluster\.hosts: is \['\.\./up', 'n1'\]; expected a list of host names",
    ),
    "equal arms": (
        merged("workload", healthy={"packing": "greedy"}),
        r"\d+: workload\.regressed: sets the same as healthy",
    ),
    "arms equal by their defaults": (
        merged("workload", regressed={"packing": "snake"}, healthy={}),
        r"\d+: workload\.regressed: sets the same as healthy",
    ),
    "change equal to the regression": (
        merged("workload", perturbed={"packing": "greedy"}),
        r"\d+: workload\.perturbed: sets the same as regressed",
    ),
    "change of hosts": (
        changed(workload=PLACEMENT | {"perturbed": {"hosts": ["n0", "n3"]}}, cluster=FOUR_HOSTS),
        r"\d+: workload\.perturbed: sets hosts",
    ),
    "own script with config": (
        changed(workload=OWN | {"config": {"layers": 2}}),
        r"\d+: workload\.config: is for built-in programs",
    ),
    "own script with settings in an arm": (
        changed(workload=OWN | {"regressed": {"packing": "greedy"}}),
        r"\d+: workload\.regressed\.packing: is an unknown key; expected one of args, env, hosts",
    ),
    "built-in program with arguments": (
        merged("workload", args=["--x"]),
        r"\d+: workload\.args: is for your own script",
    ),
    "arguments that are no texts": (
        changed(workload=OWN | {"args": ["--width", 8]}),
        r"\d+: workload\.args: is \['--width', 8\]; expected a list",
    ),
    "environment that is no text": (
        changed(workload=OWN | {"regressed": {"env": {"A": [1]}}}),
        r"\d+: workload\.regressed\.env: is .*; expected a mapping",
    ),
    "placement that also changes a setting": (
        changed(workload=PLACEMENT | {"regressed": {"hosts": ["n0", "n1"], "layers": 2}}, cluster=FOUR_HOSTS),
        r"\d+: workload\.regressed: changes hosts and something else",
    ),
    "placement on a host that is not there": (
        changed(workload=PLACEMENT | {"healthy": {"hosts": ["n0", "n9"]}}, cluster=FOUR_HOSTS),
        r"\d+: workload\.healthy\.hosts: n9 is not among cluster\.hosts",
    ),
    "placement on too few hosts": (
        changed(workload=PLACEMENT | {"healthy": {"hosts": ["n2"]}}, cluster=FOUR_HOSTS),
        r"\d+: workload\.healthy\.hosts: names 1 different hosts for 2 nodes",
    ),
    "switchback for an own script": (
        changed(workload=OWN, judge={"mode": "switchback"}),
        r"\d+: judge\.mode: switchback needs a program that can change",
    ),
    "one run for both arms": (
        merged("runs", regressed="runs/healthy"),
        r"\d+: runs\.regressed: is the same run as healthy",
    ),
    "a run in both arms": (
        merged("runs", regressed=["runs/regressed", "runs/healthy"]),
        r"\d+: runs\.regressed: is the same run as healthy",
    ),
    "no such run": (merged("runs", regressed="runs/nowhere"), r"\d+: runs\.regressed: runs/nowhere is no folder under"),
    "a run without a manifest": (
        merged("runs", regressed="runs"),
        r"\d+: runs\.regressed: runs holds no manifest\.json",
    ),
    "capitals in the name": (changed(case="Packing"), r"1: case: is 'Packing'; expected a name of small letters"),
    "a path as name": (changed(case="../up"), r"1: case: is '\.\./up'; expected a name of small letters"),
    "empty file": ("", r"1: is empty; expected a mapping"),
    "a list": ("- case: packing\n", r"1: holds \[\{'case': 'packing'\}\]; expected a mapping"),
    "no YAML": ("case: [1, 2\n", r"\d+: not YAML: "),
    "tabs": ("case: packing\nruns:\n\thealthy: x\n", r"3: not YAML: .*'\\t'"),
    "a key twice": (
        GOOD.replace("  nodes: 2\n", "  nodes: 2\n  nodes: 3\n"),
        r"13: nodes: stands twice \(first in line 12\)",
    ),
    "a date that is none": (GOOD.replace("case: packing", "case: 2021-99-99"), r"1: not YAML: month must be"),
    "a control character": (GOOD.replace("packing\n", "pack\x00ing\n", 1), r"1: not YAML: unacceptable character"),
    "a tag": (GOOD.replace("case: packing", "case: !!python/name:os.system x"), r"1: not YAML: could not determine"),
    "a file that holds itself": ("case: &a\n  b: *a\n", r"1: is nested too deeply, or contains itself"),
    "not UTF-8": (
        GOOD.encode().replace(b"slower", b"sl\xe9wer"),
        r"is not text in UTF-8 \(byte \d+\); expected a YAML file",
    ),
}


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a command that is refused; nothing is printed beside them."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return int(ended.value.code or 0), err.splitlines()


def untouched(folder: Path) -> bool:
    return not (folder / "cases").exists()


@pytest.mark.parametrize("name", BAD)
def test_a_bad_case_file_is_one_line_with_its_place_and_nothing_is_begun(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, expected = BAD[name]
    path = write(folder, text)
    with pytest.raises(CaseError) as error:
        load_case(path)
    assert len(error.value.places) == 1
    assert re.match(rf"{re.escape(str(path))}:\s?{expected}", error.value.places[0]), error.value.places[0]
    code, lines = refused(capsys, "check", str(path))
    assert (code, lines) == (2, [f"narrows: {error.value.places[0]}"])
    assert untouched(folder)


@pytest.mark.parametrize("name", ["unknown key", "no such run", "no YAML"])
def test_investigating_a_bad_case_launches_nothing(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(folder, BAD[name][0])
    for flags in ([], ["--fresh"], ["--resume"]):
        code, lines = refused(capsys, "investigate", str(path), "--no-ui", "--yes", *flags)
        assert (code, len(lines)) == (2, 1)
    assert untouched(folder)


def test_all_problems_of_a_file_are_listed_in_the_order_of_their_lines(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GOOD.replace("nodes: 2", "nodes: none").replace("greedy", "greddy").replace("packing\n", "Packing\n", 1)
    path = write(folder, text + "  pairs: 1\nextra: 1\n")
    code, lines = refused(capsys, "check", str(path))
    assert code == 2
    keys = [line.split(": ")[2] for line in lines]
    assert keys == ["case", "workload.regressed.packing", "cluster.nodes", "judge.pairs", "extra"]
    numbers = [int(re.search(r":(\d+): ", line).group(1)) for line in lines]  # type: ignore[union-attr]
    assert numbers == sorted(numbers)


def test_a_setting_that_both_arms_share_is_refused_once_where_it_stands(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(folder, merged("workload", config={"layers": 0, "tokens": 5}))
    _, lines = refused(capsys, "check", str(path))
    assert [line.split(": ")[2] for line in lines] == ["workload.config.layers", "workload.config.tokens"]


@pytest.mark.parametrize("path", ["nowhere.yaml", "runs"])
def test_a_case_file_that_cannot_be_opened_is_a_usage_error(
    path: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = refused(capsys, "check", str(folder / path))
    assert (code, len(lines)) == (2, 1)
    assert path in lines[0]


# Files in order, runs that are not.


def damage_line(folder: Path) -> None:
    path = folder / "runs" / "regressed" / "ranks" / "00001" / "steps.jsonl"
    lines = path.read_text().splitlines()
    lines[5] = lines[5][:20]
    path.write_text("\n".join(lines) + "\n")


def newer_schema(folder: Path) -> None:
    path = folder / "runs" / "regressed" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))


def no_steps(folder: Path) -> None:
    for path in (folder / "runs" / "regressed" / "ranks").glob("*/steps.jsonl"):
        path.write_text(path.read_text().splitlines()[0] + "\n")


def broken_manifest(folder: Path) -> None:
    (folder / "runs" / "healthy" / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (damage_line, r"00001/steps\.jsonl.*6"),
        (newer_schema, r"manifest\.json.*schema 99"),
        (no_steps, r"regressed"),
        (broken_manifest, r"healthy/manifest\.json"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_line_and_nothing_is_begun(
    spoil: Callable[[Path], None], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(folder)
    path = str(write(folder, GOOD))
    for command in (["check", path], ["investigate", path, "--no-ui", "--yes"]):
        code, lines = refused(capsys, *command)
        assert (code, len(lines)) == (1, 1)
        assert re.search(words, lines[0]), lines[0]
    assert untouched(folder)


def test_runs_of_another_size_than_the_cluster_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(folder, merged("cluster", nodes=3)))
    for command in (["check", path], ["investigate", path, "--no-ui", "--yes"]):
        code, lines = refused(capsys, *command)
        assert (code, len(lines)) == (2, 1)
        assert "the healthy run has 4 ranks, and the cluster 3 nodes of 2" in lines[0]
    assert untouched(folder)
