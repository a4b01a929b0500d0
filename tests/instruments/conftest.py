"""Two ranks in forked children of the test process: torch is imported once, a launch costs a tenth of a second."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import socket
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

WORLD = 2
LAUNCH_TIMEOUT_S = 120


def free_port() -> int:
    """A port below the range from which the kernel takes ports for connections: nothing grabs it meanwhile."""
    while True:
        port = random.randrange(12_000, 30_000)
        with socket.socket() as listener:
            if listener.connect_ex(("127.0.0.1", port)) != 0:
                return port


def _child(rank: int, world: int, port: int, work: Callable[..., Any], args: tuple[Any, ...], results: Any) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
    )
    import torch

    torch.set_num_threads(1)
    try:
        results.put((rank, work(rank, *args), None))
    except BaseException:  # noqa: BLE001  # whatever failed in the child is the test's failure
        results.put((rank, None, traceback.format_exc()))


@pytest.fixture
def fork_ranks() -> Callable[..., list[Any]]:
    """``fork_ranks(work, *args)`` runs ``work(rank, *args)`` on two forked ranks and returns what each returned."""

    def run(work: Callable[..., Any], *args: Any, world: int = WORLD) -> list[Any]:
        import torch._dynamo  # imported here once, so that no child's first optimizer has to
        import torch.distributed  # noqa: F401

        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        port = free_port()
        children = [
            context.Process(target=_child, args=(rank, world, port, work, args, results)) for rank in range(world)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join(LAUNCH_TIMEOUT_S)
            if child.is_alive():
                child.kill()
                child.join()
        answers: dict[int, Any] = {}
        while not results.empty():
            rank, answer, problem = results.get()
            assert problem is None, f"rank {rank}:\n{problem}"
            answers[rank] = answer
        assert sorted(answers) == list(range(world)), [child.exitcode for child in children]
        return [answers[rank] for rank in range(world)]

    return run


@pytest.fixture
def read_lines() -> Callable[[Path, int, str], list[dict[str, Any]]]:
    """``read_lines(run, rank, "steps")``: the objects of a rank's file, without its header."""

    def read(run: Path, rank: int, kind: str) -> list[dict[str, Any]]:
        header, *lines = (run / "ranks" / f"{rank:05d}" / f"{kind}.jsonl").read_text().splitlines()
        assert json.loads(header)["schema"] == 1
        assert json.loads(header)["kind"] == kind
        return [json.loads(line) for line in lines]

    return read
