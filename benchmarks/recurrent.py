"""The course's recurrent layers on masked batches against torch.nn's on packed ones: forward, and forward with backward.

    python benchmarks/recurrent.py [--rounds 8] [--device cpu]

Both read the same batch of sentences with the lengths of captions and have the same weights; before anything is timed,
their outputs must agree. Packing and unpacking belong to PyTorch's side, since its layers need them to keep padding
out. Results go to benchmarks/results/recurrent.json.
"""
import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from timing import interleaved, record, show, summary
from transformer_course.models.rnn import Recurrent
from transformer_course.training.settings import matmul_precision

B, D, H = 128, 128, 256   # sentences, size of an input vector, size of the hidden state of each direction


def batch(device):
    """Inputs (B, T, D), lengths (B,) on the CPU, as packing wants them, and the mask (B, T)."""
    lengths = (14 + 4 * torch.randn(B)).round().clamp(4, 30).long()
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    return torch.randn(*mask.shape, D, device=device, requires_grad=True), lengths, mask.to(device)


@torch.no_grad()
def copy_weights(ours: Recurrent, theirs: nn.Module) -> None:
    """Our weights into nn.GRU or nn.LSTM."""
    endings = [f"_l{layer}{way}" for layer in range(theirs.num_layers) for way in ("", "_reverse")[:ours.directions]]
    for cell, ending in zip(ours.cells, endings, strict=True):
        for name, parameter in cell.named_parameters():
            getattr(theirs, name + ending).copy_(parameter)


def layers(kind, bidirectional, x, lengths, mask):
    """Two functions without arguments that give outputs (B, T, H * directions), and the parameters of each."""
    ours = Recurrent(kind, D, H, bidirectional=bidirectional).to(x.device)
    theirs = getattr(nn, kind.upper())(D, H, batch_first=True, bidirectional=bidirectional).to(x.device)
    copy_weights(ours, theirs)

    def packed():
        sequence = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(theirs(sequence)[0], batch_first=True)[0]

    masked = lambda: ours(x, mask)[0]
    assert_close(masked(), packed(), rtol=1e-3, atol=1e-4)
    return {f"packed nn.{kind.upper()}": (packed, theirs), "Recurrent with a mask": (masked, ours)}


def cases(kind, bidirectional, x, lengths, mask):
    """What is timed: forward without gradients, and forward with backward."""
    candidates = layers(kind, bidirectional, x, lengths, mask)
    ways = "both directions" if bidirectional else "one direction"

    def forward(run):
        with torch.no_grad():
            run()

    def training(run, model):
        torch.autograd.grad(run().sum(), [x, *model.parameters()])

    yield f"{kind}, {ways}, forward", {name: (lambda run=run: forward(run)) for name, (run, model) in candidates.items()}
    yield f"{kind}, {ways}, forward and backward", {
        name: (lambda run=run, model=model: training(run, model)) for name, (run, model) in candidates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.manual_seed(1)
    x, lengths, mask = batch(torch.device(given.device))
    figures = {"sizes": {"B": B, "T": mask.shape[1], "D": D, "H": H}, "share of real positions": mask.float().mean().item(),
               "rounds": given.rounds}
    for precision in ("highest", "medium"):
        for kind in ("gru", "lstm"):
            for bidirectional in (False, True):
                for title, candidates in cases(kind, bidirectional, x, lengths, mask):
                    base = next(iter(candidates))
                    with matmul_precision(precision):
                        rows = summary(interleaved(candidates, given.rounds, x.device), base)
                    show(f"{title}, {precision} precision", rows, base)
                    figures[f"{title}, {precision}"] = rows
    print(f"\nrecorded in {record('recurrent', figures, x.device)}")


if __name__ == "__main__":
    main()
