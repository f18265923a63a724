"""The tables of docs/results.md on lessons 35a, 40b and 43, and on positions with captions."""
from recorded_facts import record, records, source, spread, table


def today() -> str:
    parts = {"minilm_lora": adapting, "hierarchical": hierarchical, "pictures": pictures}
    return "\n\n".join(("## Today and beyond", *(part() for name, part in parts.items() if name in records())))


def adapting() -> str:
    found, small = record("minilm_lora"), record("adapting")
    best = lambda entry, key: [run[key] for run in entry["runs"] if run["rate"] == entry["rate"]]
    rows = [[name, f"{entry['numbers']:,}", f"{entry['rate']:g}", spread([run["test"] for run in entry["runs"]], 1, 100),
             spread([run["kept"]["nearest"] for run in entry["runs"]], 0, 100)] for name, entry in found["ways"].items()]
    before = [spread([run[key] for run in small["before"]], digits, times) for key, digits, times in (("test", 1, 100), ("forgets", 2, 1))]
    own = [["nothing", "0", "–", *before]]
    own += [[name, f"{entry['numbers']:,}", f"{entry['rate']:g}", spread(best(entry, "test"), 1, 100), spread(best(entry, "forgets"), 2)]
            for name, entry in small["ways"].items()]
    return f"""**Adapting a model** (lesson [35a](../nbs/lessons/35a_adapting.ipynb)). MiniLM learns from {found['settings']['labels']:,} film reviews in
{found['settings']['steps']} steps; LoRA has rank {found['settings']['rank']}. *Kept*: of the ten captions that were nearest to a caption before, the share that
is still among its ten nearest, in per cent. Each way's rate was searched on valid.

{table("what learns | numbers | rate | right | kept", rows)}

{source("minilm_lora")}

A small decoder that was trained on stories learns to answer questions about them, from {small['settings']['questions']} questions. Its loss on new stories, in
nats per word, shows what it forgets.

{table("what learns | numbers | rate | right | loss on stories", own)}

{source("adapting")}"""


def hierarchical() -> str:
    found = record("hierarchical")
    rows = []
    for name, entry in found["readers"].items():
        gold = [run["gold"] for run in entry["runs"] if run.get("gold") is not None]
        rows.append([name, f"{entry['steps']:,}", f"{entry['parameters']:,}", f"{entry['rate']:g}",
                     spread([run["right"] for run in entry["runs"]], 1, 100), spread(gold, 1, 100) if gold else "–"])
    return f"""**Two levels of attention** (lesson [40b](../nbs/lessons/40b_hierarchical.ipynb)). Of {found['people']} people in a document, one decides its
label. Guessing is right in {100 * found['guess']:.0f} per cent, the opinion of most people in {100 * found['most']:.1f}. *Gold*: documents in which the
largest weight of a sentence is on the one that decides.

{table("reader | steps | parameters | rate | right | gold", rows)}

{source("hierarchical")}"""


KINDS = ("caption", "colour", "shape", "count", "exists", "relation")


def pictures() -> str:
    found = record("pictures")
    rows = [["the most frequent answer", "–", *(f"{100 * found['most frequent'][kind]:.1f}" for kind in KINDS)]]
    for name, entry in found["models"].items():
        rows += [[name, f"{found['steps'][name]:,}", *(spread([run["test"][kind] for run in entry["runs"]], 1, 100) for kind in KINDS)]]
        if "another picture" in entry["runs"][0]:
            other = [spread([run["another picture"][kind] for run in entry["runs"]], 1, 100) for kind in KINDS]
            rows.append([f"{name}, another picture", "–", *other])
    read = [run["read off its caption"] for run in record("picture_relations")["models"]["coordinates"]]
    return f"""**Pictures and text** (lesson [43](../nbs/lessons/43_pictures.ipynb)). One model writes captions of drawn scenes and answers questions. It knows
where a patch lies by coordinates as two more channels, or by learned codes. Per cent exactly right. Questions about *left* and *right* are
answered by guessing; read off the caption that the same model writes, {spread(read, 1, 100)} per cent of the answers are right.

{table(" | ".join(("model", "steps", *KINDS)), rows)}

{source("pictures")}

{source("picture_relations")}"""
