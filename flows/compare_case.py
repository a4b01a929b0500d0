"""The case file of a comparison: program, arms, cluster and runs, as the manifests of the runs record them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from narrows.flows.casefile import DEVICES, UNKNOWN_DIFFERENCE, load_case
from narrows.flows.checked_yaml import FILL_IN
from narrows.inquiry.design import ArmKind
from narrows.inquiry.errors import CaseError
from narrows.inquiry.workloads import builtin_name, defaults
from narrows.reducers.compared_parts import Comparison
from narrows.reducers.evidence import relative
from narrows.reducers.manifest_rules import DifferenceKind
from narrows.reducers.manifests import ABSENT

HEAD = "# Written by `narrows compare` from the runs' manifests. Look at the budget, then: narrows investigate {name}\n"
_TO_FILL_IN = "is to be filled in"
_DIFFERENCES_SHOWN = 8
_NO_NAME = re.compile(r"[^a-z0-9]+")
_PLUMBING = re.compile(
    r"(RANK|WORLD_SIZE|MASTER_\w+|LOCAL_\w+|GROUP_\w+|ROLE_\w+|TORCHELASTIC_\w+|NARROWS_\w+|SLURM_\w+)$"
)


def write_case(path: Path, found: Comparison, healthy: Sequence[Path], regressed: Sequence[Path]) -> tuple[str, ...]:
    """Writes a case file that ``narrows check`` and ``narrows investigate`` accept, and says what is to be filled in.

    What the manifests do not tell stands in it as ``FILL IN: ...``, and `narrows check` asks for it. ``healthy`` and
    ``regressed`` are the run directories of the arms. Raises ``CaseError`` where the file is already there, or where
    no filling in would make a case of the runs; nothing is left behind then.
    """
    if path.exists():
        raise CaseError(f"{path} is already there; give another file, or move it away")
    manifests = _manifest(healthy[0]), _manifest(regressed[0])
    layouts = _layout(manifests[0], healthy[0]), _layout(manifests[1], regressed[0])
    folder = path.resolve().parent
    case = {
        "case": _NO_NAME.sub("-", path.stem.lower()).strip("-")[:63] or "compared",
        "question": _question(found),
        "runs": {"healthy": _places(healthy, folder), "regressed": _places(regressed, folder)},
        "workload": _workload(manifests, layouts, found, folder),
        "cluster": _cluster(manifests[1], layouts),
    }
    if found.statistic != "mean":
        case["judge"] = {"statistic": found.statistic}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(case, sort_keys=False, default_flow_style=None, width=1000, allow_unicode=True)
    path.write_text(HEAD.format(name=path.name) + _commented(text, found), encoding="utf-8")
    return _still_open(path, text)


def _still_open(path: Path, text: str) -> tuple[str, ...]:
    """What `narrows check` says of the file; it stays only where filling in is all that it needs."""
    try:
        kind = load_case(path).workload.kind
    except CaseError as error:
        if FILL_IN in text:
            return tuple(one for one in error.places if _TO_FILL_IN in one) or (str(error),)
        path.unlink()
        raise CaseError(f"{path}: no case can be made of these runs: {error}") from error
    return (f"{path}: {UNKNOWN_DIFFERENCE}",) if kind is ArmKind.HISTORICAL else ()


def _commented(text: str, found: Comparison) -> str:
    """The text with a line above each value that is open, and above a healthy arm that cannot be run again."""
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if FILL_IN in line:
            lines.append(f"{indent}# To be filled in; the runs do not tell it.")
        elif line.strip() == "healthy: historical":
            lines.append(f"{indent}# To be filled in: {UNKNOWN_DIFFERENCE}.")
            lines += [f"{indent}# The manifests differ in {one}" for one in _told_differences(found)]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _told_differences(found: Comparison) -> list[str]:
    shown = [f"{one['field']}: {one['healthy']} -> {one['regressed']}" for one in found.differences if one["possible"]]
    return [" ".join(one.split()) for one in shown[:_DIFFERENCES_SHOWN]]


def _manifest(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "manifest.json").read_text(encoding="utf-8")))


def _question(found: Comparison) -> str:
    step, percent = found.step, 100 * found.step.delta / found.step.healthy
    return (
        f"The step went from {step.healthy:.4g} ms to {step.regressed:.4g} ms ({percent:+.1f} %); what takes the time?"
    )


def _places(runs: Sequence[Path], folder: Path) -> str | list[str]:
    places = [os.path.relpath(run.resolve(), folder) for run in runs]
    return places[0] if len(places) == 1 else places


Arm = dict[str, Any] | str
"""What an arm sets, or a text that says what is to be filled in."""
Layout = tuple[tuple[str, ...], int]
"""The hosts of the ranks that took part, in order, and the ranks on each."""


def _layout(manifest: dict[str, Any], run: Path) -> Layout:
    placed = {one["rank"]: one["host"] for one in manifest.get("placement") or []}
    active = {rank: host for rank, host in placed.items() if _has_steps(run, rank)} or placed
    hosts = [active[rank] for rank in sorted(active)]
    names = tuple(dict.fromkeys(hosts))
    counts = {hosts.count(name) for name in names}
    if len(counts) != 1:
        raise CaseError(
            f"{run}: hosts hold {sorted(counts) or 'no'} ranks; a case needs the same number of ranks on each host"
        )
    return names, counts.pop()


def _has_steps(run: Path, rank: int) -> bool:
    """Whether the rank wrote more than its header: a rank that sat the job out is no part of its shape."""
    file = run / "ranks" / f"{rank:05d}" / "steps.jsonl"
    if not file.is_file():
        return False
    with file.open("rb") as lines:
        return sum(1 for _, _ in zip(range(2), lines, strict=False)) > 1


def _cluster(manifest: dict[str, Any], layouts: tuple[Layout, Layout]) -> dict[str, Any]:
    (first, _), (second, per_node) = layouts
    device = manifest.get("device")
    if device not in DEVICES:
        device = f"{FILL_IN}one of {', '.join(DEVICES)}; the manifest names {device!r}"
    hosts = list(dict.fromkeys((*second, *first)))
    return {"launcher": "local", "nodes": len(second), "ranks_per_node": per_node, "hosts": hosts, "device": device}


def _workload(
    manifests: tuple[dict[str, Any], dict[str, Any]],
    layouts: tuple[Layout, Layout],
    found: Comparison,
    folder: Path,
) -> dict[str, Any]:
    programs = [str(one.get("program") or "") for one in manifests]
    builtin = builtin_name(programs[1])
    if builtin is not None:
        shared, settings = _settings(manifests, builtin)
        arms: tuple[Arm, Arm] = settings
        common: dict[str, Any] = {"program": builtin, **({"config": shared} if shared else {})}
    else:
        common = {"program": _script(manifests[1], folder)}
        args, arms = _arguments(manifests, found)
        # An empty list keeps what is to be filled in on lines of their own.
        common |= {"args": args} if args or isinstance(arms[0], str) else {}
    return common | _arms(arms, layouts)


def _arms(arms: tuple[Arm, Arm], layouts: tuple[Layout, Layout]) -> dict[str, Any]:
    """Configurations where they differ, else hosts where those do, else the healthy run as it was recorded."""
    (first, first_count), (second, second_count) = layouts
    if arms[0] != arms[1] or isinstance(arms[0], str):
        return {"healthy": arms[0], "regressed": arms[1]}
    if first != second and (len(first), first_count) == (len(second), second_count):
        return {"healthy": {"hosts": list(first)}, "regressed": {"hosts": list(second)}}
    return {"healthy": "historical", "regressed": {}}


def _settings(
    manifests: tuple[dict[str, Any], dict[str, Any]], builtin: str
) -> tuple[dict[str, Any], tuple[dict[str, Any], dict[str, Any]]]:
    """What both arms set beside the defaults, and what each sets that the other does not."""
    usual = defaults(builtin)
    before, after = ({**usual, **dict(one.get("config") or {})} for one in manifests)
    shared = {key: value for key, value in after.items() if before.get(key) == value and usual.get(key) != value}
    differing = [key for key in after if before.get(key) != after[key]]
    arms = {key: _trimmed(before[key]) for key in differing}, {key: _trimmed(after[key]) for key in differing}
    return {key: _trimmed(value) for key, value in shared.items()}, arms


def _trimmed(value: Any) -> Any:
    """A mapping without its empty texts, which stand for what was not set."""
    return {key: one for key, one in value.items() if one != ""} if isinstance(value, dict) else value


def _script(manifest: dict[str, Any], folder: Path) -> str:
    """The user's script as seen from the case file."""
    program = Path(str(manifest.get("program") or ""))
    beside = [Path(str(source)) for source in [(manifest.get("source") or {}).get("path")] if source]
    for candidate in (program, *(one if one.is_file() else one / program for one in beside), folder / program):
        if candidate.is_file():
            return relative(candidate.resolve(), folder)
    return f"{FILL_IN}the path of {program.name or 'your script'}, as seen from this file; it is not on this machine"


def _arguments(
    manifests: tuple[dict[str, Any], dict[str, Any]], found: Comparison
) -> tuple[list[str], tuple[Arm, Arm]]:
    """The arguments that both begin with, then each arm's own arguments and environment."""
    before, after = (_script_arguments(one) for one in manifests)
    if before is None or after is None:
        lacking = f"{FILL_IN}args and env, as a mapping; the recorded command does not show the script's arguments"
        return [], (lacking, lacking)
    shared = 0
    while shared < min(len(before), len(after)) and before[shared] == after[shared]:
        shared += 1
    environment = _environment(found)
    arms = []
    for arm, own in (("healthy", before[shared:]), ("regressed", after[shared:])):
        values = {name: str(one[arm]) for name, one in environment.items() if one[arm] != ABSENT}
        arms.append({**({"args": own} if own else {}), **({"env": values} if values else {})})
    return after[:shared], (arms[0], arms[1])


def _script_arguments(manifest: dict[str, Any]) -> list[str] | None:
    """What follows the script, or the module after ``-m``, in the recorded command; None where it names neither."""
    words = [str(word) for word in manifest.get("argv") or []]
    name = Path(str(manifest.get("program") or "")).name
    for at, word in enumerate(words):
        if name and Path(word).name == name:
            return words[at + 1 :]
        if word == "-m":
            return words[at + 2 :]
    return None


def _environment(found: Comparison) -> dict[str, dict[str, Any]]:
    """Variables that differ and can matter; what the launcher sets anew for each job is left out."""
    kept = {}
    for one in found.differences:
        group, _, name = one["field"].partition(".")
        if group == "environment" and one["kind"] != DifferenceKind.HARMLESS and not _PLUMBING.match(name):
            kept[name] = {"healthy": one["healthy"], "regressed": one["regressed"]}
    return kept
