"""One or two words of a review are replaced so that a classifier errs: by gradient, at random, by trying all; and training on such reviews.

    python experiments/adversarial_words.py --seeds 1 2 3

A GRU learns from some reviews of micro-reviews, always for the same number of steps. A swap replaces an opinion word by another one of the
same kind, an aspect by another aspect, and so on, so the label stays what it is; `judge` checks this for every attacked review. The rate is
searched for each way of training with seed 1, by the loss on valid, until a worse one lies on either side. The reviews of test that a
classifier gets right are attacked: with the first-order swap, with random ones (mean of 10 draws), and with the best one of all; then with a
second swap. For the first 60 of them all pairs of swaps are tried, too. `fooled` is the share that is wrong afterwards. Three ways of training
on 500 reviews are compared: as they are; each batch also with a random swap in each review; each batch also with the first-order swap against
the model of this moment. Writes results/adversarial_words.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import statistics
from functools import cache

import torch
from records import RESULTS, best_rate, facts, write

from transformer_course.data.corpora import load
from transformer_course.data.reviews import ASPECTS, DEGREES, FILMS, NEGATIVE, POSITIVE, judge
from transformer_course.data.text import PAD, Tokenizer, pad
from transformer_course.models.adversarial import (allowed_swaps, best_swap, first_order_swap, random_swap, review_losses, with_swap,
                                                   word_groups)
from transformer_course.models.classifier import SentenceClassifier

NAME, STEPS, ROWS, FIRST, DRAWS, PAIRS = "adversarial_words", 400, 32, 0.01, 10, 60
WAYS = {f"{n} reviews": (n, "") for n in (250, 500, 1000, 4000)} | {"500 reviews, random swaps": (500, "random"),
                                                                  "500 reviews, attacked": (500, "attacked")}


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.train([review.text for review in load("micro-reviews")["train"]], kind="words", size=500)


@cache
def group() -> torch.Tensor:
    return word_groups(tokenizer(), (POSITIVE, NEGATIVE, ASPECTS, FILMS, DEGREES))


@cache
def data(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    reviews = load("micro-reviews")[split]
    return pad([tokenizer().encode(review.text) for review in reviews]), torch.tensor([review.label for review in reviews])


@cache                                                  # the search has trained the best one already
def train(name: str, rate: float, seed: int) -> SentenceClassifier:
    n, more = WAYS[name]
    torch.manual_seed(seed)
    model, (tokens, labels) = SentenceClassifier(len(tokenizer())), data("train")
    optimizer, waiting = torch.optim.Adam(model.parameters()), []
    for step in range(STEPS):
        waiting = waiting or list(torch.randperm(n).split(ROWS))
        rows = waiting.pop()
        x, y = tokens[rows], labels[rows]
        x = x[:, :int((x != PAD).sum(1).max())]
        if more:
            model.eval()                                # no dropout while a swap is chosen
            swap = random_swap(x, group()) if more == "random" else first_order_swap(model, x, y, model.embedding, group())
            model.train()
            x, y = torch.cat([x, with_swap(x, swap, len(group()))]), y.repeat(2)
        optimizer.param_groups[0]["lr"] = rate * (1 - step / STEPS)
        loss = model.loss(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def wrong(model, tokens, labels) -> torch.Tensor:
    return model(tokens).argmax(-1) != labels


def share(found: torch.Tensor) -> float:
    return round(found.float().mean().item(), 4)


def checked(tokens, labels) -> torch.Tensor:
    """The attacked reviews; their words still say what the label says."""
    texts = tokenizer().decode_many(tokens)
    assert all(judge(text) == label for text, label in zip(texts, labels.tolist()))
    return tokens


@torch.no_grad()
def best_pairs(model, tokens, labels) -> torch.Tensor:
    """Whether any two swaps fool it, for each review: all are tried."""
    found, V = [], len(group())
    for b in range(len(tokens)):
        row, label = tokens[b:b + 1], labels[b]
        swaps = allowed_swaps(row, group()).flatten().nonzero()[:, 0]
        once = with_swap(row.expand(len(swaps), -1), swaps, V)
        second = allowed_swaps(once, group()).flatten(1) & (torch.arange(row.shape[1] * V) // V > swaps[:, None] // V)
        first, other = second.nonzero(as_tuple=True)
        tried = torch.cat([once, with_swap(once[first], other, V)])
        found.append(wrong(model, tried, label.expand(len(tried))).any())
    return torch.stack(found)


def attacked(model, seed: int) -> dict:
    """How often each attack fools the model, among the reviews that it gets right."""
    tokens, labels = data("test")
    right = ~wrong(model, tokens, labels)
    x, y, V = tokens[right], labels[right], len(group())
    draw = torch.Generator().manual_seed(seed)
    once = checked(with_swap(x, first_order_swap(model, x, y, model.embedding, group()), V), y)
    best, highest = best_swap(model, x, y, group())
    with torch.no_grad():
        base, gained = review_losses(model, x, y), review_losses(model, once, y)
    twice = checked(with_swap(once, first_order_swap(model, once, y, model.embedding, group()), V), y)
    twice_wrong = wrong(model, once, y) | wrong(model, twice, y)
    random_once, random_twice = [], []
    for n in range(DRAWS):
        one = checked(with_swap(x, random_swap(x, group(), draw), V), y)
        two = checked(with_swap(one, random_swap(one, group(), draw), V), y)
        random_once.append(share(wrong(model, one, y)))
        random_twice.append(share(wrong(model, one, y) | wrong(model, two, y)))
    best_once = wrong(model, checked(with_swap(x, best, V), y), y)
    return {"right": share(right), "one": {"random": round(statistics.mean(random_once), 4), "first order": share(wrong(model, once, y)),
                                           "best": share(best_once)},
            "two": {"random": round(statistics.mean(random_twice), 4), "first order": share(twice_wrong)},
            "two of the first": {"first order": share(twice_wrong[:PAIRS]), "best": share(best_pairs(model, x[:PAIRS], y[:PAIRS]))},
            "same swap": share(first_order_swap(model, x, y, model.embedding, group()) == best),
            "share of the gain": round(((gained - base) / (highest - base)).median().item(), 4),
            "swaps": round(allowed_swaps(x, group()).flatten(1).sum(1).float().mean().item(), 1)}


def valid_loss(name: str, rate: float) -> float:
    model = train(name, rate, 1)
    with torch.no_grad():
        return review_losses(model, *data("valid")).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {**facts(), "steps": STEPS, "rows": ROWS, "draws": DRAWS,
                                                                                  "pairs": PAIRS, "ways": {}}
    for name in WAYS:
        if name not in record["ways"]:
            rate, tried = best_rate(lambda rate: valid_loss(name, rate), FIRST)
            record["ways"][name] = {"rate": rate, "rates": tried, "runs": []}
        entry = record["ways"][name]
        for seed in given.seeds:
            if seed not in [one["seed"] for one in entry["runs"]]:
                entry["runs"].append({"seed": seed, **attacked(train(name, entry["rate"], seed), seed)})
                print(name, entry["rate"], entry["runs"][-1], flush=True)
                write(NAME, record)


if __name__ == "__main__":
    main()
