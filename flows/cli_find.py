"""The commands that find a cause: a case from its file to its board, and two runs compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from narrows.flows.cli_app import FIND, Json, NoUi, app, number
from narrows.inquiry.errors import CaseError
from narrows.inquiry.scopes import Rung


@app.command(group=FIND)
def demo(
    name: Annotated[str, Parameter(help="The worked case; `--list` names them.")] = "packing",
    /,
    *,
    out: Annotated[Path | None, Parameter(help="Folder to write to; default narrows-demo/NAME.")] = None,
    seed: Annotated[
        int | None, Parameter(help="Another seed: other documents, another order of the arms.", validator=number(0))
    ] = None,
    list_: Annotated[bool, Parameter(name="--list", negative="", help="Name the worked cases and stop.")] = False,
    no_ui: NoUi = False,
    json_: Json = False,
) -> int:
    """Record a worked regression at full scale, then investigate it to its postmortem.

    Everything runs here: torchrun with gloo, an emulated accelerator, a local Prefect server. It takes a few minutes
    and asks nothing. The folder holds the case file, both runs, and all evidence; look around, then write your own.
    """
    from narrows.flows import commands

    if list_:
        return commands.list_demos(as_json=json_)
    return commands.demo(name, out=out, seed=seed, no_ui=no_ui, as_json=json_)


@app.command(group=FIND)
def investigate(
    case: Annotated[Path, Parameter(help="The case file.")],
    /,
    *,
    yes: Annotated[bool, Parameter(negative="", help="Approve every launch beforehand; for unattended use.")] = False,
    resume: Annotated[
        bool, Parameter(negative="", help="Go on where an earlier run stopped; nothing is run again.")
    ] = False,
    fresh: Annotated[
        bool, Parameter(negative="", help="Start over; the earlier investigation is kept beside it.")
    ] = False,
    until: Annotated[str | None, Parameter(help="Stop after this rung: its number, 1 to 10, or its name.")] = None,
    no_ui: NoUi = False,
    json_: Json = False,
) -> int:
    """Narrow the regression of a case file, rung by rung, and write its postmortem.

    Each hypothesis is put on record with its prediction and its rejection criterion before anything runs. Launches
    that cost more than the case's ask line wait for approval. Results are in cases/NAME beside the case file.
    """
    from narrows.flows import commands

    if resume and fresh:
        raise ValueError("--resume goes on and --fresh starts over; give one of them")
    rung = _rung(until) if until is not None else None
    return commands.investigate(case, yes=yes, resume=resume, fresh=fresh, until=rung, no_ui=no_ui, as_json=json_)


def _rung(text: str) -> Rung:
    for rung in Rung:
        if text.strip().lower() in (str(rung.number), rung.value, rung.label):
            return rung
    names = ", ".join(rung.label for rung in Rung)
    raise CaseError(f"--until {text}: there is no such rung; expected one of {names}")


@app.command(group=FIND)
def show(
    case: Annotated[str, Parameter(help="A case file, a case's folder, or the name of a case in ./cases.")],
    /,
    *,
    json_: Json = False,
) -> int:
    """Print the board of a case: every hypothesis with its prediction, its verdict and its numbers.

    It reads the case's docket, so it may be asked at any time, also while the investigation runs. It changes nothing.
    """
    from narrows.flows import commands

    return commands.show(case, as_json=json_)


@app.command(group=FIND)
def plan(
    case: Annotated[Path, Parameter(help="The case file.")],
    /,
    *,
    pilot: Annotated[
        list[Path] | None,
        Parameter(
            help="Run directories of identical runs, one after the other, to take the noise from.",
            consume_multiple=True,
        ),
    ] = None,
    json_: Json = False,
) -> int:
    """Say how many pairs each scope of a case needs, what that costs, and what cannot be decided with the budget.

    The noise comes from a pilot of identical runs, else from the pairs that the given runs hold. Launches nothing, and
    does not begin the case. Exit code 3 where something cannot be decided.
    """
    from narrows.flows.plan_command import plan as plan_case

    return plan_case(case, pilot or [], as_json=json_)


@app.command(group=FIND)
def check(case: Annotated[Path, Parameter(help="The case file.")], /, *, json_: Json = False) -> int:
    """Check a case file: every problem with its line, its key, the rule and what was expected.

    Reads the runs that it names, and says what an investigation would do first. Launches nothing.
    """
    from narrows.flows import commands

    return commands.check(case, as_json=json_)


@app.command(group=FIND)
def reproduce(
    case: Annotated[str, Parameter(help="A case file, a case's folder, or the name of a case in ./cases.")],
    /,
    *,
    json_: Json = False,
) -> int:
    """Run the smallest experiment that showed a case's loss again, and say whether it still does.

    The record stays as it is; what is run goes into reproductions/ in the case's folder. Exit code 0: the loss is
    there; 4: it is gone; 3: undecided.
    """
    from narrows.flows import commands

    return commands.reproduce(case, as_json=json_)


@app.command(group=FIND)
def compare(
    healthy: Annotated[Path, Parameter(help="A run directory, a folder of them, traces, reduced traces, or a log.")],
    regressed: Annotated[Path, Parameter(help="The same of the run that got slower.")],
    /,
    *,
    markdown: Annotated[bool, Parameter(negative="", help="Print markdown instead of plain text.")] = False,
    html: Annotated[Path | None, Parameter(help="Write a self-contained page with pictures to this file.")] = None,
    case: Annotated[Path | None, Parameter(help="Write a case file for `narrows investigate` to this file.")] = None,
    statistic: Annotated[
        str, Parameter(help="What stands for a run: mean, median, p25, low50, p95, p99, es95.")
    ] = "mean",
    gate: Annotated[
        float | None,
        Parameter(help="Exit 4 when the step got slower by more than so many percent.", validator=number(0)),
    ] = None,
    topology: Annotated[
        Path | None, Parameter(help="Where hosts and ranks sit: JSON, Slurm's topology.conf, or an NCCL topology.")
    ] = None,
    thresholds: Annotated[
        Path | None, Parameter(help="A YAML file with thresholds of your own for the labels.")
    ] = None,
    pattern: Annotated[
        str | None, Parameter(help="Read logs by this regular expression, with the groups step and step_ms.")
    ] = None,
    json_: Json = False,
) -> int:
    """Compare two runs without launching anything: where the time went, on which ranks, and what to try next.

    It describes what the files hold, and says what they cannot show. Fewer than four pairs of runs that took turns are
    described, not tested. The last lines name the next experiment with its prediction.
    """
    from narrows.flows.compare_command import compare as run_comparison

    return run_comparison(
        healthy, regressed, markdown=markdown, as_json=json_, html=html, case_out=case, statistic=statistic, gate=gate,
        topology=topology, thresholds=thresholds, pattern=pattern,
    )  # fmt: skip
