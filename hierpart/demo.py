"""A small network to try hierpart on: ``hierpart explain hierpart.demo:build``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Network(nn.Module):
    """Convolutions, one attention layer and a classifier, with a running mean of its features.

    Takes images of shape ``(batch, 3, 32, 32)``; returns logits ``(batch, 10)``, the three highest
    of them and their indices ``(batch, 3)``.
    """

    average: Tensor

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.skip = nn.Conv2d(width, width, 1, stride=2)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.head = nn.Linear(width, 10)
        self.register_buffer("average", torch.zeros(width))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Classify ``images`` and update the running mean of their features."""
        stem = self.stem(images)
        tokens = (self.body(stem) + self.skip(stem)).flatten(2).transpose(1, 2)
        tokens = tokens + self.attend(self.norm1(tokens))
        tokens = tokens + self.mlp(self.norm2(tokens))
        features = tokens.mean(1)
        self.average.mul_(0.9).add_(features.mean(0) * 0.1)
        logits = self.head(features)
        highest, indices = logits.topk(3)
        return logits, highest, indices

    def attend(self, tokens: Tensor) -> Tensor:
        """Mix ``tokens`` by attention; weak weights are cut off and the rest is renormalised."""
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(tokens).chunk(3, dim=2)
        )
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        weights = F.relu(F.softmax(scores, dim=-1) - 1e-3)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed: Tensor = self.project((weights @ value).transpose(1, 2).flatten(2))
        return mixed


def build(seed: int = 0) -> tuple[Network, tuple[Tensor]]:
    """Return the network in eval mode and example images; also for ``module:factory`` commands."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network().eval(), (torch.randn(2, 3, 32, 32),)
