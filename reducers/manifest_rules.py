"""What a manifest field can touch: a table from field patterns to mechanism, accounts and smallest scope.

The first rule whose pattern matches the whole dotted field decides. A field that no rule knows may touch anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from narrows.inquiry.accounts import Account
from narrows.inquiry.scopes import Scope
from narrows.inquiry.workloads import BUILTIN, KnobClass, KnobKind, builtin_name

if TYPE_CHECKING:
    from narrows.inquiry.workloads import Knob


class DifferenceKind(StrEnum):
    """Which mechanism a difference belongs to, in the order in which differences are considered."""

    NUMERATOR = "numerator"
    COMPUTE = "compute"
    HOST = "host"
    INPUT = "input"
    COPY = "copy"
    MEMORY = "memory"
    CHECKPOINT = "checkpoint"
    COMM = "comm"
    PLACEMENT = "placement"
    UNKNOWN = "unknown"
    HARMLESS = "harmless"


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """What a field can move: its kind, the accounts, the smallest scope where it still exists, and why."""

    kind: DifferenceKind
    accounts: tuple[Account, ...]
    scope: Scope
    why: str


_A = Account
_WAITING = (_A.SKEW, _A.PIPELINE)
ANY_ACCOUNT: tuple[Account, ...] = tuple(account for account in Account if account is not Account.RESIDUAL)

# What a kind touches where its rule says nothing narrower.
_ACCOUNTS: dict[DifferenceKind, tuple[Account, ...]] = {
    DifferenceKind.NUMERATOR: (_A.COMPUTE, _A.SKEW),
    DifferenceKind.COMPUTE: (_A.COMPUTE, _A.SKEW),
    DifferenceKind.HOST: (_A.HOST, _A.SKEW),
    DifferenceKind.INPUT: (_A.INPUT, _A.SKEW),
    DifferenceKind.COPY: (_A.COPY,),
    DifferenceKind.MEMORY: (_A.MEMORY, _A.HOST),
    DifferenceKind.CHECKPOINT: (_A.CHECKPOINT,),
    DifferenceKind.COMM: (_A.TRANSFER,),
    DifferenceKind.PLACEMENT: (_A.COMPUTE, _A.TRANSFER, _A.SKEW, _A.PIPELINE, _A.INPUT, _A.HOST),
    DifferenceKind.UNKNOWN: ANY_ACCOUNT,
    DifferenceKind.HARMLESS: (),
}
_SCOPES: dict[DifferenceKind, Scope] = {
    DifferenceKind.COMM: Scope.ONE_NODE,
    DifferenceKind.PLACEMENT: Scope.ONE_NODE,
}

# Fields that differ between any two runs and say nothing of either.
IGNORED = re.compile(
    r"schema|kind|run|name|launch|arm|status|.*_unix_ns|.*monotonic_ns|(.*\.)?pid"
    r"|hosts\..*\.(uptime\w*|time|now|load_\w+|loadavg)"
    r"|environment\.(MASTER_(PORT|ADDR)|(LOCAL_|GROUP_|ROLE_)?(RANK|NAME)|GROUP_RANK|PID"
    r"|NARROWS_(RUN_DIR|LAUNCH\w*|JOB_MARK|RECORDING|SINGLE|HOST)"
    r"|TORCHELASTIC_(RUN_ID|ERROR_FILE|RESTART_COUNT)|TORCH_NCCL_DEBUG_INFO\w*|TORCH_FR_DUMP\w*|\w*_PORT"
    r"|SLURM_(JOB_?ID|JOB_NAME|JOB_(START|END)_TIME|STEP\w*|TASK_PID|GTIDS|PROCID|LOCALID|NODEID|LAUNCH\w*"
    r"|SUBMIT\w*|SRUN\w*|TOPOLOGY_ADDR\w*|CONF\w*|PRIO\w*|RLIMIT\w*|UMASK|CLUSTER\w*|WORKING\w*))"
    r"|argv\.(plan|out|output(_dir)?|run(_dir|_name)?|name|log(_dir|s)?|results?|trace(_dir)?|master_(port|addr)|port"
    r"|rdzv_\w+|node_rank)"
)


def _rule(
    pattern: str, kind: str, why: str, accounts: tuple[Account, ...] | None = None, scope: Scope | None = None
) -> tuple[re.Pattern[str], Touch]:
    found = DifferenceKind(kind)
    touch = Touch(
        kind=found,
        accounts=_ACCOUNTS[found] if accounts is None else accounts,
        scope=scope or _SCOPES.get(found, Scope.ONE_RANK),
        why=why,
    )
    return re.compile(pattern, re.IGNORECASE), touch


_CONFIGURED = r"(config|workload|argv)\.(.*[._])?"

RULES: tuple[tuple[re.Pattern[str], Touch], ...] = (
    # The numerator: what the step has to compute.
    _rule(_CONFIGURED + r"(packing|packer|bin_?packing|length_group\w*|bucketing)", "numerator",
          "how sequences are dealt to ranks decides the work of the heaviest rank, even at equal token counts",
          (_A.COMPUTE, _A.SKEW), Scope.ONE_NODE),
    _rule(_CONFIGURED + r"(recompute\w*|(activation|gradient)_checkpoint\w*|checkpoint_activations|remat\w*)",
          "numerator", "recomputation runs the forward pass again inside the backward pass", (_A.COMPUTE, _A.MEMORY)),
    _rule(_CONFIGURED + r"(capacity_factor|num_experts|experts\w*|top_k|router\w*)", "numerator",
          "expert capacity and routing decide how many tokens each expert pads or drops", (_A.COMPUTE, _A.SKEW),
          Scope.ONE_NODE),
    _rule(_CONFIGURED + r"(eval\w*|valid(ation)?_(every|interval|steps|freq\w*))", "checkpoint",
          "evaluation runs between training steps and counts as their time", (_A.CHECKPOINT, _A.COMPUTE)),
    _rule(_CONFIGURED + r"(padding\w*|pad_\w+|valid_tokens|padded_tokens)", "numerator",
          "padding is computed like valid tokens and yields nothing"),
    _rule(_CONFIGURED + r"(seq(uence)?_?len\w*|max_len\w*|context\w*|block_size|\w*doc_tokens|doc_sigma|sum_sq_len)",
          "numerator", "attention grows with the square of the sequence length"),
    _rule(_CONFIGURED + r"((global_|micro_?|local_)?batch(_size)?|\w*tokens_per_rank|samples\w*|accumulat\w*"
          r"|grad\w*_accum\w*)", "numerator", "the samples and tokens of a step set its work"),
    _rule(_CONFIGURED + r"(layers|num_layers|n_layer|hidden\w*|n_embd|d_model|heads|n_heads?|vocab\w*|ffn\w*"
          r"|intermediate\w*|model\w*|params|num_parameters|model_flops)", "numerator",
          "the shape of the model sets the work of a step"),
    # Placement and parallel degrees, before the general configuration.
    _rule(_CONFIGURED + r"(world_size|nodes|ranks_per_node|nproc\w*|nnodes|num_shards|(tp|dp|pp|ep|cp)(_size|_degree)?"
          r"|\w*parallel\w*)", "placement", "parallel degrees set local shapes, group sizes and who waits for whom",
          ANY_ACCOUNT, Scope.FULL),
    _rule(r"groups(\..*)?", "placement", "a process group with other members has other links and another slowest rank",
          (_A.TRANSFER, *_WAITING), Scope.FULL),
    _rule(r"placement\..*|hosts", "placement", "ranks on other hosts run on other hardware behind other links",
          None, Scope.ONE_NODE),
    _rule(_CONFIGURED + r"(slow_rank|slow_host)(\..*)?", "placement",
          "one place computes slower; the others wait for it", (_A.COMPUTE, _A.SKEW), Scope.ONE_RANK),
    _rule(_CONFIGURED + r"slow_link(\..*)?", "comm", "collectives that cross hosts last longer",
          (_A.TRANSFER, _A.SKEW), Scope.TWO_NODES),
    # Configuration by mechanism.
    _rule(_CONFIGURED + r"(num_workers|prefetch\w*|\w*loader\w*|data\w*|shuffle|input\w*|slow_input"
          r"|tokenizer\w*)(\..*)?",
          "input", "the input pipeline decides how long a step waits for its batch"),
    _rule(_CONFIGURED + r"(pin_memory|non_blocking|h2d\w*|d2h\w*)", "copy",
          "host-device copies wait or overlap by this"),
    _rule(_CONFIGURED + r"(checkpoint\w*|ckpt\w*|save\w*)(\..*)?", "checkpoint",
          "checkpoints stop the step, or compete with it, as often as this says"),
    _rule(_CONFIGURED + r"(alloc\w*|gc\w*|empty_cache\w*)", "memory",
          "allocator and garbage collection stall the host"),
    _rule(_CONFIGURED + r"(compile\w*|cuda_graphs?|launch\w*|profil\w*|log_(every|interval)|pin_cpu\w*)(\..*)?", "host",
          "it changes how much the host does before each kernel", (_A.HOST, _A.COMPUTE)),
    _rule(_CONFIGURED + r"(bucket\w*|overlap\w*|grad_dtype|\w*reduce_dtype|fsdp\w*|zero\w*|reshard\w*|compress\w*"
          r"|backend|op|sizes_bytes)(\..*)?", "comm",
          "it sets how much is sent, in how many pieces, and what hides it"),
    _rule(_CONFIGURED + r"(\w*precision|\w*dtype|tf32|fp8\w*|bf16|fp16|amp|attention\w*|flash\w*|kernel\w*|optimizer\w*"
          r"|\w*compute_scale|jitter|linear_ns\w*|quadratic_ns\w*)", "compute",
          "it selects the kernels and how long they run"),
    _rule(_CONFIGURED + r"(label|title|comment|notes?|verbose|wandb\w*|project|tags?)", "harmless",
          "a name for the reader; it changes nothing that runs"),
    # Seeds and order.
    _rule(r"(.*[._])?seed", "numerator", "another seed deals other sequences in another order", (_A.COMPUTE, _A.SKEW)),
    # Source.
    _rule(r"source\.path", "harmless", "the same source in another folder runs the same"),
    _rule(r"source\..*", "unknown", "changed source can touch anything; read its diff"),
    _rule(r"program", "unknown", "another program runs another step"),
    # Software.
    _rule(r"packages\.(torch|triton|pytorch\S*|transformer[-_]engine|flash[-_]attn\S*|xformers|apex|cutlass\S*)",
          "compute", "it brings the kernels and their launch path, and torch its communication library as well",
          (_A.COMPUTE, _A.HOST, _A.TRANSFER, _A.MEMORY)),
    _rule(r"packages\.nvidia[-_](cudnn|cublas|cuda|cufft|curand|cusolver|cusparse|nvjitlink|nvtx)\S*", "compute",
          "it brings the kernels", (_A.COMPUTE, _A.HOST)),
    _rule(r"packages\.(nvidia[-_]nccl\S*|nccl\S*|rccl\S*|gloo\S*|mpi4py|ucx\S*|ucc\S*|deepspeed|megatron\S*|nvshmem\S*)",
          "comm", "it carries or schedules the collectives", (_A.TRANSFER, _A.SKEW)),
    _rule(r"packages\.(datasets|webdataset|tokenizers|torchdata|pyarrow|nvidia[-_]dali\S*|pillow\S*|opencv\S*|fsspec"
          r"|s3fs|mosaicml[-_]streaming)", "input", "it prepares the batches"),
    _rule(r"packages\.(numpy|torchvision|torchaudio)", "input", "the data pipeline may use it", (_A.INPUT, _A.HOST)),
    _rule(r"packages\.(transformers|accelerate|lightning|pytorch[-_]lightning|peft|timm)", "compute",
          "it holds model or loop code", (_A.COMPUTE, _A.HOST, _A.MEMORY)),
    _rule(r"packages\.narrows", "harmless", "the recorder, not the training code"),
    _rule(r"packages\.(pip|setuptools|wheel|pytest\S*|ruff|mypy\S*|rich|wandb|tensorboard\S*|matplotlib|black|ipython)",
          "harmless", "a tool that takes no part in the step"),
    # Environment.
    _rule(r"environment\.NCCL_(IB|NET|SOCKET|CROSS_NIC|NSOCKS|RAIL|GDR|NET_GDR|IBEXT|OOB)\w*", "comm",
          "it decides which network interfaces and paths collectives take between hosts", (_A.TRANSFER,),
          Scope.TWO_NODES),
    _rule(r"environment\.NCCL_(P2P|SHM|NVLS|CUMEM|MNNVL)\w*", "comm",
          "it decides how ranks of one host reach each other", (_A.TRANSFER, _A.MEMORY)),
    _rule(r"environment\.NCCL_DEBUG\w*", "host", "debug output costs host time", (_A.HOST,)),
    _rule(r"environment\.(TORCH_)?NCCL_(BLOCKING_WAIT|ASYNC_ERROR\w*|DESYNC\w*|ENABLE_MONITORING|TRACE\w*|"
          r"ENABLE_TIMING|HEARTBEAT\w*)", "host", "it adds host work or waits around collectives",
          (_A.HOST, _A.TRANSFER)),
    _rule(r"environment\.(TORCH_)?(NCCL|RCCL|UCX|UCC|SHARP|FI|MPI|OMPI)_\w+", "comm",
          "it tunes algorithm, protocol, channels or transport of collectives"),
    _rule(r"environment\.(GLOO|TP_SOCKET)_\w+", "comm", "it decides which interface gloo uses", None, Scope.TWO_NODES),
    _rule(r"environment\.(OMP|MKL|OPENBLAS|NUMEXPR|KMP|GOMP|NUMBA)_\w+", "host",
          "CPU threads and their places set host and CPU compute time", (_A.HOST, _A.INPUT, _A.COMPUTE)),
    _rule(r"environment\.(PYTORCH_(CUDA_|HIP_)?ALLOC_CONF|PYTORCH_NO_CUDA_MEMORY_CACHING|MALLOC_\w+|LD_PRELOAD)",
          "memory", "it changes how memory is handed out and when the allocator stalls"),
    _rule(r"environment\.CUDA_(VISIBLE_DEVICES|DEVICE_ORDER)", "placement", "ranks run on other GPUs"),
    _rule(r"environment\.(CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_MAX_CONNECTIONS|CUDA_MODULE_LOADING)", "host",
          "it changes how kernels are queued, and so what overlaps", (_A.HOST, _A.COMPUTE, _A.TRANSFER)),
    _rule(r"environment\.(CUBLAS|CUDNN|CUDA|NVIDIA_TF32|TORCH_CUDNN|TORCH_ALLOW_TF32|PYTORCH_TUNABLEOP|NVTE)\w*",
          "compute", "it selects kernels or their workspace"),
    _rule(r"environment\.(TORCH_COMPILE|TORCHINDUCTOR|TORCHDYNAMO|TORCH_LOGS|TRITON)\w*", "compute",
          "it changes what the compiler makes or how often it recompiles", (_A.COMPUTE, _A.HOST)),
    _rule(r"environment\.(TORCH_DISTRIBUTED_DEBUG|TORCH_CPP_LOG_LEVEL|TORCH_SHOW_CPP\w*|PYTHON\w*)", "host",
          "it adds host work to every call", (_A.HOST, _A.TRANSFER)),
    _rule(r"environment\.(TOKENIZERS|HF_|WEBDATASET)\w*", "input", "it changes how batches are prepared"),
    _rule(r"environment\.SLURM_(CPU|MEM|GPU|NTASKS|TASKS|DISTRIBUTION|TRES)\w*", "host",
          "the scheduler gave other CPUs, memory or task places", (_A.HOST, _A.INPUT)),
    _rule(r"environment\.((LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|SLURM_(NNODES|NODELIST|JOB_NODELIST|JOB_NUM_NODES))",
          "placement", "the job has another size or other nodes", ANY_ACCOUNT, Scope.FULL),
    _rule(r"environment\.TORCHELASTIC_(MAX_RESTARTS|USE_AGENT_STORE)", "harmless", "it matters only at restarts"),
    # Hosts.
    _rule(r"hosts\.[^.]+\.gpus\..*(power|clock|thrott|persist|ecc|mig)\w*", "compute",
          "power and clock policy set how fast every kernel runs"),
    _rule(r"hosts\.[^.]+\.gpus\.[^.]+\.(uuid|serial|pci\w*)", "placement", "another physical GPU",
          (_A.COMPUTE, _A.SKEW), Scope.ONE_RANK),
    _rule(r"hosts\.[^.]+\.gpus(\..*)?", "compute", "other GPUs run kernels at another speed",
          (_A.COMPUTE, _A.MEMORY, _A.SKEW)),
    _rule(r"hosts\.[^.]+\.nics(\..*)?", "comm", "the network interface sets rate and delay between hosts", None,
          Scope.TWO_NODES),
    _rule(r"hosts\.[^.]+\.(driver|cuda|vbios|gsp|gpu_driver\w*)\w*", "compute",
          "driver and CUDA version decide clocks, scheduling and copy paths",
          (_A.COMPUTE, _A.HOST, _A.COPY, _A.TRANSFER)),
    _rule(r"topology(\..*)?", "comm", "racks, switches and rails decide routes", None, Scope.TWO_NODES),
    _rule(r"hosts\.[^.]+\.(ofed|\w*firmware|nccl|fabric\w*|switch\w*|topology\w*|rails?|racks?)(\..*)?", "comm",
          "firmware and fabric decide routes and congestion", None, Scope.TWO_NODES),
    _rule(r"hosts\.[^.]+\.(kernel|os\w*|cpus?\w*|governor|numa\w*|microcode|bios|virtual\w*|thp\w*|cgroup\w*)(\..*)?",
          "host", "kernel, CPU and their policy set launch and loader time", (_A.HOST, _A.INPUT, _A.COMPUTE)),
    _rule(r"hosts\.[^.]+\.(memory|swap)\w*", "memory", "less memory means reclaim and smaller caches",
          (_A.MEMORY, _A.INPUT)),
    _rule(r"hosts\.[^.]+\.(storage|mounts?|disks?|filesystem)\w*(\..*)?", "input",
          "batches and checkpoints go through it", (_A.INPUT, _A.CHECKPOINT)),
    _rule(r"hosts\.[^.]+\.(boot_id|machine_id|hostname|ip\w*)", "harmless",
          "the host was started anew; what that changed is compared field by field"),
    # The kind of device decides what a second means at all.
    _rule(r"device|emulated", "compute", "the runs used different kinds of device and cannot be compared", ANY_ACCOUNT),
    _rule(r"data(set)?(\..*)?|shards?(\..*)?", "input", "other data in another order", (_A.INPUT, _A.COMPUTE, _A.SKEW)),
)  # fmt: skip

# Narrower than the class of a built-in knob: where several accounts or ranks take part.
_KNOB_SCOPES = {"packing": Scope.ONE_NODE, "slow_rank": Scope.ONE_RANK, "slow_host": Scope.ONE_RANK}


def touch_of(field: str, program: str | None = None) -> Touch:
    """What a dotted manifest field can move; `program` names the workload whose knobs `config.<key>` are.

    A field that nothing knows touches every account at every scope.
    """
    by_pattern = next((touch for pattern, touch in RULES if pattern.fullmatch(field)), None)
    knob = _knob(field, program)
    if knob is not None:
        return _knob_touch(knob, by_pattern)
    if by_pattern is not None:
        return by_pattern
    return Touch(
        kind=DifferenceKind.UNKNOWN,
        accounts=ANY_ACCOUNT,
        scope=Scope.ONE_RANK,
        why="nothing is known of this field, so it may touch anything",
    )


def is_record(field: str, program: str | None) -> bool:
    """Whether the field is a knob that is off when null and a small mapping when on: it differs as a whole."""
    knob = _knob(field, program)
    return knob is not None and knob.kind is KnobKind.RECORD


def _knob(field: str, program: str | None) -> Knob | None:
    section, _, key = field.partition(".")
    known = builtin_name(program) if program else None
    if section != "config" or known is None:
        return None
    return BUILTIN[known].get(key.partition(".")[0])


def _knob_touch(knob: Knob, by_pattern: Touch | None) -> Touch:
    kind = DifferenceKind(knob.touches.value)
    if by_pattern is not None and by_pattern.kind is kind:
        accounts, scope = by_pattern.accounts, by_pattern.scope
    else:
        accounts, scope = _ACCOUNTS[kind], _SCOPES.get(kind, Scope.ONE_RANK)
    if knob.touches is KnobClass.HARMLESS:
        accounts = ()
    return Touch(kind=kind, accounts=accounts, scope=_KNOB_SCOPES.get(knob.name, scope), why=knob.meaning)
