"""Extractive question answering on small stories: a BERT from scratch, the same without the question, a GRU; stories of two people; questions without an answer.

    python experiments/question_answering.py --parts one two absent --seeds 1 2 3

The question and the passage are two segments, and the answer is a span of the passage, scored by exact match. Every model learns for the
same number of steps within a part. Its rate is searched on `valid` with seed 1, by loss, until a worse one lies on either side.

`one`: stories of one person, as in lessons 32b and 33. `two`: stories of one or two people; "marked" models know which words of the passage
are in the question. `absent`: stories of one person; nearly half of the questions name a person, a place or a thing that is not in the story.
Writes results/question_answering.json after each run, and goes on where an earlier call stopped. One thread.
"""
import argparse
import json
import random
import time
from dataclasses import dataclass
from functools import cache

import torch
from records import RESULTS, best_rate, facts, write
from torch import nn

from transformer_course.data.masking import join_pair
from transformer_course.data.reviews import PLACES, THINGS
from transformer_course.data.story_tasks import NAMES, Passage, SpanTask, passages, span_tasks
from transformer_course.data.text import EOS, PAD, Tokenizer, pad
from transformer_course.models.bert import Bert
from transformer_course.models.question_answering import SpanFinder, mark_shared
from transformer_course.training.schedules import linear_decay

NAME, WIDTH, LONGEST, ROWS, WARMUP = "question_answering", 64, 64, 32, 50
SIZES = {"d_model": WIDTH, "n_heads": 4, "n_layers": 2, "d_ff": 128, "dropout": 0.0, "max_len": LONGEST, "segments": 3, "pooler": False}
PARTS = {"one": {"people": 1, "train": 400, "steps": 300}, "two": {"people": 2, "train": 2000, "steps": 2000},
         "absent": {"people": 1, "train": 400, "steps": 600}}
MODELS = {"one": ("BERT", "BERT without the question", "GRU"), "two": ("BERT", "BERT, marked", "GRU", "GRU, marked"),
          "absent": ("BERT", "BERT, marked")}
FIRST = {"BERT": 0.002, "BERT without the question": 0.002, "BERT, marked": 0.001, "GRU": 0.01, "GRU, marked": 0.005}    # the rate to begin with
KEYS = {*NAMES, *PLACES, *THINGS}


@dataclass(frozen=True)
class Asked:
    """A question about a story; without a span if the story has no answer."""

    task: SpanTask
    people: int                  # in the story
    answered: bool = True
    other: str = ""              # what the same question about the other person would have as its answer


class GRUEncoder(nn.Module):
    """Words and segments, added up and read in both directions by two layers of GRU; padding is not read."""

    def __init__(self, vocab_size: int, d_hidden: int = 48):
        super().__init__()
        self.words, self.kinds = nn.Embedding(vocab_size, WIDTH), nn.Embedding(3, WIDTH)
        self.layers = nn.GRU(WIDTH, d_hidden, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:   # (B, S) -> (B, S, 2 · d_hidden)
        lengths = (tokens != PAD).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(self.words(tokens) + self.kinds(segments), lengths, True, False)
        return nn.utils.rnn.pad_packed_sequence(self.layers(packed)[0], batch_first=True, total_length=tokens.shape[1])[0]


def questions(stories: list[Passage], absent: bool) -> list[Asked]:
    """All questions about the stories; if asked for, as many again whose person, place or thing is not in the story."""
    found = []
    for story in stories:
        tasks = span_tasks(story)
        others = [""] * 4 if len(story.facts) == 1 else [task.answer for task in tasks[4:] + tasks[:4]]
        found += [Asked(task, len(story.facts), other=other) for task, other in zip(tasks, others)]
    for here, there in zip(stories, stories[1:] + stories[:1]) if absent else ():
        known = KEYS & set(here.text.split())
        found += [Asked(SpanTask(task.question, here.text, 0, 0), len(here.facts), answered=False)
                  for task in span_tasks(there) if not known & set(task.question.split())]
    return found


@cache
def data(part: str) -> tuple[dict[str, list[Asked]], Tokenizer]:
    """The questions of each split, and the words of the training stories."""
    given = PARTS[part]
    made = passages(people=given["people"], train=given["train"])
    asked = {split: questions(stories, part == "absent") for split, stories in made.items()}
    known = [f"{one.task.question} {one.task.passage}" for one in asked["train"]]
    return asked, Tokenizer.train(known, kind="words", size=500)


def rows(asked: list[Asked], words: Tokenizer, model: str) -> tuple[torch.Tensor, ...]:
    """Tokens and segments (B, S), and the first and the last token of each answer (B,)."""
    tokens, segments, starts, ends = [], [], [], []
    for one in asked:
        question = words.encode("?" if "without" in model else one.task.question)
        read, kinds = join_pair(question, words.encode(one.task.passage), LONGEST)
        before = (len(question) + 2) * one.answered                         # [CLS] question [SEP]; no answer: [CLS] itself
        tokens.append(read), segments.append(kinds)
        starts.append(one.task.first + before), ends.append(one.task.last + before)
    tokens, segments = pad(tokens), pad(segments, 0)
    if "marked" in model:
        segments = mark_shared(tokens, segments)
    return tokens, segments, torch.tensor(starts), torch.tensor(ends)


def build(part: str, name: str) -> SpanFinder:
    vocab_size = len(data(part)[1])
    gru = name.startswith("GRU")
    encoder = GRUEncoder(vocab_size) if gru else Bert(vocab_size, **SIZES)
    return SpanFinder(encoder, 96 if gru else WIDTH, no_answer=part == "absent")


def train(part: str, name: str, rate: float, seed: int) -> SpanFinder:
    torch.manual_seed(seed)
    steps, draw, schedule = PARTS[part]["steps"], random.Random(seed), linear_decay(rate, WARMUP)
    (asked, words), model = data(part), build(part, name)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = schedule(step, step / steps)
        loss = model.loss(*rows(draw.sample(asked["train"], ROWS), words, name))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def found_spans(model: SpanFinder, asked: list[Asked], words: Tokenizer, name: str) -> tuple[list[str], float]:
    """The answer that the model gives to each question, empty if it says that there is none; and the mean loss."""
    answers, losses = [], 0.0
    for i in range(0, len(asked), 200):
        batch = asked[i:i + 200]
        given = rows(batch, words, name)
        losses += model.loss(*given).item() * len(batch)
        for tokens, (first, last) in zip(given[0].tolist(), model.spans(*given[:2])[0].tolist()):
            answers.append(words.decode(tokens[first:last + 1]) if first else "")
    return answers, losses / len(asked)


def scores(answers: list[str], asked: list[Asked]) -> dict[str, float]:
    """Exact match: of all questions, by what is asked, and of the kinds of stories and questions that there are."""
    right = [answer == (one.task.answer if one.answered else "") for answer, one in zip(answers, asked)]
    share = lambda keep: round(sum(ok for ok, one in zip(right, asked) if keep(one)) / sum(map(keep, asked)), 4)
    about = {"all": lambda one: True} | {word: lambda one, word=word: one.task.question.startswith(word) for word in ("what", "where", "who", "which")}
    about |= {f"people {n}": lambda one, n=n: one.people == n for n in sorted({one.people for one in asked})}
    about |= {name: lambda one, kind=kind: one.answered == kind for name, kind in (("with an answer", True), ("without", False))
              if len({one.answered for one in asked}) == 2}
    found = {name: share(keep) for name, keep in about.items()}
    if any(one.other for one in asked):
        theirs = sum(answer == one.other for answer, one in zip(answers, asked) if one.other)
        found["the other person's"] = round(theirs / sum(bool(one.other) for one in asked), 4)
    return found


def run(part: str, name: str, rate: float, seed: int) -> dict:
    """One training, and what it finds on test."""
    begun = time.process_time()
    model, (asked, words) = train(part, name, rate, seed), data(part)
    seconds = time.process_time() - begun
    found = {"test": scores(found_spans(model, asked["test"], words, name)[0], asked["test"])}
    if part == "one":
        unseen = [one for one in data("two")[0]["test"] if one.people == 2]
        found["two people"] = scores(found_spans(model, unseen, words, name)[0], unseen)
    return {"seed": seed, **found, "seconds": round(seconds, 1)}


def searched(part: str, name: str) -> dict:
    """A model's parameters and its rate."""
    asked, words = data(part)
    loss = lambda rate: found_spans(train(part, name, rate, 1), asked["valid"], words, name)[1]
    rate, tried = best_rate(loss, FIRST[name])
    return {"parameters": sum(p.numel() for p in build(part, name).parameters()), "rate": rate, "rates": tried, "runs": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {
        **facts(), "sizes": SIZES, "rows": ROWS, "given": PARTS, "parts": {}}
    for part in given.parts:
        models = record["parts"].setdefault(part, {})
        for name in MODELS[part]:
            if name not in models:
                models[name] = searched(part, name)
                print(part, name, models[name], flush=True)
                write(NAME, record)
            for seed in given.seeds:
                if seed not in [one["seed"] for one in models[name]["runs"]]:
                    models[name]["runs"].append(run(part, name, models[name]["rate"], seed))
                    print(part, name, models[name]["runs"][-1], flush=True)
                    write(NAME, record)


if __name__ == "__main__":
    main()
