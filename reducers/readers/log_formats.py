"""The line formats of training logs: each takes a line's text to the fields that it holds.

A format's ``fields`` returns None for a line that is not its own. Fields are raw: ``step``, ``step_ms``, ``loss``,
``lr``, ``tokens_per_s``, ``tflops``, ``samples_per_s``, ``grad_norm``, ``total_steps``, ``cumulative_ms``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from narrows.reducers.readers.common import number

Fields = dict[str, float]

_NUM = r"[-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?"
_TQDM = re.compile(
    r"\|\s*(?P<step>\d+)/(?P<total_steps>\d+)\s*\[(?:(?P<elapsed>[\d:]+)<(?P<left>[\d:?]+)),\s*"
    rf"(?P<rate>{_NUM})(?P<unit>it/s|s/it)(?P<rest>[^\]]*)\]?"
)
_KEYS: dict[str, tuple[str, float]] = {
    # A label of a "key: value" or "key=value" part, lower case -> field and the factor to its unit.
    "elapsed time per iteration (ms)": ("step_ms", 1.0),
    "elapsed time per iteration (s)": ("step_ms", 1000.0),
    "iteration-time": ("step_ms", 1000.0),
    "lm loss": ("loss", 1.0),
    "loss": ("loss", 1.0),
    "train_loss": ("loss", 1.0),
    "reduced_train_loss": ("loss", 1.0),
    "learning rate": ("lr", 1.0),
    "learning_rate": ("lr", 1.0),
    "lr": ("lr", 1.0),
    "grad norm": ("grad_norm", 1.0),
    "grad_norm": ("grad_norm", 1.0),
    "throughput per gpu (tflop/s/gpu)": ("tflops", 1.0),
    "throughput (token/sec/gpu)": ("tokens_per_s", 1.0),
    "tokens per gpu per second (tgs)": ("tokens_per_s", 1.0),
    "tokens-per-second-per-gpu": ("tokens_per_s", 1.0),
    "tokens per second": ("tokens_per_s", 1.0),
    "tflops": ("tflops", 1.0),
    "tflops_per_gpu": ("tflops", 1.0),
    "samples per second": ("samples_per_s", 1.0),
    "train_step_timing in s": ("step_ms", 1000.0),
    "global_step": ("step", 1.0),
    "step": ("step", 1.0),
    "steps": ("step", 1.0),
    "number of skipped iterations": ("skipped", 1.0),
    "iter time (s)": ("step_ms", 1000.0),
    "samples/sec": ("samples_per_s", 1.0),
    "currsamplespersec": ("samples_per_s", 1.0),
    "tps": ("tokens_per_s", 1.0),
    "wps": ("tokens_per_s", 1.0),
}


_TIGHT = {"".join(key.split()): value for key, value in _KEYS.items()}  # a wrapped line may lose a space in a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way of writing steps. ``marks``: a line without one of them is not looked at. ``timing`` says what a
    step's time is: printed, smoothed by a progress bar, or a running total to take differences of.
    """

    name: str
    marks: tuple[str, ...]
    fields: Callable[[str], Fields | None]
    timing: str = "printed"


def _pick(pairs: Iterable[tuple[str, str]]) -> Fields:
    found: Fields = {}
    for key, text in pairs:
        known = _TIGHT.get("".join(key.lower().split()))
        value = number(text)
        if known is not None and value is not None:
            found.setdefault(known[0], value * known[1])
    return found


def _named(pattern: re.Pattern[str], text: str) -> Fields | None:
    """The groups of ``pattern`` by name; ``step_s`` becomes ``step_ms``."""
    match = pattern.search(text)
    if match is None:
        return None
    found = {key: value for key, raw in match.groupdict().items() if raw and (value := number(raw)) is not None}
    if "step_s" in found:
        found["step_ms"] = found.pop("step_s") * 1000
    return found


def _by(pattern: str) -> Callable[[str], Fields | None]:
    compiled = re.compile(pattern.replace("NUM", _NUM))
    return lambda text: _named(compiled, text)


_MEGATRON = re.compile(r"\biteration\s+(\d+)\s*/\s*(\d+)\s*\|(.*)", re.DOTALL)


def _megatron(text: str) -> Fields | None:
    match = _MEGATRON.search(text)
    if match is None:
        return None
    parts = (part.rpartition(":") for part in match[3].replace("\n", " ").split("|"))
    return {"step": float(match[1]), "total_steps": float(match[2]), **_pick((key, value) for key, _, value in parts)}


_NEMO = re.compile(r"\biteration\s+(\d+)/(\d+)\s*\|(.*\b(?:global_step|train_step_timing).*)")


def _nemo(text: str) -> Fields | None:
    match = _NEMO.search(text)
    if match is None:
        return None
    parts = (part.rpartition(":") for part in match[3].split("|"))
    found = _pick((key, value) for key, _, value in parts)
    return {"step": float(match[1]), "total_steps": float(match[2]), **found}


def tqdm(text: str) -> Fields | None:
    """A progress bar: its rate is smoothed over the last steps; the first bar has none."""
    match = _TQDM.search(text)
    rate = number(match["rate"]) if match else None
    if match is None or not rate:
        return None
    step_ms = 1000 * rate if match["unit"] == "s/it" else 1000 / rate
    return {"step": float(match["step"]), "total_steps": float(match["total_steps"]), "step_ms": step_ms}


_BAR_PAIR = re.compile(r",\s*([\w ./]+)=([^,\]]+)")


def _lightning(text: str) -> Fields | None:
    """PyTorch Lightning's training bar (NeMo 1): validation bars are no steps."""
    if not re.search(r"\bEpoch\s+\d+:", text):
        return None
    bar = tqdm(text)
    match = _TQDM.search(text)
    if bar is None or match is None:
        return None
    extra = _pick(_BAR_PAIR.findall(match["rest"]))
    # The bar counts within its epoch and global_step lags behind it by the accumulation; the bar is the step.
    extra.pop("step", None)
    return {**bar, **extra}


_HF_PAIR = re.compile(r"'(\w+)':\s*'?([-+.\deE]+)'?")


def _hf(text: str) -> Fields | None:
    """A line of the Trainer's dictionary, its progress bar, or both where they are glued together."""
    if "{'loss'" not in text:
        return tqdm(text)
    return {**(tqdm(text) or {}), **_pick(_HF_PAIR.findall(text[text.index("{'loss'") :]))}


_DEEPSPEED = re.compile(r"\bstep=(\d+), skipped=\d+, lr=\[([^\],]*)")
_DEEPSPEED_RATE = re.compile(r"/global_step=(\d+),.*?CurrSamplesPerSec=([\d.]+)")
_DEEPSPEED_PIPE = re.compile(r"\bsteps: (\d+) loss: (\S+) iter time \(s\): (\S+)(?: samples/sec: (\S+))?")


def _deepspeed(text: str) -> Fields | None:
    if match := _DEEPSPEED_PIPE.search(text):
        pairs = zip(("steps", "loss", "iter time (s)", "samples/sec"), match.groups(default=""), strict=True)
        return _pick(pairs)
    if match := _DEEPSPEED_RATE.search(text):
        return _pick((("step", match[1]), ("samples per second", match[2])))
    if match := _DEEPSPEED.search(text):
        return _pick((("step", match[1]), ("lr", match[2])))
    return None


def _atorch(text: str) -> Fields | None:
    step = re.search(r'\[#log\] \[INSTANT\].*?"global_step": (\d+)', text)
    if step is None:
        return None
    pairs = re.findall(r'"([\w ()/]+)": ("?[-+.\deE]+)', text)
    return {**_pick((key, value.strip('"')) for key, value in pairs if key != "global_step"), "step": float(step[1])}


FORMATS = (
    Format(name="nemo", marks=("global_step", "train_step_timing"), fields=_nemo),
    Format(name="megatron", marks=("iteration",), fields=_megatron),
    Format(
        name="torchtitan",
        marks=("tps", "wps"),
        fields=_by(
            r"\bstep:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>NUM).*?\b(?:tps|wps):\s*(?P<tokens_per_s>NUM)"
            r"(?:.*?\btflops:\s*(?P<tflops>NUM))?"
        ),
    ),
    Format(name="deepspeed", marks=("skipped=", "SamplesPerSec", "iter time (s)"), fields=_deepspeed),
    Format(name="nanochat", marks=("dt:",), fields=_by(
        r"\bstep\s+(?P<step>\d+)(?:\s*/\s*(?P<total_steps>\d+))?.*?\bloss:\s*(?P<loss>NUM)(?:.*?\blr:?\s*(?P<lr>NUM))?"
        r".*?\bdt:\s*(?P<step_ms>NUM)\s*ms(?:.*?\btok/sec:\s*(?P<tokens_per_s>NUM))?"
    )),
    Format(name="nanogpt", marks=("iter ",), fields=_by(
        r"\biter\s+(?P<step>\d+):\s*loss\s+(?P<loss>NUM),\s*time\s+(?P<step_ms>NUM)\s*ms"
    )),
    Format(name="modded-nanogpt", marks=("train_time:",), timing="difference", fields=_by(
        r"\bstep:(?P<step>\d+)/(?P<total_steps>\d+).*?\btrain_time:(?P<cumulative_ms>NUM)\s*ms"
    )),
    Format(name="llm.c", marks=("| loss", "ms |", "tok/s"), fields=_by(
        r"\bstep\s+(?P<step>\d+)/(?P<total_steps>\d+)\s*\|\s*(?:train\s+)?loss\s+(?P<loss>NUM)(?:.*?\|\s*norm\s+(?P<grad_norm>NUM))?"
        r"(?:.*?\|\s*lr\s+(?P<lr>NUM))?.*?\|\s*(?P<step_ms>NUM)\s*ms(?:.*?(?P<tokens_per_s>NUM)\s*tok/s)?"
    )),
    Format(name="llm.c-main", marks=("trl:",), fields=_by(
        r"\bs:(?P<step>\d+)\s+trl:(?P<loss>NUM)(?:\s+lr:(?P<lr>NUM))?(?:\s+norm:(?P<grad_norm>NUM))?"
    )),
    Format(name="atorch", marks=("[#log]",), fields=_atorch),
    Format(name="lightning", marks=("Epoch",), fields=_lightning, timing="smoothed"),
    Format(name="hf-trainer", marks=("{'loss'", "it/s", "s/it"), fields=_hf, timing="smoothed"),
    Format(name="tqdm", marks=("it/s", "s/it"), fields=tqdm, timing="smoothed"),
)  # fmt: skip


def from_pattern(pattern: str) -> Format:
    """The user's own format. Named groups: step (needed), step_ms or step_s, loss, lr, tokens_per_s, tflops, ...

    Raises:
        ValueError: it does not compile, or has no group ``step``.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} is not a regular expression: {error}") from None
    if "step" not in compiled.groupindex:
        raise ValueError(f"the pattern {pattern!r} has no group named step; write (?P<step>\\d+)")
    return Format(name="pattern", marks=("",), fields=lambda text: _named(compiled, text))
