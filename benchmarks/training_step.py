"""A training step (forward, smoothed loss, backward, Adam) against torch.nn.Transformer, on the same batches.

    python benchmarks/training_step.py [--preset tiny] [--rounds 12] [--device cpu]

Both models have the same sizes, the same weights at the start and the same tensors; before anything is timed, their
losses without dropout must agree. "Same sites" gives this library dropout where torch.nn.Transformer has it too
(attention weights and inside the feed-forward network); "default" is dropout at the paper's sites. Batches are random
ids with the lengths of captions. Results go to benchmarks/results/training_step_PRESET_DEVICE.json.
"""
import argparse
import random
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from timing import interleaved, record, show, summary
from transformer_course.functional import causal_mask, padding_mask
from transformer_course.training import batch_plan, collate, matmul_precision
from transformer_course.transformer import Transformer
from transformer_course.translation import PRESETS

warnings.filterwarnings("ignore", message="enable_nested_tensor")


class Peer(nn.Module):
    """torch.nn.Transformer between this library's embeddings and an ordinary projection and loss."""

    def __init__(self, ours: Transformer, sizes: dict):
        super().__init__()
        self.ours = ours   # its embedding is shared
        self.body = nn.Transformer(sizes["d_model"], sizes["n_heads"], sizes["n_layers"], sizes["n_layers"], sizes["d_ff"],
                                   sizes["dropout"], batch_first=True, norm_first=sizes["norm"] == "pre")
        self.drop = nn.Dropout(sizes["dropout"])

    def embed(self, tokens):
        words = self.ours.tgt_embedding(tokens) * self.ours.d_model**0.5
        return self.drop(words + self.ours.positions(0, tokens.shape[1]))

    def loss(self, src, tgt):
        real, later = padding_mask(src, 0), ~causal_mask(tgt.shape[1] - 1, tgt.device)
        hidden = self.body(self.embed(src), self.embed(tgt[:, :-1]), tgt_mask=later, tgt_is_causal=True,
                           src_key_padding_mask=~real, memory_key_padding_mask=~real)
        logits = hidden @ self.ours.tgt_embedding.weight.T
        return F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)


@torch.no_grad()
def copy_weights(ours: Transformer, theirs: nn.Transformer) -> None:
    """Our weights into torch.nn.Transformer."""
    for stack, twin in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for a, b in zip(stack, twin.layers, strict=True):
            pairs = [(a.attention if hasattr(a, "attention") else a.self_attention, b.self_attn)]
            pairs += [(a.cross_attention, b.multihead_attn)] if hasattr(a, "cross_attention") else []
            for mine, other in pairs:
                other.in_proj_weight.copy_(mine.in_proj.weight)
                other.in_proj_bias.copy_(mine.in_proj.bias)
                other.out_proj.load_state_dict(mine.out_proj.state_dict())
            b.linear1.load_state_dict(a.feed_forward.expand.state_dict())
            b.linear2.load_state_dict(a.feed_forward.contract.state_dict())
            for number, residual in enumerate(a.residuals, start=1):
                getattr(b, f"norm{number}").load_state_dict(residual.norm.state_dict())


def batches(vocabulary: int, max_tokens: int, count: int, device: torch.device) -> list:
    """Random ids with the lengths of captions, cut into batches as in training."""
    draw = random.Random(1)
    words = lambda n: [draw.randrange(4, vocabulary) for word in range(n)]
    lengths = [max(4, round(draw.gauss(14, 4))) for sentence in range(20 * count * max_tokens // 200)]
    examples = [(words(n) + [2], [1] + words(max(3, n + draw.randrange(-2, 3))) + [2]) for n in lengths]
    return [collate(examples, batch, 0, device) for batch in batch_plan(examples, max_tokens)[:count]]


def stepper(model: nn.Module, parameters, data: list):
    """A function that trains on the next batch each time it is called."""
    optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=True)
    turn = iter(range(10**9))

    def step():
        model.loss(*data[next(turn) % len(data)]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny", choices=[name for name in PRESETS if name != "micro"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    device, preset = torch.device(given.device), PRESETS[given.preset]
    sizes, vocabulary, figures = preset.sizes["transformer"], preset.vocabulary, {}
    data = batches(vocabulary, preset.batch_tokens, 6, device)
    torch.manual_seed(1)
    ours = Transformer(vocabulary, vocabulary, **sizes).to(device)
    same = Transformer(vocabulary, vocabulary, **sizes, attention_dropout=sizes["dropout"], ff_dropout=sizes["dropout"]).to(device)
    same.load_state_dict(ours.state_dict())
    peer = Peer(Transformer(vocabulary, vocabulary, **sizes), sizes).to(device)
    peer.ours.load_state_dict(ours.state_dict())
    copy_weights(ours, peer.body)
    for model in (ours, same, peer):
        model.eval()
    for other in (same, peer):
        assert_close(other.loss(*data[0]), ours.loss(*data[0]), rtol=1e-4, atol=1e-4)
    for model in (ours, same, peer):
        model.train()
    candidates = {"torch.nn.Transformer": stepper(peer, [*peer.body.parameters(), peer.ours.tgt_embedding.weight], data),
                  "this library, same sites": stepper(same, same.parameters(), data),
                  "this library, default sites": stepper(ours, ours.parameters(), data)}
    for precision in ("highest", "medium"):
        with matmul_precision(precision):
            rows = summary(interleaved(candidates, given.rounds, device), "torch.nn.Transformer")
        show(f"training step, {given.preset}, {precision} precision", rows, "torch.nn.Transformer")
        figures[precision] = rows
    tokens = sum(int((tgt[:, 1:] != 0).sum()) for src, tgt in data) / len(data)
    figures |= {"preset": given.preset, "sizes": sizes, "real target tokens in a batch": tokens, "rounds": given.rounds}
    print(f"\nrecorded in {record(f'training_step_{given.preset}_{device.type}', figures)}")


if __name__ == "__main__":
    main()
