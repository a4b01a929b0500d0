"""The reference pages say what the code says: names, defaults, words, commands and links."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest
import yaml

from narrows.experiments.plan import load_plan
from narrows.flows.casefile import load_case
from narrows.flows.cli import app
from narrows.inquiry.accounts import ACCOUNT_MEANINGS, SPAN_ACCOUNTS, WAIT_SPAN, Account
from narrows.inquiry.design import ArmKind, Mode
from narrows.inquiry.docket import Kind
from narrows.inquiry.hypotheses import Ledger
from narrows.inquiry.scopes import Rung, Scope
from narrows.inquiry.steps import StopReason
from narrows.inquiry.verdict import ClosingStatus, RegressionStatus, Verdict
from narrows.inquiry.workloads import BUILTIN, Knob
from narrows.instruments.operations import ENTRY_POINTS, POINT_TO_POINT
from narrows.reducers.jsonlines import Lines
from narrows.reducers.records import Alignment, LossKind
from narrows.reducers.units import Statistic

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _rows(page: str) -> list[list[str]]:
    """The cells of every table row of a page."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines() if line[:1] == "|"]


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def _default(knob: Knob) -> str:
    if knob.required:
        return "required"
    return f"`{knob.default}`" if isinstance(knob.default, str) and knob.default else f"`{json.dumps(knob.default)}`"


def test_every_knob_of_the_built_in_step_stands_in_the_case_file_page_with_its_default() -> None:
    shown = {cells[0]: (cells[2], cells[3]) for cells in _rows(_page("case-file.md")) if len(cells) == 5}
    expected = {f"`{knob.name}`": (_default(knob), knob.touches.value) for knob in BUILTIN["step"].values()}

    assert {name: found for name, found in shown.items() if name in expected} == expected


def test_no_knob_is_shown_that_the_built_in_step_does_not_have() -> None:
    table = _page("case-file.md").partition("## Knobs of the built-in program")[2]
    shown = {cells[0].strip("`") for cells in _rows(table) if cells[0].startswith("`")}
    fields = {f"{knob.name}.{field.name}" for knob in BUILTIN["step"].values() for field in knob.fields}

    assert shown == set(BUILTIN["step"]) | fields


def test_the_keys_of_a_fault_stand_in_the_case_file_page_with_their_defaults() -> None:
    shown = {cells[0]: cells[2] for cells in _rows(_page("case-file.md")) if len(cells) == 4}
    expected = {
        f"`{knob.name}.{field.name}`": _default(field) for knob in BUILTIN["step"].values() for field in knob.fields
    }

    assert {name: default for name, default in shown.items() if name in expected} == expected


def _case_keys() -> set[str]:
    """Every key that the case file's reader asks for or accepts, found in its source."""
    tree = ast.parse((ROOT / "flows" / "casefile.py").read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            asked = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if asked in ("take", "section", "amount", "number", "count"):
                found.add(str(node.args[0].value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "done":
            found |= {str(one.value) for one in ast.walk(node) if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_WORKLOAD":
            found |= {str(one.value) for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
    return found


def test_every_key_of_the_case_file_stands_in_its_page() -> None:
    keys = _case_keys()
    words = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`\n]+)`", _page("case-file.md")))))

    assert {"case", "question", "runs", "margin_percent", "env", "perturbed"} <= keys
    assert keys - words == set()


def _table_keys(page: str) -> set[str]:
    return {
        name for cells in _rows(page) for name in re.findall(r"`((?:judge|budget|cluster|runs)\.[a-z_]+)`", cells[0])
    }


def test_the_case_file_page_names_no_key_that_the_reader_does_not_know() -> None:
    known = _case_keys()

    assert {key for key in _table_keys(_page("case-file.md")) if key.partition(".")[2] not in known} == set()


def _case_examples() -> Iterator[tuple[str, str]]:
    for number, block in enumerate(_blocks(_page("case-file.md"), "yaml")):
        yield f"example {number + 1}", block


@pytest.mark.parametrize(("name", "text"), list(_case_examples()), ids=lambda value: str(value)[:10])
def test_every_example_of_the_case_file_page_is_accepted(name: str, text: str, tmp_path: Path) -> None:
    """An example that shows only a part is completed by the first one."""
    first = yaml.safe_load(_blocks(_page("case-file.md"), "yaml")[0])
    (tmp_path / "train.py").write_text("")
    case_file = tmp_path / "case.yaml"
    case_file.write_text(yaml.safe_dump(first | yaml.safe_load(text)))

    assert load_case(case_file, recorded=False).question == first["question"]


def test_every_span_stands_in_the_row_of_its_account() -> None:
    rows = {cells[0]: cells[1] for cells in _rows(_page("run-directory.md")) if len(cells) == 2}
    shown = {span: account for account, spans in rows.items() for span in re.findall(r"`(\w+)`", spans)}

    assert {span: shown.get(span) for span in SPAN_ACCOUNTS} == {s: a.value for s, a in SPAN_ACCOUNTS.items()}
    assert f"`{WAIT_SPAN}`" in _page("run-directory.md")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("vocabulary.md", Account),
        ("vocabulary.md", Scope),
        ("vocabulary.md", Rung),
        ("vocabulary.md", Verdict),
        ("vocabulary.md", Mode),
        ("vocabulary.md", ArmKind),
        ("vocabulary.md", Ledger),
        ("vocabulary.md", ClosingStatus),
        ("vocabulary.md", RegressionStatus),
        ("vocabulary.md", Statistic),
        ("case-file.md", Statistic),
        ("conclusion.md", Kind),
        ("run-directory.md", Alignment),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_every_word_of_a_closed_set_stands_on_its_page(page: str, words: type[StrEnum]) -> None:
    text = _page(page)

    assert [word.value for word in words if f"`{word.value}`" not in text] == []


def test_accounts_are_listed_in_their_precedence_and_mean_what_the_code_says() -> None:
    shown = re.findall(r"^- `(\w+)`: (.+)$", _page("vocabulary.md"), flags=re.MULTILINE)
    order = re.search(r"^`recovery`, .*`residual`\.$", _page("method.md"), flags=re.MULTILINE)

    assert [pair for pair in shown if pair[0] in set(Account)] == [(a.value, ACCOUNT_MEANINGS[a]) for a in Account]
    assert order is not None
    assert re.findall(r"`(\w+)`", order.group()) == [account.value for account in Account]


def test_every_code_name_in_the_vocabulary_exists() -> None:
    named = re.findall(r"`(\w+/[\w.]+\.(?:py|yaml))(?:: ([\w.]+))?`", _page("vocabulary.md"))
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path, _ in named if (ROOT / path).is_file()}
    absent = [
        f"{path}: {name}"
        for path, name in named
        if path not in sources
        or any(re.search(rf"\b{part}\b", sources[path]) is None for part in name.split(".") if part)
    ]

    assert len(named) > 40
    assert absent == []


def test_every_way_of_losing_something_stands_in_the_run_directory_page() -> None:
    shown = {cells[0] for cells in _rows(_page("run-directory.md"))}

    assert {kind.value for kind in LossKind} <= shown


def test_every_recorded_operation_stands_in_the_run_directory_page() -> None:
    text = _page("run-directory.md")
    names = {operation.name for table in (ENTRY_POINTS, POINT_TO_POINT) for operation in table.values()}

    assert {name for name in names if f"`{name}`" not in text} == set()


def test_every_reason_for_an_end_stands_in_the_conclusion_page() -> None:
    shown = {cells[0] for cells in _rows(_page("conclusion.md"))}

    assert {reason.value for reason in StopReason if reason is not StopReason.UNTIL} <= shown


def test_every_command_stands_in_the_index_or_in_the_readme() -> None:
    text = _page("index.md") + (ROOT / "README.md").read_text(encoding="utf-8")
    commands = {name for name in app if not name.startswith("-")}

    assert {"demo", "investigate"} <= commands
    assert {name for name in commands if f"narrows {name}" not in text} == set()


def test_every_page_stands_in_the_index() -> None:
    text = _page("index.md")

    assert [page.name for page in DOCS.glob("*.md") if page.name != "index.md" and f"({page.name})" not in text] == []


def test_the_plan_of_the_example_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(next(block for block in _blocks(_page("run-directory.md"), "json") if '"kind": "plan"' in block))

    assert sorted(load_plan(path, "step").arms) == ["healthy", "regressed"]


@pytest.mark.parametrize("kind", ["steps", "collectives", "clock"])
def test_the_lines_of_the_example_are_what_the_reader_reads(kind: str) -> None:
    """A record that the page breaks over several lines is one line in the file."""
    block = next(one for one in _blocks(_page("run-directory.md"), "json") if f'"kind":"{kind}"' in one)
    data = re.sub(r"\n +", "", block).encode()
    lines = Lines(data, "the page", kind)
    records = {"steps": lines.steps, "collectives": lines.collectives, "clock": lines.clock}[kind]()

    assert lines.torn == 0
    assert len(records) == data.count(b"\n") - 1 > 0
    for line in lines.steps() if kind == "steps" else ():
        assert max(end for _, _, end in line.spans_ns) <= line.end_ns - line.start_ns


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_inside_the_checkout_leads_to_a_file_and_a_heading() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if link.startswith(("http:", "https:", "mailto:")):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")

    assert broken == []
