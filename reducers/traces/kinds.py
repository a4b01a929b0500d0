"""What an event of a trace is: device work by its category, communication by metadata or a kept list of names."""

from __future__ import annotations

import re
from enum import IntEnum


class Work(IntEnum):
    """What a device did. Compute is every kernel that is not communication."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


# The category decides, not ``args.stream``: host operators of Triton and ``cuda_sync`` events carry a stream as well.
# Capitalised categories were written in 2021. MTIA has one category for everything on the device.
DEVICE_WORK = {
    "kernel": Work.COMPUTE,
    "Kernel": Work.COMPUTE,
    "mtia_ccp_events": Work.COMPUTE,
    "gpu_memcpy": Work.COPY,
    "Memcpy": Work.COPY,
    "gpu_memset": Work.COPY,
    "Memset": Work.COPY,
}
LAUNCHES = frozenset(
    {"cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "xpu_runtime", "privateuse1_runtime"}
    | {"privateuse1_driver"}
)
ANNOTATIONS = frozenset({"user_annotation", "cpu_op", "Operator"})  # since 2022 the first; before, an operator
INSTANT = "cpu_instant_event"

STEP = re.compile(r"ProfilerStep#?(\d+)")
INPUT_PREFIX = "enumerate(DataLoader)"
HOST_COLLECTIVE = re.compile(r"(gloo|mpi|ucc|hccl):(\w+)")
MARKS = ("ProfilerStep", INPUT_PREFIX, "gloo:", "mpi:", "ucc:", "hccl:")  # what annotations of use begin with

# Kernels that communicate, where no metadata says so: NCCL, RCCL, MSCCL; NVSHMEM and DeepEP; vLLM's and AITER's custom
# all-reduce; PyTorch's symmetric memory; TensorRT-LLM's and FlashInfer's one- and two-shot all-reduce; oneCCL and HCCL.
COMMUNICATION_NAMES = re.compile(
    r"nccl(?:Sym)?(?:Dev)?Kernel|\bnccl|rccl|msccl|nvshmem|deep_ep\b|cross_device_reduce|reduce_scatter_cross_device"
    r"|multimem_(?:one_shot_|two_shot_)?(?:all_|reduce_scatter)|(?:one|two)_?shot_?all_?reduce|all_?reduce_fusion"
    r"|all_?reduce_prototype|allreduce_sum_kernel|oneccl|\bhccl",
    re.IGNORECASE,
)
_MTIA_COPY = re.compile(r"dma|memcpy", re.IGNORECASE)

_OPERATIONS = (
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("send_recv", re.compile(r"send_?recv", re.IGNORECASE)),
    ("send", re.compile(r"\bsend", re.IGNORECASE)),
    ("recv", re.compile(r"\brecv", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("gather", re.compile(r"gather", re.IGNORECASE)),
    ("scatter", re.compile(r"scatter", re.IGNORECASE)),
)
POINT_TO_POINT = frozenset({"send", "recv"})
SYMMETRIC_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Operations that no member can leave before the last one arrived. Names are matched by their beginning."""

ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int": 4, "int32": 4,
    "long": 8, "int64": 8, "short": 2, "char": 1, "byte": 1, "bool": 1, "uint8": 1, "int8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


def work_of(category: str, name: str, collective_name: object) -> Work | None:
    """What kind of device work an event is; None when it is none."""
    work = DEVICE_WORK.get(category)
    if work is not Work.COMPUTE:
        return work
    if category == "mtia_ccp_events" and _MTIA_COPY.search(name):
        return Work.COPY
    if collective_name or COMMUNICATION_NAMES.search(name):
        return Work.COMMUNICATION
    return work


def operation_of(text: str) -> str:
    """The collective's name as torch.distributed spells it (``all_reduce``), from metadata or a kernel's name."""
    text = text.strip("_")
    for operation, pattern in _OPERATIONS:
        if pattern.search(text):
            return operation
    return "unknown"
