"""The built-in workloads as a table of knobs: what each is called, may hold, and can touch.

The table is data, so that a case file, a manifest diff and the programs themselves agree on one definition
without importing torch. A fault is a knob like any other: what was injected stands in the manifest.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class KnobClass(StrEnum):
    """What a difference in a knob can explain."""

    NUMERATOR = "numerator"
    COMPUTE = "compute"
    HOST = "host"
    INPUT = "input"
    COPY = "copy"
    MEMORY = "memory"
    CHECKPOINT = "checkpoint"
    COMM = "comm"
    PLACEMENT = "placement"
    HARMLESS = "harmless"


class KnobKind(StrEnum):
    """What a knob's value is made of."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    CHOICE = "choice"
    TEXT = "text"
    SIZES = "sizes"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One key of a workload's configuration. `low` and `high` are inclusive; a RECORD is off when it is null."""

    name: str
    kind: KnobKind
    default: object
    meaning: str
    touches: KnobClass
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    fields: tuple[Knob, ...] = ()
    required: bool = False

    @property
    def expected(self) -> str:
        """The values that the knob takes, as a phrase for an error message."""
        if self.kind is KnobKind.CHOICE:
            return "one of " + ", ".join(self.choices)
        if self.kind is KnobKind.RECORD:
            return "null or a mapping with " + ", ".join(field.name for field in self.fields)
        noun = _NOUNS[self.kind] + (f" of {self.unit}" if self.unit else "")
        if self.low is None:
            return noun
        return f"{noun} from {self.low:g}" + (f" to {self.high:g}" if self.high is not None else "")


_NOUNS = {
    KnobKind.INT: "a whole number",
    KnobKind.FLOAT: "a number",
    KnobKind.BOOL: "true or false",
    KnobKind.TEXT: "a text",
    KnobKind.SIZES: "a non-empty list of whole numbers",
}
_UNITS = ("ns", "us", "ms", "s", "bytes", "kb", "mb", "kib", "mib", "mbit", "gbit", "kbit")


def _int(name: str, default: int, touches: KnobClass, meaning: str, low: int, high: int, unit: str = "") -> Knob:
    return Knob(
        name=name, kind=KnobKind.INT, default=default, meaning=meaning, touches=touches, unit=unit, low=low, high=high
    )


def _float(
    name: str, default: float, touches: KnobClass, meaning: str, low: float, high: float, unit: str = ""
) -> Knob:
    return Knob(
        name=name, kind=KnobKind.FLOAT, default=default, meaning=meaning, touches=touches, unit=unit, low=low, high=high
    )


def _bool(name: str, default: bool, touches: KnobClass, meaning: str) -> Knob:
    return Knob(name=name, kind=KnobKind.BOOL, default=default, meaning=meaning, touches=touches)


def _choice(name: str, choices: tuple[str, ...], touches: KnobClass, meaning: str) -> Knob:
    """A knob whose default is its first choice."""
    return Knob(name=name, kind=KnobKind.CHOICE, default=choices[0], meaning=meaning, touches=touches, choices=choices)


def _text(name: str, touches: KnobClass, meaning: str, *, required: bool = False) -> Knob:
    return Knob(
        name=name, kind=KnobKind.TEXT, default=None if required else "", meaning=meaning, touches=touches,
        required=required,
    )  # fmt: skip


def _record(name: str, touches: KnobClass, meaning: str, *fields: Knob) -> Knob:
    return Knob(name=name, kind=KnobKind.RECORD, default=None, meaning=meaning, touches=touches, fields=fields)


_FACTOR = _float("factor", 1.12, KnobClass.COMPUTE, "what every kernel's length is multiplied by", 1.0, 100.0)

SLOW_LINK = _record(
    "slow_link",
    KnobClass.COMM,
    "modelled link between hosts: what a collective that crosses hosts needs on top of the fabric",
    _float("mbit", 500.0, KnobClass.COMM, "rate of the link", 0.1, 1e6, "Mbit/s"),
    _float("delay_us", 200.0, KnobClass.COMM, "one-way delay of the link", 0, 1e6, "us"),
    _text("host", KnobClass.PLACEMENT, "only the link of this host; empty: every link between hosts"),
)

_FABRIC = (
    _float("fabric_mbit", 8000.0, KnobClass.COMM, "rate of the emulated fabric", 0.1, 1e7, "Mbit/s"),
    _float("fabric_delay_us", 100.0, KnobClass.COMM, "one-way delay of the emulated fabric", 0, 1e6, "us"),
    _float(
        "fabric_jitter", 0.02, KnobClass.COMM, "mean of an exponential delay of each collective, as a fraction", 0, 10
    ),
)

_STEP = (
    # Shapes and work.
    _int("layers", 4, KnobClass.NUMERATOR, "transformer layers", 1, 200),
    _int("hidden", 64, KnobClass.NUMERATOR, "width of the model; gradients are 12 x hidden^2 a layer", 8, 16384),
    _int("heads", 4, KnobClass.NUMERATOR, "attention heads (real devices)", 1, 256),
    _int("vocab", 256, KnobClass.NUMERATOR, "vocabulary (real devices)", 2, 300000),
    _int("tokens_per_rank", 4096, KnobClass.NUMERATOR, "valid tokens in a rank's pack", 16, 1 << 24, "tokens"),
    _int("mean_doc_tokens", 256, KnobClass.NUMERATOR, "mean of the document lengths before the cap", 1, 1 << 20,
         "tokens"),
    _float("doc_sigma", 1.0, KnobClass.NUMERATOR, "log standard deviation of the document lengths", 0, 3),
    _int("max_doc_tokens", 1024, KnobClass.NUMERATOR, "longest document", 1, 1 << 20, "tokens"),
    _choice("packing", ("snake", "greedy", "cost_balanced", "shuffled"), KnobClass.NUMERATOR,
            "how documents are dealt to ranks"),
    _float("padding", 0.0, KnobClass.NUMERATOR, "every document is padded by this fraction of its length", 0, 4),
    _bool("recompute", False, KnobClass.NUMERATOR, "forward is run again inside backward"),
    _int("accumulate", 1, KnobClass.NUMERATOR, "micro-steps that a rank's documents are split into", 1, 64),
    # Input and copies.
    _choice("input", ("loader", "synthetic"), KnobClass.INPUT, "prefetching loader thread, or batches made up front"),
    _int("loader_us", 5000, KnobClass.INPUT, "time that the loader needs for a batch", 0, 60_000_000, "us"),
    _int("slow_input", 0, KnobClass.INPUT, "extra time that the loader needs for a batch", 0, 60_000_000, "us"),
    _int("prefetch", 2, KnobClass.INPUT, "batches loaded ahead; 0: loaded when asked for", 0, 64, "batches"),
    _int("h2d_us", 800, KnobClass.COPY, "copy of a batch to the emulated device", 0, 10_000_000, "us"),
    # Compute.
    _float("linear_ns_per_token", 500.0, KnobClass.COMPUTE, "forward of a layer, for each token (emulated)", 0, 1e9,
           "ns"),
    _float("quadratic_ns_per_token2", 0.36, KnobClass.COMPUTE, "forward of a layer, for each token^2 (emulated)", 0,
           1e6, "ns"),
    _int("optimizer_us", 1500, KnobClass.COMPUTE, "optimizer step (emulated)", 0, 60_000_000, "us"),
    _float("compute_scale", 1.0, KnobClass.COMPUTE, "what every kernel's length is multiplied by on every rank", 1,
           100),
    _float("jitter", 0.01, KnobClass.COMPUTE, "mean of an exponential delay of each kernel, as a fraction", 0, 10),
    # Host, memory, checkpoint, evaluation.
    _int("launch_gap_us", 0, KnobClass.HOST, "host gap before the kernels of each layer", 0, 10_000_000, "us"),
    _float("injected_delay_ms", 0.0, KnobClass.HOST, "wait of every rank at the end of each step: a known effect", 0,
           600_000, "ms"),
    _int("alloc_us", 0, KnobClass.MEMORY, "allocator stall in every step", 0, 10_000_000, "us"),
    _int("checkpoint_every", 0, KnobClass.CHECKPOINT, "steps between checkpoints; 0: none", 0, 1_000_000, "steps"),
    _int("checkpoint_us", 0, KnobClass.CHECKPOINT, "least time of a checkpoint", 0, 600_000_000, "us"),
    _int("eval_every", 0, KnobClass.CHECKPOINT, "steps between evaluations; 0: none", 0, 1_000_000, "steps"),
    _int("eval_us", 0, KnobClass.CHECKPOINT, "time of an evaluation (emulated)", 0, 600_000_000, "us"),
    # Communication.
    *_FABRIC,
    _int("bucket_bytes", 196608, KnobClass.COMM, "gradient bucket, before the wire format", 1024, 1 << 30, "bytes"),
    _choice("grad_dtype", ("float32", "bfloat16"), KnobClass.COMM, "format of gradients on the wire"),
    _bool("overlap", True, KnobClass.COMM, "buckets are reduced during backward, not after it"),
    # Faults of a place.
    _record("slow_rank", KnobClass.PLACEMENT, "one rank computes slower",
            _int("rank", 0, KnobClass.PLACEMENT, "global rank, or local rank where a host is given", 0, 1 << 20),
            _text("host", KnobClass.PLACEMENT, "host of the slow device, which keeps it at every scope"), _FACTOR),
    _record("slow_host", KnobClass.PLACEMENT, "every rank of one host computes slower",
            _text("host", KnobClass.PLACEMENT, "host name", required=True), _FACTOR),
    SLOW_LINK,
    _text("label", KnobClass.HARMLESS, "a name for the reader; changes nothing"),
)  # fmt: skip

_COLLECTIVE = (
    _choice("op", ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"), KnobClass.COMM,
            "the operation that is swept"),
    Knob(name="sizes_bytes", kind=KnobKind.SIZES, default=(4096, 16384, 65536, 262144, 1048576), low=4, high=1 << 33,
         unit="bytes", touches=KnobClass.COMM, meaning="total buffer of one call, for each point of the curve"),
    _int("repeats", 12, KnobClass.HARMLESS, "calls for each size in a segment", 1, 100_000, "calls"),
    *_FABRIC,
    SLOW_LINK,
    _text("label", KnobClass.HARMLESS, "a name for the reader; changes nothing"),
)  # fmt: skip

BUILTIN: Mapping[str, Mapping[str, Knob]] = {
    "step": {knob.name: knob for knob in _STEP},
    "collective": {knob.name: knob for knob in _COLLECTIVE},
}


def builtin_name(program: str) -> str | None:
    """The built-in workload that a program names (`step`, `experiments/step.py`, `narrows.experiments.step`)."""
    for name in BUILTIN:
        if program in (name, f"narrows.experiments.{name}") or program.endswith(f"experiments/{name}.py"):
            return name
    return None


def defaults(program: str) -> dict[str, object]:
    """The whole configuration of a built-in workload when nothing is set.

    Raises ValueError: `program` is no built-in workload.
    """
    return {knob.name: knob.default for knob in _table(program).values()}


def check_workload(program: str, config: Mapping[str, object]) -> list[str]:
    """What is wrong with a configuration, one sentence for each fault; an empty list accepts it.

    Raises ValueError: `program` is no built-in workload.
    """
    table = _table(program)
    errors = _check_mapping("", config, table)
    if not errors and program == "step":
        errors = _check_step({**defaults(program), **config})
    return errors


def _table(program: str) -> Mapping[str, Knob]:
    if program not in BUILTIN:
        raise ValueError(f"program = {program!r} is no built-in workload: expected one of {', '.join(BUILTIN)}")
    return BUILTIN[program]


def _check_mapping(prefix: str, config: Mapping[str, object], table: Mapping[str, Knob]) -> list[str]:
    errors = [_unknown(prefix, key, config[key], table) for key in config if key not in table]
    for key, value in config.items():
        if key in table:
            errors += _check_value(prefix + key, value, table[key])
    return errors


def _unknown(prefix: str, key: str, value: object, table: Mapping[str, Knob]) -> str:
    stem, _, suffix = str(key).rpartition("_")
    stem = stem if suffix in _UNITS else str(key)
    for name in table:
        other, _, unit = name.rpartition("_")
        if stem in (other, name) and unit in _UNITS:
            return f"{prefix}{key} = {value!r} has the wrong unit: expected {prefix}{name}, {table[name].expected}"
    near = difflib.get_close_matches(str(key), table, n=1)
    hint = f"did you mean {prefix}{near[0]}?" if near else "expected one of " + ", ".join(table)
    return f"{prefix}{key} = {value!r} is an unknown key: {hint}"


def _check_value(key: str, value: object, knob: Knob) -> list[str]:
    if knob.kind is KnobKind.RECORD:
        return _check_record(key, value, knob)
    values = list(value) if knob.kind is KnobKind.SIZES and isinstance(value, (list, tuple)) else [value]
    if not values or (knob.kind is KnobKind.SIZES and not isinstance(value, (list, tuple))):
        return [f"{key} = {value!r} has the wrong type: expected {knob.expected}"]
    if not all(_has_kind(item, knob.kind) for item in values):
        return [f"{key} = {value!r} has the wrong type: expected {knob.expected}"]
    if knob.kind is KnobKind.CHOICE and value not in knob.choices:
        return [f"{key} = {value!r} is out of range: expected {knob.expected}"]
    if not all(_in_range(item, knob) for item in values):
        return [f"{key} = {value!r} is out of range: expected {knob.expected}"]
    return []


def _check_record(key: str, value: object, knob: Knob) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, Mapping):
        return [f"{key} = {value!r} has the wrong type: expected {knob.expected}"]
    fields = {field.name: field for field in knob.fields}
    errors = _check_mapping(f"{key}.", value, fields)
    missing = [name for name, field in fields.items() if field.required and name not in value]
    return errors + [f"{key} = {dict(value)!r} lacks {name}: expected {knob.expected}" for name in missing]


def _has_kind(value: object, kind: KnobKind) -> bool:
    if kind is KnobKind.BOOL:
        return isinstance(value, bool)
    if kind in (KnobKind.CHOICE, KnobKind.TEXT):
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (kind is KnobKind.FLOAT and isinstance(value, float))


def _in_range(value: object, knob: Knob) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return True
    return (knob.low is None or value >= knob.low) and (knob.high is None or value <= knob.high)


def _check_step(config: Mapping[str, object]) -> list[str]:
    """Rules between keys; every value has already the right type."""
    errors = []
    if config["hidden"] % config["heads"]:  # type: ignore[operator]  # both were checked to be int
        errors.append(f"heads = {config['heads']!r} is out of range: expected a divisor of hidden = {config['hidden']}")
    for small, large in (("mean_doc_tokens", "max_doc_tokens"), ("max_doc_tokens", "tokens_per_rank")):
        if config[small] > config[large]:  # type: ignore[operator]  # both were checked to be int
            errors.append(f"{small} = {config[small]!r} is out of range: expected at most {large} = {config[large]}")
    return errors
