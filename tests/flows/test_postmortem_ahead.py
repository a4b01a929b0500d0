"""The postmortem that is rehearsed beside an experiment is the one that would have been written without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_machines import ModelLauncher, write_case

from narrows.flows import engine, postmortem
from narrows.flows.session import Session, open_session
from narrows.templates.figures import write_figures


@pytest.fixture
def session(tmp_path: Path, recorded_arm: type[Any], record_pair: Callable[..., Any]) -> Session:
    machines = ModelLauncher(recorded_arm)
    found = open_session(write_case(tmp_path, machines, record_pair), machines)
    found.say = lambda _text: None
    return found


def pictures(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}


def test_pictures_drawn_before_the_first_experiment_are_those_drawn_after_the_last(
    session: Session, tmp_path: Path
) -> None:
    postmortem.rehearse_meanwhile(session)
    engine.run(session)
    postmortem.write_postmortem(session)

    write_figures(postmortem.view_of(session), tmp_path / "anew")
    assert pictures(session.directory) == pictures(tmp_path / "anew")


def test_a_rehearsal_that_fails_costs_nothing_but_its_time(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: Any) -> None:
        raise ValueError("the evidence is half written")

    monkeypatch.setattr(postmortem, "_rehearse", fails)
    postmortem.rehearse_meanwhile(session)
    engine.run(session)
    postmortem.write_postmortem(session)

    assert pictures(session.directory)
