"""Parts of other models, each one class: what is handed to the stacks of lesson 23 and is not in the library yet."""
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_course.models.attention import CrossAttention, SelfAttention, attention
from transformer_course.models.functional import causal_mask
from transformer_course.models.transformer import Decoder, DecoderLayer, Encoder, EncoderLayer


def encoder(n_layers, heads, feed_forward, norm, dropout=0.1, pre_norm=False, positions=lambda: None, final_norm=None):
    """A stack whose layers are made by calling these; `final_norm` is the last norm itself."""
    return Encoder([EncoderLayer(SelfAttention(heads(), positions()), feed_forward(), norm(), norm(), dropout, pre_norm) for n in range(n_layers)],
                   final_norm)


def decoder(n_layers, heads, feed_forward, norm, dropout=0.1, pre_norm=False, positions=lambda: None, final_norm=None):
    """The same for a decoder."""
    return Decoder([DecoderLayer(SelfAttention(heads(), positions()), CrossAttention(heads(cross=True)), feed_forward(), norm(), norm(), norm(), dropout, pre_norm)
                    for n in range(n_layers)], final_norm)


@dataclass(eq=False)
class WindowCache:
    """The last keys and values only."""

    width: int
    keys: Tensor | None = None
    values: Tensor | None = None
    length: int = 0

    def append(self, key, value):
        both = [new if old is None else torch.cat((old, new), dim=2) for old, new in ((self.keys, key), (self.values, value))]
        self.keys, self.values = (x[:, :, -self.width:] for x in both)
        self.length += key.shape[2]
        return self.keys, self.values

    def select(self, rows):
        return WindowCache(self.width) if self.keys is None else WindowCache(self.width, self.keys[rows], self.values[rows], self.length)


class Window:
    """Each query reads the last `width` keys, its own included [Beltagy et al. 2020, §3.1, backwards only]."""

    def __init__(self, width: int):
        self.width = width

    def __call__(self, query, key, value, mask=None, bias=None, dropout=0.0, need_weights=False):
        T, S = query.shape[2], key.shape[2]
        near = causal_mask(S, query.device).triu(1 - self.width)[S - T:]                   # (T, S)
        mask = near if mask is None else near & mask[..., -S:]                             # a cache has the last keys only
        return attention(query, key, value, mask, None if bias is None else bias[..., -S:], dropout, need_weights)

    def new_cache(self) -> WindowCache:
        return WindowCache(self.width)


@dataclass(eq=False)
class RunningSum:
    """Sums of key times value, and of keys, over all words but those that came last; their size does not grow with the words."""

    products: Tensor | None = None   # (N, H, K, K)
    keys: Tensor | None = None       # (N, H, 1, K)
    last: tuple = ()                 # keys and values that came last, (N, H, T, K) each
    length: int = 0

    def append(self, key, value):
        key, products, keys = F.elu(key) + 1, self.products, self.keys
        if products is None:
            products, keys = torch.zeros_like(key.mT @ value), torch.zeros_like(key[:, :, :1])
        for old, values in [self.last] if self.last else []:
            products, keys = products + old.mT @ values, keys + old.sum(2, keepdim=True)
        self.products, self.keys, self.last, self.length = products, keys, (key, value), self.length + key.shape[2]
        return self, value                                                                 # `Linear` reads the sums

    def select(self, rows):
        return RunningSum() if self.length == 0 else RunningSum(self.products[rows], self.keys[rows], tuple(x[rows] for x in self.last), self.length)


class Linear:
    """Attention without softmax [Katharopoulos et al. 2020, eq. 5]; the cache is a running sum."""

    def __call__(self, query, key, value, mask=None, bias=None, dropout=0.0, need_weights=False):
        if isinstance(key, RunningSum):
            return self.read(query, key), None
        weights = (F.elu(query) + 1) @ (F.elu(key) + 1).mT
        weights = weights if mask is None else weights * mask
        weights = weights / weights.sum(-1, keepdim=True)
        return weights @ value, weights if need_weights else None

    def new_cache(self) -> RunningSum:
        return RunningSum()

    def read(self, query, sums):
        query, (key, value) = F.elu(query) + 1, sums.last                                  # (N, H, T, K) each
        weights = (query @ key.mT).tril()                                                  # among the last words
        total = weights.sum(-1, keepdim=True) + query @ sums.keys.mT
        return (weights @ value + query @ sums.products) / total
