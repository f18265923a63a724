"""The live task of lesson 35a: a small decoder of stories that learns to answer questions, in six ways.

    python experiments/adapting.py

Each seed draws its own base (300 steps on the stories of micro-text), its own 300 questions and their batches. Every way takes 250 steps
on the same questions. Its rate is searched with the first seed, by the share of right answers about the stories of valid: times or divided
by two until a worse one lies on either side. Two ways get eight stories in each batch, too, at the rate that was found without them.
The answers about test are scored in all runs and choose nothing; nor does `forgets`, the loss on stories of test in nats per word.
Writes results/adapting.json after each run, and goes on where an earlier call stopped. One thread.
"""
import copy
import json
import random
import time
from collections.abc import Callable, Iterator
from functools import cache

import torch
from records import RESULTS, best_rate, joined_facts, write
from torch import nn

from transformer_course.data.corpora import load
from transformer_course.data.story_tasks import QUESTIONS, facts_of
from transformer_course.data.text import EOS, Tokenizer, pad
from transformer_course.models.lora import answer_loss, trained_numbers, with_lora
from transformer_course.models.modern import ModernLM
from transformer_course.training.schedules import linear_decay

NAME, SEEDS = "adapting", (1, 2, 3)
WIDTH, BASE_STEPS, BASE_RATE, STEPS, ASKED, WARMUP = 64, 300, 0.01, 250, 300, 20
FIRST = {"all numbers": 0.005, "LoRA, r = 8": 0.01, "LoRA, r = 2": 0.02, "head": 0.02, "from scratch": 0.005}      # the rate to begin with
MIXED = {"all numbers, stories mixed in": "all numbers", "LoRA, r = 8, stories mixed in": "LoRA, r = 8"}


class Stories:
    """Stories of micro-text with three facts, and questions about these."""

    def __init__(self):
        text = load("micro-text")
        self.told = {split: [item.text for item in text[split] if "in the evening" in item.text] for split in ("train", "valid", "test")}
        self.words = Tokenizer.train([item.text for item in text["train"]] + [*QUESTIONS.values(), "answer :"], kind="words", size=2000)
        self.ids = {split: [[*self.words.encode(story), EOS] for story in told] for split, told in self.told.items()}

    def tasks(self, split: str) -> Iterator[tuple[str, str]]:
        """The story without its last sentence and a question; the answer."""
        for story in self.told[split]:
            facts, begun = facts_of(story), story.partition("in the evening ")[0].strip()
            yield from ((f"{begun} {QUESTIONS[kind]} answer :", facts[kind]) for kind in QUESTIONS)

    def rows(self, items: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Texts (B, T), padded, and a mask (B, T) that is True at the answers."""
        asked, answers = [self.words.encode(question) for question, _ in items], [[*self.words.encode(answer), EOS] for _, answer in items]
        return pad([q + a for q, a in zip(asked, answers)]), pad([[0] * len(q) + [1] * len(a) for q, a in zip(asked, answers)], 0).bool()

    def new_model(self) -> ModernLM:
        return ModernLM(len(self.words), d_model=WIDTH, n_heads=4, n_layers=2, qk_norm=True)


def trained(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor], rate: float, steps: int) -> nn.Module:
    """Train what is not frozen; `loss(model)` draws a batch."""
    learning, schedule = [p for p in model.parameters() if p.requires_grad], linear_decay(rate, WARMUP)
    optimizer = torch.optim.Adam(learning, betas=(0.9, 0.98))
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = schedule(step, step / steps)
        optimizer.zero_grad()
        loss(model).backward()
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
    return model.eval()


def with_head(model: ModernLM) -> ModernLM:
    """A frozen copy whose output matrix is its own, and learns."""
    found = copy.deepcopy(model).requires_grad_(False)
    found.output.table = nn.Linear(WIDTH, model.output.weight.shape[0], bias=False)
    found.output.table.weight.data = model.output.weight.detach().clone()
    return found


@torch.no_grad()
def right(model: ModernLM, tokens: torch.Tensor, answer: torch.Tensor) -> float:
    """The share of questions whose answer's first word gets the highest score of all words."""
    found = 0
    for some, here in zip(tokens.split(64), answer.split(64)):
        row, first = torch.arange(len(some)), here.long().argmax(1)
        found += (model(some)[row, first - 1].argmax(-1) == some[row, first]).sum().item()
    return round(found / len(tokens), 4)


@torch.no_grad()
def story_loss(model: ModernLM, data: Stories) -> float:
    """Nats per word on the stories of test."""
    return round(model.loss(pad(data.ids["test"])).item(), 4)


@cache
def base(data: Stories, seed: int) -> ModernLM:
    """The decoder before it has seen a question."""
    torch.manual_seed(seed)
    draw = random.Random(f"stories {seed}")
    return trained(data.new_model(), lambda model: model.loss(pad(draw.sample(data.ids["train"], 24))), BASE_RATE, BASE_STEPS)


def started(data: Stories, way: str, seed: int) -> nn.Module:
    """The model that a way trains; what does not learn is frozen."""
    start = base(data, seed)
    torch.manual_seed(100 + seed)
    if way.startswith("LoRA"):
        return with_lora(start, rank=int(way.split(",")[1].split()[-1]))
    return {"head": with_head, "from scratch": lambda _: data.new_model()}.get(way, copy.deepcopy)(start)


def main() -> None:
    torch.set_num_threads(1)
    path, data = RESULTS / f"{NAME}.json", Stories()
    settings = json.loads(json.dumps({"width": WIDTH, "base_steps": BASE_STEPS, "base_rate": BASE_RATE, "steps": STEPS, "questions": ASKED,
                                      "seeds": SEEDS, "first_rates": FIRST}))
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"settings": settings, "before": [], "ways": {}}
    if record["settings"] != settings:
        raise SystemExit(f"{path.name} was made with other settings")
    new = {split: data.rows(list(data.tasks(split))) for split in ("valid", "test")}

    def stored():
        record.update(joined_facts(record))
        write(NAME, record)

    def run(way, rate, seed):
        begun, draw = time.process_time(), random.Random(f"questions {seed}")
        questions = draw.sample(list(data.tasks("train")), ASKED)

        def loss(model):
            found = answer_loss(model, *data.rows(draw.sample(questions, 16)))
            return found + model.loss(pad(draw.sample(data.ids["train"], 8))) if way in MIXED else found

        model = trained(started(data, way, seed), loss, rate, STEPS)
        seconds = round(time.process_time() - begun, 1)
        found = {"seed": seed, "rate": rate, **{split: right(model, *new[split]) for split in new}, "forgets": story_loss(model, data)}
        print(way, found, flush=True)
        return found | {"cpu_seconds": seconds}

    for seed in SEEDS[len(record["before"]):]:
        record["before"].append({"seed": seed, "test": right(base(data, seed), *new["test"]), "forgets": story_loss(base(data, seed), data)})
    for way in (*FIRST, *MIXED):
        found = record["ways"].setdefault(way, {"numbers": trained_numbers(started(data, way, SEEDS[0])), "runs": []})

        def known(rate, seed):
            """The run with this rate and seed; a new one is stored."""
            if all((one["rate"], one["seed"]) != (rate, seed) for one in found["runs"]):
                found["runs"].append(run(way, rate, seed))
                stored()
            return next(one for one in found["runs"] if (one["rate"], one["seed"]) == (rate, seed))

        if way in MIXED:
            found["rate"] = record["ways"][MIXED[way]]["rate"]
        else:
            found["rate"] = best_rate(lambda rate: 1 - known(rate, SEEDS[0])["valid"], FIRST[way])[0]
        for seed in SEEDS:
            known(found["rate"], seed)
        stored()


if __name__ == "__main__":
    main()
