"""Which fields of the fingerprint an explanation depends on, and why: a table by account."""

from __future__ import annotations

import re
from collections.abc import Mapping

from narrows.inquiry.accounts import Account
from narrows.inquiry.claim import Dependency

_A = Account
_ANY = frozenset(Account)
_COMPUTING = frozenset({_A.COMPUTE, _A.SKEW, _A.PIPELINE, _A.MEMORY, _A.COPY})
_COMMUNICATING = frozenset({_A.TRANSFER, _A.SKEW, _A.PIPELINE})
_HOSTED = frozenset({_A.HOST, _A.INPUT, _A.COPY, _A.CHECKPOINT, _A.MEMORY})

_RULES: tuple[tuple[str, frozenset[Account], str], ...] = (
    (r"host\.driver", _ANY, "the driver decides clocks, power limits, launch latency and the paths between devices"),
    (r"host\.(cuda|gpu_\w+)|packages\.(cudnn|cublas|triton|flash-attn|transformer-engine)", _COMPUTING,
     "kernels and their speed come with it"),
    (r"host\.gpus", _ANY, "another model computes and communicates at another speed"),
    (r"packages\.torch", _ANY, "the framework chooses kernels, buckets gradients and launches collectives"),
    (r"packages\.nccl", _COMMUNICATING, "algorithms, protocols and channels of collectives come with it"),
    (r"packages\.(deepspeed|megatron-core)", _ANY, "the training library orders compute and communication"),
    (r"packages\.python", frozenset({_A.HOST, _A.INPUT}), "the interpreter's speed is host time"),
    (r"host\.nics", _COMMUNICATING, "rate, driver and frame size of the network cards set the time of a transfer"),
    (r"host\.(\w*firmware\w*|bios)", _ANY, "firmware sets link training, power states and error handling"),
    (r"host\.(kernel|os)", _ANY, "scheduling, drivers and file systems come with the system"),
    (r"host\.(cpu_model|cpus|memory_gib)", _HOSTED, "the host's own work is done by it"),
    (r"job\.topology", _ANY, "which ranks share a host decides what crosses the network"),
    (r"job\.scheduler", _ANY, "the scheduler places ranks and sets their limits"),
    (r"shape\.\w+", _ANY, "the shape of the work sets the size of compute and messages"),
)  # fmt: skip


def reason_for(field: str, account: Account) -> str | None:
    """Why an explanation by ``account`` depends on ``field``; None where it does not. The first rule decides."""
    for pattern, accounts, why in _RULES:
        if re.fullmatch(pattern, field):
            return why if account in accounts else None
    return "the site records it for every host" if field.startswith("host.") else None


def dependencies(account: Account, values: Mapping[str, tuple[str, ...]]) -> tuple[Dependency, ...]:
    """The fields of ``values`` that matter to ``account``, with the values as those that were confirmed."""
    found = [(name, reason_for(name, account), known) for name, known in values.items()]
    return tuple(Dependency(field=name, confirmed=known, why=why) for name, why, known in found if why is not None)
