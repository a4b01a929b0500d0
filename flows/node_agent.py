"""On one node: find this host's place in a launch plan, and become its torchrun.

``python -m narrows.flows.node_agent PLAN.json HOST``. Static rendezvous, so that ranks are where the plan says: c10d
would hand them out in the order of joining. Standard library only: a node pays for torch's import once it is torchrun.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def torchrun_argv(plan: Mapping[str, Any], host: str, log_dir: Path) -> list[str]:
    """The torchrun command of ``host``. Raises ``ValueError`` for a host that the plan does not have."""
    hosts = [entry["host"] for entry in plan["hosts"]]
    if host not in hosts:
        raise ValueError(f"host {host!r} is not in the plan, which has {', '.join(hosts)}")
    node_rank = hosts.index(host)
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(hosts))),
        *("--node-rank", str(node_rank)),
        *("--nproc-per-node", str(len(plan["hosts"][node_rank]["ranks"]))),
        *("--master-addr", plan["master_addr"]),
        *("--master-port", str(plan["master_port"])),
        *("--max-restarts", "0"),
        *("--log-dir", str(log_dir)),
        *("--redirects", "3"),  # not --tee: it tears the lines of unbuffered ranks (torch 2.13)
        *plan["argv"],
    ]


def agent_env(plan: Mapping[str, Any], host: str, log_dir: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of ``host``'s torchrun, and so of its ranks."""
    return {
        # torchrun sets 1 too, but only for two ranks and more, and prints a warning
        "OMP_NUM_THREADS": "1",
        **inherited,
        **plan.get("env", {}),
        **plan.get("host_env", {}).get(host, {}),
        "NARROWS_HOST": host,
        "TORCHELASTIC_ERROR_FILE": str(log_dir / "error.json"),
    }


def main(argv: list[str]) -> None:
    """Does not return unless the plan cannot be used."""
    plan = json.loads(Path(argv[0]).read_text())
    host = argv[1]
    log_dir = Path(plan["log_dir"]) / host
    log_dir.mkdir(parents=True, exist_ok=True)
    command = torchrun_argv(plan, host, log_dir)
    os.execve(command[0], command, agent_env(plan, host, log_dir, os.environ))  # noqa: S606  # the plan's own command


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ValueError, KeyError, IndexError) as error:
        sys.exit(f"node agent: {type(error).__name__}: {error}")
