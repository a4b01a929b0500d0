"""What can be wrong with the world. A bad argument is a ``ValueError``; our own bug is an ``assert``."""

from __future__ import annotations


class NarrowsError(Exception):
    """Something outside the program is wrong; the message gives the value, the rule and the next move."""


def in_words(error: Exception) -> str:
    """What an error says, in one line, without the number and the path that the system puts around it."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())


class CaseError(NarrowsError):
    """A case file, or what it points to, cannot be used. ``places`` holds one line for each problem."""

    def __init__(self, message: str, places: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.places = places or (message,)


class DocketError(NarrowsError):
    """The docket was changed, cut, or asked to accept evidence that it must refuse. Names the line."""


class RunDirectoryError(NarrowsError):
    """A run directory cannot be read as a whole. Names the file, the line where known, and the rule."""


class LaunchError(NarrowsError):
    """An experiment could not be run to its end. Names the host, the rank and the log."""


class ServerError(NarrowsError):
    """The Prefect server cannot be reached or started."""


class DeclinedError(NarrowsError):
    """A person, or the absence of one, did not approve what had to be approved."""
