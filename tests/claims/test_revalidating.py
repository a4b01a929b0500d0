"""What is run again and on which nodes, one process at a time, continued after a kill, told to whom it concerns."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from narrows.flows.claims_store import ClaimStore
from narrows.flows.fingerprint import keep
from narrows.flows.launching import Handle, LaunchPlan, LineSink
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.revalidating import Due, Revalidated, conclude, find_due, open_revalidation, revalidate_one
from narrows.flows.revalidating_command import exit_code
from narrows.flows.revalidating_nodes import nodes_of
from narrows.flows.revalidating_report import keep_report, load_settings, rows_of, tell
from narrows.flows.server import ServerHandle
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
    assert "| **padding** | not due |" in text
    for outcome, code in ((Outcome.HOLDS, 0), (Outcome.INCONCLUSIVE, 3), (Outcome.GONE, 4), (Outcome.MOVED, 4)):
        assert exit_code([{"outcome": Outcome.HOLDS.value}, {"outcome": outcome.value}]) == code


def test_settings_are_checked_and_a_message_that_is_lost_fails_nothing(store: ClaimStore, one: Due) -> None:
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
    path.write_text("notify: {url: ftp://somewhere}\nelse: 1\n")
    with pytest.raises(CaseError, match=r"url: is 'ftp://somewhere'; expected an http"):
        load_settings(store)
    assert store.names() == ("padding",), "the settings are no claim"


@pytest.mark.prefect
def test_the_page_of_a_claim_links_the_pages_of_its_case_that_the_server_has(narrows_server: ServerHandle) -> None:
    from prefect import flow

    from narrows.flows.board import show_page
    from narrows.flows.revalidate import _links

    @flow
    def investigated() -> None:
        show_page("board-linked-case", "a board", "a board")

    investigated()
    found = Revalidated(
        claim="padding", case="linked-case", outcome=Outcome.HOLDS, sentence="", reasons=(), found_ms=None,
        interval_ms=None, accepted_ms=(1.0, 2.0), gain_ms=None, folder="", device_hours=0.0,
    )  # fmt: skip
    assert "[board of the case](/artifacts/key/board-linked-case)" in _links(found)
    assert "postmortem" not in _links(found)
    assert "board" not in _links(replace(found, case="a-case-from-elsewhere"))
