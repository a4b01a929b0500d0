"""Claims as files: read whole or refused, written so that they are read again, proposed and accepted."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows.claims_command import claims
from narrows.flows.claims_file import load_claim
from narrows.flows.claims_store import ClaimStore
from narrows.flows.claims_text import claim_text
from narrows.inquiry.claim import Claim, Metric, Outcome
from narrows.inquiry.errors import CaseError
from narrows.inquiry.fingerprint import Fields
from narrows.inquiry.revalidation import due

PADDING = Path(__file__).with_name("padding.yaml")
TODAY = date(2026, 12, 2)


@pytest.fixture
def store(tmp_path: Path) -> ClaimStore:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "padding.yaml").write_text(PADDING.read_text())
    return ClaimStore(tmp_path / "claims")


def changed(store: ClaimStore, **keys: Any) -> Path:
    path = store.path("padding")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | keys, sort_keys=False))
    return path


def test_a_claim_that_is_written_is_read_as_it_was(store: ClaimStore) -> None:
    claim = store.load("padding")
    store.path("padding").write_text(claim_text(claim, "A comment\nof two lines."))
    assert store.load("padding") == claim
    assert store.path("padding").read_text().startswith("# A comment\n# of two lines.\nclaim: padding\n")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"clam": 1}, r"clam: is an unknown key; did you mean claim\?"),
        ({"claim": "other"}, r"claim: is 'other' in padding.yaml; a claim's file bears its name"),
        ({"account": "computing"}, r"account: is 'computing'; expected one of recovery, compute"),
        ({"confirmed": "in May"}, r"confirmed: is 'in May'; expected the date"),
        ({"age_limit_days": 0}, r"age_limit_days: is 0; expected a whole number of days"),
        ({"depends_on": {"host.driver": {"confirmed": "550", "why": "x"}}}, r"confirmed: is '550'; expected a list"),
        ({"metrics": {"effect_ms": {"low": 4, "high": 2, "found": 3, "how": "x"}}}, r"high: is 2; expected more than"),
        ({"metrics": {"effect_ms": {"low": -4, "high": 2, "found": 1, "how": "x"}}}, r"accepts a loss that is not"),
        ({"metrics": {}}, r"metrics.effect_ms: is missing"),
        ({"mitigation": {"change": "x", "rollback": "y"}}, r"mitigation.in_force: is missing"),
    ],
)
def test_a_claim_with_a_problem_is_refused_with_its_line(store: ClaimStore, keys: dict[str, Any], said: str) -> None:
    path = changed(store, **keys)
    with pytest.raises(CaseError, match=said) as caught:
        load_claim(path)
    assert all(f"{path}:" in place for place in caught.value.places)


def experiment(store: ClaimStore, **keys: Any) -> Path:
    reproducer = yaml.safe_load(store.path("padding").read_text())["reproducer"]
    return changed(store, reproducer=reproducer | keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"arms": {"a": {}, "b": {}}}, "the arms a and b are the same"),
        ({"arms": {"a": {"config": {"padding": 0.1}}}}, "names 1 arms; expected two"),
        ({"arms": {"a": {"config": {"paddin": 1}}, "b": {}}}, r"paddin = 1 is an unknown key: did you mean padding"),
        ({"hosts": {"n0": 0}}, "expected a mapping from host names to numbers of ranks"),
        ({"program": "train.py"}, "train.py is no file under"),
        ({"washout": 8}, "with 8 washed out"),
        ({"scope": "half"}, "scope: is 'half'; expected one of one_rank"),
    ],
)
def test_a_reproducer_that_cannot_be_run_is_refused(store: ClaimStore, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(CaseError, match=said):
        load_claim(experiment(store, **keys))


def test_check_names_every_file_and_exits_with_2_where_one_is_wrong(
    store: ClaimStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert claims("check", None, store.folder, as_json=False) == 0
    changed(store, account="nothing", launcher="carrier pigeon")
    assert claims("check", None, store.folder, as_json=False) == 2
    out = capsys.readouterr().out
    assert "padding: well formed" in out
    assert "account: is 'nothing'" in out
    assert "launcher: is 'carrier pigeon'" in out


def test_a_proposal_is_in_force_once_it_is_accepted(store: ClaimStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.path("padding").rename(store.proposal("padding"))
    with pytest.raises(CaseError, match="it is proposed"):
        store.load("padding")
    assert claims("show", "padding", store.folder, as_json=False) == 0
    assert claims("accept", "padding", store.folder, as_json=False) == 0
    assert (store.names(), store.proposed()) == (("padding",), ())
    with pytest.raises(CaseError, match="nothing of this name is proposed"):
        store.accept("padding")
    capsys.readouterr()
    assert claims("list", None, store.folder, as_json=True) == 0
    (row,) = json.loads(capsys.readouterr().out)["claims"]
    assert (row["claim"], row["confirmed"], row["last_outcome"]) == ("padding", "2026-11-01", None)


def reasons(
    claim: Claim, nodes: dict[str, Fields], last: str = "2026-11-01", **confirmed: tuple[str, ...]
) -> list[str]:
    return [one.words for one in due(claim, nodes, last, TODAY, confirmed)]


SAME = {"host.driver": "550.54.15", "packages.torch": "2.9"}


def test_a_claim_is_due_when_a_field_it_depends_on_changed_on_a_node_it_concerns(store: ClaimStore) -> None:
    claim = store.load("padding")
    new = SAME | {"host.driver": "560.35.03"}
    assert reasons(claim, {"n0": SAME}) == []
    assert reasons(claim, {"n0": SAME | {"host.kernel": "another"}}) == []
    assert reasons(claim, {"n0": {}}) == [], "what a node does not tell is no change"
    assert reasons(claim, {f"n{i}": new for i in range(5)}) == [
        "host.driver on n0, n1, n2 and 2 more: 550.54.15 -> 560.35.03"
    ]
    assert reasons(claim, {"n0": new}, **{"host.driver": ("550.54.15", "560.35.03")}) == []


def test_a_claim_is_due_when_it_is_older_than_its_limit(store: ClaimStore) -> None:
    claim = store.load("padding")
    assert reasons(claim, {}, "2026-09-03") == []
    assert reasons(claim, {}, "2026-09-02") == ["last confirmed 91 days ago, the limit is 90"]


def entry(claim: Claim, outcome: Outcome, driver: str) -> dict[str, Any]:
    return {"outcome": outcome.value, "claim": claim.digest(), "day": "2026-12-01", "fields": {"host.driver": [driver]}}


def test_values_under_which_a_claim_held_count_as_confirmed_until_the_claim_changes(store: ClaimStore) -> None:
    claim = store.load("padding")
    store.record("padding", entry(claim, Outcome.HOLDS, "560"))
    store.record("padding", entry(claim, Outcome.MOVED, "570"))
    assert store.confirmed_values(claim)["host.driver"] == ("550.54.15", "560")
    effect = yaml.safe_load(PADDING.read_text())["metrics"]
    effect["effect_ms"]["high"] = 6.0
    changed(store, metrics=effect)
    assert store.confirmed_values(store.load("padding"))["host.driver"] == ("550.54.15",)


def test_a_new_day_of_confirmation_changes_one_line_of_the_file(store: ClaimStore) -> None:
    before = store.path("padding").read_text().splitlines()
    digest = store.load("padding").digest()
    store.confirm("padding", "2026-12-02")
    after = store.path("padding").read_text().splitlines()
    assert [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]] == [
        ("confirmed: 2026-11-01", "confirmed: 2026-12-02")
    ]
    assert store.load("padding").digest() == digest


def test_a_torn_line_of_the_history_is_left_out_and_the_next_one_stands(store: ClaimStore) -> None:
    claim = store.load("padding")
    store.record("padding", entry(claim, Outcome.HOLDS, "560"))
    path = store.folder / "history" / "padding.jsonl"
    path.write_bytes(path.read_bytes() + b'{"outcome": "hol')
    assert len(store.history("padding")) == 1
    store.record("padding", entry(claim, Outcome.MOVED, "570"))
    assert [one["outcome"] for one in store.history("padding")] == ["holds", "range moved"]


def test_a_range_names_what_it_bounds(store: ClaimStore) -> None:
    claim = store.load("padding")
    effect, share = claim.range(Metric.EFFECT), claim.range(Metric.SHARE)
    assert effect is not None
    assert share is not None
    assert (effect.low, effect.high, share.low, share.high) == (2.0, 12.0, 0.5, None)
    assert claim.range(Metric.GAIN) is None
