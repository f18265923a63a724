"""The tables of docs/results.md on lessons 44 to 48."""
from itertools import product

from recorded_facts import record, records, source, spread, table


def beyond() -> str:
    parts = {"explain": explain, "which_heads": which_heads, "low_resource": low_resource, "back_translation": back_translation,
             "few_captions": few_captions, "typing_errors": typing_errors,
             "adversarial_words": adversarial_words, "planted_bias": planted_bias, "small_devices": small_devices, "distillation": distillation,
             "pruning": pruning, "scaling": scaling, "budget": budget}
    return "\n\n".join(part() for name, part in parts.items() if name in records())


def explain() -> str:
    found = record("explain")
    of = lambda training, method, what: spread([run["cause"][f"contrastive: {what}"][method] for run in found["trainings"][training]], 0, 100)
    first = found["trainings"]["10 % unknown"]
    rows = [[method, of("10 % unknown", method, "decides"), of("10 % unknown", method, "noun"), of("as they are", method, "decides"),
             spread([run["correspondence"][method]["AER"] for run in first], 2)] for method in first[0]["correspondence"]]
    return f"""**What explains a prediction?** (lesson [44](../nbs/lessons/44_explain.ipynb)). A translator chose one of two meanings of a noun. How
often, in per cent of {first[0]['cause']['sentences']} sentences, the word that decides or the noun itself comes first, by the contrastive question; and
the alignment error against gold links. *With unknown words*: one source word in ten was replaced in training.

{table("method | decides | the noun | decides, trained without unknown words | AER", rows)}

{source("explain")}"""


def which_heads() -> str:
    found = record("which_heads")
    runs, counts = found["runs"], found["counts"]
    shown = [counts.index(n) for n in (0, 4, 8, 12, 16, 24)]
    orders = {"alone": "cheapest alone first", "gradient": "least gradient first", "random 1": "random", "random 2": "another random order"}
    rows = [[text, *(spread([run["removed"][order][i]["loss"] for run in runs], 2) for i in shown)] for order, text in orders.items()]
    cheap = [sum(head["loss"] - run["whole"]["loss"] < run["whole"]["loss"] / 4 for head in run["heads"]) for run in runs]
    return f"""**Which heads matter?** (lesson [44a](../nbs/lessons/44a_head_importance.ipynb)). Loss of a word, in nats, while heads of a translator with
{len(runs[0]['heads'])} heads are silent. One at a time, {spread(cheap, 0)} of them raise the loss by less than a quarter.

{table("order | " + " | ".join(f"{counts[i]} silent" for i in shown), rows)}

{source("which_heads")}"""


def low_resource() -> str:
    found = record("low_resource")
    names = {"alone": "from scratch", "parent": "a parent's weights", "parent without vectors": "a parent's weights, but no vectors of pieces"}
    rows = []
    for language, pairs in sorted({(run["language"], run["pairs"]) for run in found["runs"]}):
        for way, text in names.items():
            runs = [run for run in found["runs"] if (run["language"], run["way"], run["pairs"]) == (language, way, pairs)]
            if runs:
                rows.append([language, f"{pairs:,}", text, spread([run["test"]["bleu"] for run in runs], 1), spread([run["test"]["chrf"] for run in runs], 1)])
    return f"""**Little data** (lesson [45](../nbs/lessons/45_few_data.ipynb)). From English to invented relatives of micro-Hindi's Hindi, from scratch or with the
weights of a translator to Hindi ({found['parent']['pairs']:,} pairs). Rates and dropout were searched for both; the number of steps is chosen on valid.

{table("language | pairs | way | BLEU | chrF", rows)}

{source("low_resource")}"""


def back_translation() -> str:
    found = record("back_translation")
    scores = {way: [run["test"]["bleu"] for run in found["runs"] if run["way"] == way] for way in dict.fromkeys(run["way"] for run in found["runs"])}
    rows = [[way, spread(bleus, 1)] for way, bleus in scores.items()]
    return f"""**Back-translation** (lesson [45a](../nbs/lessons/45a_back_translation.ipynb)). English to the sister from {found['real']} pairs with a parent, and 1, 2 or 4
times as many further sentences. Their English was written by a model (*back*, with a tag: *tagged*), is the sentence itself (*copy*) or is true (*gold*).
With *forward*, the model learns from its own translations. BLEU on test.

{table("way | BLEU", rows)}

{source("back_translation")}"""


def few_captions() -> str:
    found = record("few_captions")
    languages, rows = {"fr": "French", "cs": "Czech"}, []
    ways = {"alone": "from scratch", "parent": "a parent's weights", "reverse": "the same, into English", "back": "a parent's weights, back-translated captions",
            "gold": "a parent's weights, the true English of these captions"}
    for language, pairs, way in product(languages, (500, 2000), ways):
        runs = [run for run in found["runs"] if (run["language"], run["pairs"], run["way"]) == (language, pairs, way)]
        if runs:
            rows.append([languages[language], f"{pairs:,}", ways[way], *(spread([run["test"][name] for run in runs], 1) for name in ("bleu", "chrf"))])
    return f"""**Few real captions** (lesson [45a](../nbs/lessons/45a_back_translation.ipynb)). English to French and to Czech with few pairs of Multi30k, from
scratch or with the weights of a translator to German ({found['parent']['pairs']:,} captions). Two further ways add {found['more']:,} captions: a model wrote their
English, or it is true. Rate and dropout were searched for both, and for *from scratch* the size of the vocabulary. Test 2016.

{table("language | pairs | way | BLEU | chrF", rows)}

{source("few_captions")}"""


def typing_errors() -> str:
    found = record("typing_errors")
    at = lambda run, kind, rate: (run["scores"][kind][rate] if rate else run["scores"]["clean"])[0]
    columns = {"no typos": ("swap", ""), "10 % swaps": ("swap", "0.1"), "30 % swaps": ("swap", "0.3"), "60 % swaps": ("swap", "0.6"),
               "30 % drops": ("drop", "0.3"), "30 % substitutes": ("substitute", "0.3")}
    rows = [[name, f"{entry['rate']:g}", *(spread([at(run, *where) for run in entry["runs"]], 1) for where in columns.values())]
            for name, entry in found["readers"].items()]
    return f"""**Typing errors** (lesson [46](../nbs/lessons/46_typing_errors.ipynb)). One Transformer of width {found['d_model']} reads the English of micro-Hindi in
several ways and learns for {found['steps']} steps; its Hindi is words. BLEU on {found['test']} test sentences with typos in a share of the words of four
letters or more. With *noise*, half of the training sentences of an epoch have swaps in {100 * found['strength']:.0f} per cent of these words.

{table("reader | rate | " + " | ".join(columns), rows)}

{source("typing_errors")}"""


def adversarial_words() -> str:
    found = record("adversarial_words")
    rows = [[name, f"{entry['rate']:g}", spread([run["right"] for run in entry["runs"]], 1, 100),
             *(spread([run["one"][kind] for run in entry["runs"]], 1, 100) for kind in ("random", "first order", "best"))]
            for name, entry in found["ways"].items()]
    return f"""**Adversarial words** (lesson [46a](../nbs/lessons/46a_adversarial_words.ipynb)). A GRU learns from some micro-reviews for {found['steps']} steps.
*Right*: test reviews, in per cent. The others: of these, how many one replaced word turns wrong. *random swaps*, *attacked*: each batch also has
its reviews with one word replaced, at random or by the first-order attack.

{table("training | rate | right | random | first order | best of all", rows)}

{source("adversarial_words")}"""


def planted_bias() -> str:
    found = record("planted_bias")

    def row(name, runs):
        return [name, *(spread([run[key] for run in runs], 0, 100) for key in ("pro", "anti", "exact")), spread([run["bleu"] for run in runs], 1)]

    rows = [row(f"skew of {100 * float(skew):.0f} %", runs) for skew, runs in found["skews"].items()]
    rows += [row(f"{method}, {100 * float(skew):.0f} %", runs) for method, by_skew in found["methods"].items() for skew, runs in by_skew.items()]
    return f"""**A planted bias** (lesson [46b](../nbs/lessons/46b_planted_bias.ipynb)). {found['about occupations']} training sentences about eight occupations, of which a
share (the skew) follows a stereotype. The right gender in {found['probes']} pairs of probes that follow it (pro) or not (anti), in per cent; exact match and
BLEU on ordinary sentences.

{table("training | pro | anti | exact | BLEU", rows)}

{source("planted_bias")}"""


def small_devices() -> str:
    found = record("small_devices")
    engines = [name for name in found["runs"][0]["engines"] if name != "nothing"]
    of = lambda name, key, *how: spread([run["engines"][name][key] for run in found["runs"]], *how)
    rows = [[name, of(name, "bytes", 0, 1 / 1000), of(name, "memory", 0), of(name, "sentences_per_second", 0), of(name, "exact_match", 1, 100),
             of(name, "bleu", 1), of(name, "same", 1, 100)] for name in engines]
    return f"""**Small** (lesson [47](../nbs/lessons/47_small.ipynb)). One translator of micro-Hindi in several engines: kilobytes of its file, megabytes of memory, and
sentences a second of the processor, one at a time on one thread. Exact match and BLEU are of {found['sentences']} test sentences; *same* is the share of
translations that are those of PyTorch in float32.

{table("engine | kB | MB | sentences/s | exact | BLEU | same", rows)}

{source("small_devices")}"""


def distillation() -> str:
    found = record("distillation")
    names = {"gold": "gold", "new sentences": "gold, and new sentences by the teacher", "new sentences, gold": "gold, and the same new sentences in gold",
             "sequence": "the teacher's sentences", "word": "the teacher's probabilities"}
    part = found["parts"]["one"]
    rows = [["the teacher", "–", *(f"{100 * part['teacher']['test'][beam]['exact']:.1f}" for beam in ("beam 1", "beam 5"))]]
    rows += [[names[name], f"{entry['rate']:g}", *(spread([run["test"][beam]["exact"] for run in entry["runs"]], 1, 100) for beam in ("beam 1", "beam 5"))]
             for name, entry in part["students"].items()]
    return f"""**A small student** (lesson [47a](../nbs/lessons/47a_distillation.ipynb)). A student of {part['students']['gold']['parameters']:,} numbers learns from
{found['own']:,} pairs of micro-Hindi, and from {found['new']:,} new sentences, with a teacher of {part['teacher']['parameters']:,} numbers. Exact match on test in per cent.

{table("learns from | rate | greedy | beam of five", rows)}

{source("distillation")}"""


def pruning() -> str:
    found = record("pruning")
    rows = [[name, f"{entry['parameters']:,}", *(spread([run[when]["exact"] for run in entry["runs"]], 1, 100) for when in ("before", "after"))]
            for name, entry in found["variants"].items()]
    return f"""**Pruning** (lesson [47b](../nbs/lessons/47b_pruning.ipynb)). Parts are cut out of a translator of micro-Hindi, those with the least gradient or random ones;
*zeros*: as many single weights as in *both* are set to 0. Exact match in per cent, right after the cut and after more training.

{table("what is cut | parameters | before | after", rows)}

{source("pruning")}"""


def scaling() -> str:
    found = record("scaling")
    rows = [[kind, f"{size['parameters']:,}", f"{size['with embeddings']:,}", f"{size['rate']:g}", spread([run["loss"] for run in size["runs"]], 3)]
            for kind, entry in found["models"].items() for size in [*entry["sizes"], *([entry["sixth"]] if "sixth" in entry else [])]]
    law, line = (found["models"]["Transformer"]["prediction"][name] for name in ("law", "line"))
    return f"""**Scaling** (lesson [48](../nbs/lessons/48_scaling.ipynb)). Loss in nats a word on a text whose author gets {found['author']:.3f}. A law with a floor was fitted to the
first five Transformers. It predicted {law['loss']:.3f} for the sixth before that was trained, and 90 per cent of the resampled fits lie from {law['loss between'][0]:.3f} to
{law['loss between'][1]:.3f}. A straight line on logarithmic axes predicted {line['loss']:.3f}.

{table("model | parameters | with tables | rate | loss", rows)}

{source("scaling")}"""


def budget() -> str:
    found, rows = record("budget"), []
    for title, runs in (("each read once", found["grid"]), ("read again and again", found["repeated"])):
        for width, words in sorted({(run["width"], run["words"]) for run in runs}):
            same = [run for run in runs if (run["width"], run["words"]) == (width, words)]
            rows.append([str(width), f"{words:,}", title, spread([run["loss"] for run in same], 3)])
    return f"""**Data and budget** (lesson [48a](../nbs/lessons/48a_budget.ipynb)). The Transformers of lesson 48 with less text, and one of them with text that comes
again; loss in nats a word.

{table("width | words of text | how | loss", rows)}

{source("budget")}"""
