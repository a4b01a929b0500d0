"""Recording of a script that was not written for it: what ``narrows run`` installs into every rank.

Nothing is imported on the script's behalf: the hooks go into torch when the script itself has imported it.
"""

from __future__ import annotations

import os

from narrows.instruments.guard import HOOK_ERRORS, report_once
from narrows.instruments.imports import AfterImport
from narrows.instruments.session import Session


def install(session: Session | None = None) -> Session:
    """From now on torch is instrumented as soon as it is imported. Returns the session that will record."""
    session = Session() if session is None else session
    if (
        "TORCHELASTIC_RUN_ID" in os.environ
    ):  # a worker of torchrun: what it starts is not the rank, even before it records
        os.environ["NARROWS_RECORDING"] = str(os.getpid())
    AfterImport(
        {
            "torch": lambda: _instrument_torch(session),
            "torch.distributed.checkpoint": lambda: _instrument_checkpoint(session),
        }
    ).install()
    return session


def _instrument_torch(session: Session) -> None:
    """Each part is put in by itself: one that this torch refuses is reported and does not cost the others."""
    from narrows.instruments import gradients, surroundings, training
    from narrows.instruments.collectives import wrap_collectives

    parts = {"collectives": wrap_collectives}
    parts.update(surroundings.parts(session))
    parts.update(training.parts(session))
    parts.update(gradients.parts(session))
    for name, put_in in parts.items():
        try:
            put_in()
        except HOOK_ERRORS as error:
            report_once(name, error)


def _instrument_checkpoint(session: Session) -> None:
    from narrows.instruments import surroundings

    try:
        surroundings.hook_distributed_checkpoint(session)
    except HOOK_ERRORS as error:
        report_once("distributed checkpoint", error)
