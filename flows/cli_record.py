"""The commands that record a run, and that read what was recorded, here or by other tools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from narrows.flows.cli_app import RECORD, Json, app, number


@app.command(group=RECORD)
def run(
    *program: Annotated[str, Parameter(help="The program and its arguments, after --.", allow_leading_hyphen=True)],
    out: Annotated[Path | None, Parameter(help="Run directory to write; default runs/DATE-TIME.")] = None,
    join: Annotated[
        bool, Parameter(negative="", help="Write into OUT beside the other nodes of the same job.")
    ] = False,
) -> int:
    """Record an unmodified training program: narrows run -- torchrun --nproc-per-node 2 train.py

    Every Python process that it starts and that is a rank writes its steps and collectives. The optimizer's step is
    the step boundary. The program's exit code is passed through.
    """
    from narrows.flows.instrumented import run_instrumented

    if join and out is None:
        raise ValueError("--join needs --out: the run directory that the job's other nodes write to")
    return run_instrumented(list(program), out, join=join)


@app.command(group=RECORD)
def manifest(
    run_: Annotated[Path, Parameter(name="RUN", help="A run directory.")],
    other: Annotated[Path | None, Parameter(name="OTHER", help="A second one: print what differs.")] = None,
    /,
    *,
    json_: Json = False,
) -> int:
    """Print what a run really ran on, or in what two runs differ, the executed work first.

    With two runs the exit code is 4 when something that can touch the step time differs.
    """
    from narrows.flows import commands

    return commands.manifest(run_, other, as_json=json_)


@app.command(group=RECORD)
def reduce(
    *traces: Annotated[Path, Parameter(help="Kineto traces (.json, .json.gz), or folders of them.")],
    out: Annotated[Path | None, Parameter(help="Folder for the reduced traces, NAME.reduced.json each.")] = None,
    workers: Annotated[int, Parameter(help="Traces read at the same time.", validator=number(1))] = 1,
    thresholds: Annotated[
        Path | None, Parameter(help="A YAML file with thresholds of your own for the labels.")
    ] = None,
    json_: Json = False,
) -> int:
    """Reduce profiler traces to a few kilobytes each: busy and idle time, communication, copies, a named bottleneck.

    Damaged and torn traces are read as far as they hold whole records, and say so. Several ranks of one run are matched
    collective by collective. Exit code 1 when a file could not be read.
    """
    # There is no linear algebra in it; starting the threads for that costs more than reading a small trace.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from narrows.flows.reduce_command import reduce_traces

    return reduce_traces(list(traces), out, json_, workers, thresholds)


@app.command(group=RECORD)
def read(
    *files: Annotated[Path, Parameter(help="Files, or folders of files, of any kind that is known.")],
    pattern: Annotated[
        str | None,
        Parameter(help="For a training log of your own: a pattern with named groups, such as step, step_ms."),
    ] = None,
    json_: Json = False,
) -> int:
    """Read evidence that exists already: what kind it is, what it says, and what was not understood.

    Flight-recorder dumps, nccl-tests output, training logs, DCGM, nvidia-smi, ibstat, Slurm, topologies, nsys exports.
    The kind is found by the content, not by the name. Exit code 1 when a file could not be read.
    """
    from narrows.flows.read_command import read_files

    return read_files(list(files), json_, pattern)


@app.command(group=RECORD)
def compact(
    *runs: Annotated[Path, Parameter(help="Run directories of runs that are over.")],
    gzip: Annotated[bool, Parameter(help="Also pack the lines themselves, to .jsonl.gz.", negative="")] = False,
) -> int:
    """Write the records of a finished run once more as columns, which large runs are read from in seconds.

    What every command sees of the run stays the same, its digest too. The lines are kept.
    """
    from narrows.flows.compact_command import compact_runs

    return compact_runs(list(runs), pack_lines=gzip)
