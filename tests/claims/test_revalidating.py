"""What is run again and on which nodes, one process at a time, continued after a kill, told to whom it concerns."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows import revalidating_command
from narrows.flows.claims_links import cases_of, claims_of
from narrows.flows.claims_store import ClaimStore
from narrows.flows.exits import USAGE
from narrows.flows.fingerprint import keep
from narrows.flows.launching import Handle, LaunchPlan, LineSink
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.revalidating import (
    Due,
    conclude,
    find_due,
    find_due_or_damaged,
    open_revalidation,
    revalidate_one,
    settle,
    settled_by,
)
from narrows.flows.revalidating_command import exit_code
from narrows.flows.revalidating_nodes import nodes_of
from narrows.flows.revalidating_report import keep_report, load_settings, rows_of, tell
from narrows.inquiry.claim import Claim, Outcome
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.errors import CaseError, LaunchError
from narrows.inquiry.revalidation import Reason

PADDING = Path(__file__).with_name("padding.yaml")
OLD, NEW = {"host.driver": "550.54.15"}, {"host.driver": "560"}


@pytest.fixture
def store(tmp_path: Path) -> ClaimStore:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "padding.yaml").write_text(PADDING.read_text())
    return ClaimStore(tmp_path / "claims")


@pytest.fixture
def one(store: ClaimStore) -> Due:
    reason = Reason(field="host.driver", words="host.driver on n0: 550.54.15 -> 560")
    return Due(claim=store.load("padding"), reasons=(reason,), nodes={"n0": NEW})


def test_on_a_cluster_the_kept_fingerprints_of_the_claims_hosts_are_read(store: ClaimStore, tmp_path: Path) -> None:
    claim = replace(store.load("padding"), launcher="slurm")
    for host, fields in (("n0", NEW), ("n7", NEW)):
        keep(tmp_path / "hosts", host, fields, "big")
    assert nodes_of(state=tmp_path / "hosts")(claim) == {"n0": NEW}
    assert nodes_of(state=tmp_path / "hosts", hosts=("n7",))(claim) == {}
    assert nodes_of(state=tmp_path / "elsewhere")(claim) == {}


def test_a_run_of_the_job_as_it_is_now_brings_its_topology_and_shape(store: ClaimStore, tmp_path: Path) -> None:
    placed = [{"rank": rank, "host": f"n{rank // 4}"} for rank in range(8)]
    manifest = {"placement": placed, "workload": {"layers": 48, "schedule": []}, "environment": {"SLURM_JOB_ID": "1"}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    claim = replace(store.load("padding"), launcher="slurm")
    found = nodes_of(state=tmp_path / "hosts", run=tmp_path / "run")(claim)
    assert found == {"the job": {"job.topology": "2 x 4 ranks", "job.scheduler": "slurm", "shape.layers": "48"}}
    with pytest.raises(CaseError, match=r"--run .*give a run directory"):
        nodes_of(run=tmp_path / "elsewhere")


def test_only_what_is_due_has_reasons_unless_all_are_asked_for(store: ClaimStore) -> None:
    def nodes(_claim: Claim) -> dict[str, dict[str, str]]:
        return {"n0": OLD}

    (quiet,) = find_due(store, (), nodes, every=False)
    (asked,) = find_due(store, ("padding",), nodes, every=True)
    (changed,) = find_due(store, (), lambda _claim: {"n0": NEW}, every=True)
    words = [[reason.words for reason in due.reasons] for due in (quiet, asked, changed)]
    assert words == [[], ["asked for"], ["host.driver on n0: 550.54.15 -> 560"]]
    with pytest.raises(CaseError, match="no claim of this name is in force"):
        find_due(store, ("nobody",), nodes, every=False)


def test_what_is_wrong_with_one_claim_keeps_no_other_from_being_run(
    store: ClaimStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.folder / "broken.yaml").write_text("claim: broken\n")
    (store.folder / "torn.yaml").write_text(PADDING.read_text().replace("claim: padding", "claim: torn"))
    (store.folder / "history").mkdir()
    (store.folder / "history" / "torn.jsonl").write_text("no record\n")
    found, damaged = find_due_or_damaged(store, (), lambda _claim: {"n0": OLD}, every=False)
    assert [one.claim.name for one in found] == ["padding"]
    assert set(damaged) == {"broken", "torn"}
    assert "broken.yaml:" in damaged["broken"]
    assert "torn.jsonl, line 1" in damaged["torn"]

    monkeypatch.setattr(revalidating_command, "launcher_of", Down)
    given: dict[str, Any] = {"claims": store.folder, "hosts": (), "state": None, "run": None, "every": True}
    code = revalidating_command.revalidate((), **given, yes=True, no_ui=True, as_json=False)
    assert code == USAGE
    shown = capsys.readouterr().out
    assert "3 claims: 1 inconclusive, 2 cannot be read" in shown
    (report,) = (store.workspace / "revalidations").glob("report-*.md")
    assert "broken.yaml:" in report.read_text()
    with pytest.raises(CaseError, match="broken"):
        find_due_or_damaged(store, ("broken",), lambda _claim: {}, every=False)


def test_a_folder_of_fingerprints_that_is_not_there_is_said(store: ClaimStore, tmp_path: Path) -> None:
    given: dict[str, Any] = {"claims": store.folder, "hosts": (), "run": None, "every": False}
    with pytest.raises(CaseError, match=r"--state .*narrows watch"):
        revalidating_command.revalidate((), **given, state=tmp_path / "nowhere", yes=True, no_ui=True, as_json=False)


def test_a_revalidation_that_was_cut_short_is_continued_on_the_same_nodes_alone(store: ClaimStore, one: Due) -> None:
    first = open_revalidation(store, one, launcher=LocalLauncher())
    assert open_revalidation(store, one, launcher=LocalLauncher()).directory == first.directory
    assert len(Docket.open(first.directory / "docket.jsonl").of(Kind.OPENED)) == 1
    other = open_revalidation(store, replace(one, nodes={"n0": OLD}), launcher=LocalLauncher())
    assert other.directory != first.directory
    conclude(other, one.claim)
    again = open_revalidation(store, replace(one, nodes={"n0": OLD}), launcher=LocalLauncher())
    assert again.directory not in (first.directory, other.directory)


class Down:
    """A launcher whose hosts are down."""

    def submit(self, plan: LaunchPlan, *, on_line: LineSink | None = None) -> Handle:  # noqa: ARG002  # the protocol
        raise LaunchError(f"{plan.name}: n0 is down")


def test_an_experiment_that_cannot_be_run_ends_inconclusive_and_confirms_nothing(store: ClaimStore, one: Due) -> None:
    found = revalidate_one(store, one, launcher=Down(), say=lambda _text: None)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "could not be run" in found.sentence
    assert "n0 is down" in found.sentence
    assert (found.found_ms, found.new_case) == (None, None)
    assert store.load("padding").confirmed == "2026-11-01"
    (entry,) = store.history("padding")
    assert entry["outcome"] == "inconclusive"
    assert store.confirmed_values(one.claim)["host.driver"] == ("550.54.15",)


def test_two_processes_cannot_revalidate_the_same_claims(store: ClaimStore) -> None:
    with (
        store.held(),
        pytest.raises(CaseError, match="another process is revalidating these claims"),
        ClaimStore(store.folder).held(),
    ):
        pass


def test_the_report_names_every_claim_and_the_exit_code_the_worst_end(store: ClaimStore, one: Due) -> None:
    rows = rows_of([one], {})
    assert exit_code(rows) == 0
    text = keep_report(store, rows, "a test").read_text()
    assert "| **padding** | due |" in text, "it was to be run again, and was not"
    assert "| **padding** | not due |" in keep_report(store, rows_of([replace(one, reasons=())], {}), "").read_text()
    for outcome, code in ((Outcome.HOLDS, 0), (Outcome.INCONCLUSIVE, 3), (Outcome.GONE, 4), (Outcome.MOVED, 4)):
        assert exit_code([{"outcome": Outcome.HOLDS.value}, {"outcome": outcome.value}]) == code


def test_settings_are_checked_and_a_message_that_is_lost_fails_nothing(
    store: ClaimStore, one: Due, capfd: pytest.CaptureFixture[str]
) -> None:
    path, said = store.folder / "settings.yaml", list[str]()
    rows = [row | {"outcome": "holds"} for row in rows_of([one], {})]
    tell(store, rows, said.append)
    assert said == []
    path.write_text(yaml.safe_dump({"notify": {"command": [sys.executable, "-c", "raise SystemExit(3)"]}}))
    tell(store, rows, said.append)
    assert len(said) == 1
    assert "not delivered" in said[0]
    path.write_text(yaml.safe_dump({"notify": {"url": "http://127.0.0.1:9/hook"}}))
    tell(store, rows, said.append)
    assert len(said) == 2
    told, send = store.folder / "told", "import sys; sys.stdout.write('hello'); open('claims/told', 'w').write('yes')"
    path.write_text(
        yaml.safe_dump({"notify": {"command": [sys.executable, "-c", send], "url": "http://127.0.0.1:9/hook"}})
    )
    tell(store, rows, said.append)
    assert (told.read_text(), len(said)) == ("yes", 3)
    path.write_text(yaml.safe_dump({"notify": {"command": ["no-such-program"], "url": "http://[::1/hook"}}))
    tell(store, rows, said.append)
    assert len(said) == 5, "both are tried"
    assert "hello" not in capfd.readouterr().out, "it would end up in the command's JSON"
    path.write_text("notify: {url: ftp://somewhere}\nelse: 1\n")
    with pytest.raises(CaseError, match=r"url: is 'ftp://somewhere'; expected an http"):
        load_settings(store)
    tell(store, rows, said.append)
    assert "nobody was told" in said[-1]
    assert store.names() == ("padding",), "the settings are no claim"


def test_a_run_that_was_started_again_knows_what_it_found_before(store: ClaimStore, one: Due) -> None:
    session = open_revalidation(store, one, launcher=Down(), say=lambda _text: None)
    found = settle(store, one, session, *conclude(session, one.claim), run="this run")
    assert settled_by(store, "padding", "this run") == found
    assert settled_by(store, "padding", "another run") is None


def test_the_day_of_confirmation_keeps_a_comment_behind_it(store: ClaimStore) -> None:
    path = store.path("padding")
    path.write_text(path.read_text().replace("confirmed: 2026-11-01", "confirmed: 2026-11-01  # by Ada"))
    store.confirm("padding", "2026-12-03")
    assert "\nconfirmed: 2026-12-03  # by Ada\n" in path.read_text()
    assert store.load("padding").confirmed == "2026-12-03"


def test_a_history_with_a_damaged_line_is_refused_by_its_place(store: ClaimStore) -> None:
    store.record("padding", {"outcome": "holds", "day": "2026-12-01", "claim": "x"})
    with (store.folder / "history" / "padding.jsonl").open("a") as file:
        file.write("{torn\n[]\n")
    with pytest.raises(CaseError, match=r"padding\.jsonl, line 2: is no record"):
        store.history("padding")


def test_the_case_of_a_moved_range_belongs_to_its_claim_and_so_does_the_case_that_made_it(
    store: ClaimStore, one: Due
) -> None:
    moved = {
        "case": "looked-into", "question": "What takes the time?",
        "runs": {"healthy": "runs/healthy", "regressed": "runs/regressed"},
        "workload": {"program": "step", "healthy": {"padding": 0.0}, "regressed": {"padding": 0.3}},
        "cluster": {"nodes": 1, "ranks_per_node": 1},
    }  # fmt: skip
    (store.workspace / "moved.yaml").write_text(yaml.safe_dump(moved))
    store.record("padding", {"outcome": "range moved", "day": "2026-12-01", "claim": "x", "new_case": "moved.yaml"})
    store.record("padding", {"outcome": "range moved", "day": "2026-12-02", "claim": "x", "new_case": "gone.yaml"})
    session = open_revalidation(store, one, launcher=LocalLauncher(), say=lambda _text: None)
    for case, belongs in (("looked-into", ["padding"]), ("more-padding", ["padding"]), ("another", [])):
        session.case = replace(session.case, name=case)
        assert claims_of(session) == belongs
    assert cases_of(store, one.claim) == ["more-padding", "looked-into"]
