"""What rides along inside a training process and writes its run directory.

Three lines of a training script are enough::

    import narrows.instruments as narrows
    recorder = narrows.start("runs/today")
    ...
    recorder.step()

Importing this imports neither torch nor anything for analysis.
"""

from __future__ import annotations

from narrows.instruments.collectives import collective, name_group, wrap_collectives
from narrows.instruments.recorder import OpenSpan, Recorder, Token, current, start

__all__ = ["OpenSpan", "Recorder", "Token", "collective", "current", "name_group", "start", "wrap_collectives"]
