"""Left of and right of in drawn scenes: the answer that a trained model writes, and the answer that a program reads off the model's own caption.

    python experiments/pictures.py --seeds 1 2 3               # first: it leaves the trained models in runs/
    python experiments/picture_relations.py

A caption names the things from left to right. So if a model's caption is right, it has put the things in order, and the answer to *is the
red circle left of the blue square ?* can be read off it: is *a red circle* written earlier? If one of the two is not in the caption, or is
in it twice, the reading counts as wrong. 1,000 new questions about relations, of which the readable half is scored both ways. Writes
results/picture_relations.json. One thread, a minute.
"""
import json
import re

import pictures as task
import torch
from records import facts, write

from transformer_course.data.scenes import Item, draw, some_items

NAME, SEED, N = "picture_relations", 13, 1000


@torch.no_grad()
def captions(model, words, pictures: torch.Tensor, longest: int = 24) -> list[str]:
    """Greedy captions of many pictures at once."""
    token, state, written = torch.full((len(pictures),), model.bos_id), model.start(pictures), []
    for _ in range(longest):
        logits, state = model.step(state, token)
        token = logits.argmax(-1)
        written.append(token)
    return words.decode_many(torch.stack(written, 1).tolist())


def read_off(item: Item, text: str) -> str | None:
    """The answer to a question about left or right, from a caption that goes from left to right; None if it does not tell."""
    told = re.findall(r"a (\w+) (\w+)", text)
    a, b = (thing.pair for thing in item.about)
    if told.count(a) != 1 or told.count(b) != 1:
        return None
    earlier = told.index(a) < told.index(b)
    return "yes" if earlier == ("left of" in item.prompt) else "no"


def mistaken(model, words, items: list[Item], pictures: torch.Tensor, told: list[str]) -> dict | None:
    """The first of 40 questions that the model answers wrongly when it is asked."""
    for n, item in enumerate(items[:40]):
        written = words.decode(model.write(pictures[n:n + 1], words.encode(item.prompt))[0])
        if written != item.answer:
            things = [[t.colour, t.shape, t.row, t.column, *t.shift] for t in item.scene]
            return {"things": things, "prompt": item.prompt, "answer": item.answer, "written": written, "caption": told[n]}
    return None


def main() -> None:
    torch.set_num_threads(1)
    words, items = task.data()[2], some_items(SEED, N, ("relation",))
    pictures = torch.stack([draw(item.scene) for item in items])
    beside = [i for i, item in enumerate(items) if "left of" in item.prompt or "right of" in item.prompt]
    other = [i for i in range(len(items)) if i not in set(beside)]
    record = facts() | {"questions": {"left, right": len(beside), "above, below": len(other)}, "models": {}}
    for path in sorted(task.WEIGHTS.glob("pictures-*.pt")):
        name, seed = re.fullmatch(r"pictures-(.+)-(\d+)", path.stem).groups()
        if name == "white paper":
            continue
        model = task.build(words, name).eval()
        model.load_state_dict(torch.load(path))
        asked = {part: task.scores(model, words, [items[i] for i in of], pictures[of])["relation"]
                 for part, of in (("left, right", beside), ("above, below", other))}
        told = captions(model, words, pictures[beside])
        right = [read_off(items[i], text) == items[i].answer for i, text in zip(beside, told)]
        found = {"seed": int(seed), "asked": asked, "read off its caption": round(sum(right) / len(right), 4),
                 "example": mistaken(model, words, [items[i] for i in beside], pictures[beside], told)}
        record["models"].setdefault(name, []).append(found)
        print(name, json.dumps(found), flush=True)
    write(NAME, record)


if __name__ == "__main__":
    main()
