"""The postmortem as people read it: complete for every way a case can end, and every number with its file."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_cases as cases

from narrows.inquiry.case import ArmSpec
from narrows.inquiry.design import ArmKind
from narrows.inquiry.docket import Docket, Kind
from narrows.templates.parts import Outcome, PostmortemView
from narrows.templates.render import render_postmortem
from narrows.templates.summary import summary_text
from narrows.templates.view import postmortem_view

LEFTOVERS = re.compile(r"\bNone\b|\bnan\b|\binf\b|\{\}|\{\{|\[\]|Undefined|<Outcome|Number\(", re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w.)\]])/(?:home|srv|data|tmp|root|work)\b")
HEADINGS = (
    "The symptom, and how sure it is",
    "Where the time went",
    "How it was narrowed down",
    "What was rejected",
    "The proof: one thing changed",
    "Distributions",
    "The smallest experiment that shows it",
    "Rollback",
    "What remains uncertain",
    "What would reopen the case",
    "Approvals",
    "Files",
)


def view_of(played: cases.Played, **changes: object) -> PostmortemView:
    return postmortem_view(played.case, played.docket, played.evidence, cases.DIRECTORY, **changes)  # type: ignore[arg-type]  # only reproducer is ever passed


def section(text: str, heading: str) -> str:
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", sorted(cases.EVERY))
def test_every_ending_renders_whole_and_without_leftovers(name: str) -> None:
    text = render_postmortem(view_of(cases.EVERY[name]()))

    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(HEADINGS)
    assert LEFTOVERS.search(text) is None
    assert text.endswith("\n")
    assert "\n\n\n" not in text


@pytest.mark.parametrize("name", sorted(cases.EVERY))
def test_no_rendered_text_names_a_place_on_a_machine(name: str) -> None:
    view = view_of(cases.EVERY[name]())

    for text in (render_postmortem(view), summary_text(view)):
        assert MACHINE_PATH.search(text) is None
        assert str(cases.DIRECTORY) not in text


@pytest.mark.parametrize("name", sorted(cases.EVERY))
def test_every_table_has_as_many_cells_in_each_row_as_in_its_head(name: str) -> None:
    text = render_postmortem(view_of(cases.EVERY[name]()))
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)

    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    assert blocks or name == "empty"


def test_the_explained_case_matches_its_golden_file(golden: Callable[[str, str], None]) -> None:
    golden("explained.md", render_postmortem(view_of(cases.explained())))


def test_the_case_without_a_regression_matches_its_golden_file(golden: Callable[[str, str], None]) -> None:
    golden("no_regression.md", render_postmortem(view_of(cases.nothing())))


@pytest.mark.parametrize("name", ["explained", "nothing", "inconclusive", "killed"])
def test_every_number_of_the_ledger_links_to_evidence_that_exists(name: str) -> None:
    played = cases.EVERY[name]()
    text = section(render_postmortem(view_of(played)), "Where the time went")
    known = {f"evidence/{key}.json" for key in played.evidence}
    heads = ("| account", "| collective", "| overlap")
    text = text.partition("**A third opinion**")[0]  # what it says nothing of has no number
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(heads)]

    assert len(rows) >= 8
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[2:5]]
        assert all(re.fullmatch(r"\[[^]]+\]\(([^)]+)\)( \[[^]]+\])?", cell) for cell in cells), row
        assert {target for cell in cells for target in re.findall(r"\]\(([^)]+)\)", cell)} <= known


def test_links_of_the_whole_text_lead_to_the_files_of_the_case() -> None:
    played = cases.explained()
    view = view_of(played)
    runs = {path for record in played.evidence.values() for arm in record["arms"].values() for path in _paths(arm)}
    known = {f"evidence/{key}.json" for key in played.evidence} | {f"{path}/manifest.json" for path in runs}
    known |= {"docket.jsonl", *(one.path for one in view.pictures)}

    assert set(re.findall(r"\]\(([^)]+)\)", render_postmortem(view))) <= known


def _paths(arm: dict[str, object]) -> list[str]:
    runs = arm["runs"]
    assert isinstance(runs, list)
    return [str(run["path"]) for run in runs]


def test_the_columns_of_the_ledger_add_up_to_its_sum_row_by_eye() -> None:
    for table in view_of(cases.explained()).ledgers:
        for column in ("before", "after", "difference"):
            shown = [float(getattr(row, column).figure) for row in table.rows]
            total = float(getattr(table.total, column).figure)
            assert sum(shown) == pytest.approx(total, abs=0.005 * len(shown))


def test_the_residual_is_a_row_of_every_ledger_even_when_it_holds_nothing() -> None:
    played = cases.explained()
    for arm in played.evidence["given"]["arms"].values():
        for accounts in arm["accounts"].values():
            accounts["residual"] = 0.0

    tables = view_of(played).ledgers

    assert len(tables) == 3
    assert all("residual" in [row.account for row in table.rows] for table in tables)


def test_the_first_ledger_is_the_view_in_which_the_account_closes() -> None:
    assert view_of(cases.explained()).ledgers[0].view == "rank_mean"
    assert view_of(cases.link()).ledgers[0].view == "least_waiting_rank"


def test_a_gain_is_positive_whichever_arm_the_evidence_file_lists_first() -> None:
    """Evidence on disk lists arms by name, and its differences may run either way."""
    played = cases.explained()
    turned = copy.deepcopy(played.evidence)
    record = turned["balance-cost-one_node"]
    record["difference"] = _negated(record["difference"])
    record["intervals"] = {
        key: [-value[1], -value[0]] if isinstance(value, list) else {k: [-v[1], -v[0]] for k, v in value.items()}
        for key, value in record["intervals"].items()
    }

    one = view_of(played).proof
    other = view_of(replace_evidence(played, turned)).proof

    assert one is not None
    assert other is not None
    assert one.total is not None
    assert one.total.value > 4
    assert one.rows == other.rows


def _negated(value: object) -> object:
    if isinstance(value, dict):
        return {key: _negated(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_negated(item) for item in value]
    assert isinstance(value, float)
    return -value


def replace_evidence(played: cases.Played, evidence: dict[str, dict[str, object]]) -> cases.Played:
    return cases.Played(case=played.case, docket=played.docket, evidence=evidence)


def test_the_explained_case_says_in_its_first_paragraph_what_why_where_and_how_it_was_proven() -> None:
    first = " ".join(view_of(cases.explained()).conclusion)

    for told in ("slower by [7.50 ms]", "spread unevenly", "**skew**", "One node alone", "greedy -> cost_balanced",
                 "the accounting closes", "What is left"):  # fmt: skip
        assert told in first


def test_no_regression_gives_margin_and_interval_and_searches_no_cause() -> None:
    view = view_of(cases.nothing())

    assert view.outcome is Outcome.NO_REGRESSION
    assert "margin of [0.41 ms]" in view.conclusion[0]
    assert "[-0.07, +0.17]" in view.conclusion[0]
    assert "share of the loss" not in section(render_postmortem(view), "Where the time went")
    assert view.proofs == ()


def test_an_inconclusive_case_says_what_is_missing_and_not_what_was_settled_later() -> None:
    told = " ".join(view_of(cases.inconclusive()).conclusion)

    assert "24 pairs would settle it" in told
    assert "2 pairs are too few" not in told


def test_a_killed_case_is_not_finished_and_lists_what_is_not_judged() -> None:
    view = view_of(cases.killed())
    text = render_postmortem(view)

    assert view.outcome is Outcome.RUNNING
    assert text.startswith("# Postmortem: packing-regression\n\n**Not finished.**")
    assert "9 of 10 registered hypotheses are judged" in text
    assert "| not judged |" in text


def test_launches_that_failed_are_listed_without_the_paths_of_the_machine() -> None:
    text = render_postmortem(view_of(cases.broken()))

    assert "one_rank-regressed, launch 1: rank 3 on n1 exited with 1" in text
    assert "see experiments/logs/n1.log and .../core" in text


def test_skipped_steps_rejections_and_approvals_carry_their_reasons() -> None:
    text = render_postmortem(view_of(cases.explained()))

    assert "5. two nodes: the loss was reproduced at one node; nothing larger is needed." in text
    assert "*Rejected* by [one_rank-regressed](evidence/one_rank-regressed.json): 0.12 ms" in text
    assert "| approve | ada | the cluster is idle tonight |" in section(text, "Approvals")


def test_the_digest_of_the_last_docket_line_stands_at_the_end() -> None:
    played = cases.explained()

    assert render_postmortem(view_of(played)).endswith(f"sha256 `{played.docket.entries[-1].sha256}`.\n")


def test_each_registration_is_shown_with_the_digest_that_the_docket_holds() -> None:
    played = cases.explained()
    text = render_postmortem(view_of(played))

    for entry in played.docket.of(Kind.REGISTERED):
        assert f"| {entry.body['id']} | " in text
        assert f"`{entry.body['sha256'][:12]}`" in text


def test_device_hours_are_told_once_for_each_experiment_and_add_up() -> None:
    played = cases.explained()
    view = view_of(played)
    told = [float(row.cost) for row in view.ladder if not row.cost.startswith("with")]
    spent = sum(entry.body["device_hours"] for entry in played.docket.of(Kind.EVIDENCE))

    assert sum(told) == pytest.approx(spent, rel=0.01)
    assert view.device_hours == pytest.approx(spent)


def test_the_reproducer_of_one_node_is_one_command_and_of_two_nodes_one_a_host() -> None:
    one, two = view_of(cases.explained()).reproducer, view_of(cases.link()).reproducer

    assert len(one) == 1
    assert one[0].startswith("NARROWS_HOST=n0 OMP_NUM_THREADS=1 python -m torch.distributed.run --nproc-per-node 2 ")
    assert one[0].endswith("-m narrows.experiments.step --plan experiments/one_node-regressed/launch-1/plan.json")
    assert [f"--node-rank {index}" in command for index, command in enumerate(two)] == [True, True]
    assert all("--nnodes 2" in command for command in two)


def test_a_reproducer_that_the_caller_gives_is_shown_as_it_is() -> None:
    view = view_of(cases.explained(), reproducer=("make repro",))

    assert view.reproducer == ("make repro",)
    assert "```console\nmake repro\n```" in render_postmortem(view)


def test_the_users_own_program_is_not_given_a_command_that_would_not_run() -> None:
    played = cases.explained()
    work = replace(played.case.workload, builtin=False, program="train.py")
    view = view_of(replace_case(played, workload=work, playbook=(replace(cases.PLAY, programs=()),)))

    assert view.reproducer == ()
    assert "the case's own program" in view.reproducer_note


def replace_case(played: cases.Played, **changes: object) -> cases.Played:
    case = replace(played.case, **changes)  # type: ignore[arg-type]  # the fields are named by the callers
    return cases.Played(case=case, docket=played.docket, evidence=played.evidence)


def test_a_changed_numerator_is_proven_by_the_runs_that_showed_it() -> None:
    """Restoring the work compares healthy with regressed: the loss, reversed, is the gain."""
    view = view_of(cases.numerator())

    assert view.outcome is Outcome.EXPLAINED
    assert view.proof is not None
    assert view.proof.change == ("padding: 0.2 -> 0.0",)
    assert view.proof.total is not None
    assert view.proof.total.value > 0
    assert LEFTOVERS.search(render_postmortem(view)) is None


def test_caveats_follow_from_the_device_the_mode_and_the_kind_of_the_arms() -> None:
    played = cases.explained()
    work = replace(played.case.workload, kind=ArmKind.HISTORICAL)
    real = copy.deepcopy(played.evidence)
    for record in real.values():
        record |= {"emulated": False, "mode": "restart"}
    cluster = replace(played.case.cluster, device="cuda")
    told = " ".join(view_of(played).caveats)
    other = replace_case(replace_evidence(played, real), workload=work, cluster=cluster)

    assert "Emulated" in told
    assert "Switchback" in told
    assert [one.partition(":")[0] for one in view_of(other).caveats] == ["**Historical**"]
    assert not any("emulated" in one for one in view_of(other).uncertainties)


@pytest.mark.parametrize("field", ["accounts", "steps_ms", "quantiles_ms", "last_arrivals", "runs", "work", "step_ms"])
@pytest.mark.parametrize("name", ["explained", "nothing", "link"])
def test_evidence_that_lacks_a_field_still_renders(name: str, field: str) -> None:
    played = cases.EVERY[name]() if name in cases.EVERY else cases.link()
    for record in played.evidence.values():
        for arm in record["arms"].values():
            arm.pop(field, None)

    assert LEFTOVERS.search(render_postmortem(view_of(played))) is None


@pytest.mark.parametrize("field", ["views", "difference", "intervals", "losses", "coverage", "mode", "arms"])
def test_evidence_that_lacks_a_part_still_renders(field: str) -> None:
    played = cases.explained()
    for record in played.evidence.values():
        record.pop(field, None)

    assert LEFTOVERS.search(render_postmortem(view_of(played))) is None


@pytest.mark.parametrize("topic", ["reference", "manifest", "numerator"])
def test_findings_that_lack_fields_still_render(topic: str) -> None:
    """Only the numbers that the ladder itself decides on have to be there."""
    needed = {"delta_ms", "tested"}
    original = cases.explained()
    docket = Docket(None)
    for entry in original.docket:
        body = entry.body
        if entry.kind is Kind.FINDING and body["topic"] == topic:
            body = body | {"numbers": {key: body["numbers"][key] for key in needed & set(body["numbers"])}}
        docket.append(entry.kind, body, entry.at_ns)
    played = cases.Played(case=original.case, docket=docket, evidence=original.evidence)

    assert LEFTOVERS.search(render_postmortem(view_of(played))) is None


def test_without_any_evidence_file_the_docket_alone_still_renders() -> None:
    played = replace_evidence(cases.explained(), {})
    text = render_postmortem(view_of(played))

    assert LEFTOVERS.search(text) is None
    assert "[+4.95 ms](evidence/parts/one_node-regressed-1.json)" in text


def test_what_could_not_be_read_and_what_was_not_covered_is_an_uncertainty() -> None:
    played = cases.explained()
    played.evidence["given"] |= {"losses": ["ranks/00001/steps.jsonl: torn (1) last line"], "coverage": 0.9}
    told = " ".join(view_of(played).uncertainties)

    assert "torn (1) last line" in told
    assert "covers 90 % of" in told


def test_a_pipe_in_a_claim_or_a_reason_does_not_break_a_table() -> None:
    played = cases.explained()
    play = replace(cases.PLAY, claim="balance | and | mix")
    again = cases.play(replace(played.case, playbook=(play,)), cases.explained_script())

    text = render_postmortem(view_of(again))

    assert r"balance \| and \| mix" in text


def test_pictures_can_be_given_as_data_uris() -> None:
    text = render_postmortem(view_of(cases.explained()), {"accounts": "data:image/png;base64,AAAA"})

    assert "](data:image/png;base64,AAAA)" in text
    assert "](figures/ecdf.png)" in text


def test_environment_and_hosts_count_among_what_was_changed() -> None:
    played = cases.explained()
    work = replace(
        played.case.workload,
        perturbed=ArmSpec(config={"packing": "greedy"}, env={"NCCL_ALGO": "Ring"}, args=("--fast",)),
    )
    again = cases.play(replace(played.case, workload=work, playbook=()), cases.explained_script("case"))
    proof = view_of(again).proof

    assert proof is not None
    assert proof.change == ("NCCL_ALGO: (default) -> Ring", "arguments: none -> --fast")


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("explained", "EXPLAINED  imbalance (skew) at one node: +4.95 ms of 7.50 ms"),
        ("nothing", "NO REGRESSION  packing-regression: the step differs by +0.05 ms [-0.07, +0.17]"),
        ("inconclusive", "INCONCLUSIVE  packing-regression: +0.30 ms [-1.60, +2.20] is not settled"),
        ("killed", "RUNNING  packing-regression: 9 of 10 hypotheses judged"),
        ("broken", "NOT REPRODUCED  imbalance (skew)"),
    ],
)
def test_the_summary_begins_with_the_verdict_and_has_at_most_eight_lines(name: str, head: str) -> None:
    lines = summary_text(view_of(cases.EVERY[name]()), "cases/packing/postmortem.md").splitlines()

    assert lines[0].startswith(head)
    assert len(lines) <= 8
    assert lines[-1] == "postmortem  cases/packing/postmortem.md"
    assert all(LEFTOVERS.search(line) is None for line in lines)


def test_a_directory_that_is_relative_makes_no_path_absolute(tmp_path: Path) -> None:
    played = cases.explained()
    view = postmortem_view(played.case, played.docket, played.evidence, Path("cases/packing"))

    assert MACHINE_PATH.search(render_postmortem(view)) is None
