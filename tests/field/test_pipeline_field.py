"""Published pipeline timelines against the analysis published with them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from narrows.reducers.readers.pipeline_reading import PipelineReading, read_pipeline

DATA = Path(__file__).parents[3] / "shared" / "data" / "datasets"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the public files are not beside the project")

WITHIN = 0.01


def published(ending: str) -> Any:
    (path,) = DATA.glob(f"*data_{ending}.json")
    return json.loads(path.read_text())


@pytest.fixture(scope="module", params=["AR", "ST"])
def both(request: pytest.FixtureRequest) -> tuple[str, PipelineReading]:
    pytest.importorskip("pyarrow")
    (path,) = DATA.glob(f"*trace-{request.param}.parquet")
    return request.param, read_pipeline(path.read_bytes(), path.name)


def test_slowdown_and_every_attribution_are_within_one_per_cent_of_the_published(both):
    name, reading = both
    found, known = reading.straggling, published(f"result-{name}")
    assert found.slowdown == pytest.approx(known["blocking_slowdown"], rel=WITHIN)
    assert found.replayed_s == pytest.approx(fmean(known["step_t_nodelay"].values()), rel=WITHIN)
    assert found.ideal_s == pytest.approx(fmean(known["step_t_noblk"].values()), rel=WITHIN)
    assert found.launch_slowdown == pytest.approx(known["launch_slowdown"], rel=WITHIN)
    tables = {"dp_rank": found.of_dp_rank, "stage": found.of_stage, "optype": found.of_operation}
    for part, table in tables.items():
        expected = known[f"blocking_decompose_by_{part}"]
        assert {str(key): one for key, one in table.items()} == pytest.approx(expected, rel=WITHIN), part
    assert {str(step): one for step, one in found.step_slowdowns.items()} == pytest.approx(
        known["blocking_step_slowdown"], rel=WITHIN
    )


def test_the_shares_of_the_worst_workers_and_of_the_last_stage_are_those_published(both):
    name, reading = both
    found = reading.straggling
    for kind, own in (("mw", found.worker_shares), ("ms", found.stage_shares)):
        known = published(f"{kind}-{name}")
        assert own is not None
        assert (own.removal, own.addition) == pytest.approx((known["rem"], known["add"]), abs=WITHIN)


def test_the_slowed_worker_and_the_heavy_last_stage_are_named(both):
    name, reading = both
    assert reading.culprit == {"AR": "dp rank 0, stage 0", "ST": "stage 3"}[name]
    assert reading.not_understood.count == 0
