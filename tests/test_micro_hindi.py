"""micro-Hindi, checked from outside: a second grammar that knows nothing of the first."""
import hashlib
import math
import time
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_course.data.hindi import (corpus as micro_hindi, forms as hindi_forms,
                                           grammar as hindi_grammar, lexicon as hindi_lexicon,
                                           parts as hindi_parts, templates as hindi_templates)

SHA256 = "9f65ee82f4bf9c1e4c2ff65ccf4ff0acd2d5f39ec16a73b87af9e0c9f0c7204c"
TAGS_SHA256 = "01ca563095bb4dc942fb31e1eed5be489014c8504b86bb2bc02ecdcf0e4b8eec"

FEMININE = {"girl", "woman", "queen", "cat", "cow", "goat", "bird", "book", "letter", "story", "bread", "tea", "picture",
            "chair", "hat", "car", "window", "road", "river", "hindi", "english", "sita", "gita", "mira", "jill", "she"}
SINGULAR = {"girls": "girl", "women": "woman", "queens": "queen", "cats": "cat", "cows": "cow", "goats": "goat", "birds": "bird",
            "books": "book", "letters": "letter", "stories": "story", "pictures": "picture", "chairs": "chair", "hats": "hat",
            "cars": "car", "windows": "window", "roads": "road", "rivers": "river"}
MASCULINE_PLURALS = {"boys", "men", "children", "teachers", "farmers", "friends", "dogs", "lions", "horses", "elephants",
                     "newspapers", "songs", "apples", "mangoes", "bananas", "flowers", "umbrellas", "boxes", "bags", "doors",
                     "paths", "bridges"}
WITHOUT_NE = {"bring", "speak", "forget", "go", "come", "sleep", "run", "laugh", "sit", "live", "fly", "break", "dry", "be"}
WITH_NE = {"ne", "maine", "hamne", "tumne", "usne", "unhonne", "jisne", "jinhonne"}
ANIMATE = {"boy", "boys", "girl", "girls", "man", "men", "woman", "women", "child", "children", "teacher", "teachers", "farmer",
           "farmers", "friend", "friends", "queen", "queens", "dog", "dogs", "cat", "cats", "lion", "lions", "horse", "horses",
           "cow", "cows", "goat", "goats", "elephant", "elephants", "bird", "birds", "ram", "shyam", "mohan", "jack", "sita",
           "gita", "mira", "jill", "me", "us", "you", "him", "her", "it", "them"}
DEFINITE = {"the", "this", "that", "these", "those", "'s"}
ADJECTIVES = {"big", "small", "good", "tall", "clever", "poor", "beautiful", "black", "new", "red", "heavy", "cheap", "expensive",
              "sweet", "wide", "long", "old", "hungry", "thirsty", "ill", "broken", "faulty", "wet", "green", "sandy", "closed",
              "open", "rich"}
WILD, BUILT = ("forest", "river", "field", "garden"), ("factory", "shop", "office", "market")
PLACES = {"baink": BUILT, "kinaaraa": WILD, "saaras": WILD, "kren": BUILT, "chamgaadar": WILD,
          "ballaa": BUILT, "chuuhaa": WILD, "maaus": BUILT}
SENSES = {"baink": "m", "kinaaraa": "m", "saaras": "m", "kren": "f", "chamgaadar": "m", "ballaa": "m", "chuuhaa": "m", "maaus": "m"}
ENDINGS = {  # tense -> (person, gender, plural) -> how the last words of the verb end
    "present": lambda p, g, n: [("tii" if g == "f" else "te" if n else "taa"), am(p, n)],
    "used": lambda p, g, n: [("tii" if g == "f" else "te" if n else "taa"), was(g, n)],
    "progressive": lambda p, g, n: ["", "rah" + vowel(g, n), am(p, n)],
    "past progressive": lambda p, g, n: ["", "rah" + vowel(g, n), was(g, n)],
    "past": lambda p, g, n: ["iin" if g == "f" and n else vowel(g, n)],
    "future": lambda p, g, n: ["oge" if p == 2 else ("uung" if p == 1 and not n else "eng" if n else "eg") + vowel(g, n)],
}


def vowel(gender, plural):
    return "ii" if gender == "f" else "e" if plural else "aa"


def was(gender, plural):
    return "thiin" if gender == "f" and plural else "th" + vowel(gender, plural)


def am(person, plural):
    return {1: "hain" if plural else "huun", 2: "ho", 3: "hain" if plural else "hai"}[person]


@pytest.fixture(scope="module")
def splits():
    return micro_hindi.generate(seed=1)


def features(sentence, places):
    """Person, gender, plural of the English words at `places`, worked out from this file's tables alone."""
    words = [sentence.english.split()[i] for i in places]
    tags = sentence.tags
    if len(words) == 2:
        return 3, "f" if set(words) <= FEMININE else "m", True
    (word,), (place,) = words, places
    if word in ("i", "we", "you"):
        return {"i": 1, "we": 1, "you": 2}[word], "m", word != "i"
    if word in ("it", "they"):
        antecedent = tags.get("antecedent") if tags.get("pronoun") == place else None
        if antecedent is None:
            return 3, "m", word == "they"
        return features(sentence, antecedent)
    if tags.get("noun") == place:
        return 3, SENSES[tags["sense"]], False
    gender = "f" if word in FEMININE or word in SINGULAR else "m"
    return 3, gender, word in SINGULAR or word in MASCULINE_PLURALS


def marked(sentence, place):
    """Whether the object at this place is animate or definite, by looking at the English words before it."""
    words = sentence.english.split()
    if words[place] in ANIMATE:
        return True
    if sentence.tags.get("noun") == place and sentence.tags["sense"] in ("saaras", "chamgaadar", "chuuhaa"):
        return True
    place -= 1
    while words[place] in ADJECTIVES:
        place -= 1
    return words[place] in DEFINITE


def test_every_verb_agrees_as_a_second_grammar_says(splits):
    seen = Counter()
    for name, sentences in splits.items():
        for s in sentences:
            hindi = s.hindi.split()
            agents = sum(w in WITH_NE for w in hindi)
            assert agents == sum(c.subject_case == "ne" for c in s.tags["clauses"]), s
            for c in s.tags["clauses"]:
                with_ne = c.tense == "past" and c.verb not in WITHOUT_NE and not (c.verb == "open" and not c.object)
                assert (c.subject_case == "ne") == with_ne, s
                if not with_ne:
                    expected = features(s, c.subject)
                elif c.object_case == "direct" and c.object:
                    expected = features(s, c.object)
                else:
                    expected = (3, "m", False)
                words = [hindi[j] for j in c.words if hindi[j] not in ("nahiin", "paar")]
                if c.verb == "be":
                    person, gender, plural = expected
                    table = {"present": am(person, plural), "past": was(gender, plural),
                             "future": "hoge" if person == 2 else ("hong" if plural else "hog") + vowel(gender, plural)}
                    assert words == [table[c.tense]], (s, c)
                else:
                    endings = ENDINGS[c.tense](*expected)
                    assert len(words) == len(endings) and all(w.endswith(e) for w, e in zip(words, endings)), (s, c)
                    if c.tense == "past" and expected[1:] == ("f", False):
                        assert not words[0].endswith("iin"), s
                seen[c.tense, c.controller] += 1
    assert len(seen) == 6 + 2 and min(seen.values()) > 50          # the past has three controllers


def test_ko_marks_what_is_animate_or_definite(splits):
    checked = 0
    for s in splits["train"] + splits["test"]:
        gives = "recipient" in s.tags["roles"]
        for c in s.tags["clauses"]:
            if c.object and c.verb not in ("give", "send"):
                inside = s.english.split()[c.object[0] + 1:c.object[0] + 2] in (["who"], ["whom"], ["which"])
                relative_object = c.object[0] < c.subject[0]
                if not (inside or relative_object):
                    assert (c.object_case == "ko") == marked(s, c.object[0]), (s, c)
                    checked += 1
            elif c.object:
                assert c.object_case == "direct" and (gives or len(s.tags["clauses"]) > 1)
    assert checked > 3000


def test_links_cover_every_hindi_word_but_the_case_markers(splits):
    for sentences in splits.values():
        for s in sentences:
            source, target = s.english.split(), s.hindi.split()
            assert all(0 <= i < len(source) and 0 <= j < len(target) for i, j in s.links)
            linked = {j for _, j in s.links}
            assert {w for j, w in enumerate(target) if j not in linked} <= {"ne", "ko"}
            idle = {w for i, w in enumerate(source) if i not in {i for i, _ in s.links}}
            assert idle <= {"the", "a", "an", "to", "in"}
            assert all(c.isascii() and (c.islower() or not c.isalpha()) for c in s.english + s.hindi)


def test_no_sentence_twice_and_none_of_train_elsewhere(splits):
    count = Counter(s.english for sentences in splits.values() for s in sentences)
    assert max(count.values()) == 1
    assert {k: len(v) for k, v in splits.items()} == {"train": 8000, "valid": 500, "test": 1000, "length": 300, "distance": 1008,
                                                      "roles": 300, "composition": 320}


def test_the_same_english_always_has_the_same_hindi(splits):
    first = {s.english: s.hindi for sentences in splits.values() for s in sentences}
    shared = 0
    for sentences in micro_hindi.generate(seed=2).values():
        for s in sentences:
            if s.english in first:
                shared += 1
                assert first[s.english] == s.hindi
    assert shared > 100


def test_composition_is_new_as_words_and_old_as_pieces(splits):
    words = {w for s in splits["train"] for w in s.hindi.split()}
    pieces = {w for s in splits["train"] for w in hindi_forms.segment(s.hindi).split()}
    for s in splits["composition"]:
        new = set(s.hindi.split()) - words
        assert new & set(micro_hindi.HELD_OUT)
        assert set(hindi_forms.segment(s.hindi).split()) <= pieces
        assert set(s.tags["cells"]) & set(micro_hindi.CELLS)
    everywhere = {c for s in splits["train"] for c in s.tags["cells"]}
    assert not everywhere & set(micro_hindi.CELLS)


def test_roles_come_in_swapped_pairs(splits):
    assert splits["roles"][0].english == "jack saw jill" and splits["roles"][1].english == "jill saw jack"
    for one, two in zip(splits["roles"][::2], splits["roles"][1::2]):
        assert one.tags["pair"] == two.tags["pair"] and (one.tags["swap"], two.tags["swap"]) == (0, 1)
        a, b = one.english.split(), two.english.split()
        agent, patient = one.tags["roles"]["agent"][0], one.tags["roles"]["object"][0]
        a[agent], a[patient] = a[patient], a[agent]
        assert a == b and one.hindi != two.hindi


def test_distances_are_balanced_and_measured(splits):
    count = Counter((s.tags["kind"], s.tags["distance"]) for s in splits["distance"])
    assert count == {(kind, d): 24 for kind in ("subject", "ambiguous") for d in range(21)}
    for s in splits["distance"]:
        words, tags = s.english.split(), s.tags
        if tags["kind"] == "subject":
            c = tags["clauses"][-1]
            assert c.controller == "subject" and tags["focus"] == c.words
        else:
            assert words[tags["noun"]] in hindi_templates.AMBIGUOUS
            assert abs(tags["trigger"] - tags["noun"]) - 1 == tags["distance"]
            senses = {x.hindi: x for x in hindi_templates.AMBIGUOUS[words[tags["noun"]]]}
            cues = {k: {w for v in x.verbs for w in (v, *other_forms(v))} | set(x.adjectives) for k, x in senses.items()}
            assert words[tags["trigger"]] in cues[tags["sense"]]
            assert not any(words[tags["trigger"]] in cue for k, cue in cues.items() if k != tags["sense"])
            if tags["distance"] > 2:
                assert any(abs(i - tags["noun"]) - 1 < tags["distance"] for i in tags["lures"])
            assert tags["lures"] == tuple(i for i, w in enumerate(words) if w in WILD + BUILT)
            assert tags["distractors"] == tuple(i for i in tags["lures"] if words[i] not in PLACES[tags["sense"]])


def other_forms(verb):
    v = hindi_lexicon.VERBS[verb]
    return v.third, v.past, v.ing


def ambiguous_ones(sentences):
    return [s for s in sentences if s.tags["template"] == "ambiguous"]


def noun_of(s):
    return s.english.split()[s.tags["noun"]]


def other_words(s):
    """All words but the deciding one, in order, with a gap in its place."""
    words = s.english.split()
    return [*words[:s.tags["trigger"]], "_", *words[s.tags["trigger"] + 1:]]


def lures_of(s):
    """The place words that suggest a meaning, the nearest to the noun first, by this file's tables."""
    words = s.english.split()
    outwards = sorted(range(len(words)), key=lambda i: abs(i - s.tags["noun"]))
    return [words[i] for i in outwards if words[i] in WILD + BUILT]


def agrees(s):
    """Whether the nearest lure suggests the right meaning; None without a lure."""
    lures = lures_of(s)
    return lures[0] in PLACES[s.tags["sense"]] if lures else None


def naive_bayes(rows):
    """A guesser of labels from sets of features, fitted on (features, label)."""
    labels, counts = Counter(y for _, y in rows), {}
    for features, y in rows:
        counts.setdefault(y, Counter()).update(set(features))
    def score(features, y):
        n = labels[y]
        return math.log(n) + sum(math.log((counts[y][f] + 0.5) / (n + 1)) for f in set(features))
    return lambda features: max(sorted(labels), key=lambda y: score(features, y))


def hits(train, asked, features, label, group=lambda s: ""):
    """How often naive Bayes, fitted on train for each group, guesses the label of what is asked."""
    rows = {}
    for s in train:
        rows.setdefault(group(s), []).append((features(s), label(s)))
    guess = {g: naive_bayes(rows[g]) for g in set(map(group, asked))}
    return sum(guess[group(s)](features(s)) == label(s) for s in asked)


def halves_of(sentences):
    return [(sentences[1 - i::2], sentences[i::2]) for i in (0, 1)]


def words_and_pairs(words):
    return [*words, *zip(words, words[1:])]


def sense(s):
    return s.tags["sense"]


def test_only_the_deciding_word_differs_between_the_two_meanings(splits):
    """Each two sentences share everything else, so a rule that does not read that word is right in one."""
    asked = [s for s in splits["distance"] if s.tags["kind"] == "ambiguous"]
    for one, two in zip(asked[::2], asked[1::2]):
        assert one.tags["pair"] == two.tags["pair"] and one.tags["sense"] != two.tags["sense"]
        assert one.tags["trigger"] == two.tags["trigger"] and other_words(one) == other_words(two)
    assert len({s.tags["pair"] for s in asked}) == len(asked) // 2 == 252
    assert Counter((s.tags["distance"], s.tags["sense"]) for s in asked) == {(d, x): 3 for d in range(21) for x in SENSES}
    first = Counter(s.tags["sense"] for s in asked[::2])
    assert all(15 < n < 48 for n in first.values())                # neither meaning always comes first


def test_lures_say_nothing_about_the_meaning_in_the_challenge(splits):
    asked = [s for s in splits["distance"] if s.tags["kind"] == "ambiguous"]
    for d in range(21):
        near = Counter(agrees(s) for s in asked if s.tags["distance"] == d)
        assert near[True] == near[False] and near[True] + near[False] > (23 if d > 2 else 15)
    def majority(s):
        return sum(1 if w in PLACES[s.tags["sense"]] else -1 for w in lures_of(s))
    assert sum(majority(s) > 0 for s in asked) == sum(majority(s) < 0 for s in asked) > 200
    for noun in hindi_templates.AMBIGUOUS:
        for lure in WILD + BUILT:
            count = Counter(s.tags["sense"] for s in asked if noun_of(s) == noun and lure in s.english.split())
            assert len(count) == 2 and len(set(count.values())) == 1


def test_lures_agree_and_disagree_equally_often_wherever_sentences_are_drawn(splits):
    for name in ("train", "valid", "test"):
        settings_seen = {}
        for s in ambiguous_ones(splits[name]):
            lures = lures_of(s)
            side = lures[0] in WILD if lures else None
            settings_seen.setdefault((noun_of(s), s.tags["distance"], side), Counter())[s.tags["sense"]] += 1
        for (noun, _, _), count in settings_seen.items():
            both = [count[x.hindi] for x in hindi_templates.AMBIGUOUS[noun]]
            assert abs(both[0] - both[1]) <= 1
    near = Counter((s.tags["distance"], agrees(s)) for s in ambiguous_ones(splits["train"]))
    for d in range(21):
        assert abs(near[d, True] - near[d, False]) <= 8 and near[d, True] + near[d, False] >= 10
    agreeing, others = (sum(near[d, agree] for d in range(21)) for agree in (True, False))
    assert abs(agreeing - others) < 50 and min(agreeing, others) > 400


def test_a_baseline_over_all_other_words_is_at_chance_and_the_deciding_word_is_enough(splits):
    train, asked = ambiguous_ones(splits["train"]), ambiguous_ones(splits["distance"])
    held_back = ambiguous_ones(splits["valid"] + splits["test"])
    def everything_else(s):
        return words_and_pairs(other_words(s))
    def deciding(s):
        return [s.english.split()[s.tags["trigger"]]]
    for features in (everything_else, other_words, lures_of, lambda s: lures_of(s)[:1]):
        assert hits(train, asked, features, sense, noun_of) == len(asked) / 2
        assert 0.42 < hits(train, held_back, features, sense, noun_of) / len(held_back) < 0.58
        across = sum(hits(known, new, features, sense, noun_of) for known, new in halves_of(train))
        assert 0.42 < across / len(train) < 0.56
    for new in (asked, held_back):
        assert hits(train, new, deciding, sense, noun_of) == len(new)


def test_the_baseline_would_notice_lures_that_give_the_meaning_away():
    """The control: only sentences whose lures all suggest the wrong meaning, as they did in an earlier corpus."""
    rng, leaky = Random(5), []
    while len(leaky) < 800:
        both = hindi_templates.ambiguous(rng, len(leaky) % 21)
        leaky += [s for s in both if s.tags["lures"] == s.tags["distractors"] != ()]
    known, new = leaky[::2], leaky[1::2]
    for features in (lambda s: lures_of(s)[:1], lures_of, other_words, lambda s: words_and_pairs(other_words(s))):
        assert hits(known, new, features, sense, noun_of) / len(new) > 0.95


def test_distances_end_even_where_train_has_used_up_a_meaning():
    rng, taken = Random(3), set()
    places = [f"the bat near the {place} {verb}" for place in WILD + BUILT for verb in ("broke", "slept", "flew")]
    taken.update(places[:-6])
    found = micro_hindi.distances(rng, 24, micro_hindi.fits, taken)
    count = Counter((s.tags["kind"], s.tags["distance"]) for s in found)
    assert count == {(kind, d): 24 for kind in ("subject", "ambiguous") for d in range(21)}
    at_three = Counter(s.tags["sense"] for s in found[504:] if s.tags["distance"] == 3)
    assert at_three["ballaa"] == at_three["chamgaadar"] < 3 and sum(at_three.values()) == 24
    with pytest.raises(RuntimeError, match="not 8 sentences of kind 'subject' for each distance"):
        micro_hindi.distances(rng, 8, lambda s: False, set())


def test_no_other_challenge_is_given_away_by_its_other_words(splits):
    """Roles, the gender of a distant subject, the form in composition, what *it* refers to."""
    for one, two in zip(splits["roles"][::2], splits["roles"][1::2]):
        assert sorted(one.english.split()) == sorted(two.english.split()) and one.hindi != two.hindi
    def controller(s):
        return s.tags["clauses"][-1]
    def besides(s):
        return [w for i, w in enumerate(s.english.split()) if i not in controller(s).subject]
    def gender(s):
        return controller(s).agreement[1]
    agreeing = [s for s in splits["train"] if controller(s).controller == "subject"]
    train = [s for s in agreeing if s.tags["template"] == "separated"]
    asked = [s for s in splits["distance"] if s.tags["kind"] == "subject"]
    genders = {}
    for s in splits["train"]:
        for c in s.tags["clauses"]:
            if c.controller == "subject":
                person, of, plural = c.agreement
                genders.setdefault((c.verb, c.tense, person, plural), set()).add(of)
    for c in map(controller, asked):                               # train has the form for either gender
        assert genders[c.verb, c.tense, c.agreement[0], c.agreement[2]] == {"m", "f"}
    usual = max(Counter(map(gender, asked)).values())
    assert hits(train, asked, besides, gender) < usual + 0.03 * len(asked)
    single = [s for s in agreeing if len(s.tags["clauses"]) == 1]
    new = [s for s in splits["composition"] if len(s.tags["clauses"]) == 1]
    found = hits(single, new, besides, lambda s: str(controller(s).agreement), lambda s: controller(s).tense)
    assert found < 0.25 * len(new)
    pronouns = [s for s in splits["train"] if s.tags["template"] == "pronoun"]
    crossed = [s for s in pronouns if {"cross", "it"} <= set(s.english.split())]
    about_subject = lambda s: s.tags["antecedent"] == s.tags["clauses"][0].subject
    across = sum(hits(known, new, lambda s: s.english.split()[:-1], about_subject) for known, new in halves_of(crossed))
    assert len(crossed) > 200 and across / len(crossed) < 0.62


def test_length_is_longer_than_anything_in_train(splits):
    for side in ("english", "hindi"):
        longest = max(len(getattr(s, side).split()) for s in splits["train"])
        assert min(len(getattr(s, side).split()) for s in splits["length"]) > longest


def test_it_is_the_same_corpus_everywhere(splits):
    text = "\n".join(f"{name}\t{s.english}\t{s.hindi}\t{sorted(s.links)}" for name, sentences in splits.items() for s in sentences)
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256
    tags = "\n".join(f"{name}\t{s.tags!r}" for name, sentences in splits.items() for s in sentences)
    assert hashlib.sha256(tags.encode()).hexdigest() == TAGS_SHA256


def test_generating_is_quick():
    started = time.process_time()
    micro_hindi.generate(seed=4)
    assert time.process_time() - started < 15        # about 2 s on a quiet machine


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_segmenting_loses_nothing(seed):
    s = hindi_grammar.assemble("simple", [hindi_parts.some_clause(Random(seed), hindi_parts.some_subject(Random(seed + 1)))])
    assert hindi_forms.unsegment(hindi_forms.segment(s.hindi)) == s.hindi
    assert [hindi for hindi, _ in micro_hindi.gloss(s)] == s.hindi.split()


def test_helpers(splits):
    about = micro_hindi.describe(splits)
    assert about["splits"]["train"][0] == 8000 and about["lemmas"]["names"] == 11
    assert hindi_forms.paradigm("cross")["perfective", "any", "f", "sg"] == "paar kii"
    with pytest.raises(ValueError, match="verb 'yodel' is none of"):
        hindi_forms.paradigm("yodel")
    with pytest.raises(ValueError, match="tense 'aorist'"):
        hindi_forms.conjugate("dekh", "aorist", 3, "m", False)
    with pytest.raises(ValueError, match="verb 'drink' with tense 'future'"):
        hindi_parts.some_clause(Random(1), hindi_grammar.pronoun("you"), "drink", "future")
    with pytest.raises(ValueError, match="n must be at least 1"):
        micro_hindi.running_text(1, 0)
    with pytest.raises(ValueError, match="n must be a multiple of 8, the number of meanings, got 10"):
        micro_hindi.distances(Random(1), 10, lambda s: True, set())
    lines = micro_hindi.running_text(7, 400)
    assert len(set(lines)) == 400 and lines[:5] == micro_hindi.running_text(7, 5)
