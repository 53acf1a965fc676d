"""Networks of the kinds that people bring, each of which treats every record alone: for images of 1x8x8 and three classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 3
SHAPE = (1, 8, 8)
PIXELS = 64


def scores(values: object) -> Tensor:
    """A tensor, said so."""
    if not isinstance(values, Tensor):
        raise TypeError(type(values))
    return values


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 16), nn.ReLU(), nn.Linear(16, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.body(images))


class OddMlp(nn.Module):
    """Rows of 7 numbers: their rounding depends on the row where nothing is done about it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(30, 7), nn.Linear(7, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.last(self.first(images.flatten(1)[:, :30].contiguous()).relu()))


class GroupNormCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.head = nn.Linear(8 * 16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.max_pool2d(F.gelu(self.norm(self.conv(images))), 2)
        return scores(self.head(hidden.flatten(1)))


class LayerNormMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(PIXELS, 16), nn.LayerNorm(16), nn.Linear(16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.last(F.silu(self.norm(self.first(images.flatten(1))))))


class InstanceNormCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.head(self.norm(self.conv(images)).relu().mean((2, 3))))


class RmsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, values: Tensor) -> Tensor:
        return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-6) * self.scale


class RmsNormMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(PIXELS, 16), RmsNorm(16), nn.Linear(16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.last(self.norm(self.first(images.flatten(1))).relu()))


class DropoutMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(PIXELS, 16), nn.Dropout(0.3), nn.Linear(16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.last(self.drop(self.first(images.flatten(1)).relu())))


class SpatialDropoutCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop, self.head = nn.Conv2d(1, 8, 3), nn.Dropout2d(0.3), nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.head(self.drop(self.conv(images).relu()).mean((2, 3))))


class TiedWeights(nn.Module):
    """An auto-encoder whose decoder is the encoder's weight, transposed; classified from the code and the error."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.head = nn.Linear(PIXELS, 8), nn.Linear(9, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        code = self.encode(flat).tanh()
        error = (F.linear(code, self.encode.weight.t()) - flat).square().mean(1, keepdim=True)
        return scores(self.head(torch.cat([code, error], 1)))


class WeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(PIXELS, 12))
        self.last = nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.last(self.first(images.flatten(1)).relu()))


class TokenEmbedding(nn.Module):
    """Levels of grey as ids of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(17, 6), nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        ids = (images.flatten(1) * 16).round().long().clamp(0, 16)
        return scores(self.head(self.table(ids).mean(1)))


class LstmCells(nn.Module):
    """Rows of the image, one after the other, through a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 8), nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        state = (images.new_zeros(images.shape[0], 8), images.new_zeros(images.shape[0], 8))
        for row in images.squeeze(1).unbind(1):
            state = self.cell(row, state)
        return scores(self.head(state[0]))


class GruByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates, self.candidate, self.head = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        state = images.new_zeros(images.shape[0], 8)
        for row in images.squeeze(1).unbind(1):
            update, reset = self.gates(torch.cat([row, state], 1)).sigmoid().chunk(2, 1)
            state = (1 - update) * state + update * self.candidate(torch.cat([row, reset * state], 1)).tanh()
        return scores(self.head(state))


class MaskedAttention(nn.Module):
    """Self-attention by hand with a causal mask that lies in a buffer."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(8, 24), nn.Linear(8, CLASSES)
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))

    def forward(self, images: Tensor) -> Tensor:
        query, key, value = self.project(images.squeeze(1)).chunk(3, -1)
        weights = (query @ key.transpose(1, 2) / math.sqrt(8) + self.mask).softmax(-1)
        return scores(self.head((weights @ value).mean(1)))


class MultiheadNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = images.squeeze(1)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return scores(self.head(mixed.mean(1)))


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = nn.MultiheadAttention(size, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * size, size))

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm1(tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        return scores(tokens + self.mlp(self.norm2(tokens)))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.position = nn.Parameter(0.1 * torch.randn(1, 5, 8))
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(images.shape[0], -1, -1), patches], 1) + self.position
        return scores(self.head(self.norm(self.blocks(tokens))[:, 0]))


class RowStochasticDepth(nn.Module):
    """Drops a residual branch for single rows, as timm and torchvision do."""

    def __init__(self, *, fresh: bool = False) -> None:
        super().__init__()
        self.first, self.branch, self.last = nn.Linear(PIXELS, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.fresh = fresh

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first(images.flatten(1)).relu()
        if self.training:
            shape = (hidden.shape[0], 1)
            drawn = torch.empty(shape) if self.fresh else hidden.new_empty(shape)
            hidden = hidden + self.branch(hidden) * drawn.bernoulli_(0.7) / 0.7
        else:
            hidden = hidden + self.branch(hidden)
        return scores(self.last(hidden))


class TorchvisionStochasticDepth(RowStochasticDepth):
    """With a tensor that torch's vmap cannot fill: only the path of single records can train it."""

    def __init__(self) -> None:
        super().__init__(fresh=True)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.norm, self.head = nn.GroupNorm(3, 6), nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.stem(images).relu()
        hidden = hidden + self.two(self.norm(self.one(hidden)).relu())
        return scores(self.head(F.adaptive_avg_pool2d(hidden, 1).flatten(1)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.squeeze, self.excite = nn.Conv2d(1, 8, 3), nn.Linear(8, 4), nn.Linear(4, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.conv(images).relu()
        gate = self.excite(self.squeeze(hidden.mean((2, 3))).relu()).sigmoid()
        return scores(self.head((hidden * gate[:, :, None, None]).mean((2, 3))))


class DepthwiseCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depth, self.point = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.silu(self.point(self.depth(F.silu(self.stem(images)))))
        return scores(self.head(hidden.mean((2, 3))))


class FrozenBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.head(self.backbone(images)))


class PositionalEncoding(nn.Module):
    encoding: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(8.0)[:, None] / 10 ** torch.linspace(0, 1, 4)
        self.register_buffer("encoding", torch.cat([angles.sin(), angles.cos()], 1), persistent=False)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return scores(self.head(self.mix(images.squeeze(1) + self.encoding).relu().mean(1)))


class SoftExperts(nn.Module):
    """Every expert sees every record; a gate of the record's own mixes them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(PIXELS, 3)
        self.experts = nn.ModuleList(nn.Linear(PIXELS, CLASSES) for _ in range(3))

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        answers = torch.stack([expert(flat) for expert in self.experts], 1)
        return scores((self.gate(flat).softmax(1).unsqueeze(2) * answers).sum(1))


class BareParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.1 * torch.randn(PIXELS, CLASSES)), nn.Parameter(torch.zeros(CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight + self.bias


class LazyTable(nn.Module):
    """A table of constants that is made at the first call and kept: the same whatever was in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(PIXELS, CLASSES)
        self.table: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0.5, 1.5, PIXELS)
        return scores(self.head(images.flatten(1) * self.table))


class LastActivation(nn.Module):
    """Keeps its last activations for a picture; the next pass overwrites them and does not look at them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(PIXELS, 8), nn.Linear(8, CLASSES)
        self.seen: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first(images.flatten(1)).relu()
        self.seen = hidden.detach()
        return scores(self.last(hidden))


class LayerScale(nn.Module):
    """Starts at zero behind its branch, as ConvNeXt and CaiT do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.last = nn.Linear(PIXELS, 12), nn.Linear(12, 12), nn.Linear(12, CLASSES)
        self.scale = nn.Parameter(torch.zeros(12))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first(images.flatten(1)).relu()
        return scores(self.last(hidden + self.scale * self.branch(hidden)))


def plain_sequence() -> nn.Module:
    """Nothing but layers of torch."""
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, CLASSES))


PROVEN: tuple[type[nn.Module], ...] = (
    Mlp,
    OddMlp,
    GroupNormCnn,
    LayerNormMlp,
    InstanceNormCnn,
    RmsNormMlp,
    DropoutMlp,
    SpatialDropoutCnn,
    TiedWeights,
    WeightNorm,
    TokenEmbedding,
    LstmCells,
    GruByHand,
    MaskedAttention,
    MultiheadNetwork,
    VisionTransformer,
    RowStochasticDepth,
    TorchvisionStochasticDepth,
    Residual,
    SqueezeExcite,
    DepthwiseCnn,
    FrozenBackbone,
    PositionalEncoding,
    SoftExperts,
    BareParameters,
    LazyTable,
    LastActivation,
    LayerScale,
)
