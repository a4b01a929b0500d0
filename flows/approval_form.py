"""The form that the Prefect page shows when an investigation asks. Imports Prefect: import this only with a server."""

from __future__ import annotations

from typing import Literal

from prefect.input import RunInput
from pydantic import Field


class LaunchApproval(RunInput):
    """What a person decides about a launch."""

    # No default: where every field has one, Prefect takes a bare "resume" for an approval.
    decision: Literal["approve", "skip", "abort"] = Field(
        description="approve: spend it. skip: go on without this step. abort: end the investigation"
    )
    approver: str = Field(min_length=2, max_length=80, description="who spends the device time")
    reason: str = Field(default="", max_length=500, description="a note for the docket")
