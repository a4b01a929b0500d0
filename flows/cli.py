"""The command line. Prefect and torch are imported by the commands that need them, never for help."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

from cyclopts import CycloptsError

from narrows.flows import cli_find, cli_follow, cli_record
from narrows.flows.cli_app import app
from narrows.flows.exits import DONE, ERROR, INTERRUPTED, NOBODY_READS, USAGE
from narrows.inquiry.errors import CaseError, NarrowsError

__all__ = ["app", "cli_find", "cli_follow", "cli_record", "main"]  # the modules of commands fill the application

_AFTER_INTERRUPT = {
    "revalidate": "the same command goes on from here",
    "canary-rollout": "the same command goes on from here",
    "reproduce": "the record of the case is as it was; the same command starts over",
}
"""What becomes of work that was cut, where the command does not say it itself."""


def main(argv: list[str] | None = None) -> None:
    """The console script. One line for what is wrong, no traceback, unless ``--debug`` stands first."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = bool(words) and words[0] == "--debug"
    words = words[1:] if debug else words
    # Whoever asks a job to end by SIGTERM gets the same clean end as with Ctrl-C: nothing is left running.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = _guarded(lambda: _run(words), words, debug=debug)
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(code)


def _run(words: Sequence[str]) -> object:
    result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    sys.stdout.flush()  # here, where it can be said that the disk is full, and not while Python ends
    return result


def _guarded(command: Callable[[], object], words: Sequence[str], *, debug: bool) -> int:
    try:
        result = command()
    except CycloptsError as error:
        return _complain(f"{error}".strip() + f" ({_help_of(words)})", USAGE)
    except KeyboardInterrupt as error:
        then = str(error) or _AFTER_INTERRUPT.get(words[0] if words else "", "")
        return _complain(f"interrupted; {then}" if then else "interrupted", INTERRUPTED)
    except BrokenPipeError:
        return _let_go_of_output()
    except (NarrowsError, ValueError, OSError) as error:
        if debug:
            raise
        return _refused(error)
    return result if isinstance(result, int) else DONE


def _refused(error: Exception) -> int:
    if isinstance(error, CaseError):
        for place in error.places:
            _complain(place, USAGE)
        return USAGE
    if isinstance(error, OSError):
        return _complain(_words_of(error), ERROR)
    # ValueError itself is a bad argument; what the standard library derives from it is damaged input.
    return _complain(str(error), USAGE if type(error) is ValueError else ERROR)


def _words_of(error: OSError) -> str:
    """What the system refused, the file first."""
    names = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    why = error.strerror or str(error) or type(error).__name__
    where = f"{names}: " if names else ""
    return f"{where}{why[0].lower()}{why[1:]}; check the path, its permissions and the space on its disk"


def _help_of(words: Sequence[str]) -> str:
    if words and words[0] in app and not words[0].startswith("-"):
        return f"narrows {words[0]} --help lists its options"
    return "narrows --help lists the commands"


def _let_go_of_output() -> int:
    """Whoever read the output is gone, as ``head`` is after its lines: the end is silent, as that of other tools."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123  # a device, not a path
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return NOBODY_READS


def _complain(message: str, code: int) -> int:
    print(f"narrows: {message}", file=sys.stderr)
    return code
