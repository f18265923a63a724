"""Occupations: twins against tables of forms, an exact skew, genders read from translations; balanced rows; what the record adds up to."""
from collections import Counter
from random import Random

import pytest

from transformer_course.data.hindi.forms import agree, conjugate, was
from transformer_course.data.hindi.lexicon import ADJECTIVES, FEELINGS, NAMES, NOUNS, PLACES, TOWNS, VERBS
from transformer_course.data.hindi.templates import AMBIGUOUS
from transformer_course.data.occupations import OCCUPATIONS, generate, shown_gender, stereotype, twins
from transformer_course.models.planted_bias import balanced
from transformer_course.records import recorded

KIND = stereotype(seed=3)


def feminine_forms() -> dict[str, str]:
    """Masculine singular forms and their feminine ones, from the tables of verbs and adjectives alone."""
    forms = {was("m", False): was("f", False)}
    for verb in ("go", "come", "sleep", "run", "laugh"):
        for tense in ("past", "past progressive"):
            forms |= dict(zip(*(conjugate(VERBS[verb].stem, tense, 3, gender, False) for gender in "mf")))
    for feeling in FEELINGS:
        forms |= {agree(ADJECTIVES[feeling][0], "m"): agree(ADJECTIVES[feeling][0], "f")}
    return forms


@pytest.mark.parametrize("clue", [True, False])
def test_twins_differ_in_pronoun_and_agreement_alone(clue):
    rng, forms = Random(11), feminine_forms()
    for number in range(120):
        he, she = twins(rng, list(OCCUPATIONS)[number % 8], clue)
        assert [forms.get(word, word) for word in he.hindi.split()] == she.hindi.split()
        assert he.english.replace("because he ", "because she ") == she.english
        assert (he.english == she.english) is not clue and he.hindi != she.hindi and he.links == she.links
        assert ("because" in he.english) is clue


def test_the_clue_is_the_only_word_of_english_that_shows_a_gender():
    made = generate(KIND, 0.9, n=80, probes=40)
    words = Counter(word for s in made["train"] + made["counterfactual"] for word in s.english.split())
    by_gender = {g: Counter(w for s in made["train"] + made["counterfactual"] if s.tags["gender"] == g for w in s.english.split()) for g in "mf"}
    assert {word for word in words if by_gender["m"][word] != by_gender["f"][word]} == {"he", "she"}


def test_half_of_the_occupations_go_with_each_gender_and_seeds_differ():
    drawn = [stereotype(seed) for seed in range(1, 30)]
    assert all(Counter(kind.values()) == {"m": 4, "f": 4} and list(kind) == list(OCCUPATIONS) for kind in drawn)
    assert all({kind[name] for kind in drawn} == {"m", "f"} for name in OCCUPATIONS)


@pytest.mark.parametrize("skew, against", [(0.5, 100), (0.9, 20), (0.98, 4), (1.0, 0), (0.0, 200)])
def test_the_skew_is_exact_and_changes_nothing_else(skew, against):
    made, all_pro = generate(KIND, skew, n=200, probes=16), generate(KIND, 1.0, n=200, probes=16)
    other = [i for i, s in enumerate(made["train"]) if s.tags["gender"] != KIND[s.tags["occupation"]]]
    assert len(other) == against
    for i, (shown, twin) in enumerate(zip(made["train"], made["counterfactual"])):
        assert (shown, twin) == ((all_pro["counterfactual"][i], all_pro["train"][i]) if i in other else
                                 (all_pro["train"][i], all_pro["counterfactual"][i]))
    shares = Counter(made["train"][i].tags["occupation"] for i in other)
    assert max(shares.values(), default=0) - min((shares[name] for name in OCCUPATIONS)) <= 1, "the occupations share them"
    for split in ("probes", "no clue", "by hand"):
        assert made[split] == all_pro[split]


def test_splits_share_no_sentence_and_probes_come_pro_first():
    made = generate(KIND, 0.95, n=120, probes=40, by_hand=24, seed=5)
    english = [s.english for name in ("train", "counterfactual", "by hand") for s in made[name]]
    english += [s.english for pair in made["probes"] for s in pair] + [pair[0].english for pair in made["no clue"]]
    assert len(english) == len(set(english)) == 120 + 120 + 24 + 80 + 40
    for pro, anti in made["probes"] + made["no clue"]:
        assert pro.tags["gender"] == KIND[pro.tags["occupation"]] != anti.tags["gender"]
    assert Counter(s.tags["gender"] for s in made["by hand"]) == {"m": 12, "f": 12}


def test_a_gender_is_read_from_the_verb_of_the_occupation():
    pair = next(p for p in (twins(Random(i), "judge") for i in range(99)) if p[0].tags["clauses"][0].tense == "past progressive"
                and "thakaa" in p[0].hindi)
    he, she = (twin.hindi for twin in pair)
    assert [shown_gender(text, order) for text in (he, she) for order in (pair, pair[::-1])] == ["m", "m", "f", "f"]
    he_then_she = he.split("kyonki")[0] + "kyonki" + she.split("kyonki")[1]
    assert shown_gender(he_then_she, pair) == "m", "the second clause does not count"
    assert shown_gender("jaj", pair) == shown_gender("", pair) == "" and shown_gender("jaj rahaa thii", pair) == "", "neither, or both"
    assert shown_gender("rahii thii", pair) == "f", "whatever else is missing"


def test_no_occupation_is_a_word_of_micro_hindi():
    tables = [[noun.english, noun.plural, noun.hindi] for noun in NOUNS.values()] + NAMES + TOWNS + PLACES
    tables += [[english, *row[:1]] for english, row in ADJECTIVES.items()] + [[verb.english, verb.past, verb.stem] for verb in VERBS.values()]
    tables += [[english, *(sense.hindi for sense in senses)] for english, senses in AMBIGUOUS.items()]
    assert not {word for row in tables for word in row} & {*OCCUPATIONS, *OCCUPATIONS.values()}


def test_balanced_rows_repeat_what_is_rare():
    rows = ["a1", "b1", "a2", "a3", "c1", "c2", "a4"]
    found = balanced(rows, lambda row: row[0], 12)
    assert Counter(row[0] for row in found) == {"a": 4, "b": 4, "c": 4}
    assert Counter(found) == {"a1": 1, "a2": 1, "a3": 1, "a4": 1, "b1": 4, "c1": 2, "c2": 2}


@pytest.mark.parametrize("call, word", [
    (lambda: generate(KIND, 1.5), "skew"), (lambda: generate(KIND, 0.9, by_hand=7), "by_hand"),
    (lambda: generate({"doctor": "m"}, 0.9), "kind"), (lambda: twins(Random(1), "pilot"), "pilot"),
    (lambda: balanced(["a", "b", "c"], str, 4), "size"), (lambda: balanced([], str, 4), "rows")])
def test_errors_name_what_is_wrong(call, word):
    with pytest.raises(ValueError, match=word):
        call()


def test_the_record_adds_up():
    record = recorded("planted_bias")
    runs = [run for found in record["skews"].values() for run in found]
    runs += [run for method in record["methods"].values() for found in method.values() for run in found]
    runs += [run for found in record["tuned"].values() for run in found["runs"]]
    for run in runs:
        gap, low, high = run["gap"]
        assert abs(run["pro"] - run["anti"] - gap) < 2e-4 and low <= gap <= high
        for name, sides in run.items():
            if name.startswith("no clue"):
                assert all(abs(sum(shares.values()) - 1) < 2e-4 for shares in sides.values())
    groups = [*record["skews"].values(), *(found for method in record["methods"].values() for found in method.values()),
              *(found["runs"] for found in record["tuned"].values())]
    assert all([run["seed"] for run in found] == [1, 2, 3] for found in groups)
