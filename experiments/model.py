"""The transformer of the real devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from narrows.experiments.workload import StepConfig


class Block(nn.Module):
    """A pre-norm transformer layer; attention is causal and stays inside each document of the pack."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """(T, hidden) of packed documents with these lengths to the same shape."""
        tokens = tokens + self.projection(self._attend(self.attention_norm(tokens), lengths))
        mixed: Tensor = tokens + self.down(functional.gelu(self.up(self.mlp_norm(tokens))))
        return mixed

    def _attend(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        # One kernel for each document: the cost is the sum of squared lengths, as in block-diagonal attention.
        heads = self.qkv(tokens).view(len(tokens), 3, self.heads, -1)
        attended = [
            functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(0, 1)
            for query, key, value in (part.permute(1, 2, 0, 3) for part in heads.split(list(lengths)))
        ]
        return torch.cat(attended).reshape(tokens.shape)


class Transformer(nn.Module):
    """Embedding, blocks and a head over a small vocabulary."""

    def __init__(self, config: StepConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.blocks = nn.ModuleList(Block(config.hidden, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocab)
