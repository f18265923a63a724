"""Sentence polarity: a bag of words and the course's recurrent classifier on 10,662 sentences of real reviews.

    python experiments/sentence_polarity.py --seeds 1 2 3 4 5

Needs the data set (`transformer-course data fetch sentence-polarity`, or TRANSFORMER_COURSE_DATA). Everything is chosen on
`valid`: how strongly the bag's weights are held near zero, the pooling of the network, the size of its word vectors at the
start, and the epoch whose weights are kept. The test set is looked at once for each seed, at the end. Writes results/sentence_polarity.json.
"""
import argparse
import copy
import time

import torch
from records import facts, write
from torch.nn import functional as F

from transformer_course.data.corpora import load
from transformer_course.data.text import PAD, Tokenizer, pad
from transformer_course.models.classifier import SentenceClassifier

DECAYS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
CHOICES = [(pooling, std) for pooling in ("last", "mean") for std in (0.1, 1.0)]
SIZES = {"d_model": 64, "d_hidden": 64, "cell": "gru", "bidirectional": True, "dropout": 0.5}


def encode(corpus, size):
    """A word tokenizer of the training sentences; for each split the ids (N, T) and the labels (N,)."""
    tokenizer = Tokenizer.train([item.text for item in corpus["train"]], kind="words", size=size)
    return tokenizer, {split: (pad([tokenizer.encode(item.text) for item in corpus[split]], PAD),
                               torch.tensor([item.label for item in corpus[split]])) for split in corpus.splits}


def share_right(logits, labels):
    return (logits.argmax(-1) == labels).float().mean().item()


def bags(tokens, words):
    """Which words occur, (N, V), as 0 and 1 [Pang et al. 2002 found this better than counts]."""
    counts = torch.zeros(len(tokens), words).scatter_(1, tokens, 1.0)
    counts[:, PAD] = 0
    return counts


def bag_of_words(data, words):
    """Logistic regression, one model for each decay; gives the one that is best on valid."""
    inputs, best = {split: bags(tokens, words) for split, (tokens, labels) in data.items()}, None
    for decay in DECAYS:
        linear = torch.nn.Linear(words, 2)
        torch.nn.init.zeros_(linear.weight)
        optimiser = torch.optim.LBFGS(linear.parameters(), max_iter=100, line_search_fn="strong_wolfe")

        def objective():
            optimiser.zero_grad()
            loss = F.cross_entropy(linear(inputs["train"]), data["train"][1]) + decay * linear.weight.square().sum()
            loss.backward()
            return loss

        optimiser.step(objective)
        with torch.no_grad():
            row = {"decay": decay, **{split: share_right(linear(inputs[split]), data[split][1]) for split in data}}
        print(f"bag of words, decay {decay}: valid {row['valid']:.3f}", flush=True)
        best = row if best is None or row["valid"] > best["valid"] else best
    return best


@torch.inference_mode()
def accuracy(model, tokens, labels):
    model.eval()
    right = [share_right(model(t), y) * len(y) for t, y in zip(tokens.split(256), labels.split(256))]
    return sum(right) / len(labels)


def train(data, words, pooling, std, seed, epochs, batch=64, rate=2e-3):
    """The network with the weights of the epoch that was best on valid, and that epoch's accuracies on valid."""
    torch.manual_seed(seed)
    model, (tokens, labels) = SentenceClassifier(words, pooling=pooling, **SIZES), data["train"]
    torch.nn.init.normal_(model.embedding.weight, std=std)
    optimiser, best, lengths = torch.optim.Adam(model.parameters(), lr=rate), (0.0, 0, None), (tokens != PAD).sum(1)
    for epoch in range(1, epochs + 1):
        model.train()
        order = (lengths + 4 * torch.rand(len(tokens))).argsort()           # like lengths together
        batches = order.split(batch)
        for i in torch.randperm(len(batches)).tolist():
            rows = batches[i]
            loss = model.loss(tokens[rows, :lengths[rows].max()], labels[rows])
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        valid = accuracy(model, *data["valid"])
        print(f"seed {seed}, {pooling}, word vectors {std}, epoch {epoch}: valid {valid:.3f}", flush=True)
        if valid > best[0]:
            best = valid, epoch, copy.deepcopy(model.state_dict())
    model.load_state_dict(best[2])
    return model, best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--words", type=int, default=6000, help="size of the vocabulary")
    given = parser.parse_args()
    torch.set_num_threads(1)
    began, start = time.perf_counter(), facts()
    corpus = load("sentence-polarity")
    tokenizer, data = encode(corpus, given.words)
    majority = max(torch.bincount(data["test"][1]).tolist()) / len(data["test"][1])
    bag = bag_of_words(data, len(tokenizer))
    tried = {choice: train(data, len(tokenizer), *choice, given.seeds[0], given.epochs) for choice in CHOICES}
    chosen, runs = max(tried, key=lambda choice: tried[choice][1]), []
    for seed in given.seeds:
        model, valid, epoch = tried[chosen] if seed == given.seeds[0] else train(data, len(tokenizer), *chosen, seed, given.epochs)
        runs.append({"seed": seed, "epoch": epoch, "valid": valid, "test": accuracy(model, *data["test"])})
        print(f"seed {seed}: valid {valid:.3f}, test {runs[-1]['test']:.3f}", flush=True)
    record = {**start, "minutes": round((time.perf_counter() - began) / 60, 1), "seeds": given.seeds, "epochs": given.epochs,
              "sizes": {split: len(labels) for split, (tokens, labels) in data.items()}, "words": len(tokenizer), "majority": majority,
              "bag of words": bag, "network": {**SIZES, "pooling": chosen[0], "std": chosen[1]},
              "tried": [{"pooling": pooling, "std": std, "valid": tried[pooling, std][1]} for pooling, std in CHOICES], "runs": runs}
    print(write("sentence_polarity", record))


if __name__ == "__main__":
    main()
