"""Five small models written out in full, each with data made from a seed: real training code for tests and benchmarks.

`MODELS[name]()` gives `(model, batch, loss)`: `batch(size, generator)` makes inputs and targets, `loss(model, batch)`
a scalar tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]


class Task(NamedTuple):
    model: nn.Module
    batch: Callable[[int, torch.Generator], Batch]
    loss: Callable[[Any, Batch], Tensor]


class Residual(nn.Module):
    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        same = stride == 1 and inside == out
        self.skip = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.skip(x))


class ResNet(nn.Module):
    """Residual network for small pictures (N, 3, H, W) -> (N, classes)."""

    def __init__(self, width: int = 16, blocks: tuple[int, ...] = (1, 1, 1), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        layers: list[nn.Module] = []
        inside = width
        for level, count in enumerate(blocks):
            out = width * 2**level
            for block in range(count):
                layers.append(Residual(inside, out, 2 if level and not block else 1))
                inside = out
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal, dropout)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.first_norm(x)))
        return x + self.drop(self.feed(self.second_norm(x)))


class Transformer(nn.Module):
    """Tokens (N, L) -> logits (N, L, words): causal as a GPT, else masked as a BERT. Words in and out are tied."""

    def __init__(
        self,
        causal: bool,
        words: int = 64,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        length: int = 32,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(places))))


class UNet(nn.Module):
    """Pictures (N, 1, H, W) -> one logit for each pixel (N, 1, H, W); H and W are multiples of 4."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._two(1, width), self._two(width, 2 * width)])
        self.bottom = self._two(2 * width, 4 * width)
        self.widen = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.up = nn.ModuleList([self._two(4 * width, 2 * width), self._two(2 * width, width)])
        self.head = nn.Conv2d(width, 1, 1)

    @staticmethod
    def _two(inside: int, out: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inside, out, 3, 1, 1),
            nn.GroupNorm(4, out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1),
            nn.GroupNorm(4, out),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for widen, stage, side in zip(self.widen, self.up, reversed(kept), strict=True):
            x = stage(torch.cat([widen(x), side], 1))
        return self.head(x)


class LSTM(nn.Module):
    """Series (N, L, 4) -> the next values (N, 4)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, width, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


def resnet(**sizes: Any) -> Task:
    def batch(size: int, generator: torch.Generator) -> Batch:
        pictures = torch.randn(size, 3, 16, 16, generator=generator)
        return pictures, (pictures.mean((1, 2, 3)) * 100).long().remainder(10)

    return Task(ResNet(**sizes), batch, lambda model, pair: F.cross_entropy(model(pair[0]), pair[1]))


def bert(**sizes: Any) -> Task:
    def batch(size: int, generator: torch.Generator) -> Batch:
        words = torch.randint(1, 64, (size, 1), generator=generator) + torch.arange(32)
        words = words.remainder(63) + 1
        hidden = torch.rand(size, 32, generator=generator) < 0.15
        hidden[:, 0] = True  # at least one word of each row is asked for
        return words.masked_fill(hidden, 0), words.masked_fill(~hidden, -100)

    def loss(model: Any, pair: Batch) -> Tensor:
        return F.cross_entropy(model(pair[0]).flatten(0, 1), pair[1].flatten(), ignore_index=-100)

    return Task(Transformer(causal=False, **sizes), batch, loss)


def gpt(**sizes: Any) -> Task:
    def batch(size: int, generator: torch.Generator) -> Batch:
        start = torch.randint(0, 64, (size, 1), generator=generator)
        words = (start + 3 * torch.arange(33)).remainder(64)
        return words[:, :-1].contiguous(), words[:, 1:].contiguous()

    def loss(model: Any, pair: Batch) -> Tensor:
        return F.cross_entropy(model(pair[0]).flatten(0, 1), pair[1].flatten())

    return Task(Transformer(causal=True, **sizes), batch, loss)


def unet(**sizes: Any) -> Task:
    def batch(size: int, generator: torch.Generator) -> Batch:
        pictures = torch.randn(size, 1, 16, 16, generator=generator)
        return pictures, (F.avg_pool2d(pictures, 3, 1, 1) > 0).float()

    return Task(UNet(**sizes), batch, lambda model, pair: F.binary_cross_entropy_with_logits(model(pair[0]), pair[1]))


def lstm(**sizes: Any) -> Task:
    def batch(size: int, generator: torch.Generator) -> Batch:
        phase = torch.rand(size, 1, 4, generator=generator) * 6.28
        series = torch.sin(phase + torch.arange(17)[None, :, None] * 0.4)
        return series[:, :-1], series[:, -1]

    return Task(LSTM(**sizes), batch, lambda model, pair: F.mse_loss(model(pair[0]), pair[1]))


MODELS: dict[str, Callable[..., Task]] = {"resnet": resnet, "bert": bert, "gpt": gpt, "unet": unet, "lstm": lstm}
