"""Loaded by every Python that starts under ``narrows run``: cheap, and inert unless the process can be a rank.

Any other ``sitecustomize`` on the path runs as it would have without this one.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def _chain() -> None:
    """Runs the ``sitecustomize`` that this one hides, and leaves it in ``sys.modules`` as it would be."""
    here = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if entry and Path(entry).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _may_be_a_rank() -> bool:
    """A launcher named a rank, or a single process is wanted; and no rank that already records started this process."""
    if not os.environ.get("NARROWS_RUN_DIR"):
        return False
    if os.environ.get("NARROWS_RECORDING", str(os.getpid())) != str(os.getpid()):
        return False
    if os.environ.get("NARROWS_SINGLE") == "1":
        return True
    return any(name in os.environ for name in _RANK_VARIABLES)


def _install() -> None:
    try:
        from narrows.instruments import automatic
    except ImportError as error:
        print(f"narrows: {error}: this Python cannot record; install narrows into {sys.prefix}", file=sys.stderr)
        return
    automatic.install()


if _may_be_a_rank():
    _install()
_chain()
