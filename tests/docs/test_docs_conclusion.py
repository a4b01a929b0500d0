"""The published schema of the conclusion, and the published way to check a docket, against what narrows writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from narrows.inquiry import plans, proposals
from narrows.inquiry.accounts import Account
from narrows.inquiry.case import ArmSpec, Budget, Case, Cluster, Judging, Workload
from narrows.inquiry.codec import plain
from narrows.inquiry.conclusion import Conclusion, report
from narrows.inquiry.design import ArmKind
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.hypotheses import Hypothesis, Registration
from narrows.inquiry.scopes import Scope
from narrows.inquiry.state import State
from narrows.inquiry.steps import StopReason
from narrows.inquiry.verdict import ClosingStatus, RegressionStatus, Verdict

ROOT = Path(__file__).resolve().parents[2]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "conclusion.schema.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "conclusion.md").read_text(encoding="utf-8")

CASE = Case(
    name="packing",
    question="The step got slower after the packing policy changed",
    runs={"healthy": ("runs/healthy",), "regressed": ("runs/regressed",)},
    workload=Workload(
        program="step", builtin=True, kind=ArmKind.CONFIG, healthy=ArmSpec(config={"packing": "snake"}),
        regressed=ArmSpec(config={"packing": "greedy"}),
    ),
    cluster=Cluster(launcher="local", nodes=2, ranks_per_node=2, hosts=("n0", "n1"), device="emulated"),
    budget=Budget(device_hours=1.0, ask_above_device_hours=0.5),
    judging=Judging(),
)  # fmt: skip


def _registered(docket: Docket, hypothesis: Hypothesis) -> str:
    number = f"H{len(docket.of(Kind.REGISTERED)) + 1:02d}"
    at_ns = 1000 + len(docket)
    record = Registration(id=number, hypothesis=hypothesis, created_ns=at_ns).sealed()
    docket.append(Kind.REGISTERED, plain(record), at_ns)
    return number


def _verdict(docket: Docket, number: str, verdict: str, effect_ms: float | None, **more: Any) -> None:
    body = {
        "hypothesis": number, "verdict": verdict, "effect_ms": effect_ms,
        "interval_ms": None if effect_ms is None else [effect_ms - 0.5, effect_ms + 0.5], "reason": "as given",
        "numbers": {}, "file": "evidence/given.json", "evidence": [],
    }  # fmt: skip
    docket.append(Kind.VERDICT, body | more, 2000 + len(docket))


def _measured(docket: Docket, experiment: str) -> list[dict[str, Any]]:
    at_ns = 3000 + len(docket)
    docket.append(Kind.LAUNCHED, {"experiment": experiment, "launch": 1}, at_ns)
    docket.append(
        Kind.EVIDENCE,
        {"experiment": experiment, "launch": 1, "pairs": 6, "started_ns": at_ns + 1, "device_hours": 0.02},
        at_ns + 2,
    )
    return [{"experiment": experiment, "launch": 1}]


def _filled(path: Path | None) -> Docket:
    """A case as far as a loss that was reproduced at two nodes, one hypothesis still open."""
    docket = Docket(path)
    docket.append(
        Kind.OPENED,
        {"case": CASE.name, "margin_ms": 0.4, "accounts": ["compute", "skew"], "question": CASE.question},
        1,
    )
    first = _registered(docket, proposals.regression(CASE, State.of(docket)))
    reference = {"delta_ms": 4.0, "d_ms": [4.1, 3.9, 4.0, 4.2], "tested": True}
    docket.append(Kind.FINDING, {"topic": "reference", "numbers": reference}, 3)
    docket.append(Kind.FINDING, {"topic": "numerator", "numbers": {"changed": False}}, 4)
    _verdict(docket, first, "supported", 4.0)
    found = {
        "account": "skew", "mechanism": "imbalance", "ranks": [], "culprit": {"kind": "varies", "members": []},
        "kappa": {"one_rank": 0.0, "one_node": 0.5, "two_nodes": 1.0},
    }  # fmt: skip
    docket.append(Kind.FINDING, {"topic": "reconciliation", "numbers": found}, 5)
    state = State.of(docket)
    experiment = plans.at_scope(CASE, state, Scope.TWO_NODES)
    second = _registered(docket, proposals.scope(CASE, state, experiment))
    _verdict(docket, second, "supported", 4.1, evidence=_measured(docket, experiment.key))
    _registered(docket, proposals.account(CASE, state, Account.COMPUTE))
    return docket


def _printed(docket: Docket) -> dict[str, Any]:
    """What ``narrows show --json`` prints, read back."""
    value: dict[str, Any] = json.loads(json.dumps(plain(report(CASE, docket, None)), allow_nan=False))
    return value


def _concluded() -> Docket:
    docket = _filled(None)
    docket.append(
        Kind.CONCLUDED, {"status": "concluded", "reason": StopReason.NOT_CLOSED.value, "conclusion": {}}, 9000
    )
    return docket


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_an_empty_case_has_a_conclusion_that_the_schema_accepts() -> None:
    jsonschema.validate(_printed(Docket(None)), SCHEMA)


def test_an_unfinished_case_has_a_conclusion_that_the_schema_accepts() -> None:
    printed = _printed(_filled(None))

    jsonschema.validate(printed, SCHEMA)
    assert printed["status"] == "running"
    assert printed["conclusion"]["first_scope"] == "two_nodes"
    assert [row["verdict"] for row in printed["hypotheses"]] == ["supported", "supported", None]


def test_a_concluded_case_has_a_conclusion_that_the_schema_accepts() -> None:
    printed = _printed(_concluded())

    jsonschema.validate(printed, SCHEMA)
    assert printed["reason"] == StopReason.NOT_CLOSED.value


@pytest.mark.parametrize(
    ("place", "value"),
    [("status", "finished"), ("device_hours", -1), ("reason", "because"), ("extra", 1), ("hypotheses", [{}])],
)
def test_the_schema_refuses_what_narrows_does_not_print(place: str, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(_printed(_concluded()) | {place: value}, SCHEMA)


def _enums(node: Any, path: str = "") -> Iterator[tuple[str, set[Any]]]:
    if isinstance(node, dict):
        if "enum" in node:
            yield path, set(node["enum"])
        for key, item in node.items():
            yield from _enums(item, f"{path}/{key}")


def test_the_schema_lists_the_words_that_the_code_has() -> None:
    enums = dict(_enums(SCHEMA))
    conclusion = "/$defs/conclusion/properties"

    assert enums["/$defs/account"] == {None, *(account.value for account in Account)}
    assert enums["/$defs/scope"] == {None, *(scope.value for scope in Scope)}
    assert enums["/$defs/hypothesis/properties/verdict"] == {None, *(verdict.value for verdict in Verdict)}
    assert enums[f"{conclusion}/regression"] == {status.value for status in RegressionStatus}
    assert enums[f"{conclusion}/closing"] == {status.value for status in ClosingStatus}
    assert enums[f"{conclusion}/perturbation"] == {"not_run", *(verdict.value for verdict in Verdict)}
    assert enums[f"{conclusion}/mechanism"] >= {None, *proposals.MECHANISM_WORDS}
    assert enums["/properties/reason"] == {None, *(r.value for r in StopReason if r is not StopReason.UNTIL)}


def test_the_page_explains_every_field_that_the_schema_has() -> None:
    defined = SCHEMA["$defs"]
    names = {
        *SCHEMA["properties"],
        *defined["hypothesis"]["properties"],
        *(set(defined["conclusion"]["properties"]) - {"culprit"}),
        *(f"culprit.{name}" for name in defined["conclusion"]["properties"]["culprit"]["properties"]),
    }
    shown = set(re.findall(r"^\| `([\w.]+)` \|", PAGE, flags=re.MULTILINE))

    assert names - shown == set()
    assert set(defined["conclusion"]["properties"]) == set(Conclusion.__dataclass_fields__)


def test_the_example_of_the_page_is_accepted() -> None:
    example = re.search(r"^```json\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)

    assert example is not None
    jsonschema.validate(json.loads(example.group(1)), SCHEMA)


def _check_by_hand(path: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    snippet = re.search(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert snippet is not None
    program = tmp_path / "check_chain.py"
    program.write_text(snippet.group(1), encoding="utf-8")
    return subprocess.run([sys.executable, str(program), str(path)], capture_output=True, text=True, check=False)


def test_the_published_check_of_the_chain_accepts_a_docket(tmp_path: Path) -> None:
    path = tmp_path / "docket.jsonl"
    docket = _filled(path)

    done = _check_by_hand(path, tmp_path)

    assert done.returncode == 0, done.stderr
    assert docket.entries[-1].sha256 in done.stdout


def test_the_published_check_of_the_chain_names_a_changed_line(tmp_path: Path) -> None:
    path = tmp_path / "docket.jsonl"
    _filled(path)
    path.write_text(path.read_text(encoding="utf-8").replace('"delta_ms":4.0', '"delta_ms":5.0'), encoding="utf-8")

    done = _check_by_hand(path, tmp_path)

    assert done.returncode != 0
    assert "line 3 was changed" in done.stderr


def test_a_registration_has_the_digest_that_the_page_describes() -> None:
    body = _filled(None).of(Kind.REGISTERED)[0].body
    record = Registration(
        id=body["id"], hypothesis=proposals.regression(CASE, State.of(_filled(None))), created_ns=body["created_ns"]
    )

    assert record.computed() == body["sha256"]
    assert replace(record, created_ns=1).computed() != body["sha256"]
