"""What one more word costs at positions up to 2,000, with and without the cache; measured and drawn.

    python benchmarks/decoding_step.py [--preset tiny] [--rounds 5] [--device cpu]

One sentence. With the cache, `step` reads one word and looks back at the kept keys and values (the rounds go on from the
position named). Without, `decode` reads the whole sentence
again for the sake of its last word, the source's keys included. Before anything is timed, the two must give the same logits.
Results go to benchmarks/results/decoding_step_PRESET_DEVICE.json, the picture beside it.
"""
import argparse
from pathlib import Path

import torch
from timing import interleaved, record, show, summary
from torch.testing import assert_close

from transformer_course.drawing import plots
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.presets import PRESETS

POSITIONS, SENTENCES, SOURCE = (10, 25, 50, 100, 200, 400, 700, 1000, 1400, 2000), 1, 20
CACHE, NO_CACHE = "with the cache", "without"


def states(model: Transformer, src: torch.Tensor, tgt: torch.Tensor) -> dict:
    """The state after as many words as each of POSITIONS says."""
    kept, state = {}, model.start(src)
    for t in range(1, max(POSITIONS) + 1):
        logits, after = model.step(state, tgt[:, t - 1])
        if t in POSITIONS:
            kept[t] = state
        state = after
    return kept


def ways(model: Transformer, state, src: torch.Tensor, tgt: torch.Tensor, t: int) -> dict:
    """Two ways to the logits of the word after the t-th; both have encoded the source before."""
    memory, mask = model.encode(src)
    anew = lambda: model.decode(memory, mask, tgt[:, :t])[0][:, -1] @ model.output.weight.T
    own = [state]         # each call goes on from the last

    def cached():
        logits, own[0] = model.step(own[0], tgt[:, t - 1])
        return logits
    return {CACHE: cached, NO_CACHE: anew}


def draw(figures: dict, path: Path) -> None:
    """Milliseconds by position."""
    plots.use_style()
    (ax,) = plots.grid(1, columns=1, width=5.5, height=3.4)
    for name, marker, colour in ((NO_CACHE, "s", plots.PALETTE[1]), (CACHE, "o", plots.PALETTE[0])):
        ax.plot(POSITIONS, [figures[str(t)][name]["milliseconds"] for t in POSITIONS], marker=marker, color=colour, label=name)
    ax.set(xscale="log", yscale="log", xlabel="position of the new word", ylabel="milliseconds for one word")
    ax.set_xticks(POSITIONS[::3], [f"{t:,}" for t in POSITIONS[::3]], minor=False)
    ax.set_xticks([], minor=True)
    ax.set_yticks([1, 10, 100], ["1", "10", "100"])
    ax.legend(frameon=False)
    plots.save(ax, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny", choices=[name for name in PRESETS if name != "micro"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    device, preset, figures = torch.device(given.device), PRESETS[given.preset], {}
    torch.manual_seed(1)
    model = Transformer(preset.vocabulary, preset.vocabulary, **preset.sizes["transformer"]).to(device).eval()
    src = torch.randint(4, preset.vocabulary, (SENTENCES, SOURCE), device=device)
    tgt = torch.randint(4, preset.vocabulary, (SENTENCES, max(POSITIONS)), device=device)
    with torch.inference_mode():
        for t, state in states(model, src, tgt).items():
            candidates = ways(model, state, src, tgt, t)
            assert_close(candidates[CACHE](), candidates[NO_CACHE](), rtol=1e-3, atol=1e-3)
            figures[str(t)] = summary(interleaved(candidates, given.rounds, device), NO_CACHE)
            show(f"word {t}, {given.preset}", figures[str(t)], NO_CACHE)
    path = record(f"decoding_step_{given.preset}_{device.type}", {"preset": given.preset, "sizes": preset.sizes["transformer"], "sentences": SENTENCES,
                   "source words": SOURCE, "rounds": given.rounds, "positions": figures}, device)
    draw(figures, path.with_suffix(".png"))
    print(f"\nrecorded in {path}, drawn in {path.with_suffix('.png')}")


if __name__ == "__main__":
    main()
