"""The checked configuration of a built-in workload, and the work that a pack of documents asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from narrows.experiments.packing import LengthModel
from narrows.inquiry.workloads import BUILTIN, KnobKind, check_workload, defaults

FORWARD_AND_BACKWARD = 3
"""Backward costs twice the forward: a gradient by the input and one by the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A slow device: by its global rank, or by its local rank on a host, which it keeps at every scope."""

    rank: int
    host: str
    factor: float

    def reaches(self, rank: int, host: str, local_rank: int) -> bool:
        """Whether the device of this rank is the slow one."""
        return (self.host, self.rank) == (host, local_rank) if self.host else self.rank == rank


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHost:
    host: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    mbit: float
    delay_us: float
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """One arm of the training step. Keys, defaults and ranges: `narrows.inquiry.workloads.BUILTIN["step"]`."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    tokens_per_rank: int
    mean_doc_tokens: int
    doc_sigma: float
    max_doc_tokens: int
    packing: str
    padding: float
    recompute: bool
    accumulate: int
    input: str
    loader_us: int
    slow_input: int
    prefetch: int
    h2d_us: int
    linear_ns_per_token: float
    quadratic_ns_per_token2: float
    optimizer_us: int
    compute_scale: float
    jitter: float
    launch_gap_us: int
    injected_delay_ms: float
    alloc_us: int
    checkpoint_every: int
    checkpoint_us: int
    eval_every: int
    eval_us: int
    fabric_mbit: float
    fabric_delay_us: float
    fabric_jitter: float
    bucket_bytes: int
    grad_dtype: str
    overlap: bool
    slow_rank: SlowRank | None
    slow_host: SlowHost | None
    slow_link: SlowLink | None
    label: str

    @property
    def length_model(self) -> LengthModel:
        return LengthModel(
            mean_doc_tokens=self.mean_doc_tokens, doc_sigma=self.doc_sigma, max_doc_tokens=self.max_doc_tokens
        )

    def slowdown(self, rank: int, host: str, local_rank: int) -> float:
        """What the kernels of this rank are stretched by: the product of the faults that reach it, 1 without."""
        factor = self.compute_scale
        if self.slow_rank is not None and self.slow_rank.reaches(rank, host, local_rank):
            factor *= self.slow_rank.factor
        if self.slow_host is not None and self.slow_host.host == host:
            factor *= self.slow_host.factor
        return factor

    def padded(self, length: int) -> int:
        """Tokens that a document of this length is padded to."""
        return math.ceil(length * (1 + self.padding) - 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveConfig:
    """One arm of the message-size sweep. Keys: `narrows.inquiry.workloads.BUILTIN["collective"]`."""

    op: str
    sizes_bytes: tuple[int, ...]
    repeats: int
    fabric_mbit: float
    fabric_delay_us: float
    fabric_jitter: float
    slow_link: SlowLink | None
    label: str


def step_config(values: Mapping[str, object]) -> StepConfig:
    """The training step's configuration, with defaults for what is not set.

    Raises ValueError: names each key that is unknown, mistyped, in another unit or out of range, and what was expected.
    """
    return StepConfig(**_checked("step", values))


def collective_config(values: Mapping[str, object]) -> CollectiveConfig:
    """The sweep's configuration, with defaults for what is not set. Raises ValueError like `step_config`."""
    return CollectiveConfig(**_checked("collective", values))


_RECORDS: dict[str, type] = {"slow_rank": SlowRank, "slow_host": SlowHost, "slow_link": SlowLink}


def _checked(program: str, values: Mapping[str, object]) -> dict[str, Any]:
    errors = check_workload(program, values)
    if errors:
        raise ValueError("; ".join(errors))
    merged: dict[str, Any] = {**defaults(program), **values}
    for name, knob in BUILTIN[program].items():
        if knob.kind is KnobKind.RECORD and merged[name] is not None:
            fields = {field.name: field.default for field in knob.fields}
            merged[name] = _RECORDS[name](**{**fields, **merged[name]})
        elif knob.kind is KnobKind.SIZES:
            merged[name] = tuple(merged[name])
    return merged


def layer_ns(config: StepConfig, lengths: Sequence[int]) -> float:
    """Forward of one layer over these documents on the emulated device, in nanoseconds.

    Linear in tokens, quadratic in each document's own length (attention is block-diagonal). Padded tokens cost
    both: a document counts with the length that it is padded to.
    """
    padded = [config.padded(length) for length in lengths]
    squares = sum(length * length for length in padded)
    return config.linear_ns_per_token * sum(padded) + config.quadratic_ns_per_token2 * squares


def count_work(config: StepConfig, lengths: Sequence[int]) -> dict[str, int]:
    """The useful-work counters of one rank's step: valid tokens, padding, documents, squares, FLOPs.

    `model_flops` is 6 N per valid token and 12 L H per squared document length, N = 12 L H^2 without embeddings;
    `executed_flops` counts padding and recomputation as well, and stands there only where it differs.
    Source: PaLM, arXiv:2204.02311, appendix B, with tokens x length replaced by the sum of squared lengths.
    """
    padded = [config.padded(length) for length in lengths]
    model = _training_flops(config, lengths, passes=FORWARD_AND_BACKWARD)
    executed = _training_flops(config, padded, passes=FORWARD_AND_BACKWARD + config.recompute)
    counted = {
        "valid_tokens": sum(lengths),
        "padded_tokens": sum(padded) - sum(lengths),
        "samples": len(lengths),
        "sum_sq_len": sum(length * length for length in lengths),
        "model_flops": model,
    }
    if executed != model:
        counted["executed_flops"] = executed
        counted["executed_sum_sq_len"] = sum(length * length for length in padded)
    return counted


def _training_flops(config: StepConfig, lengths: Sequence[int], *, passes: int) -> int:
    parameters = 12 * config.layers * config.hidden**2
    squares = sum(length * length for length in lengths)
    return passes * (2 * parameters * sum(lengths) + 4 * config.layers * config.hidden * squares)
