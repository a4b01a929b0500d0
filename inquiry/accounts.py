"""The accounts of step time: disjoint, in a fixed order of precedence, adding up to the step exactly."""

from __future__ import annotations

from enum import StrEnum


class Account(StrEnum):
    """Where a nanosecond of a rank's step went. The order is the precedence: the first that is active takes it."""

    RECOVERY = "recovery"
    COMPUTE = "compute"
    TRANSFER = "transfer"
    SKEW = "skew"
    PIPELINE = "pipeline"
    COPY = "copy"
    MEMORY = "memory"
    CHECKPOINT = "checkpoint"
    INPUT = "input"
    HOST = "host"
    RESIDUAL = "residual"


ACCOUNTS: tuple[Account, ...] = tuple(Account)

ACCOUNT_MEANINGS: dict[Account, str] = {
    Account.RECOVERY: "restart, retry or rollback",
    Account.COMPUTE: "kernels that are neither communication nor copies",
    Account.TRANSFER: "exposed communication after the last rank arrived",
    Account.SKEW: "waiting in a collective for the last rank to arrive",
    Account.PIPELINE: "waiting for a point-to-point peer to start",
    Account.COPY: "host-device copies",
    Account.MEMORY: "allocator retries, garbage collection",
    Account.CHECKPOINT: "synchronous checkpoint or evaluation",
    Account.INPUT: "waiting for the data loader",
    Account.HOST: "device idle because the host launched late",
    Account.RESIDUAL: "nothing that was measured",
}

WAIT_SPAN = "wait"
"""A span in which the main thread is blocked in a collective. It pauses compute and is never an account itself."""

SPAN_ACCOUNTS: dict[str, Account] = {
    "restart": Account.RECOVERY,
    "retry": Account.RECOVERY,
    "rollback": Account.RECOVERY,
    "forward": Account.COMPUTE,
    "backward": Account.COMPUTE,
    "optimizer": Account.COMPUTE,
    "compute": Account.COMPUTE,
    "loss": Account.COMPUTE,
    "h2d": Account.COPY,
    "d2h": Account.COPY,
    "copy": Account.COPY,
    "alloc": Account.MEMORY,
    "gc": Account.MEMORY,
    "checkpoint": Account.CHECKPOINT,
    "eval": Account.CHECKPOINT,
    "input": Account.INPUT,
    "host": Account.HOST,
    "launch": Account.HOST,
    "delay": Account.HOST,
}
"""The account that a recorded span may credit. A span of another name is kept and credits nothing."""

LOCAL_ACCOUNTS: frozenset[Account] = frozenset(
    {Account.COMPUTE, Account.COPY, Account.MEMORY, Account.CHECKPOINT, Account.INPUT, Account.HOST, Account.RECOVERY}
)
"""Accounts that one rank can spend without any other: they exist at every scope."""
