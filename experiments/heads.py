"""Which head of a trained Transformer finds which role? Agent, object, place and time of micro-Hindi sentences.

    python experiments/heads.py --seeds 1 2 3 --steps 2000

For every head: how often its largest weight, from the verb, falls on the role's word. Three places to look: the
encoder's self-attention from the English verb; the same the other way round, from the role's word to the verb; and the
decoder's cross-attention in the row that writes the last word of the Hindi verb group, which agrees with agent or
object. The head is chosen on `valid` and scored on `test`. The rival knows no sentence: it looks a fixed number
of words away, the number that is right most often on `valid`. Writes results/heads.json.
"""
import argparse
from collections import Counter

import torch
from records import facts, write

from transformer_course.data.corpora import load
from transformer_course.data.text import pad
from transformer_course.models.attention import attention_weights
from transformer_course.pipelines.decoding import encode_pairs
from transformer_course.pipelines.translator import Translator

ROLES = ("agent", "object", "place", "time")


def single(pairs):
    """Sentences of one clause with a verb."""
    return [p for p in pairs if len(p.tags["clauses"]) == 1 and "verb" in p.tags["roles"]]


@torch.inference_mode()
def encoder_weights(translator, pairs):
    """Self-attention of every layer and head: (N, layers, H, S, S); words only, as words are the tokens."""
    model, src = translator.model, pad([source for source, _ in encode_pairs(translator.tokenizer, pairs)])
    with attention_weights(model.encoder) as weights:
        model.encode(src)
    return torch.stack(list(weights.values()), dim=1)


@torch.inference_mode()
def decoder_weights(translator, pairs):
    """Cross-attention of every layer and head: (N, layers, H, T, S); row t writes the t-th Hindi word."""
    model, examples = translator.model, encode_pairs(translator.tokenizer, pairs)
    src, tgt = pad([source for source, _ in examples]), pad([target for _, target in examples])
    layers, heads = len(model.decoder.layers), model.decoder.layers[0].cross_attention.heads.n_heads
    return torch.stack([torch.stack([model.alignment(src, tgt, layer, head) for head in range(heads)], 1)
                        for layer in range(layers)], 1)


def places(pair, role, view):
    """Row to look from and columns that count as right."""
    verb, word = pair.tags["roles"]["verb"], pair.tags["roles"][role]
    if view == "verb to role":
        return verb[-1], word
    if view == "role to verb":
        return word[-1], verb
    return max(j for i, j in pair.links if i in verb), word      # the last word of the Hindi verb group


def shares(weights, pairs, role, view):
    """How often each head's largest weight is right: (layers, H); the number of sentences; the offsets that would be."""
    hits, count, offsets = torch.zeros(weights.shape[1:3]), 0, Counter()
    for pair, w in zip(pairs, weights):
        if role in pair.tags["roles"]:
            row, right = places(pair, role, view)
            hits += torch.isin(w[:, :, row].argmax(-1), torch.tensor(right))
            count += 1
            offsets.update(i - row for i in right)
    return hits / count, count, offsets


def run(seed, steps, corpus):
    translator = Translator.train(corpus, model="transformer", preset="micro", steps=steps, seed=seed, device="cpu",
                                  precision="highest", progress=False)
    rows = []
    sets = {split: single(corpus[split]) for split in ("valid", "test")}
    looks = {split: {"encoder": encoder_weights(translator, pairs), "decoder": decoder_weights(translator, pairs)}
             for split, pairs in sets.items()}
    for view in ("verb to role", "role to verb", "writing the verb"):
        side = "decoder" if view == "writing the verb" else "encoder"
        for role in ROLES:
            valid, _, offsets = shares(looks["valid"][side], sets["valid"], role, view)
            test, count, there = shares(looks["test"][side], sets["test"], role, view)
            layer, head = divmod(int(valid.argmax()), valid.shape[1])
            fixed = offsets.most_common(1)[0][0]
            rows.append({"view": view, "role": role, "layer": layer, "head": head, "valid": valid[layer, head].item(),
                         "test": test[layer, head].item(), "sentences": count, "fixed offset": fixed,
                         "fixed on test": there[fixed] / count, "all heads on test": test.tolist()})
    return {"seed": seed, "valid exact match": translator.config["valid"]["exact_match"], "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    corpus, runs = load("micro-hindi"), []
    for seed in given.seeds:
        runs.append(run(seed, given.steps, corpus))
        for row in runs[-1]["rows"]:
            print(seed, *(f"{k}={v:.2f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items() if k != "all heads on test"), flush=True)
    print(write("heads", {**facts(), "preset": "micro", "steps": given.steps, "seeds": given.seeds, "runs": runs}))


if __name__ == "__main__":
    main()
