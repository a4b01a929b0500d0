"""Which records of a trace are wanted, and the patterns that find them in its text.

In most traces nine records of ten are operators, stack frames and flows: they are passed over without being decoded.
"""

from __future__ import annotations

import re
from functools import cache

_RUNTIMES = rb"(?:cuda_(?:runtime|driver)|Runtime|mtia_runtime|xpu_runtime|privateuse1_(?:runtime|driver))\""
# Of the runtime's calls, those that put no work on a device are passed over: more than half of them in real traces.
_NO_LAUNCH = rb"(?:cuda|hip)(?:Event|StreamWait|StreamIs|StreamGet|Get|Func|Occupancy|DeviceGet|PointerGet|PeekAtLast)"
_MARKS = rb"(?:ProfilerStep|enumerate\(DataLoader|(?:gloo|mpi|ucc|hccl):)"
_OTHERS = (
    rb"(?:kernel|gpu_mem(?:cpy|set)|Kernel|Mem(?:cpy|set)|mtia_ccp_events|user_annotation|cpu_instant_event)\""
    rb"|(?:cpu_op|Operator)\"\s*,\s*\"name\"\s*:\s*\"" + _MARKS
)
_FIELDS = rb'"ts"\s*:\s*(\d+(?:\.\d+)?)\s*,[^{}]*"args"\s*:\s*\{[^{}]*"correlation"\s*:\s*(\d{1,18})\s*[,}]'


@cache
def anywhere() -> re.Pattern[bytes]:
    """The category of a wanted record. Of a launch, two groups: its time and correlation, where they stand as usual."""
    launch = _RUNTIMES + rb'(?!\s*,\s*"name"\s*:\s*"' + _NO_LAUNCH + rb")(?:[^{}]*?" + _FIELDS + rb")?"
    return re.compile(rb'"cat"\s*:\s*"(?:' + launch + rb"|" + _OTHERS + rb")")


@cache
def regular(opens: bytes, closes: bytes, phase: bytes, separator: bytes) -> re.Pattern[bytes]:
    """A wanted record as profilers write it: a line break before its end, the name right behind the category.

    Before the category's text stand ``opens``, ``phase``, a letter, a quote, ``separator`` and the category's key.
    Four groups: a launch's time and correlation; something where another record does not open so; and that record, from
    its category's text to its end. A match begins with a letter, not a quote, because there are fewer of them. It costs
    half of a search anywhere.
    """
    name = re.escape(separator) + rb'"name": "'
    # What most records' category begins with turns them away before the alternatives are tried one by one.
    skipped = rb'(?!cpu_op"' + name + rb"(?!" + _MARKS + rb')|ac2g|python|cuda_runtime"' + name + _NO_LAUNCH + rb")"
    launch = _RUNTIMES + rb'[^\n]*+\n(?:\s*+"(?:name|pid|tid)": [^\n]*+\n)*+\s*+' + _FIELDS
    opening = (
        rb"(?:(?<=" + re.escape(opens + phase) + rb"." + re.escape(b'"' + separator + b'"cat": "') + rb")|(?=(.)))"
    )
    to_the_end = rb"[^\n]*+(?:\n(?!" + re.escape(closes[1:]) + rb")[^\n]*+)*+" + re.escape(closes)
    record = opening + rb"((?:" + _RUNTIMES + rb"|" + _OTHERS + rb")" + to_the_end + rb")"
    return re.compile(rb'cat": "' + skipped + rb"(?:" + launch + rb"|" + record + rb")")


def phase_and_separator(opens: bytes) -> re.Pattern[bytes]:
    """What stands before a record's phase and between that and its category, in two groups."""
    return re.compile(re.escape(opens) + rb'(\s*"ph": ")X"(\s*,\s*)"cat": "')
