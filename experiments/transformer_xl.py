"""Transformer-XL against segments of equal length: the same network, words and steps, with a memory and without.

    python experiments/transformer_xl.py --parts micro characters cost --seeds 1 2 3

micro: micro-text in words, L = 16; no memory, and memories of 16 and 48 words. Three controls have no memory either: segments of 64
words; windows of 64 that begin every 16 words, where only the last 16 words have a loss, so that each of them comes after 48 others
or more, as with the memory of 48; and segments of 16 that are read in the order of the streams, as a memory needs them, and not in
random order. Each model has
a rate of its own: the best on `valid` (seed 1, half of the steps), with half of it and twice of it tried and worse. Also the loss of the first 5,000
test words from exactly c words each, for several c, which says how much context a model can use.
characters: tinyshakespeare in characters (`transformer-course data fetch tinyshakespeare`, or TRANSFORMER_COURSE_DATA), L = 32; no
memory, and a memory of 96. Rates as above, with a quarter of the steps, on the first 30,000 characters of `valid`.
cost: untrained networks read a text in windows of W words moved by one word, in windows of W that overlap by half, and in a stream that
keeps keys and values of W words and reads W/2 at a time; time of the processor for each scored word, and multiply-adds. All are the
same network, with relative positions. The windows are read by a network without positions, too, which is cheaper. The ways take turns,
so that a busy machine shifts all of them; a time is the median over the turns. The C library (glibc) is told to keep freed memory: if it
gives the memory back, the times of windows jump where one array reaches a megabyte. Each call that asks for this part makes it again.
`test` is only scored. Writes results/transformer_xl.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from records import RESULTS, best_rate, facts, joined_facts, write
from torch import nn
from torch.nn import functional as F

from transformer_course.data.corpora import load
from transformer_course.data.text import EOS, Tokenizer
from transformer_course.models.memory_worth import multiply_adds
from transformer_course.models.segments import SegmentBatches, window_losses
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.models.streams import StreamBatches, Streaming, stream_losses
from transformer_course.models.transformer_xl import TransformerXL, WithMemory
from transformer_course.training.schedules import linear_decay
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import fit

SETTINGS = {"micro": {"length": 16, "rows": 32, "steps": 900, "tried": 450, "first rate": 0.005, "warm-up": 20,
                      "sizes": {"d_model": 64, "n_heads": 4, "n_layers": 2, "dropout": 0.0}},
            "characters": {"length": 32, "rows": 24, "steps": 2400, "tried": 600, "first rate": 0.003, "warm-up": 100, "scored": 30_000,
                           "sizes": {"d_model": 64, "n_heads": 4, "n_layers": 2, "dropout": 0.0}}}
# name: (words in a segment, memory); as many words with a loss to a step in all models of a part
MODELS = {"micro": {"segments": (16, 0), "memory 16": (16, 16), "memory 48": (16, 48), "segments of 64": (64, 0),
                    "streams, no memory": (16, 0), "windows of 64, last 16": (64, 0)},
          "characters": {"segments": (32, 0), "memory 96": (32, 96)}}
CONTEXTS = (2, 4, 8, 16, 24, 32, 48, 64)
FIRST = 5000                                                    # test words in the curve over contexts
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": "2000000000", "MALLOC_MMAP_THRESHOLD_": "2000000000"}     # bytes: freed memory is kept
TURNS = 9                                                       # of the clock, after one that does not count


@dataclass(frozen=True, eq=False)
class WindowBatches:
    """Windows of one long text that overlap: they begin every `new` words, and only their last `new` words count."""

    ids: torch.Tensor    # (n,) the text
    length: int          # words that a window predicts
    new: int             # words from one window's beginning to the next one's
    rows: int            # windows in a batch

    def plan(self, seed: int, epoch: int) -> list[list[int]]:
        """Batches of first words, in random order; each epoch cuts the text at other places."""
        draw = random.Random(f"windows {seed} {epoch}")
        starts = list(range(draw.randrange(self.new), len(self.ids) - self.length, self.new))
        draw.shuffle(starts)
        return [starts[i:i + self.rows] for i in range(0, len(starts), self.rows)]

    def collate(self, batch: Sequence[int], device=None) -> tuple[torch.Tensor]:   # (B, length + 1)
        return (torch.stack([self.ids[start:start + self.length + 1] for start in batch]).to(device),)

    def tokens(self, batch: Sequence[int]) -> int:
        return len(batch) * self.new

    def fingerprint(self) -> str:
        return repr((self.ids.tolist(), self.length, self.new, self.rows))


class LastWords(nn.Module):
    """A language model that is taught the last words of a window only."""

    def __init__(self, inner: nn.Module, new: int):
        super().__init__()
        self.inner, self.new = inner, new

    def loss(self, tokens, smoothing=0.0):
        logits = self.inner(tokens[:, :-1])[:, -self.new:]                                # (B, new, V)
        return F.cross_entropy(logits.mT, tokens[:, -self.new:], label_smoothing=smoothing)


def micro_text():
    """Ids by split; which predicted words of `test` repeat a story's name, place or thing; the vocabulary's size."""
    corpus = load("micro-text")
    tokenizer = Tokenizer.train([d.text for d in corpus["train"]], kind="words", size=500)
    ids = {split: torch.tensor([i for d in corpus[split] for i in (*tokenizer.encode(d.text), EOS)]) for split in ("train", "valid", "test")}
    recalled, place = [], 0
    for d in corpus["test"]:
        words = d.text.split()
        if "evening" in words:                                   # in the evening NAME came home from the PLACE with the THING .
            end = len(words) - 1
            recalled += [place + words.index("evening") + 1, place + end - 4, place + end - 1]
        place += len(words) + 1
    return ids, torch.tensor(recalled) - 1, len(tokenizer)      # word k of the text is prediction k - 1


def characters():
    corpus = load("tinyshakespeare")
    texts = {split: "\n".join(part.text for part in corpus[split]) for split in ("train", "valid", "test")}
    tokenizer = Tokenizer.train([texts["train"]], kind="characters", size=200)
    ids = {split: torch.tensor(tokenizer.encode(text)) for split, text in texts.items()}
    return ids | {split: ids[split][:SETTINGS["characters"]["scored"]] for split in ("valid", "test")}, len(tokenizer)


def train(part, name, rate, seed, steps, words, ids):
    """A model after so many steps, in evaluation mode, and the seconds of the processor."""
    given, (length, memory) = SETTINGS[part], MODELS[part][name]
    rows = given["rows"] * given["length"] // length
    torch.manual_seed(seed)
    model, begun = TransformerXL(words, memory=memory, **given["sizes"]), time.process_time()
    if memory or name.startswith("streams"):
        taught, batches = Streaming(model, rows), StreamBatches(ids["train"], length, rows)
    elif name.startswith("windows"):
        taught, batches = LastWords(model, given["length"]), WindowBatches(ids["train"], length, given["length"], given["rows"])
    else:
        taught, batches = model, SegmentBatches(ids["train"], length, rows)
    fit(taught, batches, linear_decay(rate, given["warm-up"]), steps=steps, progress=False,
        settings=Settings(smoothing=0.0, seed=seed, device="cpu", precision="highest"))
    return model.eval(), time.process_time() - begun


def as_trained(part, name, model, ids):
    """Nats of each word, read as in training: segments alone, after their memory, or at the end of windows."""
    length, memory = MODELS[part][name]
    if name.startswith("windows"):
        return window_losses(model, ids, length, SETTINGS[part]["length"])
    return stream_losses(model, ids, length) if memory else window_losses(model, ids, length)


def own_rate(part, name, words, ids):
    """The best rate on valid, and the loss there of every rate tried."""
    def valid(rate):
        model = train(part, name, rate, 1, SETTINGS[part]["tried"], words, ids)[0]
        loss = as_trained(part, name, model, ids["valid"]).mean().item()
        print(f"{part}, {name}, rate {rate}: {loss:.4f} nats on valid", flush=True)
        return loss
    return best_rate(valid, SETTINGS[part]["first rate"])


def summary(losses, length, recalled=None):
    """Mean loss in nats, by place in the segment and of the recalled words."""
    found = {"mean": round(losses.mean().item(), 4), "by place": [round(losses[k::length].mean().item(), 3) for k in range(length)]}
    return found if recalled is None else found | {"recalled": round(losses[recalled].mean().item(), 4)}


def run(part, name, rate, seed, words, ids, recalled):
    """Train once and score the test text in every way that fits the model."""
    model, seconds = train(part, name, rate, seed, SETTINGS[part]["steps"], words, ids)
    length, memory = MODELS[part][name]
    score = lambda losses: summary(losses, length, recalled)
    found = {"seed": seed, "seconds": round(seconds, 1), "as trained": score(as_trained(part, name, model, ids["test"])),
             "segments alone": score(window_losses(model, ids["test"], length)),
             "half overlap": score(window_losses(model, ids["test"], length, length // 2))}
    if memory:
        found |= {f"stream with memory {other}": score(stream_losses(WithMemory(model.lm, other), ids["test"], length))
                  for other in (memory // 3, 2 * memory)}
    else:
        found["moved by one"] = score(window_losses(model, ids["test"], length, 1, rows=64)) if part == "micro" else None
    if part == "micro":
        some = recalled[recalled < FIRST]
        from_c = {c: window_losses(model, ids["test"][:FIRST + 1], c, 1, rows=128) for c in CONTEXTS}
        found["context"] = {c: {"all": round(losses.mean().item(), 4), "recalled": round(losses[some].mean().item(), 4)}
                            for c, losses in from_c.items()}
    return sum(p.numel() for p in model.parameters()), found


def timed(ways):
    """By name, from (work, scored words): microseconds of the processor for each scored word, in every turn and their median."""
    times = {name: [] for name in ways}
    for turn in range(1 + TURNS):
        for name, (work, words) in ways.items():
            begun = time.process_time()
            work()
            times[name].append(round((time.process_time() - begun) / words * 1e6, 1))
    return {name: {"microseconds": statistics.median(found[1:]), "turns": found[1:]} for name, found in times.items()}


@torch.no_grad()
def cost(words=65):
    """By attention length W: the ways to read a text, counted and timed."""
    found, sizes = {}, SETTINGS["characters"]["sizes"]
    for W in LENGTHS:
        torch.manual_seed(1)
        model = TransformerXL(words, memory=W, same_length=True, **sizes).eval()
        plain = TransformerLM(words, positions="none", **sizes).eval()
        ids = torch.randint(3, words, (max(2048, 8 * W) + 1,))
        windows = 2048 // W if W < 64 else 32
        n, few, T = len(ids) - 1, ids[:W + windows], W // 2                                 # `few`: one window, then moved by one
        clock, counts = {}, {}
        for told, lm in (("", model.lm), (", no positions", plain)):
            clock["moved by one" + told] = lambda lm=lm: window_losses(lm, few, W, 1, rows=1), windows
            clock["half overlap" + told] = lambda lm=lm: window_losses(lm, ids, W, T, rows=1), n
            counts["moved by one" + told] = multiply_adds(lm, W, scored=1)
            counts["half overlap" + told] = multiply_adds(lm, W, scored=T) / T
        for told, project in (("", False), (", projected again", True)):
            clock["stream" + told] = lambda project=project: stream_losses(model, ids, T, project=project), n
            counts["stream" + told] = multiply_adds(model.lm, T, W, project=project) / T
        found[W] = {name: entry | {"multiply-adds": counts[name]} for name, entry in timed(clock).items()}
        print(W, {name: entry["microseconds"] for name, entry in found[W].items()}, flush=True)
    return {"sizes": sizes, "words": words, "turns": TURNS, "allocator": ALLOCATOR, **facts(), "lengths": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["micro", "characters", "cost"], choices=["micro", "characters", "cost"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    if "cost" in given.parts and not ALLOCATOR.items() <= os.environ.items():              # it is read when a process begins
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)
    torch.set_num_threads(1)
    path = RESULTS / "transformer_xl.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else facts()

    def stored():
        record.update(joined_facts(record))
        write("transformer_xl", record)

    for part in given.parts:
        if part == "cost":
            record["cost"] = cost()
            stored()
            continue
        ids, recalled, words = micro_text() if part == "micro" else (characters()[0], None, characters()[1])
        entry = record.setdefault(part, {**SETTINGS[part], "words": words, "train words": len(ids["train"]), "test words": len(ids["test"]) - 1,
                                         "recalled words": 0 if recalled is None else len(recalled), "models": {}})
        for name in MODELS[part]:
            if name not in entry["models"]:
                rate, losses = own_rate(part, name, words, ids)
                entry["models"][name] = {"length": MODELS[part][name][0], "memory": MODELS[part][name][1], "rate": rate, "valid": losses, "runs": []}
        for seed in given.seeds:
            for name, mine in entry["models"].items():
                if all(r["seed"] != seed for r in mine["runs"]):
                    mine["parameters"], result = run(part, name, mine["rate"], seed, words, ids, recalled)
                    mine["runs"].append(result)
                    stored()
                    of_recalled = result["as trained"].get("recalled", "-")
                    print(f"{part}, {name}, seed {seed}: {result['seconds']} s, {result['as trained']['mean']} nats, recalled {of_recalled}", flush=True)


if __name__ == "__main__":
    main()
