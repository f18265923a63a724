"""The experiment on few real captions: its parts share nothing, its ways differ in one thing, and its searches keep the best."""
import sys
from pathlib import Path

import pytest
import torch

from transformer_course.data.corpora import Pair

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
import few_captions as experiment      # noqa: E402

WORDS = "a man sees two dogs near the red house and one girl runs to an old car".split()


def made(language, first, count):
    """Captions that differ: numbers written with words."""
    def text(i, mark):
        return " ".join(f"{WORDS[i // 16 ** k % 16]}{mark}" for k in range(4))
    return [Pair(text(i, ""), text(i, f"-{language}")) for i in range(first, first + count)]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Sizes of a test, made captions, and no model or search of another test."""
    def load(name, pair):
        language = pair.removeprefix("en-")
        return {"train": made(language, 0, 120), "valid": made(language, 200, 9), "test_2016_flickr": made(language, 300, 7)}

    for name, value in {"load": load, "PARENT_PAIRS": 60, "MOST_REAL": 20, "MORE": 36, "PIECES": 330, "KEPT": tmp_path / "kept",
                        "SIZES": {**experiment.SIZES, "d_model": 16, "n_layers": 1, "d_ff": 24}}.items():
        monkeypatch.setattr(experiment, name, value)
    cached = experiment.data, experiment.parent_pieces, experiment.shared_pieces, experiment.own_pieces
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


def learned_from(monkeypatch, way, n, **settings):
    """The child before its first step, its pieces, and the pairs from which it would learn."""
    given = []
    monkeypatch.setattr(experiment, "train", lambda model, tokenizer, pairs, valid, *rest, **more: given.append((pairs, valid)) or {})
    model, tokenizer, _ = experiment.trained(way, "fr", n, {"rate": 0.1, "dropout": 0.0, **settings}, seed=3)
    return model, tokenizer, *given[-1]


def test_no_caption_is_in_two_parts():
    parts = experiment.data("cs")
    assert {name: len(pairs) for name, pairs in parts.items()} == {"parent": 60, "real": 20, "hidden": 36, "valid": 9, "test": 7}
    sources = [pair.source for pairs in parts.values() for pair in pairs]
    assert len(set(sources)) == len(sources)
    assert [p.source for p in parts["real"]] == [p.source for p in experiment.data("de")["real"]]


def test_a_child_begins_with_the_weights_of_its_parent_and_a_rival_with_its_own(monkeypatch):
    kept = {False: experiment.build(experiment.parent_pieces(), 0.1, 5), True: experiment.build(experiment.parent_pieces(), 0.1, 6)}
    monkeypatch.setattr(experiment, "parent", lambda reverse: {"weights": kept[reverse].state_dict()})
    real = experiment.data("fr")["real"]
    name = next(name for name in kept[False].state_dict() if name.endswith("contract.weight"))
    for way, elder in (("parent", kept[False]), ("reverse", kept[True])):
        model, tokenizer, pairs, _ = learned_from(monkeypatch, way, 6)
        assert torch.equal(model.state_dict()[name], elder.state_dict()[name])
        assert pairs == (experiment.turned(real[:6]) if way == "reverse" else real[:6])
    model, tokenizer, pairs, _ = learned_from(monkeypatch, "alone", 6, pieces=290)
    assert len(tokenizer) <= 290 and pairs == real[:6]
    assert not any(torch.equal(model.state_dict()[name], one.state_dict()[name]) for one in kept.values())


def test_half_of_the_pairs_are_real(monkeypatch):
    elder = experiment.build(experiment.parent_pieces(), 0.1, 5).state_dict()
    monkeypatch.setattr(experiment, "parent", lambda reverse: {"weights": elder})
    parts = experiment.data("fr")
    experiment.KEPT.mkdir()
    torch.save([Pair("made", p.target) for p in parts["hidden"]], experiment.written("fr", 6, 3))
    for way, source in (("gold", [p.source for p in parts["hidden"]]), ("back", ["made"] * 36)):
        *_, pairs, valid = learned_from(monkeypatch, way, 6)
        assert pairs[:36] == parts["real"][:6] * 6 and [p.source for p in pairs[36:]] == source and valid == parts["valid"]
        assert [p.target for p in pairs[36:]] == [p.target for p in parts["hidden"]]


def test_training_in_bfloat16_learns():
    """A cache of cast weights that outlives a step would keep the weights of the first one."""
    pairs = experiment.data("fr")["real"][:5]
    tokenizer = experiment.own_pieces("fr", 5, 300)
    model = experiment.build(tokenizer, 0.0, 2)
    found = experiment.train(model, tokenizer, pairs, pairs, 0.03, 1, steps=90, least=90, every=30, cells=512, warmup=10)
    assert found["valid"] > 60 and found["seconds"] > 0


@pytest.mark.parametrize("way, best", [("parent", {"rate": 0.002, "dropout": 0.5}), ("alone", {"rate": 0.008, "dropout": 0.1, "pieces": 500})])
def test_a_search_finds_the_best_settings(monkeypatch, way, best):
    from math import log2

    def lost(asked, language, n, settings, steps):
        assert (asked, language, n) == (way, "fr", 500) and settings.keys() == best.keys()
        return sum(abs(log2((settings[name] + 1e-6) / best[name])) for name in best)

    monkeypatch.setattr(experiment, "tried", lost)
    found = experiment.searched(way, 500)
    assert found["settings"] == best and len(found["tried"]) >= 5


def test_without_dropout_is_tried_where_little_is_best(monkeypatch):
    monkeypatch.setattr(experiment, "tried", lambda way, language, n, settings, steps: abs(settings["rate"] - 0.004) + settings["dropout"])
    assert experiment.searched("parent", 500)["settings"] == {"rate": 0.004, "dropout": 0.0}


def test_what_has_no_search_takes_the_settings_of_the_child_with_a_parent(monkeypatch):
    record = {"searches": {way: {str(n): {"settings": {"rate": rate, "dropout": n / 10_000}} for n in (500, 2000)}
                           for way, rate in (("alone", 0.008), ("parent", 0.002))},
              "runs": [{"way": "gold", "language": "cs", "pairs": 500, "seed": 2}]}
    asked = []
    monkeypatch.setattr(experiment, "write", lambda name, record: None)
    monkeypatch.setattr(experiment, "shared", lambda work, tasks, jobs: asked.extend(tasks) or [(task, {"valid": 7}) for task in tasks])
    experiment.runs(record, [("gold", "cs", 500, 2), ("gold", "cs", 2000, 2), ("alone", "fr", 500, 1)], jobs=2)
    assert asked == [("gold", "cs", 2000, {"rate": 0.002, "dropout": 0.2}, 2), ("alone", "fr", 500, {"rate": 0.008, "dropout": 0.05}, 1)]
    assert len(record["runs"]) == 3 and record["runs"][1]["dropout"] == 0.2 and record["runs"][1]["valid"] == 7
