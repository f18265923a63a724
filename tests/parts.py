"""Parts of other models, each one class: what is handed to the stacks of lesson 23 and is not in the library yet."""
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_course.models.attention import attention
from transformer_course.models.functional import causal_mask


@dataclass(frozen=True, eq=False)
class WindowCache:
    """The last keys and values only."""

    width: int
    keys: Tensor | None = None
    values: Tensor | None = None
    length: int = 0

    def append(self, key, value):
        both = [new if old is None else torch.cat((old, new), dim=2) for old, new in ((self.keys, key), (self.values, value))]
        return replace(self, keys=both[0][:, :, -self.width:], values=both[1][:, :, -self.width:], length=self.length + key.shape[2])

    def select(self, rows):
        return self if self.keys is None else replace(self, keys=self.keys[rows], values=self.values[rows])


class Window:
    """Each query reads the last `width` keys, its own included [Beltagy et al. 2020, §3.1, backwards only]."""

    def __init__(self, width: int):
        self.width = width

    def __call__(self, query, key, value, mask=None, bias=None, dropout=0.0, need_weights=False):
        T, S = query.shape[2], key.shape[2]
        near = causal_mask(S, query.device).triu(1 - self.width)[S - T:]                   # (T, S)
        return attention(query, key, value, near if mask is None else near & mask, bias, dropout, need_weights)

    def new_cache(self) -> WindowCache:
        return WindowCache(self.width)

    def read(self, query, cache, mask=None, bias=None, dropout=0.0, need_weights=False):
        near = cache.keys.shape[2]
        return self(query, cache.keys, cache.values, None if mask is None else mask[..., -near:],
                    None if bias is None else bias[..., -near:], dropout, need_weights)


@dataclass(frozen=True, eq=False)
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
        return RunningSum(products, keys, (key, value), self.length + key.shape[2])

    def select(self, rows):
        return self if self.length == 0 else RunningSum(self.products[rows], self.keys[rows], tuple(x[rows] for x in self.last), self.length)


class Linear:
    """Attention without softmax [Katharopoulos et al. 2020, eq. 5]; the cache is a running sum."""

    def __call__(self, query, key, value, mask=None, bias=None, dropout=0.0, need_weights=False):
        weights = (F.elu(query) + 1) @ (F.elu(key) + 1).mT
        weights = weights if mask is None else weights * mask
        weights = weights / weights.sum(-1, keepdim=True)
        return weights @ value, weights if need_weights else None

    def new_cache(self) -> RunningSum:
        return RunningSum()

    def read(self, query, cache, mask=None, bias=None, dropout=0.0, need_weights=False):
        query, (key, value) = F.elu(query) + 1, cache.last                                 # (N, H, T, K) each
        weights = (query @ key.mT).tril()                                                  # among the last words
        total = weights.sum(-1, keepdim=True) + query @ cache.keys.mT
        return (weights @ value + query @ cache.products) / total, None
