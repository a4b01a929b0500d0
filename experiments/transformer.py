"""The training step on a real device: a small transformer over packed documents, real autograd, bucketed all-reduce."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from narrows.experiments.batches import RankBatch
from narrows.experiments.buckets import Reducer, plan_buckets
from narrows.experiments.model import Transformer
from narrows.experiments.places import Place, Team
from narrows.experiments.timing import wait_until
from narrows.experiments.training import ArmRun, Outcome

_IGNORED = -100
_LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """One micro-step on the host: token ids and targets of the packed documents, (T,), and the padded lengths."""

    tokens: Tensor
    targets: Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBatch:
    """A rank's batch as the loader leaves it."""

    batch: RankBatch
    parts: tuple[PackedTokens, ...]


class RealTrainer:
    """One rank's model on CPU or CUDA. Slow ranks and hosts sleep in proportion to what each layer took.

    Spans are what the device took: on CUDA the host waits for the compute stream at the end of each layer, and never
    for the streams of the collectives, which go on meanwhile.
    """

    def __init__(self, arm: ArmRun, place: Place, team: Team, *, seed: int) -> None:
        self._config = arm.config
        self._recorder = arm.recorder
        self._device = place.device
        self._seed = seed
        self._stretch = arm.config.slowdown(place.rank, place.host, place.local_rank) - 1
        self._clock_ns = 0
        self._reducing = False
        self._model = Transformer(arm.config).to(self._device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=_LEARNING_RATE)
        # Backward reaches the last parameters first, and the model registers them in the order of forward.
        self._parameters = list(reversed(list(self._model.parameters())))
        self._buckets = plan_buckets([4 * p.numel() for p in self._parameters], arm.config.bucket_bytes)
        self._buffers = self._make_buffers()
        self._loss = torch.zeros(1, device=self._device)  # summed over ranks as a bucket of its own, the last one
        self._missing = [len(members) for members in self._buckets]
        self._reducer = Reducer(team, [*self._buffers, self._loss], arm.config.slow_link, arm.recorder)
        self._watch_gradients()

    def reset(self) -> None:
        torch.manual_seed(self._seed)
        self._model.load_state_dict(Transformer(self._config).state_dict())
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=_LEARNING_RATE)

    def begin(self) -> None:
        self._settle()

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def hold(self, name: str, begin_ns: int, until_ns: int) -> None:
        if until_ns > begin_ns:
            self._recorder.add_span(name, begin_ns, until_ns)

    def load(self, batch: RankBatch) -> LoadedBatch:
        parts = [self._pack(batch.batch, part) for part in batch.micro(self._config.accumulate)]
        return LoadedBatch(batch=batch, parts=tuple(parts))

    def train(self, loaded: LoadedBatch) -> Outcome:
        self._pause("alloc", self._config.alloc_us)
        with self._recorder.span("h2d"):
            parts = [self._to_device(part) for part in loaded.parts]
            self._settle()
        summed = torch.zeros((), device=self._device)
        for part in parts:
            loss = self._forward(part) / loaded.batch.team_tokens
            self._backward(loss, last=part is parts[-1])
            summed += loss.detach()
        self._loss.copy_(summed)
        self._reducer.finish()
        with self._recorder.span("optimizer"):
            norm = self._update()
            self._settle()
        return Outcome(loss=float(self._loss), grad_norm=norm, memory=self._memory())

    def evaluate(self, loaded: LoadedBatch) -> None:
        with torch.no_grad(), self._computing("eval"):
            for part in loaded.parts:
                moved = self._to_device(part)
                hidden = self._model.embedding(moved.tokens)
                for block in self._model.blocks:
                    hidden = block(hidden, moved.lengths)

    def state(self) -> bytes:
        buffer = io.BytesIO()
        torch.save(self._model.state_dict(), buffer)
        return buffer.getvalue()

    def close(self) -> None:
        self._reducer.close()

    # Forward and backward.

    def _forward(self, part: PackedTokens) -> Tensor:
        with self._computing("forward"):
            hidden = self._model.embedding(part.tokens)
        for block in self._model.blocks:
            self._pause("launch", self._config.launch_gap_us)
            with self._computing("forward"):
                if self._config.recompute:
                    hidden = checkpoint(block, hidden, part.lengths, use_reentrant=False)
                else:
                    hidden = block(hidden, part.lengths)
            hidden.register_hook(self._enter_layer)
        with self._computing("forward"):
            logits = self._model.head(self._model.norm(hidden))
            return functional.cross_entropy(logits, part.targets, ignore_index=_IGNORED, reduction="sum")

    def _backward(self, loss: Tensor, *, last: bool) -> None:
        self._reducing = last
        self._clock_ns = time.monotonic_ns()
        # Autograd's CPU engine runs hooks on this thread; the CUDA engine's thread blocks this one meanwhile.
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._close_layer()

    def _enter_layer(self, _gradient: Tensor) -> None:
        """Backward has come to a layer: the kernels of the one above it are over, and the host gap comes here."""
        self._close_layer()
        self._pause("launch", self._config.launch_gap_us)
        self._clock_ns = time.monotonic_ns()

    def _close_layer(self) -> None:
        self._settle()
        self._slow_down(self._clock_ns)
        self._recorder.add_span("backward", self._clock_ns, time.monotonic_ns())

    def _watch_gradients(self) -> None:
        for bucket, members in enumerate(self._buckets):
            for index in members:
                parameter = self._parameters[index]
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # torch's gap
                    self._arrival_hook(bucket)
                )

    def _arrival_hook(self, bucket: int) -> Callable[[Tensor], None]:
        def arrived(_parameter: Tensor) -> None:
            if not self._reducing:
                return
            self._missing[bucket] -= 1
            if self._missing[bucket] == 0:
                self._fill(bucket)
                if self._config.overlap:
                    self._reducer.mark_ready(bucket)

        return arrived

    # Gradients in their buckets.

    def _make_buffers(self) -> list[Tensor]:
        dtype = torch.bfloat16 if self._config.grad_dtype == "bfloat16" else torch.float32
        sizes = [sum(self._parameters[index].numel() for index in members) for members in self._buckets]
        return [torch.zeros(size, dtype=dtype, device=self._device) for size in sizes]

    def _fill(self, bucket: int) -> None:
        gradients = [self._parameters[index].grad for index in self._buckets[bucket]]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients if gradient is not None])
        self._buffers[bucket][: len(flat)].copy_(flat)

    def _update(self) -> float:
        squares = torch.zeros((), device=self._device)
        for members, buffer in zip(self._buckets, self._buffers, strict=True):
            offset = 0
            for index in members:
                parameter = self._parameters[index]
                assert parameter.grad is not None, "backward reached every parameter"
                reduced = buffer[offset : offset + parameter.numel()].view_as(parameter)
                parameter.grad.copy_(reduced)
                squares += parameter.grad.square().sum()
                offset += parameter.numel()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._missing = [len(members) for members in self._buckets]
        return float(squares.sqrt())

    # Data, time and memory.

    def _pack(self, batch: int, documents: Sequence[tuple[int, int]]) -> PackedTokens:
        tokens, targets, lengths = [], [], []
        for document, length in documents:
            words = torch.Generator().manual_seed((self._seed * 1_000_003 + batch) * 1_000_003 + document)
            padding = self._config.padded(length) - length
            text = torch.randint(self._config.vocab, (length + 1,), generator=words)
            tokens.append(functional.pad(text[:-1], (0, padding)))
            targets.append(functional.pad(text[1:], (0, padding), value=_IGNORED))
            lengths.append(length + padding)
        return PackedTokens(tokens=torch.cat(tokens), targets=torch.cat(targets), lengths=tuple(lengths))

    def _to_device(self, part: PackedTokens) -> PackedTokens:
        return PackedTokens(
            tokens=part.tokens.to(self._device), targets=part.targets.to(self._device), lengths=part.lengths
        )

    @contextmanager
    def _computing(self, name: str) -> Iterator[None]:
        begin = time.monotonic_ns()
        yield
        self._settle()
        self._slow_down(begin)
        self._recorder.add_span(name, begin, time.monotonic_ns())

    def _slow_down(self, begin_ns: int) -> None:
        """A slow rank sleeps in proportion to what it computed since then."""
        if self._stretch:
            now = time.monotonic_ns()
            wait_until(now + round(self._stretch * (now - begin_ns)))

    def _pause(self, name: str, length_us: int) -> None:
        if length_us:
            begin = time.monotonic_ns()
            self._recorder.add_span(name, begin, wait_until(begin + 1000 * length_us))

    def _settle(self) -> None:
        """The compute stream is idle: the host's stamps are the device's only once the host has caught up."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _memory(self) -> dict[str, float] | None:
        if self._device.type != "cuda":
            return None
        peak = float(torch.cuda.max_memory_allocated(self._device))
        torch.cuda.reset_peak_memory_stats(self._device)
        return {"peak_bytes": peak}
