"""Scaling: the fit against a search over all three numbers, intervals, counts, and a text whose entropy a table of counts reaches."""
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from transformer_course.data.fact_book import FIRST, FactBook, fact_book
from transformer_course.data.text import BOS
from transformer_course.models.scaling import (
    PowerLaw, count_parameters, fit_line, fit_power_law, interval, reader_loss, resampled, small_reader)

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
import scaling    # noqa: E402

SIZES = [300, 700, 1500, 4000, 9000]
TRUTH = PowerLaw(1.2, 20.0, 0.35)


def noisy(seed, noise, law=TRUTH, sizes=SIZES):
    rng = np.random.default_rng(seed)
    return {n: [law.at(n) + noise * rng.standard_normal() for _ in range(3)] for n in sizes}


def pairs(runs):
    return zip(*[(n, loss) for n, losses in runs.items() for loss in losses])


# --- the text

def test_the_entropy_is_that_of_all_facts_written_out():
    book = fact_book(words=5, exponent=1.3, seed=3)
    chances = [k ** -1.3 for k in range(1, 26)]
    total = sum(chances)
    assert book.entropy == pytest.approx(-sum(p / total * math.log(p / total) for p in chances) / 3)
    assert len({tuple(pair) for pair in book.facts[:, :2].tolist()}) == 25
    assert book.facts.min() >= FIRST and book.facts.max() < FIRST + 5 and book.vocab_size <= FIRST + 5


def test_the_authors_surprise_is_conditional_probability_by_loops():
    book = fact_book(words=3, exponent=0.7, seed=1)
    texts = book.texts(4, 2, torch.Generator().manual_seed(5))
    assert texts.shape == (4, 7) and (texts[:, 0] == BOS).all()
    facts, chances = book.facts.tolist(), book.chances.tolist()
    found = book.log_probs(texts)
    for row, surprise in zip(texts[:, 1:].tolist(), found.tolist()):
        for at, (word, log_p) in enumerate(zip(row, surprise)):
            before = row[at - at % 3:at]
            begun = sum(p for fact, p in zip(facts, chances) if fact[:len(before)] == before)
            told = sum(p for fact, p in zip(facts, chances) if fact[:len(before) + 1] == before + [word])
            assert log_p == pytest.approx(math.log(told / begun), abs=1e-12)


def test_a_table_of_counts_reaches_the_entropy():
    book = fact_book(words=6, exponent=1.0, seed=2)
    learnt, heard = (book.texts(8_000, 3, torch.Generator().manual_seed(seed))[:, 1:].tolist() for seed in (1, 2))
    told, begun = Counter(), Counter()
    for row in learnt:
        for at, word in enumerate(row):
            before = tuple(row[at - at % 3:at])
            told[before, word] += 1
            begun[before] += 1
    surprise = -sum(math.log(told[tuple(row[at - at % 3:at]), word] / begun[tuple(row[at - at % 3:at])])
                    for row in heard for at, word in enumerate(row)) / (9 * len(heard))
    assert surprise == pytest.approx(book.entropy, abs=0.01)


def test_facts_come_as_often_as_they_should():
    book = fact_book(words=4, exponent=1.5, seed=1)
    facts = book.texts(30_000, 2, torch.Generator().manual_seed(1))[:, 1:].reshape(-1, 3)
    for fact, p in zip(book.facts[:5], book.chances[:5]):
        assert (facts == fact).all(1).double().mean().item() == pytest.approx(p.item(), abs=0.01)


@pytest.mark.parametrize("call,says", [
    (lambda: fact_book(words=1), "words"), (lambda: fact_book(words=2.5), "words"), (lambda: fact_book(exponent=0), "exponent"),
    (lambda: fact_book(3).texts(0, 2), "rows"), (lambda: fact_book(3).texts(2, 0), "facts")])
def test_bad_books(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_a_book_can_be_written_by_hand():
    book = FactBook(torch.tensor([[4, 5, 6], [5, 4, 4]]), torch.tensor([0.75, 0.25], dtype=torch.float64))
    assert book.entropy == pytest.approx((0.75 * math.log(4 / 3) + 0.25 * math.log(4)) / 3)


# --- the fit

def test_the_fit_finds_the_truth_without_noise():
    law = fit_power_law(SIZES, [TRUTH.at(n) for n in SIZES])
    assert law.exponent == pytest.approx(0.35) and law.floor == pytest.approx(1.2) and law.scale == pytest.approx(20)


def test_for_each_exponent_it_is_numpys_least_squares():
    sizes, losses = pairs(noisy(3, 0.02))
    for exponent in (0.2, 0.35, 0.9):
        law = fit_power_law(sizes, losses, torch.tensor([exponent]))
        design = np.stack([np.ones(len(sizes)), np.array(sizes, float) ** -np.float64(np.float32(exponent))], 1)
        floor, scale = np.linalg.lstsq(design, np.array(losses), rcond=None)[0]
        assert_close(torch.tensor([law.floor, law.scale]), torch.tensor([floor, scale]), rtol=1e-6, atol=1e-8, check_dtype=False)


def test_no_other_law_has_a_smaller_error():
    sizes, losses = pairs(noisy(4, 0.05))
    error = lambda law: sum((law.at(n) - loss) ** 2 for n, loss in zip(sizes, losses))
    best = error(fit_power_law(sizes, losses))
    for floor in np.linspace(0, 1.6, 9):
        for exponent in np.arange(0.02, 2, 0.06):
            for scale in np.geomspace(0.1, 1e4, 40):
                assert error(PowerLaw(floor, scale, exponent)) >= best - 1e-12


def test_the_floor_is_never_negative():
    sizes = [100, 200, 400, 800]
    losses = [3 - 0.3 * math.log(n / 100) ** 1.5 for n in sizes]       # falls faster and faster, as no law with a floor does
    law = fit_power_law(sizes, losses)
    assert law.floor == 0 and law.scale > 0
    x = np.array(sizes, float) ** -law.exponent
    assert law.scale == pytest.approx(x @ losses / (x @ x))


def test_a_line_is_numpys_in_logarithms():
    runs = noisy(5, 0.02)
    law = fit_line(*pairs(runs))
    slope, start = np.polyfit(*map(np.log, map(np.array, pairs(runs))), 1)
    assert law.floor == 0 and law.exponent == pytest.approx(-slope) and law.scale == pytest.approx(math.exp(start))


def test_the_law_with_a_floor_finds_the_exponent_and_the_line_does_not():
    laws, lines = zip(*[(fit_power_law(*pairs(runs)), fit_line(*pairs(runs))) for runs in (noisy(seed, 0.01) for seed in range(30))])
    low, high = interval([law.exponent for law in laws])
    assert low < 0.35 < high and high - low < 0.15
    low, high = interval([line.exponent for line in lines])
    assert high < 0.2 and high - low < 0.02                            # narrow and wrong


def test_intervals_contain_the_truth_about_as_often_as_they_say():
    inside = 0
    for seed in range(40):
        low, high = interval([law.floor for law in resampled(noisy(seed, 0.01), times=60, seed=seed)])
        inside += low <= 1.2 <= high
    assert inside >= 28                                                # five sizes are few: a little below 90 %


def test_resampling_is_seeded_and_has_four_sizes_at_least():
    seen = []

    def fit(sizes, losses):
        assert len(sizes) == len(losses) == 15
        seen.append(len(set(sizes)))
        return TRUTH

    resampled(noisy(1, 0.1), times=50, seed=3, fit=fit)
    assert len(seen) == 50 and min(seen) == 4
    runs = noisy(1, 0.1)
    assert resampled(runs, 5, seed=2) == resampled(runs, 5, seed=2) != resampled(runs, 5, seed=3)


def test_an_interval_has_the_share_between_its_ends():
    values = list(range(1001))
    assert interval(values) == pytest.approx((50, 950)) and interval(values, 0.5) == pytest.approx((250, 750))


@pytest.mark.parametrize("call,says", [
    (lambda: fit_power_law([1, 2, 2], [3, 2, 2]), "fit_power_law.*3 different"), (lambda: fit_power_law([1, 2, 3], [3, 2]), "2 losses"),
    (lambda: fit_power_law([0, 2, 3], [3, 2, 1]), "positive"), (lambda: fit_line([2, 2], [3, 2]), "fit_line.*2 different"),
    (lambda: fit_line([1, 2], [1, 0]), "losses must be positive"), (lambda: resampled({1: [2], 2: [1], 3: [1]}), "four sizes"),
    (lambda: small_reader("GRU", 4, 9, 5), "small_reader.*GRU")])
def test_bad_runs(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- the models

def test_parameters_are_counted_by_hand():
    D, V, length = 6, 11, 9
    model = small_reader("Transformer", D, V, length)
    inside = 4 * D * D + 4 * D + 8 * D * D + 5 * D + 6 * D             # attention, feed-forward, three norms
    assert count_parameters(model, embeddings=False) == inside
    assert count_parameters(model) == inside + V * D + length * D
    for kind, gates in (("RNN", 1), ("LSTM", 4)):
        model = small_reader(kind, D, V, length)
        inside = gates * (2 * D * D + 2 * D) + D * D + D
        assert count_parameters(model, embeddings=False) == inside and count_parameters(model) == inside + V * D


@pytest.mark.parametrize("kind", ["Transformer", "LSTM", "RNN"])
def test_the_loss_is_that_of_the_logits(kind):
    torch.manual_seed(1)
    book = fact_book(words=5)
    model, texts = small_reader(kind, 6, book.vocab_size, 9).eval(), book.texts(4, 3, torch.Generator().manual_seed(1))
    logits = model(texts[:, :-1]) if kind == "Transformer" else model(texts[:, :1], texts[:, :-1])
    log_p = logits.log_softmax(-1).gather(-1, texts[:, 1:, None])
    assert_close(reader_loss(model, texts), -log_p.mean())
    changed = texts.clone()
    changed[:, 5] = FIRST + (changed[:, 5] - FIRST + 1) % 5            # no word before it is read differently
    again = model(changed[:, :-1]) if kind == "Transformer" else model(changed[:, :1], changed[:, :-1])
    assert_close(again[:, :5], logits[:, :5])


# --- the script

def test_the_prediction_knows_only_the_five_sizes():
    runs = noisy(1, 0.005)
    sizes = [{"parameters": n, "runs": [{"loss": loss} for loss in losses]} for n, losses in runs.items()]
    found = scaling.prediction(sizes, {"parameters": 30_000})
    low, high = found["law"]["loss between"]
    assert low <= TRUTH.at(30_000) + 0.02 and high >= TRUTH.at(30_000) - 0.02
    assert found["law"]["loss"] == round(fit_power_law(*pairs(runs)).at(30_000), 4)
    assert found["line"]["E"] == 0 and found["line"]["loss"] < found["law"]["loss"]
