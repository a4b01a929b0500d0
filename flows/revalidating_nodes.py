"""What is known of the nodes that a claim concerns: kept fingerprints, this machine's own, and a run of the job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from narrows.flows.fingerprint import kept, state_folder, take_fingerprint
from narrows.inquiry.claim import Claim
from narrows.inquiry.errors import CaseError, in_words
from narrows.inquiry.fingerprint import Fields, manifest_fields

Nodes = Mapping[str, Fields]


def nodes_of(
    *, hosts: Sequence[str] = (), state: Path | None = None, run: Path | None = None
) -> Callable[[Claim], Nodes]:
    """For each claim, what is known of its hosts now.

    The local launcher runs every host on this machine, whose fingerprint is taken; otherwise the kept ones are read.
    ``hosts`` leaves out the others; ``run`` adds a run directory of the job as it runs now: its topology and shape.
    """
    folder = state_folder(state)
    here = cache(take_fingerprint)
    job = _job_fields(run) if run else None

    def find(claim: Claim) -> Nodes:
        wanted = [host for host in claim.hosts if not hosts or host in hosts]
        known = {host: here() if claim.launcher == "local" else kept(folder, host) for host in wanted}
        nodes = {host: fields for host, fields in known.items() if fields is not None}
        return nodes | {"the job": job} if job is not None else nodes

    return find


def _job_fields(run: Path) -> Fields:
    try:
        manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CaseError(f"--run {run}: its manifest cannot be read ({in_words(error)}); give a run directory") from None
    fields = manifest_fields(manifest)
    return {name: ", ".join(values) for name, values in fields.items() if name.startswith(("job.", "shape."))}
