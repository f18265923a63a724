"""Verb forms that training never shows, put together from pieces that it does show: by kind of token.

    python experiments/composition.py --models additive transformer --seeds 1 2 --steps 2000

The split `composition` of micro-Hindi holds 16 verb forms that occur nowhere else. The preset is micro, but for the
tokens: whole words, subwords of two vocabularies, stems and endings (the target cut by the grammar itself), characters.
A batch holds as many cells more as a sentence has tokens more, so that each step reads about as many sentences.
Nothing is chosen by the results. Goes on where an earlier call stopped; writes results/composition.json.
"""
import argparse
import json
from dataclasses import replace

import torch
from records import RESULTS, facts, write

from transformer_course.data.corpora import load
from transformer_course.data.hindi.corpus import HELD_OUT
from transformer_course.data.hindi.forms import segment, unsegment
from transformer_course.data.text import Tokenizer
from transformer_course.pipelines.presets import PRESETS
from transformer_course.pipelines.translator import Translator
from transformer_course.scoring import exact_match

KINDS = {"words": ("words", 2000), "stems and endings": ("words", 2000), "bpe 1000": ("bpe", 1000), "bpe 500": ("bpe", 500),
         "characters": ("characters", 2000)}


def cut(corpus):
    """The corpus with targets as stems and endings, "jaa +taa"."""
    splits = {name: [replace(p, target=segment(p.target), links=frozenset()) for p in corpus[name]]
              for name in ("train", "valid", "test", "composition")}
    return replace(corpus, splits=splits)


def tokens_of(corpus, kind, size):
    """Mean number of tokens of a training sentence and its translation."""
    texts = [text for p in corpus["train"] for text in (p.source, p.target)]
    return sum(map(len, Tokenizer.train(texts, kind=kind, size=size).encode_many(texts))) / len(corpus["train"])


def run(model, tokens, seed, steps, plain):
    """Train once; exact match on test and composition, and how often the verb form that was never seen is written."""
    kind, size = KINDS[tokens]
    corpus = cut(plain) if tokens == "stems and endings" else plain
    longer = tokens_of(corpus, kind, size) / tokens_of(plain, "words", 2000)
    PRESETS["of this run"] = replace(PRESETS["micro"], tokens=kind, vocabulary=size, batch_tokens=round(512 * longer))
    translator = Translator.train(corpus, model=model, preset="of this run", steps=steps, seed=seed, device="cpu",
                                  precision="highest", progress=False)
    found = {split: [unsegment(text) for text in translator.translate([p.source for p in plain[split]])]
             for split in ("test", "composition")}
    forms = [next(word for word in p.target.split() if word in HELD_OUT) for p in plain["composition"]]
    written = [form in text.split() for form, text in zip(forms, found["composition"])]
    by_form = {form: [sum(w for w, f in zip(written, forms) if f == form), forms.count(form)] for form in sorted(set(forms))}
    return {"seed": seed, "vocabulary": len(translator.tokenizer), "tokens_to_a_word": round(longer, 2),
            "seconds": round(translator.config["training"]["seconds"], 1),
            "exact_match": {split: exact_match(texts, [p.target for p in plain[split]]) for split, texts in found.items()},
            "new_form_written": sum(written) / len(written), "by_form": by_form}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["additive", "transformer"])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "composition.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"steps": given.steps, "runs": {}}
    if record["steps"] != given.steps:
        raise SystemExit(f"{path.name} was made with {record['steps']} steps, not {given.steps}")
    plain, runs = load("micro-hindi"), record["runs"]
    for seed in given.seeds:
        for model in given.models:
            for tokens in given.kinds:
                known = runs.setdefault(model, {}).setdefault(tokens, [])
                if any(r["seed"] == seed for r in known):
                    continue
                known.append(run(model, tokens, seed, given.steps, plain))
                write("composition", {**facts(), "steps": given.steps, "beam_size": 5, "runs": runs})
                last = known[-1]
                print(f"{model}, {tokens}, seed {seed}: {last['seconds']:.0f} s, {last['exact_match']}, new form {last['new_form_written']:.3f}", flush=True)


if __name__ == "__main__":
    main()
