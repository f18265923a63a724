"""One small model writes captions of drawn scenes and answers questions: by kind, beside three blind programs; positions of patches.

    python experiments/pictures.py --seeds 1 2 3

Captions and five kinds of questions together, from 24,000 scenes in which two pairs of colour and shape never occur. Three models:
*coordinates* has two more channels in the picture, with the coordinates of each pixel; *learned* has a learned code for each patch
instead; *white paper* has coordinates, reads empty pictures, and needs a fifth of the steps.
The rate of each model is searched with seed 1, by the loss on `valid` after a fifth of the steps, until a worse one lies on either side.
The blind programs: the most frequent answer of each kind; the model on white paper; the trained model with the picture of another scene.
Writes results/pictures.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path

import torch
from records import RESULTS, best_rate, joined_facts, write
from torch import nn

from transformer_course.data.scenes import GRID, HELD_OUT, KINDS, RELATIONS, Item, draw, some_items, written_out
from transformer_course.data.text import Tokenizer, pad
from transformer_course.models.attention import attention_weights
from transformer_course.models.pictures import Patches, PictureReader
from transformer_course.models.transformer import Transformer

NAME, ROWS, WARMUP, FIRST = "pictures", 64, 100, 0.002
WIDTH, SIZES = 64, {"n_heads": 4, "n_layers": 2, "d_ff": 128, "dropout": 0.0, "norm": "pre"}
MODELS = {"coordinates": 2000, "white paper": 400, "learned": 2000}                   # and the steps of each
SPLITS = {"train": (1, 4000, False), "valid": (2, 150, False), "test": (3, 400, False), "held-out": (4, 200, True)}   # seed, scenes of each kind
WEIGHTS = Path(__file__).parent / "runs"             # of trained models, for picture_relations.py


def data(splits: dict = SPLITS, kinds=KINDS) -> tuple[dict[str, list[Item]], dict[str, torch.Tensor], Tokenizer]:
    items = {name: some_items(*given[:2], kinds, with_held_out=given[2]) for name, given in splits.items()}
    pictures = {name: torch.stack([draw(item.scene) for item in of]) for name, of in items.items()}
    words = Tokenizer.train([f"{i.prompt} {i.answer}" for j in items["train"] for i in (j, long(j))], kind="words", size=100)
    return items, pictures, words


def long(item: Item) -> Item:
    """A relation with its answer written out, whose words are in the vocabulary, too; any other item as it is."""
    return written_out(item) if item.kind == "relation" else item


def rows(words: Tokenizer, items: list[Item]) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets BOS, given words, answer, EOS (B, T + 1), and the number of given words (B,)."""
    prompts = [words.encode(i.prompt) if i.prompt else [] for i in items]
    targets = [[words.bos_id, *p, *words.encode(i.answer), words.eos_id] for p, i in zip(prompts, items)]
    return pad(targets), torch.tensor([len(p) for p in prompts])


def build(words: Tokenizer, model: str) -> PictureReader:
    text = Transformer(len(words), len(words), d_model=WIDTH, **SIZES)
    return PictureReader(Patches(WIDTH, positions="learned" if "learned" in model else "coordinates"), text)


def train(made, name: str, rate: float, seed: int, steps: int, curve: dict | None = None) -> PictureReader:
    """A trained model; a curve is filled: step -> scores on valid."""
    items, pictures, words = made
    torch.manual_seed(seed)
    model, chance = build(words, name), random.Random(seed)
    targets, given = rows(words, items["train"])
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    for step in range(1, steps + 1):
        chosen = chance.sample(range(len(items["train"])), ROWS)
        optimizer.param_groups[0]["lr"] = rate * min(step / WARMUP, 1 - (step - WARMUP) / max(steps - WARMUP, 1))
        seen = pictures["train"][chosen] * (name != "white paper")
        loss = model.loss(seen, targets[chosen], given[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if curve is not None and step % (steps // 10) == 0:
            model.eval()
            curve[step] = scores(model, words, items["valid"], pictures["valid"])
            model.train()
            print(name, rate, seed, step, round(loss.item(), 3), curve[step], flush=True)
    return model.eval()


@torch.no_grad()
def scores(model, words, items, pictures) -> dict[str, float]:
    """By kind, the share of items whose words are all predicted right, given those before them: greedy search writes the same."""
    right = {kind: [] for kind in KINDS}
    for i in range(0, len(items), 200):
        tgt, given = rows(words, items[i:i + 200])
        predicted, gold = model(pictures[i:i + 200], tgt[:, :-1]).argmax(-1), tgt[:, 1:]
        free = (gold == 0) | (torch.arange(gold.shape[1]) < given[:, None])
        for item, ok in zip(items[i:i + 200], ((predicted == gold) | free).all(1).tolist()):
            right[item.kind].append(ok)
    return {kind: round(sum(ok) / len(ok), 4) for kind, ok in right.items() if ok}


@torch.no_grad()
def looked(model, words, items, pictures) -> dict[str, float]:
    """While a colour or a shape is written: the share of the attention on its cell, and how often that cell gets most; last layer, mean of heads."""
    found = {}
    for kind in ("colour", "shape"):
        chosen = [i for i, item in enumerate(items) if item.kind == kind]
        tgt, given = rows(words, [items[i] for i in chosen])
        with attention_weights(model.text.decoder, "cross_attention") as weights:
            model(pictures[chosen], tgt[:, :-1])
        last = list(weights.values())[-1].mean(1)[torch.arange(len(chosen)), given]                # (N, S)
        cells = torch.tensor([items[i].about[0].cell for i in chosen])
        found[kind] = {"mass": round(last[torch.arange(len(cells)), cells].mean().item(), 4), "first": round((last.argmax(-1) == cells).float().mean().item(), 4)}
    return found


def by_relation(model, words, items, pictures) -> dict[str, dict[str, list]]:
    """Relations: for each, and for each number of columns or rows between the two things, the share that is right, and of how many."""
    found = {name: {n: [] for n in range(1, GRID)} for name in RELATIONS}
    for i, item in enumerate(items):
        if item.kind == "relation":
            name = next(name for name in RELATIONS if name in item.prompt)
            a, b = item.about
            found[name][abs(a.column - b.column) if name in RELATIONS[:2] else abs(a.row - b.row)].append(i)
    return {name: {str(n): [scores(model, words, [items[i] for i in of], pictures[of])["relation"], len(of)] for n, of in gaps.items() if of}
            for name, gaps in found.items()}


def example(model, words, items, pictures, index: int) -> dict:
    """One item: the words that greedy search writes, and the last layer's attention on each patch for each of them."""
    item = items[index]
    written, weights = model.write(pictures[index:index + 1], words.encode(item.prompt) if item.prompt else [])
    things = [[t.colour, t.shape, t.row, t.column, *t.shift] for t in item.scene]
    return {"index": index, "kind": item.kind, "things": things, "prompt": item.prompt, "answer": item.answer,
            "written": words.decode(written), "weights": [[round(w, 3) for w in row] for row in weights.tolist()]}


def examples(model, words, items, pictures) -> dict[str, list[dict]]:
    """The first three captions and the first two questions of each kind, of test and of the held-out pairs."""
    chosen = {split: [[i for i, item in enumerate(items[split]) if item.kind == kind][:3 if kind == "caption" else 2] for kind in KINDS]
              for split in items if split in ("test", "held-out")}
    return {split: [example(model, words, items[split], pictures[split], i) for of in lists for i in of] for split, lists in chosen.items()}


def guesses(items) -> dict[str, float]:
    """The most frequent training answer of each kind of question, right on test."""
    common = {kind: Counter(i.answer for i in items["train"] if i.kind == kind).most_common(1)[0][0] for kind in KINDS}
    return {kind: round(sum(i.answer == common[kind] for i in items["test"] if i.kind == kind) / sum(i.kind == kind for i in items["test"]), 4)
            for kind in KINDS}


def run(made, name: str, rate: float, seed: int) -> dict:
    items, pictures, words = made
    begun = time.process_time()
    curve = None if name == "white paper" else {}
    model = train(made, name, rate, seed, MODELS[name], curve)
    WEIGHTS.mkdir(exist_ok=True)
    torch.save(model.state_dict(), WEIGHTS / f"{NAME}-{name}-{seed}.pt")
    found = {"seed": seed, "seconds": round(time.process_time() - begun, 1)} | ({"curve": curve} if curve else {})
    see = (lambda split: pictures[split]) if name != "white paper" else (lambda split: 0 * pictures[split])
    found |= {split: scores(model, words, items[split], see(split)) for split in ("test", "held-out")}
    if name != "white paper":
        found["another picture"] = scores(model, words, items["test"], pictures["test"].roll(7, 0))
        found["attention"] = looked(model, words, items["test"], pictures["test"])
        found["relations"] = by_relation(model, words, items["test"], pictures["test"])
        found["examples"] = examples(model, words, items, pictures) if seed == 1 else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    made, path = data(), RESULTS / f"{NAME}.json"
    items, pictures, words = made
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"models": {}}
    record = joined_facts(record) | {
        "sizes": SIZES | {"d_model": WIDTH}, "steps": MODELS, "rows": ROWS, "held out": HELD_OUT,
        "parameters": {name: sum(p.numel() for p in build(words, name).parameters()) for name in MODELS},
        "items": {name: len(of) for name, of in items.items()}, "most frequent": guesses(items), "models": record["models"]}

    def valid_loss(name: str, rate: float) -> float:
        model = train(made, name, rate, 1, MODELS[name] // 5).requires_grad_(False)
        return model.loss(pictures["valid"] * (name != "white paper"), *rows(words, items["valid"])).item()

    for seed in seeds:
        for name in MODELS:
            if name not in record["models"]:
                rate, tried = best_rate(lambda rate: valid_loss(name, rate), FIRST)
                record["models"][name] = {"rate": rate, "rates": tried, "runs": []}
                print(name, rate, tried, flush=True)
            of = record["models"][name]
            if seed not in [one["seed"] for one in of["runs"]]:
                of["runs"].append(run(made, name, of["rate"], seed))
                print(name, json.dumps(of["runs"][-1]), flush=True)
                write(NAME, record)


if __name__ == "__main__":
    main()
