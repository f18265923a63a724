"""Sister languages against a second way to make them, a parent's weights for a child against loops, and the experiment's data and rules."""
import sys
from pathlib import Path

import pytest
import torch

from transformer_course.data.corpora import Pair, load
from transformer_course.data.sisters import Sister, invented, rank, shifted
from transformer_course.data.text import Tokenizer, pad
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.transfer import balanced_texts, inherited, shared_pieces

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
import low_resource as experiment      # noqa: E402

PAIRS = [Pair("the boy sleeps", "larkaa sotaa hai", frozenset({(1, 0), (2, 1), (2, 2)})),
         Pair("the river is old", "nadii puraanii hai", frozenset({(1, 0), (3, 1), (2, 2)})),
         Pair("books are here", "kitaaben yahaan hain", frozenset({(0, 0), (2, 1), (1, 2)}))]


def refused(call, says):
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def hindi():
    return load("micro-hindi")


# The sister languages

def letter_by_letter(word):
    """The changes of sound, by reading a word from left to right."""
    long, found, i = {"aa": "oa", "ii": "ei", "uu": "iu"}, "", 0
    while i < len(word):
        two = word[i:i + 2]
        found += long.get(two, {"s": "z", "v": "w"}.get(word[i], word[i]))
        i += 2 if two in long else 1
    vowel = lambda i: 0 <= i < len(found) and found[i] in "aeiou"
    return "".join({"k": "g", "t": "d", "p": "b"}.get(c, c) if vowel(i - 1) and vowel(i + 1) else c for i, c in enumerate(found))


def test_sounds_change_as_a_reader_from_left_to_right_would_change_them(hindi):
    words = {word for pair in hindi["train"] for word in pair.target.split()}
    assert len(words) > 600
    assert {word: shifted(word) for word in words} == {word: letter_by_letter(word) for word in words}


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_no_two_words_become_one_in_any_split(hindi, share):
    words = {word for split in hindi.splits for pair in hindi[split] for word in pair.target.split()}
    assert len({Sister(share).word(word) for word in words}) == len(words)


def test_the_dial_turns_words_over_one_after_the_other(hindi):
    words = sorted({word for pair in hindi["train"][:500] for word in pair.target.split()})
    replaced = [{word for word in words if Sister(share).word(word) == invented(word)} for share in (0, 0.2, 0.6, 1)]
    assert not replaced[0] and replaced[0] < replaced[1] < replaced[2] < replaced[3] == set(words)
    assert replaced[2] == {word for word in words if rank(word) < 0.6}


@pytest.mark.parametrize("sister", [Sister(0.0), Sister(0.4, backwards=True), Sister(1.0, backwards=True)])
def test_links_join_the_same_words_as_before(hindi, sister):
    for pair in hindi["train"][:40]:
        new, before = sister.pair(pair), pair.target.split()
        linked = sorted((i, sister.word(before[j])) for i, j in pair.links)
        assert sorted((i, new.target.split()[j]) for i, j in new.links) == linked
        assert new.source == pair.source and not new.tags
        assert (new.target.split()[0] == sister.word(before[0])) != sister.backwards or len(set(before)) == 1 or before[0] == before[-1]


def test_pairs_without_links_and_a_share_that_is_none():
    assert Sister(0.5, backwards=True).pair(Pair("a b", "hai sher")).links is None
    refused(lambda: Sister(1.5), "replaced must be between 0 and 1")


# A parent's weights for a child

def tokenizers():
    sister = [Sister(0.0).pair(pair) for pair in PAIRS]
    return (Tokenizer.train(balanced_texts(PAIRS), size=310), Tokenizer.train(balanced_texts(PAIRS, sister), size=330))


def some_model(size, seed, **sizes):
    torch.manual_seed(seed)
    return Transformer(size, size, **{"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20, "norm": "pre", "positions": "rotary"} | sizes).eval()


def test_each_piece_gets_the_vector_that_a_loop_gives_it():
    old, new = tokenizers()
    parent, child = some_model(len(old), 1), some_model(len(new), 2)
    assert len(old) != len(new)
    found = inherited(child, new, parent, old)
    before, given = child.src_embedding.weight, parent.src_embedding.weight
    both = 0
    for i in range(len(new)):
        piece = new.pieces_of([i])[0]
        where = [j for j in range(len(old)) if old.pieces_of([j])[0] == piece]
        both += len(where)
        wanted = given[where[0]] if where else before[i]
        assert torch.equal(found["src_embedding.table.weight"][i], wanted)
    assert 4 + 256 < both == len(shared_pieces(new, old)) < len(new)
    for name, weights in parent.state_dict().items():
        if not name.endswith("table.weight"):
            assert torch.equal(found[name], weights)


def test_taking_over_changes_neither_model_and_can_leave_the_tables_out():
    old, new = tokenizers()
    parent, child = some_model(len(old), 1), some_model(len(new), 2)
    kept = [{name: weights.clone() for name, weights in model.state_dict().items()} for model in (parent, child)]
    found = inherited(child, new, parent, old, tables=False)
    assert torch.equal(found["output.table.weight"], child.output.weight)
    for weights in found.values():
        weights.zero_()
    for model, before in zip((parent, child), kept):
        assert all(torch.equal(weights, before[name]) for name, weights in model.state_dict().items())


@pytest.mark.parametrize("tied", [True, False])
def test_a_child_with_the_same_pieces_is_its_parent(tied):
    old, _ = tokenizers()
    parent, child = some_model(len(old), 1, tied=tied), some_model(len(old), 2, tied=tied)
    child.load_state_dict(inherited(child, old, parent, old))
    src, tgt = (pad([old.encode(getattr(pair, side)) for pair in PAIRS]) for side in ("source", "target"))
    with torch.no_grad():
        assert torch.equal(child(src, tgt), parent(src, tgt))


def test_a_child_with_the_same_pieces_and_more_says_the_same_about_those():
    old, new = tokenizers()
    parent, child = some_model(len(old), 1), some_model(len(new), 2)
    child.load_state_dict(inherited(child, new, parent, old))
    rows = shared_pieces(new, old)
    theirs = torch.tensor([[7, 9, 70, 5], [280, 11, 300, 6]]) % len(old)
    back = {there: here for here, there in rows.items()}
    theirs = torch.tensor([[i if i in back else 70 for i in row] for row in theirs.tolist()])
    ours = torch.tensor([[back[i] for i in row] for row in theirs.tolist()])
    with torch.no_grad():
        a, b = parent(theirs, theirs)[..., list(rows.values())], child(ours, ours)[..., list(rows)]
    torch.testing.assert_close(a, b)


def test_models_that_do_not_fit_are_refused():
    old, new = tokenizers()
    child = some_model(len(new), 2)
    refused(lambda: inherited(child, new, some_model(len(old), 1, n_layers=3), old), "the same parts")
    refused(lambda: inherited(child, new, some_model(len(old), 1, d_ff=24), old), "in the child and")
    refused(lambda: balanced_texts(PAIRS, []), "at least one")


def test_texts_are_repeated_until_the_lists_count_alike():
    texts = balanced_texts(PAIRS, PAIRS[:1])
    assert len(texts) == 2 * (3 + 3) and texts.count(PAIRS[0].target) == 4 and texts.count(PAIRS[2].source) == 1
    assert balanced_texts() == []


# The experiment

def test_no_english_sentence_is_in_two_parts_of_the_experiment():
    parts = [{pair.source for pair in experiment.data(language)[split]} for language in ("hindi", "sister") for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 8000 + 200 + 600


def test_training_keeps_the_best_weights_and_stops_when_nothing_is_gained(monkeypatch):
    old, _ = tokenizers()
    model, states = some_model(len(old), 1), []
    seen = iter([1.0, 4.0, 2.0, 4.0, 3.0, 9.0])

    def look(texts, pairs):
        states.append({name: weights.clone() for name, weights in model.state_dict().items()})
        return {"bleu": next(seen)}

    for name, value in {"scores": look, "written": lambda *given: []}.items():
        monkeypatch.setattr(experiment, name, value)
    found = experiment.train(model, old, PAIRS, PAIRS, 0.01, 1, steps=40, patience=3, least=4, every=2)
    assert found == {"valid": 4.0, "best step": 4, "steps": 10}
    assert all(torch.equal(weights, states[1][name]) for name, weights in model.state_dict().items())
    assert not torch.equal(states[1]["output.table.weight"], states[4]["output.table.weight"])


def test_the_nearest_sentence_is_the_one_with_most_words_in_common(monkeypatch):
    given = {"train": [Pair("a b c", "first"), Pair("a b", "second"), Pair("d", "third")], "test": [Pair("b a", ""), Pair("d e", "")]}
    monkeypatch.setattr(experiment, "data", lambda language: given)
    assert experiment.nearest("sister", 3) == ["second", "third"] and experiment.nearest("sister", 1) == ["first", "first"]
