"""From the message-size curves of two arms to one evidence record."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from narrows.inquiry.codec import SCHEMA
from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.evidence import ArmRuns, confounded, relative
from narrows.reducers.jsonlines import check_header, damaged, read_bytes

CURVE = "curve.jsonl"


def build_curves(
    name: str, arms: tuple[ArmRuns, ArmRuns], *, mode: str, root: Path | None, declared: tuple[str, ...]
) -> dict[str, Any]:
    """The curves of both arms: ``sizes_bytes``, and for each arm one row a pair of median times in us.

    A pair or a size that one arm lacks is left out. Raises ``RunDirectoryError`` for a file that is missing or
    damaged, or when nothing is left.
    """
    times: dict[str, dict[int, dict[int, float]]] = {}
    runs: dict[str, list[dict[str, str]]] = {}
    manifests = []
    for arm in arms:
        times[arm.name], runs[arm.name] = {}, []
        for path in arm.paths:
            data = _read(path / CURVE)
            runs[arm.name].append({"path": relative(path, root), "digest": hashlib.sha256(data).hexdigest()})
            for pair, size, microseconds in _points(data, str(path / CURVE)):
                times[arm.name].setdefault(pair, {})[size] = microseconds
        manifests.append(_manifest(arm.paths[0]))
    first, second = times.values()
    pairs = sorted(set(first) & set(second))
    shared = [set(arm[pair]) for arm in (first, second) for pair in pairs]
    sizes = sorted(set.intersection(*shared)) if shared else []
    if not sizes:
        raise RunDirectoryError(f"{name}: the arms have no pair and size in common; run the sweep again")
    return {
        "schema": SCHEMA,
        "kind": "evidence",
        "experiment": name,
        "mode": mode,
        "emulated": bool(manifests[0].get("emulated")),
        "device": manifests[0].get("device"),
        "sizes_bytes": sizes,
        "arms": {
            arm: {"runs": runs[arm], "post_barrier_us": [[times[arm][pair][size] for size in sizes] for pair in pairs]}
            for arm in times
        },
        "pairs": len(pairs),
        "losses": [],
        "confounded": confounded(manifests[0], manifests[1], declared),
        "digest": hashlib.sha256("".join(run["digest"] for arm in runs.values() for run in arm).encode()).hexdigest(),
    }


def _read(path: Path) -> bytes:
    data = read_bytes(path)
    if data is None:
        raise RunDirectoryError(f"{path}: there is no curve; the sweep ended before its first size")
    return data


def _points(data: bytes, place: str) -> list[tuple[int, int, float]]:
    found = []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            one = json.loads(line)
            found.append((int(one["pair"]), int(one["payload_bytes"]), float(one["post_barrier_us"])))
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(f"{place}:{number}", f"no point of a curve ({error})") from error
    return found


def _manifest(path: Path) -> dict[str, Any]:
    data = read_bytes(path / "manifest.json")
    if data is None:
        raise RunDirectoryError(f"{path}: no manifest.json, so this is not a run directory; check the path")
    return check_header(data, str(path / "manifest.json"), "manifest")
