"""What a canary roll-out is asked for: two sets of hosts, and the work that both play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from narrows.flows.casefile import DEVICES, load_case
from narrows.flows.checked_yaml import HOST
from narrows.inquiry.design import ArmKind
from narrows.inquiry.errors import CaseError
from narrows.inquiry.rollout import Rollout
from narrows.reducers.readers.slurm import expanded


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The command's options. What is None comes from ``case``, or is the usual value where no case is given."""

    upgraded: str
    control: str
    case: Path | None = None
    before: bool = False
    margin_percent: float | None = None
    max_pairs: int | None = None
    steps: int | None = None
    ranks_per_node: int | None = None
    device: str | None = None
    step_ms: float | None = None


def rollout_of(wanted: Wanted) -> tuple[Rollout, tuple[str, ...]]:
    """The roll-out, and the control hosts that are left out because there are more than upgraded ones.

    Raises ``CaseError`` for sets that cannot be compared, options out of range, or a case file that is refused.
    """
    upgraded, control, left_out = read_sets(wanted.upgraded, wanted.control)
    found = _from_case(wanted.case, upgraded, control) if wanted.case else _built_in(upgraded, control)
    judging = replace(
        found.judging,
        margin_percent=_checked("--margin", wanted.margin_percent, found.judging.margin_percent, 0, 100),
        steps=round(_checked("--steps", wanted.steps, found.judging.steps, found.judging.washout, 1 << 31)),
        looks=_looks(wanted.max_pairs, found.judging.looks),
    )
    if wanted.device is not None and wanted.device not in DEVICES:
        raise CaseError(f"--device {wanted.device}: expected one of {', '.join(DEVICES)}")
    rollout = replace(
        found,
        judging=replace(judging, pairs=min(judging.pairs, judging.looks[-1])),
        ranks_per_node=round(_checked("--ranks-per-node", wanted.ranks_per_node, found.ranks_per_node, 0, 1 << 16)),
        device=wanted.device or found.device,
        step_ms=_checked("--step-ms", wanted.step_ms, found.step_ms, 0, 1e9),
        before=wanted.before,
    )
    return rollout, left_out


def read_sets(upgraded: str, control: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The upgraded hosts, as many control hosts, and the control hosts beyond that. Lists are written as Slurm does.

    Raises ``CaseError`` for a list that is no list of hosts, a host that stands twice, or too few control hosts.
    """
    first, second = _hosts("--upgraded", upgraded), _hosts("--control", control)
    both = [host for host in first if host in second]
    if both:
        raise CaseError(f"{', '.join(both)}: in both sets; a host is upgraded or it is not, so name it once")
    if len(second) < len(first):
        raise CaseError(
            f"--control names {len(second)} hosts for {len(first)} upgraded ones; both sets play the same job, so give "
            "at least as many control hosts, or judge fewer upgraded hosts at a time"
        )
    return first, second[: len(first)], second[len(first) :]


def _hosts(option: str, text: str) -> tuple[str, ...]:
    try:
        hosts = tuple(host.strip() for host in expanded(text) if host.strip())
    except ValueError as error:
        raise CaseError(f"{option} {error}; expected names such as node[01-04],gpu7") from None
    wrong = [host for host in hosts if not HOST.fullmatch(host)]
    if wrong or not hosts:
        what = f"holds {wrong[0]!r}" if wrong else "names no host"
        raise CaseError(f"{option} {text!r}: {what}; expected names such as node[01-04],gpu7")
    twice = [host for host in dict.fromkeys(hosts) if hosts.count(host) > 1]
    if twice:
        raise CaseError(f"{option} {text!r}: names {', '.join(twice)} twice; name each host once")
    return hosts


def _built_in(upgraded: tuple[str, ...], control: tuple[str, ...]) -> Rollout:
    gpus = _num_gpus()
    return Rollout(
        upgraded=upgraded,
        control=control,
        program="step",
        builtin=True,
        ranks_per_node=gpus or 1,
        device="cuda" if gpus else "emulated",
        launcher="local",
    )


def _num_gpus() -> int:
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _from_case(path: Path, upgraded: tuple[str, ...], control: tuple[str, ...]) -> Rollout:
    """The work of a case file: of its healthy arm, or of the other one where the healthy run is historical."""
    case = load_case(path, recorded=False)
    work = case.workload
    spec = work.regressed if work.kind is ArmKind.HISTORICAL else work.healthy
    program = work.program if work.builtin else str((path.resolve().parent / work.program).resolve())
    return Rollout(
        upgraded=upgraded,
        control=control,
        program=program,
        builtin=work.builtin,
        ranks_per_node=case.cluster.ranks_per_node,
        device=case.cluster.device,
        launcher=case.cluster.launcher,
        spec=replace(spec, hosts=()),
        config=dict(work.config),
        args=work.args,
        budget=case.budget,
        judging=case.judging,
    )


def _checked(option: str, given: float | None, usual: float, above: float, most: float) -> float:
    value = usual if given is None else given
    if not above < value <= most:
        raise CaseError(f"{option} {value:g}: expected a number above {above:g} and at most {most:g}")
    return value


def _looks(most: int | None, usual: Sequence[int]) -> tuple[int, ...]:
    """The usual looks, the last one after ``most`` pairs."""
    if most is None:
        return tuple(usual)
    if most < usual[0]:
        raise CaseError(f"--max-pairs {most}: the first look comes after {usual[0]} pairs, so give at least that")
    return (*(look for look in usual if look < most), most)
