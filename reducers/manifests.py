"""What differs between the manifests of two runs, and what each difference could explain.

A difference is a candidate, never evidence: one whose accounts did not move is struck off without an experiment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from narrows.reducers.manifest_rules import IGNORED, DifferenceKind, is_record, touch_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from narrows.inquiry.accounts import Account
    from narrows.inquiry.scopes import Scope

ABSENT = "(absent)"
"""Stands for a field that one manifest lacks; a recorded null is None."""

# Lists of records are compared by the field that names each record, not by position.
_RECORD_KEYS = ("index", "name", "rank")
# Facts that no two hosts share: between exchanged hosts they only repeat that the hosts are others.
_IDENTITY = re.compile(r"(uuid|serial|pci\w*|boot_id|machine_id|hostname|ip\w*|mac\w*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field (dotted) in which two manifests differ, with the accounts that it may move and the smallest scope
    at which it still exists. `why` is one sentence on the mechanism."""

    field: str
    healthy: Any
    regressed: Any
    kind: DifferenceKind
    accounts: tuple[Account, ...]
    scope: Scope
    why: str

    def words(self) -> str:
        """For example `config.packing: balanced -> greedy`."""
        return f"{self.field}: {self.healthy} -> {self.regressed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """Differences that could explain the loss, and those whose accounts did not move enough to."""

    kept: tuple[Difference, ...]
    eliminated: tuple[Difference, ...]


def diff_manifests(healthy: Mapping[str, Any], regressed: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Every field in which the runs differ, what changes the work first, then by mechanism, harmless ones last.

    Names, times, process ids, ports and output folders differ between any two runs and are left out. A field that
    only one run recorded is a difference. Hosts are compared fact by fact: where all hosts changed alike the field
    reads `hosts.*.driver`.
    """
    program = _program(regressed) or _program(healthy)
    found = [
        *_walk("", _without(healthy, "hosts", "placement", "argv"), _without(regressed, "hosts", "placement", "argv"),
               program),
        *_walk("argv", _options(healthy.get("argv")), _options(regressed.get("argv")), program),
        *_placement(healthy.get("placement"), regressed.get("placement")),
        *_hosts(healthy.get("hosts"), regressed.get("hosts")),
    ]  # fmt: skip
    differences = [
        _typed(field, before, after, program) for field, before, after in found if not IGNORED.fullmatch(field)
    ]
    order = list(DifferenceKind)
    return tuple(sorted(differences, key=lambda d: (order.index(d.kind), d.field)))


def screen(
    differences: Iterable[Difference], upper_ms: Mapping[Account, float], delta_ms: float, rho: float = 0.5
) -> Screening:
    """Strikes off each difference whose accounts, all together, stayed below `rho` of the loss.

    `upper_ms` holds the upper bound of each account's change in ms a step (critical path); a difference that may
    move an account without a bound is kept. Harmless differences are always struck off.
    """
    kept: list[Difference] = []
    eliminated: list[Difference] = []
    for difference in differences:
        bounds = [upper_ms.get(account) for account in difference.accounts]
        moved = sum(max(0.0, bound) for bound in bounds if bound is not None)
        out = None not in bounds and moved < rho * delta_ms
        (eliminated if out else kept).append(difference)
    return Screening(kept=tuple(kept), eliminated=tuple(eliminated))


def undeclared(differences: Iterable[Difference], declared: Collection[str]) -> tuple[Difference, ...]:
    """Differences that the arms did not declare and that are not harmless: every verdict is confounded with them.

    A declared field covers the fields below it (`config.slow_link` covers `config.slow_link.mbit`).
    """
    return tuple(
        difference
        for difference in differences
        if difference.kind is not DifferenceKind.HARMLESS
        and not any(difference.field == name or difference.field.startswith(name + ".") for name in declared)
    )


def _typed(field: str, before: Any, after: Any, program: str | None) -> Difference:
    touch = touch_of(field, program)
    return Difference(
        field=field,
        healthy=before,
        regressed=after,
        kind=touch.kind,
        accounts=touch.accounts,
        scope=touch.scope,
        why=touch.why,
    )


def _walk(path: str, before: Any, after: Any, program: str | None) -> Iterator[tuple[str, Any, Any]]:
    """The leaves below `path` that differ; a mapping against anything else differs as a whole."""
    before, after = _by_key(before), _by_key(after)
    if isinstance(before, Mapping) and isinstance(after, Mapping) and not is_record(path, program):
        for key in dict.fromkeys((*before, *after)):
            below = f"{path}.{key}" if path else str(key)
            yield from _walk(below, before.get(key, ABSENT), after.get(key, ABSENT), program)
    elif not _same(before, after):
        yield path, before, after


def _same(before: Any, after: Any) -> bool:
    # 1 == True and 1 == 1.0 in Python; only the first is a difference of meaning.
    return bool(before == after) and isinstance(before, bool) == isinstance(after, bool)


def _by_key(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, Mapping) for item in value):
        return value
    for key in _RECORD_KEYS:
        names = [str(item[key]) for item in value if key in item]
        if len(set(names)) == len(value):
            return {name: _without(item, key) for name, item in zip(names, value, strict=True)}
    return value


def _without(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}


def _program(manifest: Mapping[str, Any]) -> str | None:
    program = manifest.get("program")
    return str(program) if program is not None else None


def _options(argv: Any) -> dict[str, Any]:
    """`--key value`, `--key=value` and `--flag` by key, and the rest in order: options may be given in any order."""
    if not isinstance(argv, (list, tuple)):
        return {}
    options: dict[str, Any] = {}
    rest: list[str] = []
    words = [str(word) for word in argv]
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            rest.append(word)
            continue
        key, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        options[key.replace("-", "_")] = value
    return {**options, **{f"arguments.{at}": word for at, word in enumerate(rest)}}


def _placement(before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Ranks that run elsewhere, grouped by the move; the order of hosts alone moves ranks too."""
    if before is None or after is None:
        if before is not after:
            yield "placement.recorded", _presence(before), _presence(after)
        return
    first, second = _homes(before), _homes(after)
    moves: dict[tuple[str, str], list[str]] = {}
    for rank in sorted(first.keys() | second.keys(), key=int):
        home, new = first.get(rank, ABSENT), second.get(rank, ABSENT)
        if home != new:
            moves.setdefault((home, new), []).append(rank)
    for (home, new), ranks in moves.items():
        yield f"placement.rank{'s' if len(ranks) > 1 else ''} {_spans(ranks)}", home, new


def _homes(placement: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {str(place["rank"]): str(place.get("host", ABSENT)) for place in placement}


def _spans(ranks: Sequence[str]) -> str:
    """`0-3, 7` for ranks 0, 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for rank in map(int, ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _hosts(before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        if before is not after:
            yield "hosts", _presence(before), _presence(after)
        return
    common = [host for host in before if host in after]
    yield from _common_facts({host: (before[host], after[host]) for host in common})
    gone, new = [h for h in before if h not in after], [h for h in after if h not in before]
    if gone or new:
        yield "hosts", ", ".join(gone) or ABSENT, ", ".join(new) or ABSENT
        # Hosts that were exchanged are compared as two populations: a fact that all of them share is no difference.
        yield from _population_facts([before[h] for h in gone] or list(before.values()), [after[h] for h in new])


def _common_facts(facts: Mapping[str, tuple[Any, Any]]) -> Iterator[tuple[str, Any, Any]]:
    changed: dict[str, dict[str, tuple[Any, Any]]] = {}
    for host, (before, after) in facts.items():
        for field, first, second in _walk("", before, after, None):
            changed.setdefault(field, {})[host] = (first, second)
    for field, by_host in changed.items():
        values = list(by_host.values())
        if len(by_host) == len(facts) > 1 and all(value == values[0] for value in values):
            yield f"hosts.*.{field}", *values[0]
        else:
            for host, (first, second) in by_host.items():
                yield f"hosts.{host}.{field}", first, second


def _population_facts(before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[str, Any, Any]]:
    first, second = _values(before), _values(after)
    for field in dict.fromkeys((*first, *second)) if after else ():
        if not _IDENTITY.search(field) and set(second.get(field, ())) - set(first.get(field, ())):
            yield f"hosts.*.{field}", _listed(first.get(field)), _listed(second.get(field))


def _values(hosts: Sequence[Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for host in hosts:
        for field, _, value in _walk("", {}, _leaves(host), None):
            if str(value) not in found.setdefault(field, []):
                found[field].append(str(value))
    return found


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    value = _by_key(value)
    if not isinstance(value, Mapping):
        return {path: value}
    leaves: dict[str, Any] = {}
    for key, item in value.items():
        leaves |= _leaves(item, f"{path}.{key}" if path else str(key))
    return leaves


def _listed(values: list[str] | None) -> str:
    return ", ".join(values) if values else ABSENT


def _presence(value: Any) -> str:
    return ABSENT if value is None else "recorded"
