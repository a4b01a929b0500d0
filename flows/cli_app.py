"""What all commands share: the application, its groups in the order of the help, and options of the same meaning."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

from cyclopts import App, Group, Parameter

FIND = Group("Find a cause", sort_key=1)
RECORD = Group("Record and read runs", sort_key=2)
FOLLOW = Group("Follow", sort_key=3)

app = App(
    name="narrows",
    help="Narrow a distributed-training slowdown to the smallest experiment that still shows it.\n\n"
    "Start with `narrows demo`: it records a regression on this machine, without a GPU, and explains it.",
    version=lambda: version("narrows"),
    help_epilogue="Exit codes: 0 done, 1 error, 2 bad usage or case file, 3 inconclusive, 4 a gate found something.",
    suppress_keyboard_interrupt=False,  # it would exit without a word; flows/cli.py says how to go on
)


def number(least: float, *, unit: str = "number", above: bool = False) -> Callable[[Any, Any], None]:
    """A validator of an option: finite, and at least ``least``, or ``above`` it."""

    def check(_type: Any, value: Any) -> None:
        if value is not None and not (math.isfinite(value) and (value > least if above else value >= least)):
            raise ValueError(f"Expected a {unit} {'above' if above else 'of at least'} {least:g}.")

    return check


NoUi = Annotated[bool, Parameter(name="--no-ui", negative="", help="Run without the Prefect server and its pages.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object, and nothing else.")]
