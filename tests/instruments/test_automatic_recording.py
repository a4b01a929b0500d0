"""Unmodified scripts under the bootstrap: recorded without a word in them, and training exactly as without it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import narrows.instruments as narrows
from narrows.instruments import automatic, surroundings

ForkRanks = Callable[..., list[Any]]
ReadLines = Callable[[Path, int, str], list[dict[str, Any]]]

SCRIPTS = Path(__file__).parent / "scripts"
BOOTSTRAP = Path(automatic.__file__).parent / "bootstrap"
TIMEOUT_S = 240


def environment(run: Path | None, **more: str) -> dict[str, str]:
    """The environment as ``narrows run`` sets it, or a plain one."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NARROWS_RUN_DIR", "NARROWS_RECORDING", "PYTHONPATH")
    plain = {name: value for name, value in os.environ.items() if name not in names}
    plain["OMP_NUM_THREADS"] = "1"
    if run is not None:
        plain.update(PYTHONPATH=str(BOOTSTRAP), NARROWS_RUN_DIR=str(run))
    return {**plain, **more}


def torchrun(run: Path | None, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return checked([*command, str(SCRIPTS / script), *arguments], environment(run))


def checked(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env=variables, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done


def coverage(step: dict[str, Any], collectives: list[dict[str, Any]]) -> float:
    """The share of the step's time inside its spans or its collectives."""
    begin, end = step["start_ns"], step["end_ns"]
    intervals = [(begin + first, begin + last) for _, first, last in step["spans_ns"]]
    intervals += [(line["enter_ns"], line["end_ns"]) for line in collectives if line["step"] == step["step"]]
    covered, reached = 0, begin
    for first, last in sorted(intervals):
        first, last = max(first, reached), min(last, end)  # noqa: PLW2901  # the part that is new
        if last > first:
            covered, reached = covered + last - first, last
    return covered / (end - begin)


def median_coverage(run: Path, rank: int, read_lines: ReadLines) -> float:
    collectives = [line for line in read_lines(run, rank, "collectives") if "op" in line]
    steps = [step for step in read_lines(run, rank, "steps") if not step.get("warmup")]
    return statistics.median(coverage(step, collectives) for step in steps)


def identities(run: Path, rank: int, read_lines: ReadLines) -> list[tuple[Any, ...]]:
    lines = [line for line in read_lines(run, rank, "collectives") if "op" in line]
    return sorted((line["group"], line["seq"], line["op"], line.get("payload_bytes")) for line in lines)


@pytest.mark.dist
def test_a_ddp_script_is_covered_and_trains_to_the_same_parameters(tmp_path: Path, read_lines: ReadLines) -> None:
    run = tmp_path / "run"
    recorded = torchrun(run, "ddp_train.py", "--workers", "1", "--checkpoint", str(tmp_path / "model.pt"))
    assert "final loss" in recorded.stdout
    assert recorded.stdout == torchrun(None, "ddp_train.py").stdout
    for rank in range(2):
        steps = read_lines(run, rank, "steps")
        assert len(steps) == 12
        assert all({"input", "forward", "loss", "backward", "optimizer", "wait"} <= set(s["parts_us"]) for s in steps)
        assert all(step["useful"] == {"samples": 32} and step["loss"] > 0 and step["grad_norm"] > 0 for step in steps)
        assert any("checkpoint" in step["parts_us"] for step in steps) == (rank == 0)
        assert median_coverage(run, rank, read_lines) >= 0.95
    assert identities(run, 0, read_lines) == identities(run, 1, read_lines)
    gradients = [line for line in read_lines(run, 0, "collectives") if line.get("op") == "all_reduce"]
    parameters = (64 * 512 + 512) + 4 * (512 * 512 + 512) + (512 * 10 + 10)
    assert sum(line["payload_bytes"] for line in gradients if line["step"] == 5) == 4 * parameters
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["groups"] == {"dp": [0, 1]}
    assert [place["rank"] for place in manifest["placement"]] == [0, 1]
    assert manifest["program"].endswith("ddp_train.py")
    assert not (run / "events.jsonl").exists()


@pytest.mark.dist
def test_an_fsdp2_script_is_covered_and_its_shards_are_recorded(tmp_path: Path, read_lines: ReadLines) -> None:
    run = tmp_path / "run"
    recorded = torchrun(run, "fsdp2_train.py")
    assert "final loss" in recorded.stdout
    assert recorded.stdout == torchrun(None, "fsdp2_train.py").stdout
    for rank in range(2):
        steps = read_lines(run, rank, "steps")
        assert len(steps) == 8
        assert median_coverage(run, rank, read_lines) >= 0.95
        names = {line["op"] for line in read_lines(run, rank, "collectives") if line.get("step") == 4}
        assert names == {"all_gather", "reduce_scatter"}
    assert identities(run, 0, read_lines) == identities(run, 1, read_lines)


@pytest.mark.dist
def test_with_gradient_accumulation_the_step_is_the_optimizers(tmp_path: Path, read_lines: ReadLines) -> None:
    run = tmp_path / "run"
    torchrun(run, "ddp_train.py", "--steps", "6", "--accumulate", "2", "--width", "64")
    steps = read_lines(run, 1, "steps")
    assert len(steps) == 6
    assert {step["useful"]["samples"] for step in steps} == {64}
    for step in steps:
        assert [name for name, _, _ in sorted(step["spans_ns"], key=lambda span: span[1])].count("backward") == 2


def test_a_script_without_an_optimizer_is_told_how_to_mark_a_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = checked([sys.executable, str(SCRIPTS / "inference.py")], environment(run, NARROWS_SINGLE="1"))
    assert done.stdout == "done\n"
    assert "narrows.instruments.current().step()" in done.stderr
    assert json.loads((run / "events.jsonl").read_text())["event"] == "no_step_boundary"


def loaded(run: Path | None, code: str, **more: str) -> str:
    return checked([sys.executable, "-c", code], environment(run, **more)).stdout.strip()


def test_a_process_that_is_no_rank_loads_nothing_of_ours(tmp_path: Path) -> None:
    code = "import sys; print([name for name in sys.modules if name.startswith('narrows.')])"
    assert loaded(tmp_path / "run", code) == "[]"
    assert loaded(tmp_path / "run", code, RANK="0", NARROWS_RECORDING="1") == "[]"


def test_a_rank_does_not_get_torch_imported_for_it(tmp_path: Path) -> None:
    code = "import sys; print('narrows.instruments.automatic' in sys.modules, 'torch' in sys.modules)"
    assert loaded(tmp_path / "run", code, RANK="0", WORLD_SIZE="1") == "True False"
    assert not (tmp_path / "run").exists()


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("CHAINED = 'yes'\n")
    path = os.pathsep.join([str(BOOTSTRAP), str(tmp_path)])
    code = "import sitecustomize; print(sitecustomize.CHAINED)"
    assert loaded(tmp_path / "run", code, PYTHONPATH=path) == "yes"
    assert loaded(tmp_path / "run", code, PYTHONPATH=path, RANK="0") == "yes"


def test_a_module_that_is_watched_keeps_its_own_loader(tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text("VALUE = 1\n")
    code = """
import sys
from narrows.instruments.imports import AfterImport
AfterImport({"watched": lambda: print("after", sys.modules["watched"].VALUE)}).install()
import watched, inspect, importlib
print(type(watched.__loader__).__name__, type(watched.__spec__.loader).__name__, inspect.getsource(watched).strip())
importlib.reload(watched)
"""
    out = loaded(None, code, PYTHONPATH=str(tmp_path))
    assert out.splitlines() == ["after 1", "SourceFileLoader SourceFileLoader VALUE = 1"]


def instrumented(run: Path | None) -> None:
    """As in a rank under ``narrows run``; torch is imported already."""
    if run is not None:
        os.environ["NARROWS_RUN_DIR"] = str(run)
        automatic.install()


def closed() -> None:
    """The child then leaves without destructors: those of gloo's groups can hang (collectives._destroy says why)."""
    recorder = narrows.current()
    if recorder is not None:
        recorder.close()


def train(rank: int, run: Path | None, options: dict[str, Any], hook: str = "") -> list[float]:
    """Five steps of a model with a parameter that is unused, whose gradients the options tell DDP how to treat."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.unused = nn.Linear(7, 33), nn.Linear(33, 3), nn.Linear(3, 3)
            if not options.get("find_unused_parameters"):
                del self.unused

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(self.first(inputs)))

    instrumented(run)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), **options)
    if hook == "user":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "builtin":
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad(set_to_none=not options.get("gradient_as_bucket_view"))
        model(torch.randn(5, 7)).square().mean().backward()
        optimizer.step()
    values = [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]
    closed()
    return values


@pytest.mark.dist
@pytest.mark.parametrize(
    ("options", "hook"),
    [
        ({}, ""),
        ({"static_graph": True}, ""),
        ({"find_unused_parameters": True}, ""),
        ({"gradient_as_bucket_view": True}, ""),
        ({}, "user"),
        ({}, "builtin"),
    ],
    ids=["default", "static graph", "unused parameters", "bucket views", "user's hook", "built-in hook"],
)
def test_ddp_trains_to_the_same_bits_with_and_without_recording(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path, options: dict[str, Any], hook: str
) -> None:
    run = tmp_path / "run"
    assert fork_ranks(train, run, options, hook) == fork_ranks(train, None, options, hook)
    for rank in range(2):
        reduced = [line for line in read_lines(run, rank, "collectives") if line.get("op") == "all_reduce"]
        assert {line["step"] for line in reduced} == set(range(5))
        assert all("end_ns" in line for line in reduced)
        assert len(read_lines(run, rank, "steps")) == 5


@pytest.mark.dist
def test_three_ranks_divide_as_the_reducer_does(fork_ranks: ForkRanks, tmp_path: Path) -> None:
    with_recording = fork_ranks(train, tmp_path / "run", {}, world=3)
    assert with_recording == fork_ranks(train, None, {}, world=3)


def train_unevenly(rank: int, run: Path | None, static: bool) -> list[float]:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    instrumented(run)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(7, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    with model.join(divide_by_initial_world_size=static):
        for _ in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(torch.randn(5, 7)).square().mean().backward()
            optimizer.step()
    values = [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]
    closed()
    return values


@pytest.mark.dist
@pytest.mark.parametrize("static", [True, False], ids=["initial world size", "remaining ranks"])
def test_uneven_inputs_are_averaged_as_the_join_context_says(
    fork_ranks: ForkRanks, tmp_path: Path, static: bool
) -> None:
    assert fork_ranks(train_unevenly, tmp_path / "run", static) == fork_ranks(train_unevenly, None, static)


def hook_registered_twice(rank: int, run: Path) -> str:
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    instrumented(run)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(2, 2))
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(RuntimeError) as raised:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    closed()
    return str(raised.value)


@pytest.mark.dist
def test_a_second_hook_is_refused_as_torch_refuses_it(fork_ranks: ForkRanks, tmp_path: Path) -> None:
    assert "can only be called once" in fork_ranks(hook_registered_twice, tmp_path / "run")[0]


def with_a_broken_part(rank: int, run: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    def broken(loop: Any) -> None:
        raise AttributeError("this torch has no such thing")

    surroundings._hook_data_loader = broken
    instrumented(run)
    dist.init_process_group("gloo")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(torch.ones(6, 2), batch_size=2):
        model(batch).sum().backward()
        optimizer.step()
    closed()


@pytest.mark.dist
def test_a_part_that_fails_is_reported_once_and_the_rest_goes_on(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fork_ranks(with_a_broken_part, tmp_path / "run")
    assert capfd.readouterr().err.count("data loader: AttributeError: this torch has no such thing") == 2  # two ranks
    for rank in range(2):
        steps = read_lines(tmp_path / "run", rank, "steps")
        assert len(steps) == 3
        assert all("backward" in step["parts_us"] and "input" not in step["parts_us"] for step in steps)


def evaluating(rank: int, run: Path) -> None:
    import torch
    import torch.distributed as dist

    instrumented(run)
    dist.init_process_group("gloo")
    model, teacher = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1).eval()
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    second = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        inputs = torch.ones(4, 2)
        with torch.no_grad():
            target = teacher(inputs)
        torch.nn.functional.mse_loss(model(inputs), target).backward()
        second.step() if narrows.current().steps_seen else None
        first.step()
        model.eval()
        with torch.no_grad():
            model(inputs)
        model.train()
    narrows.current().step()
    closed()


@pytest.mark.dist
def test_evaluation_is_told_from_training_and_the_first_optimizer_ends_the_step(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path
) -> None:
    fork_ranks(evaluating, tmp_path / "run")
    steps = read_lines(tmp_path / "run", 0, "steps")
    names = [[name for name, _, _ in step["spans_ns"] if name != "gc"] for step in steps]
    assert [sorted(step) for step in names] == [
        ["backward", "forward", "forward", "loss", "optimizer"],
        ["backward", "eval", "forward", "forward", "loss", "optimizer", "optimizer"],
        ["eval"],
    ]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert {event["event"] for event in events} == {"several_optimizers"}


def recording_itself(rank: int, run: Path) -> bool:
    import torch
    import torch.distributed as dist

    instrumented(run)
    dist.init_process_group("gloo")
    given = narrows.current()
    recorder = narrows.start(config={"lr": 0.1})  # the script's own three lines
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with recorder.span("compute"):
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
        recorder.step()
    closed()
    return recorder is given


@pytest.mark.dist
def test_a_script_that_records_itself_is_left_to_it(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path
) -> None:
    assert fork_ranks(recording_itself, tmp_path / "run") == [True, True]
    steps = read_lines(tmp_path / "run", 0, "steps")
    assert [[name for name, _, _ in step["spans_ns"]] for step in steps] == [["compute"]] * 3
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["config"] == {"lr": 0.1}


def compiled(rank: int, run: Path | None) -> float:
    import torch
    import torch.distributed as dist

    instrumented(run)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    step = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(torch.ones(4, 2)).sum()
        loss.backward()
        optimizer.step()

    @torch.compile(backend="eager", fullgraph=True)
    def reduced(values: torch.Tensor) -> torch.Tensor:
        doubled = values * 2
        dist.all_reduce(doubled)
        return doubled + 1

    total = float(loss.detach()) + float(reduced(torch.ones(4)).sum())
    closed()
    return total


@pytest.mark.dist
def test_compiled_code_stays_one_graph(fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path) -> None:
    assert fork_ranks(compiled, tmp_path / "run") == fork_ranks(compiled, None)
    steps = read_lines(tmp_path / "run", 0, "steps")
    assert [sum(name == "forward" for name, _, _ in step["spans_ns"]) for step in steps] == [1, 1, 1]
