"""What can still be chosen when the training is over: averages and ensembles of the last epochs, and how to search.

    python experiments/after_training.py runs/NAME        # a folder that experiments/multi30k.py has written

All is scored on `valid`; no test set is read. The averages and ensembles are of the end of the run and of the epochs before it
that its last checkpoint holds; an ensemble reads with several models and takes the mean of their probabilities for the next
word. Beams and length penalties are tried with the averaged weights that the run ended with. Writes
results/after_training_NAME.json, without the date in the folder's name.
"""
import argparse
import copy
import re
import time
from pathlib import Path
from typing import NamedTuple

import torch
from records import facts, write
from torch import Tensor, nn

from transformer_course.data.corpora import load
from transformer_course.pipelines.translator import Translator
from transformer_course.training.checkpoints import (checkpoint_folders, mean_weights, put_weights,
                                                     read_checkpoint, take)

BEAMS, PENALTIES, ENSEMBLES = (1, 2, 5, 10), (0.0, 0.5, 1.0, 1.5, 2.0), (2, 5)


class Several(NamedTuple):
    """The states of several models that have read the same words."""

    states: list

    def select(self, rows: Tensor) -> "Several":
        return Several([state.select(rows) for state in self.states])


class Ensemble(nn.Module):
    """Models with the same vocabulary, of which search sees the mean probabilities."""

    def __init__(self, models: list[nn.Module]):
        super().__init__()
        self.models = nn.ModuleList(models)
        self.pad_id, self.bos_id, self.eos_id = models[0].pad_id, models[0].bos_id, models[0].eos_id

    def start(self, src: Tensor) -> Several:   # (N, S)
        return Several([model.start(src) for model in self.models])

    def step(self, state: Several, token: Tensor) -> tuple[Tensor, Several]:   # (N,) -> (N, V)
        answers = [model.step(own, token) for model, own in zip(self.models, state.states, strict=True)]
        logp = torch.stack([logits.float().log_softmax(-1) for logits, new in answers])
        return logp.logsumexp(0), Several([new for logits, new in answers])


def last_epochs(folder: Path, model: nn.Module) -> list[nn.Module]:
    """A model for the end of the run and for each epoch before it that the newest checkpoint names, the last first."""
    found = read_checkpoint(checkpoint_folders(folder / "checkpoints")[-1], {"position": int})
    kept = [found.epochs[number] for number in sorted(found.epochs)]
    if found.facts["position"] > 0:                              # otherwise it is the last of the epochs
        kept.append(take(found.tensors, "model."))
    models = [copy.deepcopy(model) for weights in kept]
    for own, weights in zip(models, reversed(kept), strict=True):
        put_weights(own, weights)
    return models


def mean(models: list[nn.Module]) -> nn.Module:
    """A model with the mean of their weights."""
    result = copy.deepcopy(models[0])
    put_weights(result, mean_weights([dict(model.named_parameters()) for model in models]))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    given, record = parser.parse_args(), facts()
    trained = Translator.from_pretrained(given.folder)
    what = {name: trained.config[name] for name in ("data", "pair", "model", "preset")}
    valid = load(what["data"], what["pair"])["valid"]

    def score(translator: Translator, beam: int, penalty: float = 1.0) -> dict:
        began = time.perf_counter()
        bleu = translator.evaluate(valid, "valid", beam, length_penalty=penalty).bleu
        return {"bleu": bleu, "seconds": time.perf_counter() - began}

    def both(title: str, model: nn.Module) -> dict:
        translator = Translator(model, trained.tokenizer, {})
        scores = {f"beam {beam}": score(translator, beam) for beam in (1, 5)}
        print(title, {name: f"{one['bleu']:.2f} ({one['seconds']:.0f} s)" for name, one in scores.items()}, flush=True)
        return scores

    epochs = last_epochs(given.folder, trained.model)
    record |= what | {"seed": trained.config["seed"], "training": {name: trained.config["training"][name] for name in ("steps", "tokens", "seconds")}}
    record["averages"] = {n: both(f"mean of {n}", mean(epochs[:n])) for n in range(1, len(epochs) + 1)}
    record["ensembles"] = {n: both(f"ensemble of {n}", Ensemble(epochs[:n])) for n in ENSEMBLES if n <= len(epochs)}
    record["beams"] = {beam: score(trained, beam) for beam in BEAMS}
    record["length penalties, beam 5"] = {penalty: score(trained, 5, penalty) for penalty in PENALTIES}
    name = re.sub(r"_\d{8}-\d{6}$", "", given.folder.resolve().name)
    print(f"recorded in {write(f'after_training_{name}', record)}")


if __name__ == "__main__":
    main()
