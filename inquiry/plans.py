"""The experiments of the ladder: which arms, on which hosts and ranks, playing which shares of the batch."""

from __future__ import annotations

from dataclasses import replace

from narrows.inquiry.case import ArmSpec, Case
from narrows.inquiry.design import (
    CONTROL,
    DELAY_KNOB,
    DELAY_VARIABLE,
    DELAYED,
    HEALTHY,
    PERTURBED,
    REGRESSED,
    Arm,
    ArmKind,
    Experiment,
    Mode,
)
from narrows.inquiry.places import (
    joined,
    mirrored,
    parts_at,
    seat_of,
    seated,
    spare_hosts,
    suspect_host,
    unsuspected,
)
from narrows.inquiry.playbook import Play
from narrows.inquiry.scopes import SCOPE_RUNGS, Placement, Rung, Scope, placement
from narrows.inquiry.state import State

CURVE_SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20)
"""Bytes of the message-size sweep: two decades, which is enough to tell a slope from an intercept."""


SENSITIVITY_PAIRS = 2
"""One quadruple: both of its pairs must show the injected delay."""

GUESSED_STEP_MS = 50.0
"""For planning a recording, before any run of the case was read."""


def _base(
    case: Case,
    state: State,
    *,
    rung: Rung,
    scope: Scope,
    key: str,
    where: Placement,
    before: Arm,
    after: Arm,
    mode: Mode,
    differs: tuple[str, ...],
) -> Experiment:
    """An experiment whose single ranks take the local rank of the suspected device."""
    if scope is Scope.ONE_RANK and (seat := seat_of(case, state, before.shards[-1])):
        before, after = (seated(arm, where, seat) for arm in (before, after))
        where = placement(where.names, seat + 1)
    return unseated(
        case,
        state,
        rung=rung,
        scope=scope,
        key=key,
        where=where,
        before=before,
        after=after,
        mode=mode,
        differs=differs,
    )


def unseated(
    case: Case,
    state: State,
    *,
    rung: Rung,
    scope: Scope,
    key: str,
    where: Placement,
    before: Arm,
    after: Arm,
    mode: Mode,
    differs: tuple[str, ...],
) -> Experiment:
    """An experiment of the case with these arms, whose ranks are final."""
    judging = case.judging
    return Experiment(
        key=key,
        rung=rung,
        scope=scope,
        program=case.workload.program,
        before=before,
        after=after,
        placement=where,
        mode=mode,
        device=case.cluster.device,
        base=dict(case.workload.config),
        args=case.workload.args,
        differs=differs,
        num_shards=case.world_size,
        pairs=judging.pairs,
        max_pairs=max(judging.looks),
        steps=judging.steps,
        washout=judging.washout,
        seed=judging.seed,
        expected_step_s=float(state.opened.get("healthy_step_ms", GUESSED_STEP_MS)) / 1000,
        run_s=None if case.workload.builtin else state.opened.get("run_s"),
    )


def _arm(name: str, spec: ArmSpec, parts: tuple[int, ...], ranks: tuple[int, ...] = ()) -> Arm:
    return Arm(name=name, config=dict(spec.config), args=spec.args, env=dict(spec.env), ranks=ranks, shards=parts)


def differing(before: ArmSpec, after: ArmSpec) -> tuple[str, ...]:
    """The manifest fields in which two configurations declare to differ."""
    keys = [
        f"config.{key}"
        for key in sorted({*before.config, *after.config})
        if before.config.get(key) != after.config.get(key)
    ]
    if before.args != after.args:
        keys.append("argv")
    keys += [
        f"environment.{key}" for key in sorted({*before.env, *after.env}) if before.env.get(key) != after.env.get(key)
    ]
    return tuple(keys)


def node_set(
    case: Case,
    state: State,
    *,
    rung: Rung,
    scope: Scope,
    key: str,
    before: Placement,
    after: Placement,
    parts: tuple[int, ...],
    names: tuple[str, str],
    spec: ArmSpec,
) -> Experiment:
    """The same parts on two sets of hosts, never at the same time. Only the hosts differ."""
    whole, first, second = joined(before, after)
    return _base(
        case,
        state,
        rung=rung,
        scope=scope,
        key=key,
        where=whole,
        mode=Mode.NODE_SET,
        differs=("placement", "hosts", "groups"),
        before=_arm(names[0], spec, parts, first),
        after=_arm(names[1], spec, parts, second),
    )


def at_scope(case: Case, state: State, scope: Scope, rung: Rung | None = None) -> Experiment:
    """Healthy against regressed at ``scope``, on the hosts that the evidence points to."""
    where, parts = parts_at(case, state, scope)
    rung = rung or SCOPE_RUNGS[scope]
    key = f"{scope.value}-{REGRESSED}"
    work = case.workload
    if work.kind is ArmKind.PLACEMENT:
        return node_set(
            case,
            state,
            rung=rung,
            scope=scope,
            key=key,
            before=mirrored(case, where),
            after=where,
            parts=parts,
            names=(HEALTHY, REGRESSED),
            spec=work.regressed,
        )
    return _base(
        case,
        state,
        rung=rung,
        scope=scope,
        key=key,
        where=where,
        mode=case.judging.mode,
        before=_arm(HEALTHY, work.healthy, parts),
        after=_arm(REGRESSED, work.regressed, parts),
        differs=differing(work.healthy, work.regressed),
    )


def control(case: Case, state: State, scope: Scope) -> Experiment | None:
    """The same comparison where no loss is expected: on hosts that are not suspected."""
    suspect = suspect_host(case, state)
    spares = [host for host in spare_hosts(case, state) if host != suspect]
    if not spares:
        return None
    _, parts = parts_at(case, state, scope)
    width = 1 if scope is Scope.ONE_RANK else case.cluster.ranks_per_node
    work, key = case.workload, f"{scope.value}-{CONTROL}"
    if work.kind is ArmKind.PLACEMENT:
        good = mirrored(case, placement((suspect,), width))
        others = [host for host in spares if host not in good.names]
        if not others:
            return None
        return node_set(
            case,
            state,
            rung=SCOPE_RUNGS[scope],
            scope=scope,
            key=key,
            before=good,
            after=placement((others[0],), width),
            parts=parts,
            names=(HEALTHY, CONTROL),
            spec=work.regressed,
        )
    first = unsuspected(case, state, width)
    if first is None:
        return None
    return _base(
        case,
        state,
        rung=SCOPE_RUNGS[scope],
        scope=scope,
        key=key,
        where=placement((case.full_placement.host_of(first),), width),
        mode=case.judging.mode,
        before=_arm(HEALTHY, work.healthy, tuple(range(first, first + width))),
        after=_arm(REGRESSED, work.regressed, tuple(range(first, first + width))),
        differs=differing(work.healthy, work.regressed),
    )


def perturbed_spec(case: Case, play: Play) -> ArmSpec:
    """The regressed arm with the play's change laid over it."""
    spec = case.workload.regressed
    return replace(spec, config={**spec.config, **play.config}) if play.config else spec


def perturb(case: Case, state: State, play: Play, scope: Scope, rung: Rung, key: str) -> Experiment | None:
    """Regressed against perturbed at ``scope``: one change. None where the hosts leave nothing to change."""
    where, parts = parts_at(case, state, scope)
    work = case.workload
    names = (REGRESSED, PERTURBED)
    if play.placement == "replace":
        spares = spare_hosts(case, state)
        free = [host for host in spares if host not in where.names]
        if not free:
            return None
        suspect = suspect_host(case, state)
        after = Placement(hosts=tuple((free[0] if host == suspect else host, ranks) for host, ranks in where.hosts))
        return node_set(
            case,
            state,
            rung=rung,
            scope=scope,
            key=key,
            before=where,
            after=after,
            parts=parts,
            names=names,
            spec=work.regressed,
        )
    if play.placement == "colocate":
        # A host that takes the ranks of more than one other is crowded, which is a second change.
        if len(where.hosts) != 2:
            return None
        after = placement((where.names[0],), where.world_size)
        return node_set(
            case,
            state,
            rung=rung,
            scope=scope,
            key=key,
            before=where,
            after=after,
            parts=parts,
            names=names,
            spec=work.regressed,
        )
    spec = work.perturbed if play.id == "case" and work.perturbed else perturbed_spec(case, play)
    return _base(
        case,
        state,
        rung=rung,
        scope=scope,
        key=key,
        where=where,
        mode=case.judging.mode,
        before=_arm(REGRESSED, work.regressed, parts),
        after=_arm(PERTURBED, spec, parts),
        differs=differing(work.regressed, spec),
    )


def sensitivity(case: Case, experiment: Experiment, delay_ms: float) -> Experiment:
    """The first arm of ``experiment`` without and with a delay of every rank: could this scope show such an effect?"""
    before = experiment.before
    if case.workload.builtin:
        after, field = replace(before, config=before.config | {DELAY_KNOB: delay_ms}), f"config.{DELAY_KNOB}"
    else:
        after = replace(before, env=before.env | {DELAY_VARIABLE: f"{delay_ms:g}"})
        field = f"environment.{DELAY_VARIABLE}"
    return replace(
        experiment,
        key=f"{experiment.scope.value}-sensitivity",
        after=replace(after, name=DELAYED),
        # Both arms are on the same ranks and differ in a delay, which can be switched on inside of one launch.
        mode=Mode.SWITCHBACK if case.workload.builtin or experiment.mode is Mode.NODE_SET else experiment.mode,
        differs=(field,),
        pairs=SENSITIVITY_PAIRS,
        max_pairs=SENSITIVITY_PAIRS,
    )


def message_sizes(scope: Scope, experiment: Experiment) -> Experiment:
    """The operation of the application, outside of it, over message sizes, with the arms of ``experiment``."""
    return replace(
        experiment,
        key=f"{scope.value}-curve",
        program="collective",
        sizes_bytes=CURVE_SIZES,
        pairs=6,
        max_pairs=6,
        # A sweep can always take turns inside one launch.
        mode=Mode.NODE_SET if experiment.mode is Mode.NODE_SET else Mode.SWITCHBACK,
        expected_step_s=experiment.expected_step_s * len(CURVE_SIZES),
    )


def soak(case: Case, experiment: Experiment) -> Experiment:
    """The same arms in fewer, longer turns."""
    turns = 2 * 4
    steps = max(experiment.steps, -(-case.judging.soak_steps // turns))
    return replace(experiment, key="soak", rung=Rung.SOAK, pairs=4, max_pairs=4, steps=steps)
