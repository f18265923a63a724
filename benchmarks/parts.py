"""The fast parts against the ordinary ones: dropout, projection with loss, attention; forward and backward.

    python benchmarks/parts.py [--rounds 15] [--device cpu]

Sizes are those of a batch of some 4,000 tokens in the tiny Transformer; the projection at the base model's width too.
Results go to benchmarks/results/parts.json.
"""
import argparse

import torch
from torch.nn import functional as F
from torch.testing import assert_close

from timing import interleaved, record, show, summary
from transformer_course.models.attention import attention, plain_attention
from transformer_course.models.functional import causal_mask, dropout, projected_loss
from transformer_course.training.settings import matmul_precision

B, T, D, H, V = 136, 30, 128, 4, 8000


def backward(output, *inputs):
    """Gradients of the sum: what a training step does after the forward pass."""
    return torch.autograd.grad(output.sum(), inputs)


def dropouts(device):
    x = torch.randn(B, T, D, device=device, requires_grad=True)
    return {"torch.nn.functional.dropout": lambda: backward(F.dropout(x, 0.3), x),
            "dropout from random bytes": lambda: backward(dropout(x, 0.3), x)}


def losses(device, width):
    hidden = torch.randn(B, T, width, device=device, requires_grad=True)
    weight = (torch.randn(V, width, device=device) * width**-0.5).requires_grad_()
    target = torch.randint(1, V, (B, T), device=device)

    def whole():
        logits = hidden @ weight.T
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, label_smoothing=0.1)

    chunks = lambda rows=None: projected_loss(hidden, weight, None, target, 0.1, chunk=rows)
    for rows in (None, 128):
        for a, b in zip(backward(whole(), hidden, weight), backward(chunks(rows), hidden, weight)):
            assert_close(a, b)
    return {"all logits, F.cross_entropy": lambda: backward(whole(), hidden, weight),
            "projected_loss in chunks": lambda: backward(chunks(), hidden, weight),
            "the same, 128 rows each": lambda: backward(chunks(128), hidden, weight)}


def attentions(device, length):
    q, k, v = (torch.randn(B * T // length, H, length, D // H, device=device, requires_grad=True) for role in range(3))
    mask = causal_mask(length, device)
    fused = lambda: F.scaled_dot_product_attention(q, k, v, mask)

    def plain():
        return plain_attention(q, k, v, mask)[0]

    assert_close(fused(), plain())
    assert_close(fused(), attention(q, k, v, mask)[0])
    return {"scaled_dot_product_attention": lambda: backward(fused(), q, k, v),
            "two products": lambda: backward(plain(), q, k, v),
            "the course's attention": lambda: backward(attention(q, k, v, mask)[0], q, k, v)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    device, figures = torch.device(given.device), {}
    torch.manual_seed(1)
    for precision in ("highest", "medium"):
        cases = {"dropout 0.3": dropouts(device)}
        cases |= {f"projection and loss, V = 8,000, width {width}": losses(device, width) for width in (D, 512)}
        cases |= {f"causal attention, length {n}": attentions(device, n) for n in (30, 120, 480)}
        with matmul_precision(precision):
            for title, candidates in cases.items():
                base = next(iter(candidates))
                rows = summary(interleaved(candidates, given.rounds, device), base)
                show(f"{title}, {precision} precision", rows, base)
                figures[f"{title}, {precision}"] = rows
    print(f"\nrecorded in {record('parts', figures)}")


if __name__ == "__main__":
    main()
