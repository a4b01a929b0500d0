"""The pages on claims say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from narrows.flows.claims_file import KEYS, load_claim
from narrows.flows.cli import app
from narrows.flows.watch import EVENT
from narrows.inquiry.accounts import Account
from narrows.inquiry.claim import Metric, Outcome
from narrows.inquiry.dependencies import reason_for
from narrows.templates.revalidation import NEXT

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLAIMS, REVALIDATION = ((DOCS / name).read_text(encoding="utf-8") for name in ("claims.md", "revalidation.md"))


def test_the_example_of_a_claim_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    path = tmp_path / "claims" / "packing.yaml"
    block = re.search(r"<!-- claim -->\n```yaml\n(.*?)^```$", CLAIMS, re.MULTILINE | re.DOTALL)
    assert block is not None
    path.write_text(block.group(1))
    assert load_claim(path).reproducer.world_size == 2


def test_every_key_and_every_metric_of_a_claim_stands_on_its_page() -> None:
    assert [name for name in (*KEYS, *Metric) if f"`{name}`" not in CLAIMS] == []


def test_every_outcome_stands_on_the_page_with_its_event_and_has_a_next_move() -> None:
    for one in Outcome:
        assert f"*{one.value}*" in REVALIDATION
        assert f"`narrows.claim.{one.value.replace(' ', '-')}`" in REVALIDATION
    assert set(NEXT) == {one.value for one in Outcome}
    assert f"`{EVENT}`" in REVALIDATION


def test_every_field_that_the_page_names_matters_to_some_account() -> None:
    named = set(re.findall(r"`((?:host|packages|job)\.\w+)`", CLAIMS))
    assert len(named) > 10
    assert [name for name in named if not any(reason_for(name, account) for account in Account)] == []


def test_every_option_that_the_page_names_exists() -> None:
    known = {name for command in ("revalidate", "watch", "claims") for name in _options(command)}
    named = set(re.findall(r"(--[a-z][a-z-]+)", REVALIDATION + CLAIMS)) - {"--no-prompt", "--name", "--pool"}
    assert named - known == set()


def _options(command: str) -> list[str]:
    arguments = app[command].assemble_argument_collection()
    return [name for argument in arguments for name in argument.names if name.startswith("--")]
