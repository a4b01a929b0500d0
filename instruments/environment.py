"""Environment variables, versions and arguments that can change a run, with secrets masked."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"

_PREFIXES = (
    "TORCH", "PYTORCH", "NCCL", "GLOO", "CUDA", "CUBLAS", "CUDNN", "NVIDIA_", "NVTE_", "TRITON_", "HIP_", "ROCR_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "VECLIB_", "NUMEXPR_", "ONEDNN_", "DNNL_", "MALLOC_",
    "UCX_", "UCC_", "FI_", "OMPI_", "PMI", "SLURM_", "MASTER_", "GROUP_", "ROLE_", "LOCAL_", "NODE_",
    "ACCELERATE_", "DEEPSPEED_", "FSDP_", "XLA_", "NARROWS_",
)  # fmt: skip
_NAMES = frozenset(
    {"RANK", "WORLD_SIZE", "NODE_RANK", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONPATH",
     "TOKENIZERS_PARALLELISM", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV"}
)  # fmt: skip
_PACKAGES = (
    "torch", "narrows", "numpy", "triton", "torchvision", "torchdata", "transformers", "accelerate", "deepspeed",
    "datasets", "flash-attn", "transformer-engine", "megatron-core", "lightning", "torchao", "torchtitan",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12",
)  # fmt: skip
_SECRET_WORDS = frozenset(
    {"secret", "secrets", "token", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "apikey",
     "auth", "authorization", "cookie"}
)  # fmt: skip
_KEY_OWNERS = frozenset({"api", "access", "secret", "private", "ssh", "account", "license", "wandb", "signing"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_URL_USER = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def is_secret(name: str) -> bool:
    """Whether a value under this name must not be written: the name has a word for a secret in it."""
    words = [word.lower() for word in _WORD.findall(name)]
    if _SECRET_WORDS.intersection(words):
        return True
    return any(word == "key" and _KEY_OWNERS.intersection(words) for word in words)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change how a training run behaves, by name, secrets as ``***``."""
    kept = {name: value for name, value in sorted(variables.items()) if name in _NAMES or name.startswith(_PREFIXES)}
    return {name: _masked_text(name, value) for name, value in kept.items()}


def masked(value: Any, name: str = "") -> Any:
    """``value`` with every text under a secret's name, and every user part of a URL, replaced by ``***``."""
    if isinstance(value, Mapping):
        return {str(key): masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item, name) for item in value]
    return _masked_text(name, value) if isinstance(value, str) else value


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """The argument list with the values of options that name a secret replaced by ``***``."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            shown.append(MASK)
        elif equals and is_secret(option):
            shown.append(f"{option}={MASK}")
        else:
            shown.append(_URL_USER.sub(MASK, argument))
        hide_next = argument.startswith("-") and not equals and is_secret(option)
    return shown


def package_versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that a training step runs on."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    torch_version = sys.modules.get("torch.version")
    if torch_version is not None:
        built = {"torch": torch_version.__version__, "cuda": torch_version.cuda, "torch_git": torch_version.git_version}
        versions.update({name: str(version) for name, version in built.items() if version})
    return versions


def _masked_text(name: str, value: str) -> str:
    return MASK if is_secret(name) else _URL_USER.sub(MASK, value)
