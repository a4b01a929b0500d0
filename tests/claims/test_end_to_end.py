"""From a closed case to its claim, from a driver's change to one run, and to each of the ends, by real launches."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows import demo, engine
from narrows.flows.approval import Answer, Decision
from narrows.flows.claims_command import claims
from narrows.flows.claims_store import ClaimStore
from narrows.flows.cli import main
from narrows.flows.fingerprint import keep
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.postmortem import write_postmortem
from narrows.flows.processes import wait_until
from narrows.flows.server import ServerHandle
from narrows.flows.session import open_session
from narrows.flows.watch import EVENT, look
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.steps import StopReason

pytestmark = [pytest.mark.prefect, pytest.mark.dist, pytest.mark.timeout(600)]
PATIENCE_S = 240.0
HOSTS = 200
OLD, NEW = {"driver": "550.54.15"}, {"driver": "560.35.03"}
NARROWS = [sys.executable, "-c", "from narrows.flows.cli import main; main()"]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a packing case on one node, recorded, investigated to its end, with its claim proposed."""
    folder = tmp_path_factory.mktemp("closed") / "work"
    case_file = demo.lay_out("packing", folder)
    case = yaml.safe_load(case_file.read_text())
    case["cluster"]["nodes"] = 1
    case["judge"] |= {"steps": 26, "washout": 2, "soak_steps": 64}  # fewer leave the account open now and then
    case_file.write_text(yaml.safe_dump(case))
    facts = folder / "facts.json"
    facts.write_text(json.dumps(OLD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NARROWS_HOST_FACTS", str(facts))
        demo.record(case_file, LocalLauncher())
        session = open_session(case_file, LocalLauncher())
        session.say = lambda _text: None
        session.ask = lambda _step: Answer(decision=Decision.APPROVE, by="a test")
        assert engine.run(session).reason is StopReason.EXPLAINED
        lines = write_postmortem(session)
    assert any(line.startswith("claim ") and line.endswith("packing.yaml.proposed") for line in lines)
    return folder


@pytest.fixture
def workspace(closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the closed case with its claim in force, on a host with the driver that it was made with."""
    folder = tmp_path / "work"
    shutil.copytree(closed, folder)
    monkeypatch.setenv("NARROWS_HOST_FACTS", str(folder / "facts.json"))
    monkeypatch.setenv("NARROWS_HOSTS", str(folder / "hosts"))
    monkeypatch.chdir(folder)
    assert claims("accept", "packing", None, as_json=False) == 0
    return folder


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def change_machine(workspace: Path, **config: Any) -> None:
    """Plays a machine of another speed: the common settings of the claim's experiments."""
    path = workspace / "claims" / "packing.yaml"
    claim = yaml.safe_load(path.read_text())
    for name in ("reproducer", "remedy"):
        claim[name]["config"] = config
    path.write_text(yaml.safe_dump(claim, sort_keys=False))


def docket(workspace: Path) -> Docket:
    (path,) = (workspace / "revalidations").glob("packing-*/docket.jsonl")
    return Docket.open(path)


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (row,) = json.loads(capsys.readouterr().out)["claims"]
    return dict(row)


def test_the_claim_of_a_closed_case_says_what_it_depends_on_and_how_its_ranges_came_about(workspace: Path) -> None:
    claim = ClaimStore(workspace / "claims").load("packing")
    assert (claim.mechanism, claim.account.value, claim.reproducer.scope.value) == ("imbalance", "skew", "one_node")
    fields = {one.field: one.confirmed for one in claim.depends_on}
    assert fields["host.driver"] == ("550.54.15",)
    assert {"packages.torch", "job.topology", "job.scheduler", "shape.layers"} <= set(fields)
    effect, gain, share = claim.ranges
    assert effect.low < effect.found < (effect.high or 0)
    assert gain.low < gain.found < (gain.high or 0)
    assert (share.low, share.high) == (0.5, None)
    assert claim.remedy is not None
    assert claim.mitigation.change == "packing: cost_balanced"
    text = (workspace / "cases" / "packing" / "postmortem.md").read_text()
    assert "narrows claims accept packing" in text


def test_a_claim_whose_nodes_did_not_change_is_not_run_again(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run("revalidate", "--json") == 0
    assert report(capsys)["outcome"] is None
    assert not list((workspace / "revalidations").glob("packing-*"))


def test_with_the_fault_removed_the_claim_no_longer_reproduces(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_machine(workspace, quadratic_ns_per_token2=0.0)
    (workspace / "facts.json").write_text(json.dumps(NEW))
    capsys.readouterr()
    assert run("revalidate", "--no-ui", "--json") == 4
    row = report(capsys)
    assert (row["outcome"], row["new_case"]) == ("no longer reproduces", None)
    assert row["reasons"] == ["host.driver on n0: 550.54.15 -> 560.35.03"]
    assert "the mitigation may be removable" in row["sentence"]
    kinds = [entry.kind for entry in docket(workspace)]
    assert kinds.index(Kind.REGISTERED) < kinds.index(Kind.LAUNCHED) < kinds.index(Kind.EVIDENCE)
    store = ClaimStore(workspace / "claims")
    assert store.confirmed_values(store.load("packing"))["host.driver"] == ("550.54.15",), "not confirmed with it"


def test_with_twice_the_effect_the_range_moved_and_a_case_is_ready(
    workspace: Path, narrows_server: ServerHandle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert narrows_server.folder is not None
    monkeypatch.setenv("NARROWS_HOME", str(narrows_server.folder.parent))
    change_machine(workspace, quadratic_ns_per_token2=0.72)
    told = workspace / "told.json"
    tell = [sys.executable, "-c", f"import sys; open({str(told)!r}, 'w').write(sys.stdin.read())"]
    (workspace / "claims" / "settings.yaml").write_text(yaml.safe_dump({"notify": {"command": tell}}))
    capsys.readouterr()
    assert run("revalidate", "--all", "--json") == 4
    row = report(capsys)
    assert row["outcome"] == "range moved"
    assert row["found_ms"] > row["accepted_ms"][1]
    assert run("check", row["new_case"]) == 0
    assert "a config comparison" in capsys.readouterr().out
    assert json.loads(told.read_text())["claims"][0]["outcome"] == "range moved"
    assert any("**range moved**" in page["data"] for page in artifacts("claim-packing"))


@dataclass(frozen=True)
class Served:
    """The deployment that a served flow made, through the server's API."""

    url: str
    deployment: str

    def runs(self) -> list[dict[str, Any]]:
        """Its runs that an event started, not those that its cron has planned."""
        query = {"deployments": {"id": {"any_": [self.deployment]}}}
        found = ask(self.url, "flow_runs/filter", query)
        return [run for run in found if "auto-scheduled" not in run["tags"]]


def ask(url: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        return json.load(answer)


def artifacts(key: str) -> list[dict[str, Any]]:
    url = os.environ["PREFECT_API_URL"]
    return list(ask(url, "artifacts/filter", {"artifacts": {"key": {"any_": [key]}}}))


@pytest.fixture
def served(workspace: Path, narrows_server: ServerHandle) -> Iterator[Served]:
    """``narrows revalidate --serve`` in the workspace, on the suite's server."""
    assert narrows_server.folder is not None
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    env["NARROWS_HOME"] = str(narrows_server.folder.parent)
    with (workspace / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [*NARROWS, "revalidate", "--serve", "--within", "300", "--settle", "2"],
            cwd=workspace, env=env, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    url = narrows_server.url
    try:
        found = awaited(lambda: ask(url, "deployments/filter", {"deployments": {"name": {"any_": ["revalidate"]}}}))
        awaited(
            lambda: [one for one in ask(url, "automations/filter", {}) if EVENT in one["trigger"].get("expect", [])]
        )
        yield Served(url=url, deployment=found[0]["id"])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def awaited(question: Callable[[], Any]) -> Any:
    """The answer, once there is one."""
    answers: list[Any] = []
    assert wait_until(lambda: bool(answers.append(question()) or answers[-1]), PATIENCE_S)
    return answers[-1]


def test_two_hundred_hosts_with_a_new_driver_start_one_run_and_the_claim_holds(workspace: Path, served: Served) -> None:
    state, store = workspace / "hosts", ClaimStore(workspace / "claims")
    old, new = ({"host.driver": one["driver"]} for one in (OLD, NEW))
    names = ["n0", *(f"gpu-{number:03}" for number in range(1, HOSTS))]
    for name in names:
        keep(state, name, old, "big")
    (workspace / "facts.json").write_text(json.dumps(NEW))  # what this machine says of itself from now on
    began = time.monotonic()
    looks = [look(name, "big", state, new, served.url) for name in names]
    assert time.monotonic() - began < 60, "the roll-out is to take less than a minute"
    assert [one.accepted for one in looks] == [True] * HOSTS
    assert not any(look(name, "big", state, new, served.url).changed for name in names[:3]), "told once"

    assert wait_until(lambda: any(one["state_type"] == "COMPLETED" for one in served.runs()), PATIENCE_S), (
        served.runs(), (workspace / "serve.log").read_text(),
    )  # fmt: skip
    (one,) = served.runs()
    assert one["state_name"] == "Holds", one
    assert {"claim:packing", "verdict:holds"} <= set(one["tags"])
    told = ask(served.url, "events/filter", {"filter": {"event": {"name": [EVENT]}}, "limit": 1})
    assert told["total"] == HOSTS
    (entry,) = store.history("packing")
    assert entry["reasons"] == ["host.driver on n0: 550.54.15 -> 560.35.03"]
    assert store.confirmed_values(store.load("packing"))["host.driver"] == ("550.54.15", "560.35.03")
    report_file = next((workspace / "revalidations").glob("report-*.md")).read_text()
    assert "| **packing** | holds |" in report_file
    assert run("revalidate") == 0, "confirmed with the new driver, it is not due any more"
    assert len(store.history("packing")) == 1
