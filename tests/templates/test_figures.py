"""The pictures: written, decodable, not blank, small, and leaving nothing behind."""

from __future__ import annotations

import base64
import copy
from pathlib import Path

import matplotlib as mpl
import pytest
import synthetic_cases as cases
from matplotlib.image import imread

from narrows.templates.figures import data_uri, draw_figures, write_figures
from narrows.templates.parts import PostmortemView
from narrows.templates.view import postmortem_view

LARGEST_BYTES = 60_000
WIDTH_PIXELS = 880


def view_of(played: cases.Played) -> PostmortemView:
    return postmortem_view(played.case, played.docket, played.evidence, cases.DIRECTORY)


@pytest.mark.parametrize("name", ["explained", "nothing", "inconclusive", "killed"])
def test_every_picture_of_the_view_is_written_small_and_not_blank(name: str, tmp_path: Path) -> None:
    view = view_of(cases.EVERY[name]())

    paths = write_figures(view, tmp_path)

    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [one.path for one in view.pictures]
    for path in paths:
        pixels = imread(path)
        assert path.stat().st_size < LARGEST_BYTES
        assert pixels.shape[1] == WIDTH_PIXELS
        assert pixels[:2, :2, :3].min() == 1.0, "the background is white"
        inked = (pixels[:, :, :3].min(axis=2) < 0.9).mean()
        assert 0.01 < inked < 0.6


def test_the_explained_case_has_all_five_pictures() -> None:
    names = [one.name for one in view_of(cases.explained()).pictures]

    assert names == ["accounts", "proof", "scopes", "ecdf", "arrivals"]


def test_titles_say_the_finding() -> None:
    titles = {one.name: one.alt for one in view_of(cases.explained()).pictures}

    assert titles["accounts"] == "Skew holds 6.92 of the 7.50 ms that the step lost"
    assert titles["scopes"] == "The loss appears at one node, not at one rank"
    assert titles["proof"] == "Skew gave back 4.43 of the 4.80 ms that the change gained at one node"
    assert titles["arrivals"].startswith("No rank stands out")


def test_a_rank_that_stands_out_is_named() -> None:
    played = cases.explained()
    played.evidence["given"]["arms"]["regressed"]["last_arrivals"] = {"0": 0.1, "1": 0.7, "2": 0.1, "3": 0.1}
    titles = {one.name: one.alt for one in view_of(played).pictures}

    assert titles["arrivals"] == "Rank 1 arrives last 70 % of the time (healthy: 24 %)"


def test_drawing_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)

    with mpl.rc_context({"axes.facecolor": "black", "font.size": 30}):
        inside = dict(mpl.rcParams)
        dark = [path.read_bytes() for path in write_figures(view_of(cases.nothing()), tmp_path / "dark")]
        assert dict(mpl.rcParams) == inside
    light = [path.read_bytes() for path in write_figures(view_of(cases.nothing()), tmp_path / "light")]

    assert dict(mpl.rcParams) == before
    assert dark == light, "a reader's own settings change nothing"


def test_of_what_was_drawn_ahead_only_that_is_drawn_again_which_shows_something_else() -> None:
    played = cases.nothing()
    ahead = draw_figures(view_of(played))
    changed = copy.deepcopy(played)
    changed.evidence["given"]["arms"]["regressed"]["last_arrivals"] = {"0": 0.1, "1": 0.7, "2": 0.1, "3": 0.1}

    same, other = draw_figures(view_of(copy.deepcopy(played)), ahead), draw_figures(view_of(changed), ahead)

    assert all(same[name] is ahead[name] for name in ahead)
    assert [name for name in ahead if other[name] is not ahead[name]] == ["arrivals"]
    assert other == draw_figures(view_of(changed))


def test_one_very_slow_step_does_not_squeeze_the_rest(tmp_path: Path) -> None:
    played = cases.nothing()
    plain = write_figures(view_of(played), tmp_path / "plain")
    stalled = copy.deepcopy(played)
    arms = stalled.evidence["given"]["arms"]
    for arm in arms.values():
        arm["steps_ms"] = [*arm["steps_ms"] * 3]
    arms["healthy"]["steps_ms"].append(9000.0)
    drawn = write_figures(view_of(stalled), tmp_path / "stalled")

    ink = [(imread(one)[:, :, :3].min(axis=2) < 0.9).mean() for one in (plain[1], drawn[1])]
    assert ink[1] == pytest.approx(ink[0], rel=0.2)


def test_hundreds_of_ranks_can_be_drawn(tmp_path: Path) -> None:
    played = cases.nothing()
    for arm in played.evidence["given"]["arms"].values():
        arm["last_arrivals"] = {str(rank): 1 / 512 for rank in range(512)}

    paths = write_figures(view_of(played), tmp_path)

    assert "arrivals.png" in {path.name for path in paths}


def test_a_data_uri_holds_the_very_bytes(tmp_path: Path) -> None:
    path = write_figures(view_of(cases.nothing()), tmp_path)[0]

    head, _, data = data_uri(path).partition(",")

    assert head == "data:image/png;base64"
    assert base64.b64decode(data) == path.read_bytes()


def test_what_is_no_png_has_no_data_uri(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a picture", encoding="utf-8")

    with pytest.raises(ValueError, match=r"notes\.txt is not a PNG file"):
        data_uri(path)
