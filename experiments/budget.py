"""How the loss falls with a model's size and with the amount of text: a grid of both, and text that comes again.

    python experiments/budget.py

The models, the text, the rates and the longest trainings are those of experiments/scaling.py, which must have run before. Here each
Transformer also learns for fewer steps, and so from less text. `repeated`: the largest of the five learns for all steps from a stock of
texts that come again and again. `words` is the number of different words read: of those after BOS, each text counted once.
Writes results/budget.json after each training, and goes on where an earlier call stopped. One thread.
"""
import json

import torch
from records import RESULTS, joined_facts, write
from scaling import ROWS, SEEDS, STEPS, TOLD, run

NAME, FEWER, STOCKS = "budget", (200, 500), (6000, 1500)


def words(texts: int) -> int:
    return texts * 3 * TOLD


def main() -> None:
    torch.set_num_threads(1)
    known = json.loads((RESULTS / "scaling.json").read_text(encoding="utf-8"))
    sizes, path = known["models"]["Transformer"]["sizes"], RESULTS / f"{NAME}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"grid": [], "repeated": []}

    def add(part: str, entry: dict, rate: float, **text) -> None:
        same = [one for one in record[part] if all(one[key] == value for key, value in entry.items())]
        if not same:
            record[part].append(entry | run("Transformer", entry["width"], rate, **text))
            parts = {key: record[key] for key in ("grid", "repeated")}
            write(NAME, joined_facts(record) | {"author": known["author"], "steps": STEPS} | parts)
            print(record[part][-1], flush=True)

    for seed in SEEDS:
        for steps in FEWER:
            for size in sizes:
                add("grid", {"width": size["width"], "parameters": size["parameters"], "words": words(steps * ROWS), "seed": seed},
                    size["rate"], seed=seed, steps=steps)
        for stock in STOCKS:
            add("repeated", {"width": sizes[-1]["width"], "words": words(stock), "seed": seed}, sizes[-1]["rate"], seed=seed, stock=stock)


if __name__ == "__main__":
    main()
