"""The docket keeps what it was given, and refuses whatever was changed, moved, forged or measured too early."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.inquiry.codec import canonical, digest, plain
from narrows.inquiry.docket import GENESIS, Docket, Entry, Kind
from narrows.inquiry.errors import DocketError
from narrows.inquiry.hypotheses import (
    Basis,
    Comparison,
    Hypothesis,
    Prediction,
    Registration,
    RejectionCriterion,
    Test,
)
from narrows.inquiry.scopes import Rung

NUMBERS = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
BODIES = st.dictionaries(
    st.text(max_size=6),
    st.recursive(
        st.none() | st.booleans() | NUMBERS | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
FREE = (Kind.OPENED, Kind.FINDING, Kind.SKIPPED, Kind.ASKED, Kind.ANSWERED, Kind.LOOK, Kind.CONCLUDED, Kind.REOPENED)


def registration(number: str = "H01", basis: Basis = Basis.EXPERIMENT, created_ns: int = 100) -> dict[str, Any]:
    hypothesis = Hypothesis(
        key=f"key of {number}",
        rung=Rung.ONE_RANK,
        test=Test.SCOPE,
        basis=basis,
        claim="The loss is there",
        mechanism="compute",
        experiment="E1",
        prediction=Prediction(metric="step time", unit="ms", low=3.0, high=None),
        reject_if=RejectionCriterion(metric="step time", comparison=Comparison.UPPER_BELOW, bound=3.0, unit="ms"),
    )
    return dict(plain(Registration(id=number, hypothesis=hypothesis, created_ns=created_ns).sealed()))


def verdict(number: str = "H01", value: str = "supported", launches: tuple[int, ...] = (1,)) -> dict[str, Any]:
    used = [{"experiment": "E1", "launch": launch} for launch in launches]
    return {"hypothesis": number, "verdict": value, "reason": "so it is", "evidence": used}


def launched(docket: Docket, at_ns: int, launch: int = 1, started_ns: int | None = None) -> None:
    """A launch recorded at ``at_ns`` with evidence that began right after it."""
    docket.append(Kind.LAUNCHED, {"experiment": "E1", "launch": launch}, at_ns)
    began = at_ns + 1 if started_ns is None else started_ns
    docket.append(Kind.EVIDENCE, {"experiment": "E1", "launch": launch, "started_ns": began}, at_ns + 5)


@pytest.fixture
def small(docket_file: Path) -> Path:
    """Four short lines, with an accented letter, a tiny number, an empty text and nothing among the values."""
    docket = Docket(docket_file)
    docket.append(Kind.OPENED, {"a": "\u00e9", "tiny": 1e-07}, 10)
    docket.append(Kind.SKIPPED, {"b": ""}, 20)
    docket.append(Kind.FINDING, {"c": [5.5, True]}, 30)
    docket.append(Kind.CONCLUDED, {"d": None}, 40)
    return docket_file


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(FREE), BODIES, st.integers(0, 2**62)), max_size=6))
def test_what_was_appended_is_what_opening_gives_back(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[Kind, dict[str, Any], int]]
) -> None:
    path = tmp_path_factory.mktemp("docket") / "docket.jsonl"
    docket = Docket(path)
    for kind, body, at_ns in entries:
        docket.append(kind, body, at_ns)
    again = Docket.open(path)
    assert again.entries == docket.entries
    assert again.torn == 0
    assert [(entry.kind, entry.body, entry.at_ns) for entry in again] == entries
    chain = [GENESIS, *(entry.sha256 for entry in again)]
    assert [entry.previous for entry in again] == chain[:-1]


def test_a_docket_that_is_not_there_yet_is_empty_and_stays_unwritten(docket_file: Path) -> None:
    assert len(Docket.open(docket_file)) == 0
    assert not docket_file.exists()


def test_opening_and_appending_goes_on_from_the_last_line(small: Path) -> None:
    docket = Docket.open(small)
    entry = docket.append(Kind.REOPENED, {"why": "the driver changed"}, 50)
    assert entry.line == 5
    assert Docket.open(small).entries == docket.entries


def test_the_digest_of_an_entry_covers_every_field() -> None:
    entry = Docket(None).append(Kind.OPENED, {"case": "a"}, 7)
    changes = {"line": 2, "kind": Kind.REOPENED, "at_ns": 8, "body": {"case": "b"}, "previous": "1" * 64}
    for name, value in changes.items():
        assert dataclasses.replace(entry, **{name: value}).computed() != entry.sha256


def test_every_flip_of_one_bit_is_refused_with_its_line_or_counted_as_a_torn_end(small: Path) -> None:
    text = small.read_bytes()
    last = text.rstrip(b"\n").rfind(b"\n") + 1
    kept = text[:last].count(b"\n")
    first = text.find(b"\n")
    for at in (*range(first), *range(first, len(text) - 1, 4), len(text) - 1):
        small.write_bytes(text[:at] + bytes([text[at] ^ (1 << at % 8)]) + text[at + 1 :])
        if at == len(text) - 1:  # the final newline: what stands before it looks like a line cut short
            docket = Docket.open(small)
            assert (docket.torn, len(docket)) == (1, kept)
        else:
            with pytest.raises(DocketError, match=r"line \d+: "):
                Docket.open(small)


@pytest.mark.parametrize("other", [b"E", b" ", b"0", b'"', b"\n", b"\xff", b"\x00"])
def test_no_byte_can_be_put_in_place_of_another(small: Path, other: bytes) -> None:
    text = small.read_bytes()
    spots = [at for at in range(text.find(b"\n")) if text[at : at + 1] != other]
    for at in spots[:: 1 if other == b"E" else 5]:
        small.write_bytes(text[:at] + other + text[at + 1 :])
        with pytest.raises(DocketError, match=r"line \d+: "):
            Docket.open(small)


def test_a_line_that_means_the_same_but_is_written_otherwise_is_refused(small: Path) -> None:
    lines = small.read_bytes().splitlines()
    loose = json.dumps(json.loads(lines[1])).encode()
    small.write_bytes(b"\n".join([lines[0], loose, *lines[2:]]) + b"\n")
    with pytest.raises(DocketError, match="line 2: "):
        Docket.open(small)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_removed_line_is_missed(small: Path, gone: int) -> None:
    lines = small.read_bytes().splitlines(keepends=True)
    small.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))
    with pytest.raises(DocketError, match=f"line {gone + 2}: expected line {gone + 1}; a line is missing"):
        Docket.open(small)


def test_swapped_lines_are_noticed(small: Path) -> None:
    lines = small.read_bytes().splitlines(keepends=True)
    small.write_bytes(b"".join([lines[0], lines[2], lines[1], lines[3]]))
    with pytest.raises(DocketError, match="line 3: expected line 2"):
        Docket.open(small)


def _entry(line: int, previous: str, **given: Any) -> bytes:
    bare = Entry(line=line, kind=Kind.FINDING, at_ns=50, body={"topic": "forged"}, previous=previous, sha256="")
    entry = dataclasses.replace(bare, sha256=bare.computed())
    return canonical({"schema": 1, **plain(dataclasses.replace(entry, **given))}) + b"\n"


def test_a_line_of_another_docket_does_not_follow(small: Path) -> None:
    small.write_bytes(small.read_bytes() + _entry(5, "a" * 64))
    with pytest.raises(DocketError, match="line 5: does not follow the line before it"):
        Docket.open(small)


def test_a_line_with_a_digest_of_something_else_is_refused(small: Path) -> None:
    last = Docket.open(small).entries[-1].sha256
    small.write_bytes(small.read_bytes() + _entry(5, last, at_ns=51))
    with pytest.raises(DocketError, match="line 5: its digest does not match its text"):
        Docket.open(small)


@pytest.mark.parametrize(
    "line",
    [b"nonsense", b"[]", b"{}", b'{"schema":1}', b'{"schema":2,"line":5}', b'{"kind":"opened"}', b"7", b"null", b""],
)
def test_what_is_no_docket_line_is_refused_by_its_number(small: Path, line: bytes) -> None:
    small.write_bytes(small.read_bytes() + line + b"\n")
    with pytest.raises(DocketError, match=r"docket\.jsonl, line 5: not a docket line"):
        Docket.open(small)


@pytest.mark.parametrize("keep", [1, 40, -2])
def test_a_torn_last_line_is_dropped_counted_and_written_over(small: Path, keep: int) -> None:
    whole = small.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    small.write_bytes(whole + last[:keep])
    docket = Docket.open(small)
    assert (docket.torn, len(docket)) == (1, 4)
    docket.append(Kind.REOPENED, {"why": "more"}, 60)
    assert (Docket.open(small).torn, len(Docket.open(small))) == (0, 5)


def test_looking_at_a_docket_leaves_the_torn_line_to_whoever_may_still_be_writing_it(small: Path) -> None:
    small.write_bytes(small.read_bytes() + b'{"at_ns":')
    before = small.read_bytes()
    docket = Docket.open(small, repair=False)
    assert (docket.torn, len(docket)) == (1, 4)
    assert small.read_bytes() == before


# What may follow what.


def test_evidence_of_what_was_never_launched_is_refused() -> None:
    docket = Docket(None)
    with pytest.raises(DocketError, match="evidence of E1, launch 1, which was never launched"):
        docket.append(Kind.EVIDENCE, {"experiment": "E1", "launch": 1, "started_ns": 50}, 60)
    assert len(docket) == 0


@pytest.mark.parametrize("began", [99, None, "100"])
def test_evidence_that_began_before_its_launch_is_refused(began: object) -> None:
    docket = Docket(None)
    docket.append(Kind.LAUNCHED, {"experiment": "E1", "launch": 1}, 100)
    with pytest.raises(DocketError, match="evidence older than its registration is refused"):
        docket.append(Kind.EVIDENCE, {"experiment": "E1", "launch": 1, "started_ns": began}, 110)


def test_a_verdict_on_evidence_older_than_the_registration_names_both_lines() -> None:
    docket = Docket(None)
    launched(docket, 100)
    docket.append(Kind.REGISTERED, registration(created_ns=200), 200)
    with pytest.raises(DocketError, match=r"\(line 2\) is older than the registration of H01 \(line 3\)"):
        docket.append(Kind.VERDICT, verdict(), 300)


def test_a_verdict_on_evidence_that_the_docket_does_not_hold_is_refused() -> None:
    docket = Docket(None)
    docket.append(Kind.REGISTERED, registration(), 100)
    launched(docket, 200)
    with pytest.raises(DocketError, match="uses evidence that the docket does not hold"):
        docket.append(Kind.VERDICT, verdict(launches=(1, 2)), 300)


def test_a_verdict_on_what_was_never_registered_is_refused() -> None:
    with pytest.raises(DocketError, match="a verdict on H07, which was never registered"):
        Docket(None).append(Kind.VERDICT, verdict("H07"), 300)


def test_a_second_verdict_is_refused() -> None:
    docket = Docket(None)
    docket.append(Kind.REGISTERED, registration(), 100)
    launched(docket, 200)
    docket.append(Kind.VERDICT, verdict(), 300)
    with pytest.raises(DocketError, match="H01 has its verdict already; a verdict never changes"):
        docket.append(Kind.VERDICT, verdict(value="rejected"), 400)


@pytest.mark.parametrize("value", ["supported", "rejected"])
def test_an_experiment_is_not_decided_without_evidence(value: str) -> None:
    docket = Docket(None)
    docket.append(Kind.REGISTERED, registration(), 100)
    with pytest.raises(DocketError, match=f"H01 is {value} on no evidence"):
        docket.append(Kind.VERDICT, verdict(value=value, launches=()), 300)


def test_an_experiment_that_could_not_run_is_inconclusive_without_evidence() -> None:
    docket = Docket(None)
    docket.append(Kind.REGISTERED, registration(), 100)
    assert docket.append(Kind.VERDICT, verdict(value="inconclusive", launches=()), 300).line == 2


def test_given_runs_are_older_than_what_they_screen() -> None:
    docket = Docket(None)
    docket.append(Kind.REGISTERED, registration(basis=Basis.GIVEN), 100)
    assert docket.append(Kind.VERDICT, verdict(launches=()), 300).line == 2


def test_a_second_registration_under_the_same_number_is_refused() -> None:
    docket = Docket(None)
    docket.append(Kind.REGISTERED, registration(), 100)
    with pytest.raises(DocketError, match="H01 is registered already; a registration never changes"):
        docket.append(Kind.REGISTERED, registration(), 110)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["hypothesis"]["prediction"].update(low=0.0),
        lambda body: body["hypothesis"].update(rho=0.1),
        lambda body: body.update(created_ns=1),
        lambda body: body.update(sha256="0" * 64),
    ],
)
def test_a_registration_that_was_changed_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    body = registration()
    change(body)
    with pytest.raises(DocketError, match="the registration of H01 does not match its digest"):
        Docket(None).append(Kind.REGISTERED, body, 100)


def test_a_changed_prediction_is_refused_even_when_its_whole_chain_was_forged(docket_file: Path) -> None:
    docket = Docket(docket_file)
    docket.append(Kind.REGISTERED, registration(), 100)
    launched(docket, 200)
    entries = [json.loads(line) for line in docket_file.read_bytes().splitlines()]
    entries[0]["body"]["hypothesis"]["prediction"]["low"] = 0.0
    previous = GENESIS
    for entry in entries:
        entry["previous"] = previous
        bare = {key: entry[key] for key in ("line", "kind", "at_ns", "body", "previous")}
        previous = entry["sha256"] = digest(bare)
    docket_file.write_bytes(b"".join(canonical(entry) + b"\n" for entry in entries))
    with pytest.raises(DocketError, match="line 1: the registration of H01 does not match its digest"):
        Docket.open(docket_file)
