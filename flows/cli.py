"""The command line. Prefect and torch are imported by the commands that need them, never for help."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Group, Parameter

from narrows.inquiry.errors import CaseError, NarrowsError
from narrows.inquiry.scopes import Rung

DONE, ERROR, USAGE, INCONCLUSIVE, FOUND = 0, 1, 2, 3, 4

_INVESTIGATE = Group("Find a cause", sort_key=1)
_RECORD = Group("Record and read runs", sort_key=2)
_SERVE = Group("Follow", sort_key=3)

app = App(
    name="narrows",
    help="Narrow a distributed-training slowdown to the smallest experiment that still shows it.\n\n"
    "Start with `narrows demo`: it records a regression on this machine, without a GPU, and explains it.",
    version=lambda: version("narrows"),
    help_epilogue="Exit codes: 0 done, 1 error, 2 bad usage or case file, 3 inconclusive, 4 a gate found something.",
    suppress_keyboard_interrupt=False,  # it would exit without a word; _guarded says how to go on
)

NoUi = Annotated[bool, Parameter(name="--no-ui", negative="", help="Run without the Prefect server and its pages.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object, and nothing else.")]


@app.command(group=_INVESTIGATE)
def demo(
    name: Annotated[str, Parameter(help="The worked case; `--list` names them.")] = "packing",
    /,
    *,
    out: Annotated[Path | None, Parameter(help="Folder to write to; default narrows-demo/NAME.")] = None,
    seed: Annotated[int | None, Parameter(help="Another seed: other documents, another order of the arms.")] = None,
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


@app.command(group=_INVESTIGATE)
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

    rung = _rung(until) if until is not None else None
    return commands.investigate(case, yes=yes, resume=resume, fresh=fresh, until=rung, no_ui=no_ui, as_json=json_)


def _rung(text: str) -> Rung:
    for rung in Rung:
        if text.strip().lower() in (str(rung.number), rung.value, rung.label):
            return rung
    names = ", ".join(rung.label for rung in Rung)
    raise CaseError(f"--until {text}: there is no such rung; expected one of {names}")


@app.command(group=_INVESTIGATE)
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


@app.command(group=_INVESTIGATE)
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


@app.command(group=_INVESTIGATE)
def check(case: Annotated[Path, Parameter(help="The case file.")], /, *, json_: Json = False) -> int:
    """Check a case file: every problem with its line, its key, the rule and what was expected.

    Reads the runs that it names, and says what an investigation would do first. Launches nothing.
    """
    from narrows.flows import commands

    return commands.check(case, as_json=json_)


@app.command(group=_INVESTIGATE)
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


@app.command(group=_INVESTIGATE)
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
        float | None, Parameter(help="Exit 4 when the step got slower by more than so many percent.")
    ] = None,
    topology: Annotated[
        Path | None, Parameter(help="Where hosts and ranks sit: JSON, Slurm's topology.conf, or an NCCL topology.")
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
        topology=topology,
    )  # fmt: skip


@app.command(group=_RECORD)
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

    return run_instrumented(list(program), out, join=join)


@app.command(group=_RECORD)
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


@app.command(group=_RECORD)
def reduce(
    *traces: Annotated[Path, Parameter(help="Kineto traces (.json, .json.gz), or folders of them.")],
    out: Annotated[Path | None, Parameter(help="Folder for the reduced traces, NAME.reduced.json each.")] = None,
    workers: Annotated[int, Parameter(help="Traces read at the same time.")] = 1,
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


@app.command(group=_RECORD)
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


@app.command(group=_RECORD)
def compact(
    *runs: Annotated[Path, Parameter(help="Run directories of runs that are over.")],
    gzip: Annotated[bool, Parameter(help="Also pack the lines themselves, to .jsonl.gz.", negative="")] = False,
) -> int:
    """Write the records of a finished run once more as columns, which large runs are read from in seconds.

    What every command sees of the run stays the same, its digest too. The lines are kept.
    """
    from narrows.flows.compact_command import compact_runs

    return compact_runs(list(runs), pack_lines=gzip)


@app.command(group=_SERVE)
def approve(
    which: Annotated[
        str | None, Parameter(help="The case, or the flow run's id; without it, what waits is listed.")
    ] = None,
    /,
    *,
    decision: Annotated[Literal["approve", "skip", "abort"], Parameter(help="What to answer.")] = "approve",
    reason: Annotated[str, Parameter(help="Why; it goes into the case's docket.")] = "",
    by: Annotated[str | None, Parameter(help="Who decides; default the user's name.")] = None,
    json_: Json = False,
) -> int:
    """Answer an investigation that waits because a launch costs more than its case's ask line.

    The same can be done on the run's page. `skip` leaves the experiment out, `abort` ends the investigation.
    """
    from narrows.flows import commands

    return commands.approve(which, decision=decision, reason=reason, by=by, as_json=json_)


@app.command(group=_SERVE)
def doctor(
    *,
    folder: Annotated[Path, Parameter(help="Where cases and runs are kept.")] = Path(),
    launch: Annotated[bool, Parameter(help="Start two ranks by torchrun for a few steps.")] = True,
    json_: Json = False,
) -> int:
    """Check this machine, its server and its launcher, and say what to fix.

    Versions, the Prefect server and its database, who may use it, clocks, storage, GPUs, limits, torchrun. Starts no
    server and changes nothing. Exit code 4 where something is broken.
    """
    from narrows.flows.doctor import doctor as examine

    return examine(folder, launch=launch, as_json=json_)


@app.command(group=_SERVE)
def claims(
    action: Annotated[Literal["list", "show", "check", "propose", "accept"], Parameter(help="What to do.")] = "list",
    name: Annotated[str | None, Parameter(help="The claim; for `propose` the case.")] = None,
    /,
    *,
    folder: Annotated[
        Path | None, Parameter(name="--claims", help="Folder of claims; default NARROWS_CLAIMS, or ./claims.")
    ] = None,
    json_: Json = False,
) -> int:
    """List, show, check, propose or accept claims: explanations that were accepted, with what they depend on.

    A case that ends explained proposes its claim beside its case file, in claims/NAME.yaml.proposed. `accept` puts a
    proposal in force; so does moving the file in a review. `check` reads all of them, and says what is wrong by line.
    """
    from narrows.flows.claims_command import claims as run_claims

    return run_claims(action, name, folder, as_json=json_)


@app.command(group=_SERVE)
def revalidate(
    *names: Annotated[str, Parameter(help="The claims; default all of them.")],
    folder: Annotated[
        Path | None, Parameter(name="--claims", help="Folder of claims; default NARROWS_CLAIMS, or ./claims.")
    ] = None,
    hosts: Annotated[tuple[str, ...], Parameter(consume_multiple=True, help="Look at these hosts alone.")] = (),
    state: Annotated[
        Path | None, Parameter(help="Where `narrows watch` keeps fingerprints; default NARROWS_HOSTS.")
    ] = None,
    run_: Annotated[Path | None, Parameter(name="--run", help="A run directory of the job as it runs now.")] = None,
    every: Annotated[bool, Parameter(name="--all", negative="", help="Run them whatever changed.")] = False,
    yes: Annotated[bool, Parameter(negative="", help="Approve every launch beforehand.")] = False,
    serve: Annotated[bool, Parameter(negative="", help="Stay, and run by cron and when a host changed.")] = False,
    cron: Annotated[str | None, Parameter(help="With --serve: when, as in crontab.")] = "0 5 * * 1",
    within: Annotated[
        float, Parameter(help="With --serve: hosts of a cluster that change within so many seconds start one run.")
    ] = 3600.0,
    settle: Annotated[
        float, Parameter(help="With --serve: a run begins once no host was looked at for so many seconds.")
    ] = 60.0,
    no_ui: NoUi = False,
    json_: Json = False,
) -> int:
    """Run claims again whose driver, firmware, libraries or age changed: do they still hold?

    Each ends as holds, no longer reproduces, range moved, or inconclusive. The smallest experiment is registered
    first and judged as in an investigation. Exit code 4 where something no longer holds, 3 undecided.
    """
    from narrows.flows import revalidating_command as commands

    if serve:
        return commands.serve(claims=folder, state=state, cron=cron, within_s=within, settle_s=settle)
    return commands.revalidate(
        names, claims=folder, hosts=hosts, state=state, run=run_, every=every, yes=yes, no_ui=no_ui, as_json=json_
    )


@app.command(name="canary-rollout", group=_SERVE)
def canary_rollout(
    *,
    upgraded: Annotated[str, Parameter(help="The upgraded hosts, such as node[01-04] or n1,n2.")],
    control: Annotated[str, Parameter(help="Hosts that were not upgraded, at least as many.")],
    case: Annotated[Path | None, Parameter(help="A case file whose work is played; default the built-in step.")] = None,
    before: Annotated[
        bool, Parameter(negative="", help="Nothing is upgraded yet: measure the baseline of these two sets.")
    ] = False,
    baseline: Annotated[
        list[Path] | None,
        Parameter(
            help="What the sets measured before: a roll-out's folder, or run directories of both. Default the newest "
            "--before of the same sets in the workspace.",
            consume_multiple=True,
        ),
    ] = None,
    margin: Annotated[
        float | None, Parameter(help="Percent of the control's step that the upgrade may cost; default 1.")
    ] = None,
    max_pairs: Annotated[int | None, Parameter(help="Pairs at the last look; default 12.")] = None,
    steps: Annotated[int | None, Parameter(help="Steps of one turn of a set, washout included.")] = None,
    ranks_per_node: Annotated[int | None, Parameter(help="Ranks on each host; default one for each GPU here.")] = None,
    device: Annotated[str | None, Parameter(help="cuda, cpu or emulated; default cuda where there are GPUs.")] = None,
    step_ms: Annotated[float | None, Parameter(help="Roughly how long a step takes, for cost and time limits.")] = None,
    workspace: Annotated[
        Path | None, Parameter(help="Folder that keeps rollouts/; default the case file's, or this one.")
    ] = None,
    state: Annotated[
        Path | None, Parameter(help="Where `narrows watch` keeps fingerprints; default NARROWS_HOSTS.")
    ] = None,
    yes: Annotated[bool, Parameter(negative="", help="Approve every launch beforehand.")] = False,
    no_ui: NoUi = False,
    json_: Json = False,
) -> int:
    """Judge an upgrade on its first hosts, against hosts that were not upgraded yet.

    Both sets take turns at the same work, and the rule is that of an investigation. A baseline from before the upgrade
    tells slower hosts from a slower upgrade. Exit code 0: admitted; 4: regressed; 3: undecided.
    """
    from narrows.flows.canary_rollout_command import canary_rollout as run_canary
    from narrows.flows.canary_rollout_sets import Wanted

    wanted = Wanted(
        upgraded=upgraded, control=control, case=case, before=before, margin_percent=margin, max_pairs=max_pairs,
        steps=steps, ranks_per_node=ranks_per_node, device=device, step_ms=step_ms,
    )  # fmt: skip
    return run_canary(
        wanted, baseline=baseline or [], workspace=workspace, state=state, yes=yes, no_ui=no_ui, as_json=json_
    )


@app.command(group=_SERVE)
def watch(
    *,
    once: Annotated[bool, Parameter(negative="", help="Look once, as at the end of a job.")] = False,
    interval: Annotated[float, Parameter(help="Otherwise look every so many seconds.")] = 300.0,
    state: Annotated[Path | None, Parameter(help="Where fingerprints are kept; default NARROWS_HOSTS.")] = None,
    host: Annotated[str | None, Parameter(help="This host's name; default NARROWS_HOST, or its own.")] = None,
    cluster: Annotated[str | None, Parameter(help="The cluster; default SLURM_CLUSTER_NAME.")] = None,
    strict: Annotated[
        bool, Parameter(negative="", help="With --once: exit 4 where it changed, 1 where that could not be told.")
    ] = False,
    json_: Json = False,
) -> int:
    """Tell the Prefect server when this host's driver, firmware, kernel or libraries changed.

    Fit for a Slurm epilog or a DaemonSet: it needs seconds, starts nothing, and without --strict never fails. What the
    server did not take is sent again the next time.
    """
    from narrows.flows.watch import watch as run_watch

    return run_watch(
        once=once, interval_s=interval, state=state, host=host, cluster=cluster, strict=strict, as_json=json_
    )


@app.command(group=_SERVE)
def ui() -> int:
    """Keep the local Prefect server up, to read the boards of earlier investigations; Ctrl-C ends it."""
    from narrows.flows import server

    server.hold_server(note=print)
    return DONE


def main(argv: list[str] | None = None) -> None:
    """The console script. One line for what is wrong, no traceback, unless ``--debug`` stands first."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = bool(words) and words[0] == "--debug"
    words = words[1:] if debug else words
    # Whoever asks a job to end by SIGTERM gets the same clean end as with Ctrl-C: nothing is left running.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = _guarded(
            lambda: app(words, exit_on_error=False, print_error=False, result_action="return_value"), debug=debug
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(code)


def _guarded(command: Callable[[], object], *, debug: bool) -> int:
    try:
        result = command()
    except CycloptsError as error:
        return _complain(f"{error}".strip() + " (narrows --help lists the commands)", USAGE)
    except CaseError as error:
        if debug:
            raise
        for place in error.places:
            _complain(place, USAGE)
        return USAGE
    except (NarrowsError, ValueError) as error:
        if debug:
            raise
        return _complain(str(error), ERROR)
    except KeyboardInterrupt:
        return _complain("interrupted; `narrows investigate CASE --resume` goes on from here", 130)
    return result if isinstance(result, int) else DONE


def _complain(message: str, code: int) -> int:
    print(f"narrows: {message}", file=sys.stderr)
    return code
