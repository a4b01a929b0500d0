"""The commands that follow: what waits for a person, claims, upgrades, this machine and its server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from narrows.flows.cli_app import FOLLOW, Json, NoUi, app, number
from narrows.flows.exits import DONE


@app.command(group=FOLLOW)
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


@app.command(group=FOLLOW)
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


@app.command(group=FOLLOW)
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

    if action == "list" and name is not None:
        raise ValueError(f"claims list takes no name; `narrows claims show {name}` prints one")
    return run_claims(action, name, folder, as_json=json_)


@app.command(group=FOLLOW)
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
        float,
        Parameter(
            help="With --serve: hosts of a cluster that change within so many seconds start one run.",
            validator=number(0),
        ),
    ] = 3600.0,
    settle: Annotated[
        float,
        Parameter(
            help="With --serve: a run begins once no host was looked at for so many seconds.", validator=number(0)
        ),
    ] = 60.0,
    no_ui: NoUi = False,
    json_: Json = False,
) -> int:
    """Run claims again whose driver, firmware, libraries or age changed: do they still hold?

    Each ends as holds, no longer reproduces, range moved, or inconclusive. The smallest experiment is registered
    first and judged as in an investigation. Exit code 4 where something no longer holds, 2 where a claim's file could
    not be read (the others are run), 3 undecided.
    """
    from narrows.flows import revalidating_command as commands

    if serve:
        return commands.serve(claims=folder, state=state, cron=cron, within_s=within, settle_s=settle)
    return commands.revalidate(
        names, claims=folder, hosts=hosts, state=state, run=run_, every=every, yes=yes, no_ui=no_ui, as_json=json_
    )


@app.command(name="canary-rollout", group=FOLLOW)
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


@app.command(group=FOLLOW)
def watch(
    *,
    once: Annotated[bool, Parameter(negative="", help="Look once, as at the end of a job.")] = False,
    interval: Annotated[
        float, Parameter(help="Otherwise look every so many seconds.", validator=number(0, above=True))
    ] = 300.0,
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


@app.command(group=FOLLOW)
def ui() -> int:
    """Keep the local Prefect server up, to read the boards of earlier investigations; Ctrl-C ends it."""
    from narrows.flows import server

    server.hold_server(note=print)
    return DONE
