"""The worked cases: each records its own healthy and regressed run, and investigates them like anyone's."""

from __future__ import annotations

import shutil
from contextlib import suppress
from importlib import resources
from pathlib import Path

from narrows.flows.casefile import load_case
from narrows.flows.launching import Launcher, LineSink, launch
from narrows.flows.plan_files import jobs
from narrows.inquiry import plans
from narrows.inquiry.errors import CaseError
from narrows.inquiry.ladder import REFERENCE_PAIRS
from narrows.inquiry.state import State

DEFAULT = "packing"


def names() -> tuple[str, ...]:
    """The worked cases that ship with narrows, the default first."""
    found = sorted(one.name.removesuffix(".yaml") for one in resources.files("narrows.examples").iterdir()
                   if one.name.endswith(".yaml"))  # fmt: skip
    return (DEFAULT, *(name for name in found if name != DEFAULT))


def lay_out(name: str, folder: Path, *, seed: int | None = None) -> Path:
    """Writes the case file of a worked case into ``folder``, which must be new or empty. Returns its path.

    Raises ``CaseError`` for an unknown name, or a folder that holds something.
    """
    if name not in names():
        raise CaseError(f"{name}: there is no such worked case; expected one of {', '.join(names())}")
    if folder.exists() and not folder.is_dir():
        raise CaseError(f"{folder} is a file; give another folder with --out")
    if folder.exists() and any(folder.iterdir()):
        raise CaseError(f"{folder} is not empty; give another folder with --out, or move it away")
    text = resources.files("narrows.examples").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    if seed is not None:
        text += ("" if "\njudge:" in text else "judge:\n") + f"  seed: {seed}\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "case.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def headline(name: str) -> str:
    """The comment that heads the worked case's file."""
    text = resources.files("narrows.examples").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return text.partition("\n")[0].lstrip("# ")


def record(case_file: Path, launcher: Launcher, *, on_line: LineSink | None = None) -> None:
    """Runs both arms of the case at full scale, in turns inside one launch, into the case's ``runs`` folder.

    Raises ``LaunchError``; the case file and a half-made ``runs`` folder are removed then, and their folder where it
    holds nothing else, so that the next try starts clean.
    """
    case = load_case(case_file, recorded=False)
    folder = case_file.parent / "runs"
    experiment = plans.at_scope(case, State(), case.full_scope)
    try:
        for job in jobs(experiment, folder, first_pair=0, pairs=REFERENCE_PAIRS):
            launch(launcher, job.plan, on_line=on_line)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        case_file.unlink(missing_ok=True)
        with suppress(OSError):  # something else lies there
            case_file.parent.rmdir()
        raise
