from __future__ import annotations

from pathlib import Path

import pytest

from narrows.reducers.traces.reader import read_trace
from narrows.reducers.traces.reduce import reduce_trace


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_that_the_installed_profiler_writes_is_read(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / name
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        profile_memory=True,
    ) as profiler:
        for _ in range(5):
            torch.randn(64, 64) @ torch.randn(64, 64)
            profiler.step()
    trace = read_trace(path)
    assert trace.quality.layout in {"kineto", "kineto-lines"}
    assert (trace.quality.truncated, trace.quality.dropped, trace.quality.repaired) == (False, 0, 0)
    reduced = reduce_trace(trace)
    assert len(reduced.steps) == 3
    assert reduced.memory["host"].num_events > 0
    assert reduced.clock == "unix_ns"
