"""Prints what this host runs on as one JSON object: ``python -m narrows.instruments.fingerprint``.

It needs no GPU, starts no process and does not import torch, so it can run between two jobs.
"""

from __future__ import annotations

import json

from narrows.instruments.environment import package_versions
from narrows.instruments.hosts import host_facts


def main() -> None:
    """The facts and packages as a manifest would hold them."""
    print(json.dumps({"host": host_facts(), "packages": package_versions()}))


if __name__ == "__main__":
    main()
