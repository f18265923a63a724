"""The table of claims: records and lessons exist, verdicts come out of the figures, and a broken record is told in one line."""
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import howto
import notebooks
import pytest

from transformer_course import Translator, verdicts
from transformer_course.claims import CLAIMS
from transformer_course.verdicts import VERDICTS, Claim, ClaimTable, figures, judged, measured
from transformer_course.data.corpora import Corpus, Pair
from transformer_course.records import recorded

ALL = [claim for part in CLAIMS.values() for claim in part]
LESSONS = notebooks.NBS / "lessons"
LESSON = LESSONS / "49_what_holds.ipynb"


def prose():
    cells = json.loads(LESSON.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


# The claims

@pytest.mark.parametrize("claim", ALL, ids=lambda claim: claim.says[:60])
def test_a_claim_has_its_record_its_figures_and_its_lesson(claim):
    assert (LESSONS / f"{claim.lesson}.ipynb").is_file()
    better, than, verdict = measured(claim)
    assert verdict in VERDICTS
    if claim.record:
        assert recorded(claim.record) and better and than and claim.unit
        assert not claim.unit.startswith("%") or max(better + than) <= 1           # shares, shown in per cent
    else:
        assert better == than == [] and not claim.unit


def test_there_are_claims_of_each_verdict_and_none_twice():
    found = [measured(claim).verdict for claim in ALL]
    assert set(found) == set(VERDICTS) and min(map(found.count, VERDICTS)) >= 5
    assert len({claim.says for claim in ALL}) == len(ALL) >= 35
    lessons = {claim.lesson.partition("_")[0] for claim in ALL}
    assert {"10", "11", "12a", "13", "14a", "15", "20", "21", "22", "24", "25", "30", "31", "32", "35", "40", "44"} <= lessons


def test_a_claim_with_figures_names_its_rival():
    for claim in ALL:
        if claim.record:
            assert re.search(r"\b(than|beats?)\b", claim.says), claim.says


def test_figures_are_those_that_loops_find():
    """Read without paths, from the records themselves."""
    runs = {name: model["runs"] for name, model in recorded("micro_hindi")["models"].items()}
    said = {claim.says: measured(claim) for claim in ALL}
    loops = {
        "The Transformer gets more far verbs right than the recurrent translator.": [
            [sum(run["subject"][d][0] for d in ("18", "19", "20")) / sum(run["subject"][d][1] for d in ("18", "19", "20"))
             for run in runs[name]] for name in ("transformer", "additive")],
        "Label smoothing gets more sentences exactly right than training without it.": [
            [run["last"]["test"]["exact_match"] for run in recorded("recipe")["variants"][name]["runs"]]
            for name in ("the recipe", "no smoothing")],
        "With 64 labels, a published BERT beats a bag of words on real reviews.": [
            [run["test"] for run in recorded("minilm_tuned")["tasks"]["polarity"]["MiniLM"]["64"]],
            recorded("minilm")["labels"]["bag of words"]["64"]],
        "With 256 labels, reading plain text first helps our own BERT more than training longer on the labels.": [
            [run["test"] for run in start["runs"] if run["labels"] == 256 and run["rate"] == start["rates"]["256"]]
            for start in (recorded("bert")["labels"][name] for name in ("micro-text", "from scratch, as many steps"))],
        "With 16 layers, a norm before each sublayer learns better than one after it.": [
            [run["test"] for run in recorded("depth")["runs"] if (run["variant"], run["warmup"], run["depth"], run["rate"])
             == (variant, 50, 16, 0.003)] for variant in ("pre-norm", "post-norm")],
        "The Transformer translates real captions better than the recurrent translator in the same time.": [
            [recorded(name)["test_2016_flickr"]["beam 5"]["bleu"]]
            for name in ("multi30k_en-de_transformer_tiny_22m", "multi30k_en-de_additive_tiny_44m")],
        "Two levels tell who thinks what better than one row of words.": [
            [run["right"] for run in recorded("hierarchical")["readers"][name]["runs"]] for name in ("two levels", "one row")],
        "Learned spans predict Shakespeare's letters better than one fixed window of the same cost.": [
            [run["loss"] for run in recorded("adaptive_span")["parts"]["text"]["models"][name]] for name in ("price 0.0003", "window")],
        "Asked the contrastive question, occlusion puts the deciding word first more often than attention.": [
            [run["cause"]["contrastive: decides"][method] for run in recorded("explain")["trainings"]["10 % unknown"]]
            for method in ("occlusion", "attention")],
        "Attention weights put the deciding word first in more than half of the sentences.": [
            [run["cause"]["contrastive: decides"]["attention"] for run in recorded("explain")["trainings"]["10 % unknown"]], [0.5]],
        "A translator of captions is better with a parent than from scratch.": [
            [run["test"]["bleu"] for run in recorded("few_captions")["runs"] if (run["way"], run["language"], run["pairs"]) == (way, "fr", 500)]
            for way in ("parent", "alone")],
        "One T5 for four tasks translates better than one for this task, trained for as many steps on its own batches.": [
            [run["test"]["translate"] for run in entry["runs"]] for models in [recorded("text_to_text")["tasks"]["models"]]
            for entry in (models["joint"], models["alone, own batches again"]["translate"])],
    }
    for says, (better, than) in loops.items():
        assert said[says][:2] == (better, than), says


@pytest.mark.parametrize("claim", [claim for claim in ALL if claim.record], ids=lambda claim: claim.says[:60])
def test_a_verdict_is_that_of_counting_pairs(claim):
    """An oracle without minima: how many of all pairs (with the idea, without it) are won."""
    better, than, verdict = measured(claim)
    won = [(a < b if claim.lower else a > b) for a in better for b in than]
    lost = [(a > b if claim.lower else a < b) for a in better for b in than]
    ahead = (sum(better) * len(than) - sum(than) * len(better)) * (-1 if claim.lower else 1)
    if len(better) > 1 and (all(won) or all(lost)):
        assert verdict == ("holds" if all(won) else "opposite")
    else:
        assert verdict == ("half" if ahead > 0 else "not")


# The rule

@pytest.mark.parametrize("better, than, lower, expected", [
    ([65, 64, 68], [62, 66, 61], False, "half"),
    ([65, 64, 68, 70, 71], [62, 63.5, 61], False, "holds"),
    ([2.0, 2.1], [2.2, 2.3], True, "holds"),
    ([2.0, 2.1], [2.2, 2.3], False, "opposite"),
    ([2.2, 2.3], [2.0, 2.1], True, "opposite"),
    ([62, 66, 61], [65, 64, 68], False, "not"),           # worse, but the groups overlap
    ([62, 63, 61], [65, 64, 68], False, "opposite"),
    ([2.0, 3.0], [3.0], False, "not"),                    # as good is not worse
    ([1.0, 2.0], [3.0], False, "opposite"),               # against a rival that needs no seed
    ([1.0], [2.0, 3.0], False, "not"),                    # one training decides nothing
    ([3.0, 3.0], [3.0], False, "not"),                    # equal is no better
    ([3.0, 4.0], [3.0], False, "half"),                   # nor is one that is only as good
    ([9.0], [1.0, 2.0], False, "half"),                   # one training
    ([9.0, 8.0], [1.0], False, "holds"),                  # a rival that needs no seed
])
def test_the_rule(better, than, lower, expected):
    assert judged(better, than, lower) == expected


@pytest.mark.parametrize("better, than", [([3, 1, 2], [5, 4, 6]), ([5, 1, 2], [4, 3, 6]), ([1, 2], [2, 1])])
def test_the_rule_is_symmetric(better, than):
    """With both groups exchanged, and with `lower`, "holds" and "opposite" change places, and so do "half" and "not" unless the means are equal."""
    there, back = judged(better, than), judged(than, better)
    assert {there, back} in ({"holds", "opposite"}, {"half", "not"}) or sum(better) == sum(than) and there == back == "not"
    assert judged(better, than, lower=True) == back


# Paths

RECORD = {"models": {"a": {"rate": 0.1, "rates": {"64": 0.2},
                           "runs": [{"rate": 0.1, "seed": 1, "test": 0.5, "kinds": {"3": [1, 4], "4": [2, 4]}},
                                    {"rate": 0.2, "seed": 1, "test": 0.7, "kinds": {"3": [4, 4], "4": [4, 4]}}]},
                     "b, 2 | 3": {"by length": [[1, 0.1], [2, 0.25]], "why: here": 0.25}}, "name": "x", "bad": [float("nan")]}


@pytest.fixture
def record(monkeypatch):
    def read(name):
        if name != "made":
            raise FileNotFoundError(f"there is no record {name!r}")
        return RECORD
    monkeypatch.setattr(verdicts, "recorded", read)


@pytest.mark.parametrize("path, expected", [
    ("models > a > runs > * > test", [0.5, 0.7]),
    ("models > a > runs > rate = ^rate > test", [0.5]),
    ("models > a > runs > rate = ^rates/64, seed = 1 > test", [0.7]),
    ("models > a > runs > -1 > test", [0.7]),
    ("models > a > runs > * > kinds > 3 + 4", [3 / 8, 1]),
    ("models > a > runs > 0 > test | seed", [0.5, 1]),
    ("models > b, 2 | 3 > by length > * > 1", [0.1, 0.25]),          # a key with signs of its own
])
def test_paths(record, path, expected):
    assert figures("made", path) == expected


@pytest.mark.parametrize("path, told", [
    ("models > c > runs", "the record 'made' has nothing at 'models > c'"),
    ("models > a > runs > seed = 7 > test", "nothing at 'models > a > runs > seed = 7'"),
    ("models > a > runs > 5", "nothing at 'models > a > runs > 5'"),
    ("models > a > runs > sead = 1", "nothing at"),
    ("name > first", "nothing at 'name > first'"),
    ("name", "has no number at 'name', but 'x'"),
    ("bad > *", "has no number at 'bad > *'"),
])
def test_a_broken_record_is_told_in_one_line(record, path, told):
    with pytest.raises(ValueError) as error:
        measured(Claim("A claim.", "10_rnn", "made", path, 0.0))
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_missing_record_and_an_incomplete_claim_are_refused(record):
    colon = Claim("A claim.", "10_rnn", "made", "models > b, 2 | 3 > why: here", "models > b, 2 | 3 > why: here")
    assert measured(colon) == ([0.25], [0.25], "not")
    with pytest.raises(FileNotFoundError, match="there is no record 'other'"):
        measured(Claim("A claim.", "10_rnn", "made", "models > a > runs > * > test", "other: x"))
    whole = Claim("A claim.", "10_rnn", "made", "models > a > runs > * > test", 0.6)
    assert measured(whole).verdict == "not"
    for wrong in (replace(whole, record=""), replace(whole, verdict="half"), replace(whole, record="", verdict="perhaps")):
        with pytest.raises(ValueError, match="'A claim.' needs a record, or one verdict of holds, half, not, opposite"):
            measured(wrong)


# The table

def test_a_table_has_figures_links_and_signs(record):
    claim = Claim("A & b.", "14a_worth", "made", "models > a > runs > * > test", 0.4, "% right")
    table = ClaimTable([claim, Claim("C.", "10_rnn", verdict="not")], "Two")
    assert table.texts() == [("A & b.", "14a_worth", "60.0 (50.0 to 70.0) against 40.0 % right", "2 / none", "● holds"),
                             ("C.", "10_rnn", "in the lesson", "–", "○ not")]
    assert table.counts() == {"holds": 1, "half": 0, "not": 1, "opposite": 0}
    shown = table._repr_html_()
    assert '<a href="14a_worth.ipynb" style="color:inherit">14a</a>' in shown and "A &amp; b." in shown and shown.count("<th ") == 5
    assert repr(table).splitlines()[0] == "Two" and len(repr(table).splitlines()) == 3
    assert ClaimTable([replace(claim, unit="nats", digits=3, lower=True)]).texts()[0][2] == (
        "0.600 (0.500 to 0.700) against 0.400 nats, lower is better")


# The lesson

def test_the_sayings_are_fifteen_and_lead_to_sections_that_exist():
    rows = re.findall(r"^\| (\d+)\. .*\|$", prose(), re.M)
    assert rows == [str(n) for n in range(1, 16)]
    links = re.findall(r"\]\((\w+\.ipynb)#([^)\s]+)\)", prose())
    assert len(links) >= 15
    for name, anchor in links:
        cells = json.loads((LESSONS / name).read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        headings = [heading.replace(" ", "-").replace("*", "") for heading in re.findall(r"^#+ (.+)$", text, re.M)]
        assert anchor.replace("%22", '"') in headings, (name, anchor)


def test_years_and_authors_of_the_time_line_are_those_of_the_bibliography():
    code = next("".join(cell["source"]) for cell in json.loads(LESSON.read_text(encoding="utf-8"))["cells"]
                if "".join(cell["source"]).startswith("STEPS = "))
    steps = re.findall(r'\("(\d{4}) (\w+)", "([^"]+)", "[^"]+", "(\w+)"\)', code)
    known = (notebooks.ROOT / "site" / "references.bib").read_text(encoding="utf-8")
    assert len(steps) == 16 == code.count('", "') // 3
    for year, author, name, _ in steps:
        assert re.search(rf"^@\w+{{{author.lower()}{year}(-\w+)?,", known, re.M), name


# The page of projects

CAPSTONE = notebooks.ROOT / "docs" / "capstone.md"
TRAINS = """Translator.train(corpus, model=SIDES[side], preset="micro", steps=STEPS, learning_rate=rate, seed=seed, progress=False)"""
STUB = """type("Stub", (), {"config": {"training": {"history": [{"valid": abs(rate - 0.02) + 0.001 * seed}]}}, "evaluate": lambda self, test:
                            type("Score", (), {"bleu": 10 * seed + 3 * (side == "with the idea")})()})()"""


@pytest.mark.skipif(os.name == "nt", reason="the blocks are for bash")
def test_the_ten_points_of_a_project_are_earned_by_the_skeleton_and_lost_without_it(tmp_path):
    """The page's blocks in an empty folder, with made-up figures in place of the trainings; then each point is spoiled."""
    text = CAPSTONE.read_text(encoding="utf-8")
    assert text.count(TRAINS) == 1
    page = tmp_path / "capstone.md"
    page.write_text(text.replace(TRAINS, STUB), encoding="utf-8")
    folder, programs = tmp_path / "project", Path(sys.executable).parent
    folder.mkdir()
    output = howto.run(page, folder, programs)
    assert "with: mean 23.0 BLEU (13.0 to 33.0), 3 seeds" in output and "Verdict: half" in output
    assert "24_recipe: Label smoothing" in output and "the same figures again" in output
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    assert {side["rate"] for side in record["sides"].values()} == {0.02}
    points = [line for line in howto.blocks(page)[-1].text.splitlines() if line]
    assert [line.rpartition("# ")[2] for line in points] == [str(n) for n in range(1, 11)]

    def spoil(name, old, new):
        file = folder / name
        before = file.read_text(encoding="utf-8")
        assert old in before
        file.write_text(before.replace(old, new), encoding="utf-8")
        return lambda: file.write_text(before, encoding="utf-8")

    spoiled = {1: ("claim.txt", " than ", " "), 3: ("record.json", '"overlap": 0', '"overlap": 1'), 4: ("record.json", '"guess": {', '"guess": {}, "other": {'),
               6: ("record.json", '"steps": 40,\n     "test": 13', '"steps": 41,\n     "test": 13'),
               10: ("report.md", "does not show", "shows")}
    for point, change in spoiled.items():
        mend = spoil(*change)
        with pytest.raises(RuntimeError):
            howto.done(howto.Block("sh", "", points[point - 1]), folder, programs, {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"})
        mend()


def test_the_skeleton_trains_as_the_library_does():
    pairs = [Pair(f"{a} sees {b}", f"{a} voit {b}") for a in "abcdef" for b in "uvwxyz"]
    translator = Translator.train(Corpus.from_pairs(pairs, pair="en-fr"), model="transformer-rotary", preset="micro", steps=1, learning_rate=0.01,
                                  seed=2, progress=False)
    assert translator.config["training"]["history"][-1]["valid"] > 0 and translator.evaluate(pairs[:2]).bleu >= 0
