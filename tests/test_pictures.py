"""Drawn scenes and pictures as sources: scenes read back from their pixels, patches against loops and PyTorch, padding, searches, bad input."""
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.data.scenes import (
    CELL, COLOURS, GRID, HELD_OUT, KINDS, SHAPES, Thing, caption, draw, holds, some_item, some_items, some_pairs, some_scene, written_out)
from transformer_course.data.text import BOS, EOS, PAD, Tokenizer, pad
from transformer_course.models.attention import attention_weights
from transformer_course.models.pictures import Patches, PictureReader, coordinates
from transformer_course.models.transformer import Transformer

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
import picture_relations           # noqa: E402
import pictures as experiment      # noqa: E402

V, D, SIZE, PATCH = 23, 12, 18, 6          # 9 patches
WIDTHS = {(2, 4, 6, 6, 4, 2): "circle", (6, 6, 6, 6, 6, 6): "square",       # inked pixels of each line of a shape
          (2, 2, 4, 4, 6, 6): "triangle", (2, 2, 6, 6, 2, 2): "cross"}
TEXTS = ([5, 6, 7, 8], [9, 10], [6, 11, 12, 7, 13])


def refused(call, says):
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


def reader(seed=1, **options):
    torch.manual_seed(seed)
    text = Transformer(V, V, D, n_heads=3, n_layers=2, d_ff=20, dropout=0.0)
    return PictureReader(Patches(D, SIZE, PATCH, **options), text).eval()


def some_pictures(B=3):
    return torch.rand(B, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(2))


def targets():
    return pad([[BOS, *t, EOS] for t in TEXTS]), torch.tensor([2, 0, 3])


# Scenes: what a program that sees nothing but pixels and words says

def seen(picture):
    """(colour, shape, row, column) of each thing, read from the pixels."""
    found = []
    for row in range(GRID):
        for column in range(GRID):
            cell = picture[:, row * CELL:(row + 1) * CELL, column * CELL:(column + 1) * CELL]
            inked = cell.sum(0) > 0
            if inked.any():
                light = 1 - cell[:, inked].mean(1)
                colour = min(COLOURS, key=lambda name: (light - torch.tensor(COLOURS[name])).norm().item())
                widths = tuple(n for n in inked.sum(1).tolist() if n)
                found.append((colour, WIDTHS[widths], row, column))
    return found


def answered(question, things):
    """The answer, from the words of the question and from what was seen."""
    if question == "how many things are there ?":
        return {2: "two", 3: "three", 4: "four"}[len(things)]
    if found := re.fullmatch(r"what colour is the (\w+) \?", question):
        colour, = {c for c, s, *_ in things if s == found[1]}
        return colour
    if found := re.fullmatch(r"what is the (\w+) thing \?", question):
        shape, = {s for c, s, *_ in things if c == found[1]}
        return shape
    if found := re.fullmatch(r"is there a (\w+) (\w+) \?", question):
        return "yes" if any((c, s) == found.groups() for c, s, *_ in things) else "no"
    c1, s1, relation, c2, s2 = re.fullmatch(r"is the (\w+) (\w+) (left of|right of|above|below) the (\w+) (\w+) \?", question).groups()
    (y1, x1), (y2, x2) = ([(y, x) for c, s, y, x in things if (c, s) == pair][0] for pair in ((c1, s1), (c2, s2)))
    return "yes" if {"left of": x1 < x2, "right of": x1 > x2, "above": y1 < y2, "below": y1 > y2}[relation] else "no"


def told(things):
    words = [f"a {colour} {shape}" for colour, shape, row, column in sorted(things, key=lambda t: (t[3], t[2]))]
    return f"{' , '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


@pytest.mark.parametrize("held_out", [False, True])
def test_captions_and_answers_are_those_of_the_pixels(held_out):
    for item in some_items(3, 60, with_held_out=held_out):
        things = seen(draw(item.scene))
        assert sorted(things) == sorted((t.colour, t.shape, t.row, t.column) for t in item.scene) and 2 <= len(things) <= 4
        assert item.answer == (told(things) if item.kind == "caption" else answered(item.prompt, things))
        assert all(t in item.scene for t in item.about)


def test_a_written_out_answer_tells_the_columns_or_rows():
    names = ("one", "two", "three", "four")
    for item in some_items(5, 80, ("relation",)):
        pairs = re.findall(r"(\w+) (circle|square|triangle|cross)", item.prompt)
        where = {(c, s): (y, x) for c, s, y, x in seen(draw(item.scene))}
        axis, word = (1, "column") if "of the" in item.prompt else (0, "row")
        expected = " , ".join([*(f"{word} {names[where[pair][axis]]}" for pair in pairs), item.answer])
        assert written_out(item).answer == expected and written_out(item).prompt == item.prompt


def test_held_out_pairs_are_never_in_training_and_always_asked_about():
    assert not any(t.pair in HELD_OUT for item in some_items(1, 300) for t in item.scene)
    for item in some_items(4, 100, with_held_out=True):
        assert any(t.pair in HELD_OUT for t in item.scene) or (item.kind == "exists" and item.answer == "no")
        if item.kind in ("colour", "shape", "relation"):
            assert any(t.pair in HELD_OUT for t in item.about)
        if item.kind == "exists":
            assert any(f"a {c} {s} ?" in item.prompt for c, s in HELD_OUT)


@pytest.mark.parametrize("kind", ["exists", "relation"])
def test_no_question_text_tells_its_answer(kind):
    answers = defaultdict(Counter)
    for item in some_items(9, 4000, (kind,)):
        answers[item.prompt][item.answer] += 1
    shares = [(of["yes"] / of.total(), of.total()) for of in answers.values() if of.total() >= 12]
    assert abs(sum(share * n for share, n in shares) / sum(n for _, n in shares) - 0.5) < 0.03
    assert all(abs(share - 0.5) < 2.5 / n**0.5 for share, n in shares), "five standard deviations at most"


def test_a_no_has_the_colour_and_the_shape_in_two_things():
    for item in some_items(2, 200, ("exists",)):
        _, _, _, colour, shape, _ = item.prompt.split()
        assert any(t.colour == colour for t in item.scene) and any(t.shape == shape for t in item.scene)
        assert (item.about == ()) == (item.answer == "no")


def test_items_are_the_same_each_time_and_others_with_another_seed():
    assert some_items(1, 4) == some_items(1, 4) != some_items(2, 4)
    assert [i.kind for i in some_items(1, 2)] == [*KINDS, *KINDS]


def test_a_caption_of_one_thing_and_white_paper():
    assert caption([Thing("red", "cross", 2, 1)]) == "a red cross"
    assert draw([]).shape == (3, GRID * CELL, GRID * CELL) and draw([]).abs().sum() == 0
    assert len({pair for pair in some_pairs(Random(1), 14)}) == len(COLOURS) * len(SHAPES) - len(HELD_OUT)


# Patches

@pytest.mark.parametrize("positions,layers", [("coordinates", 1), ("coordinates", 3), ("learned", 1), ("learned", 2)])
def test_patches_are_those_of_loops(positions, layers):
    torch.manual_seed(3)
    patches, pictures = Patches(D, SIZE, PATCH, positions, layers), some_pictures()
    whole = pictures if positions == "learned" else torch.cat([pictures, coordinates(SIZE).expand(3, -1, -1, -1)], 1)
    vectors = []
    for picture in whole:
        for top in range(0, SIZE, PATCH):
            for left in range(0, SIZE, PATCH):
                square = picture[:, top:top + PATCH, left:left + PATCH].flatten()
                z = patches.map.weight.flatten(1) @ square + patches.map.bias
                for layer in range(layers - 1):
                    linear = patches.more[2 * layer + 1]
                    z = linear.weight @ z.relu() + linear.bias
                vectors.append(z)
    expected = torch.stack(vectors).view(3, 9, D) + (patches.codes if positions == "learned" else 0)
    assert_close(patches(pictures), expected)


def test_patches_are_unfolded_pictures():
    torch.manual_seed(3)
    patches, pictures = Patches(D, SIZE, PATCH, "learned", 1), some_pictures()
    columns = F.unfold(pictures, PATCH, stride=PATCH)                                # (B, 3 P², S)
    assert_close(patches(pictures), columns.mT @ patches.map.weight.flatten(1).T + patches.map.bias + patches.codes)


def test_coordinates_go_right_and_down():
    right, down = coordinates(5)
    assert right[2].tolist() == [-1, -0.5, 0, 0.5, 1] == down[:, 3].tolist() and torch.equal(right, down.T)


def test_equal_patches_differ_by_their_position_alone():
    white = torch.zeros(2, 3, SIZE, SIZE)
    for positions in ("coordinates", "learned"):
        vectors = reader(positions=positions).patches(white)
        assert_close(vectors[0], vectors[1])
        assert torch.cdist(vectors[0], vectors[0]).fill_diagonal_(1).min() > 1e-3


# The reader

def test_the_reader_is_the_translator_with_another_source():
    model, pictures = reader(), some_pictures()
    tgt, given = targets()
    memory, mask = model.encode(pictures)
    assert mask.shape == (3, 1, 1, 9) and mask.all()
    assert_close(memory, model.text.encoder(model.patches(pictures), None))
    logits = model(pictures, tgt[:, :-1])
    costs = []
    for row, n in enumerate(given.tolist()):
        for t in range(n, len(TEXTS[row]) + 1):
            costs.append(-logits[row, t].log_softmax(-1)[tgt[row, t + 1]])
    assert_close(model.loss(pictures, tgt, given), torch.stack(costs).mean())


def test_later_words_and_padding_change_nothing():
    model, pictures = reader(), some_pictures()
    tgt, given = targets()
    logits = model(pictures, tgt)
    other = tgt.clone()
    other[:, 4:] = 20
    assert_close(model(pictures, other)[:, :4], logits[:, :4])
    wider = F.pad(tgt, (0, 3), value=PAD)
    assert_close(model.loss(pictures, wider, given), model.loss(pictures, tgt, given))
    assert_close(model(pictures[1:2], tgt[1:2, :3])[0], logits[1, :3])


def test_every_patch_reaches_the_words():
    model, pictures = reader(), some_pictures(1).requires_grad_(True)
    model(pictures, torch.tensor([[BOS, 5]]))[0, -1].square().sum().backward()
    assert (F.unfold(pictures.grad.abs(), PATCH, stride=PATCH).sum(1) > 0).all()


def test_writing_is_greedy_and_its_weights_are_those_of_the_last_layer():
    model, pictures = reader(seed=5), some_pictures(1)
    written, weights = model.write(pictures, [5, 6], longest=4)
    text = [BOS, 5, 6]
    for word in written:
        assert model(pictures, torch.tensor([text]))[0, -1].argmax() == word
        text.append(word)
    assert weights.shape == (len(written), 9) and len(written) == 4 or model(pictures, torch.tensor([text]))[0, -1].argmax() == EOS
    assert_close(weights.sum(-1), torch.ones(len(written)))
    with attention_weights(model.text.decoder, "layers.1.cross_attention") as seen_weights:
        model(pictures, torch.tensor([text]))
    assert_close(weights, seen_weights["layers.1.cross_attention"][0].mean(0)[2:2 + len(written)])


def test_steps_for_several_pictures_are_those_of_all_words_at_once():
    model, pictures = reader(seed=5), some_pictures(2)
    tgt = torch.tensor([[BOS, 5, 9, 7], [BOS, 6, 8, 11]])
    state, logits = model.start(pictures), []
    for t in range(4):
        scores, state = model.step(state, tgt[:, t])
        logits.append(scores)
    assert_close(torch.stack(logits, 1), model(pictures, tgt))


# What cannot work

@pytest.mark.parametrize("call,says", [
    (lambda: Patches(D, 18, 5), "Patches: patch=5 does not divide size=18"),
    (lambda: Patches(D, positions="both"), 'Patches: positions must be "coordinates" or "learned", not \'both\''),
    (lambda: Patches(0), "Patches: d_model"),
    (lambda: Patches(D)(torch.zeros(2, 3, 30, 32)), r"Patches: pictures must be \(B, 3, 32, 32\), not \(2, 3, 30, 32\)"),
    (lambda: Patches(D)(torch.zeros(3, 32, 32)), r"not \(3, 32, 32\)"),
    (lambda: reader().loss(some_pictures(2), *targets()), "PictureReader: pictures and tgt must have as many rows, not 2 and 3"),
    (lambda: reader()(some_pictures(1), targets()[0]), "as many rows, not 1 and 3"),
    (lambda: reader().loss(some_pictures(), targets()[0], torch.tensor([1, 2])), r"PictureReader: given must be \(B,\) = \(3,\), not \(2,\)"),
    (lambda: reader().loss(some_pictures(), targets()[0], torch.tensor([9, 9, 9])), "no word to write"),
    (lambda: reader().write(some_pictures(2), []), "write takes one picture, not 2"),
    (lambda: some_item(None, "size"), "some_item: kind must be one of"),
    (lambda: holds("beside", None, None), "holds: relation must be one of .*, not 'beside'"),
    (lambda: some_scene(None, [("red", "cross"), ("red", "cross")]), "some_scene: pairs must be at most 16 different ones"),
    (lambda: written_out(some_items(1, 1, ("count",))[0]), "written_out: the item must be a relation, not a count"),
    (lambda: some_pairs(None, 17), "some_pairs: there are only 14 pairs, not 17"),
])
def test_a_bad_call_is_told_in_one_line(call, says):
    refused(call, says)


# The experiment

def test_the_experiment_scores_whole_answers():
    """Its scores, by teacher forcing, are the shares of items that greedy writing gets right; the untrained model is trained a little first."""
    items = some_items(1, 6)
    pictures = torch.stack([draw(i.scene) for i in items])
    words = Tokenizer.train([f"{i.prompt} {i.answer}" for i in items], kind="words", size=100)
    torch.manual_seed(1)
    model = experiment.build(words, "coordinates")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for step in range(30):
        loss = model.loss(pictures, *experiment.rows(words, items))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    right = defaultdict(list)
    for item, picture in zip(items, pictures):
        written, _ = model.write(picture[None], words.encode(item.prompt) if item.prompt else [])
        right[item.kind].append(words.decode(written) == item.answer)
    expected = {kind: round(sum(of) / len(of), 4) for kind, of in right.items()}
    assert experiment.scores(model, words, items, pictures) == expected and sum(expected.values()) > 1


def test_answers_are_read_off_right_captions_only():
    for item in some_items(6, 150, ("relation",)):
        if "of the" in item.prompt:
            text = told(seen(draw(item.scene)))
            assert picture_relations.read_off(item, text) == item.answer
            a, b = item.about
            assert picture_relations.read_off(item, text.replace(f"{a.colour} {a.shape}", "pink star")) is None
            twice = f"{text} and a {b.colour} {b.shape}"
            assert picture_relations.read_off(item, twice) is None


def test_captions_of_many_pictures_are_those_of_one_at_a_time():
    items = some_items(1, 5, ("caption",))
    pictures, words = torch.stack([draw(i.scene) for i in items]), Tokenizer.train([i.answer for i in items], kind="words", size=100)
    torch.manual_seed(4)
    model = experiment.build(words, "learned").eval()
    together = picture_relations.captions(model, words, pictures, longest=6)
    assert together == [words.decode(model.write(picture[None], [], longest=6)[0]) for picture in pictures]
