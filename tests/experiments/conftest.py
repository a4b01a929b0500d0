"""Real launches of the experiment programs: one torchrun agent for each modelled host."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

TIMEOUT_S = 240
Launch = Callable[..., Path]


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Plays a plan's segments on hosts n0, n1, ... with the given numbers of ranks; returns the launch's folder."""

    def run(module: str, ranks_per_host: Sequence[int], plan: Mapping[str, Any]) -> Path:
        out = tmp_path_factory.mktemp("launch")
        path = out.with_suffix(".plan.json")
        program = module.rpartition(".")[2]
        whole = {"schema": 1, "kind": "plan", "program": program, "out": str(out), "experiment": "E00", **plan}
        path.write_text(json.dumps(whole), encoding="utf-8")
        port = _free_port()
        agents = [
            subprocess.Popen(
                _agent(module, path, node, len(ranks_per_host), ranks, port),
                env={**os.environ, "NARROWS_HOST": f"n{node}", "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for node, ranks in enumerate(ranks_per_host)
        ]
        try:
            printed = [agent.communicate(timeout=TIMEOUT_S)[0] for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
        assert [agent.returncode for agent in agents] == [0] * len(agents), "\n".join(printed)
        (out / "printed.txt").write_text("\n".join(printed), encoding="utf-8")
        return out

    return run


def _agent(module: str, plan: Path, node: int, nodes: int, ranks: int, port: int) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "0"]
    place = ["--nnodes", str(nodes), "--node-rank", str(node), "--nproc-per-node", str(ranks)]
    meeting = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    return [*torchrun, *place, *meeting, "-m", module, "--plan", str(plan)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
