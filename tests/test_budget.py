"""Data and budget: the law with two gaps against a search, the best split against trying sizes, and the papers' own figures."""
import numpy as np
import pytest
import torch

from transformer_course.models.budget import TwoTermLaw, fit_two_terms

TRUTH = TwoTermLaw(1.1, 40.0, 0.7, 300.0, 0.5)
SIZES, WORDS = [200, 500, 1100, 3000], [20_000, 70_000, 300_000]


def grid(law=TRUTH, noise=0.0, seed=1):
    rng = np.random.default_rng(seed)
    return zip(*[(n, d, law.at(n, d) + noise * rng.standard_normal()) for n in SIZES for d in WORDS])


def test_the_law_is_the_sum_of_its_parts():
    assert TRUTH.at(400, 90_000) == pytest.approx(1.1 + 40 / 400 ** 0.7 + 300 / 300)


def test_the_fit_finds_the_truth_without_noise():
    law = fit_two_terms(*grid())
    assert law == pytest.approx(TRUTH, rel=1e-6)


def test_for_one_pair_of_exponents_it_is_numpys_least_squares():
    n, d, loss = map(np.array, grid(noise=0.01))
    law = fit_two_terms(n.tolist(), d.tolist(), loss.tolist(), torch.tensor([0.5], dtype=torch.float64))
    design = np.stack([np.ones(len(n)), n ** -0.5, d ** -0.5], 1)
    expected = np.linalg.solve(design.T @ design, design.T @ loss)
    assert (law.floor, law.scale, law.text_scale) == pytest.approx(tuple(expected), rel=1e-6)


def test_the_floor_is_never_negative():
    below = TwoTermLaw(-0.5, 40.0, 0.5, 300.0, 0.5)
    n, d, loss = map(np.array, grid(below))
    law = fit_two_terms(n.tolist(), d.tolist(), loss.tolist(), torch.tensor([0.5], dtype=torch.float64))
    design = np.stack([n ** -0.5, d ** -0.5], 1)
    assert law.floor == 0 and (law.scale, law.text_scale) == pytest.approx(tuple(np.linalg.lstsq(design, loss, rcond=None)[0]), rel=1e-5)
    whole = fit_two_terms(n.tolist(), d.tolist(), loss.tolist())
    assert whole.floor >= 0 and whole.scale >= 0 and whole.text_scale >= 0


def test_no_other_law_nearby_has_a_smaller_error():
    n, d, loss = map(np.array, grid(noise=0.03, seed=4))
    error = lambda law: float(np.square(law.floor + law.scale * n ** -law.exponent + law.text_scale * d ** -law.text_exponent - loss).sum())
    law = fit_two_terms(n.tolist(), d.tolist(), loss.tolist())
    rng, best = np.random.default_rng(2), error(law)
    for _ in range(3000):
        other = TwoTermLaw(*(max(0.0, value * (1 + 0.05 * rng.standard_normal())) for value in law))
        other = other._replace(exponent=round(other.exponent / 0.02) * 0.02, text_exponent=round(other.text_exponent / 0.02) * 0.02)
        assert error(other) >= best - 1e-9


@pytest.mark.parametrize("budget", [1e6, 3e9, 5e12])
def test_the_best_split_is_the_best_of_many_sizes(budget):
    size, words = TRUTH.best_split(budget)
    assert 6 * size * words == pytest.approx(budget)
    tried = np.geomspace(size / 100, size * 100, 4001)
    losses = [TRUTH.at(n, budget / (6 * n)) for n in tried]
    assert TRUTH.at(size, words) <= min(losses) + 1e-12
    assert tried[int(np.argmin(losses))] == pytest.approx(size, rel=0.01)


def test_the_refitted_law_gives_chinchillas_size_for_gophers_budget():
    law = TwoTermLaw(1.8172, 482.01, 0.3478, 2085.43, 0.3658)               # Besiroglu et al. 2024
    size, words = law.best_split(5.76e23)
    assert 6.5e10 < size < 7.5e10 and 1.3e12 < words < 1.5e12
    assert law.text_exponent / (law.exponent + law.text_exponent) == pytest.approx(0.5126, abs=1e-4)


@pytest.mark.parametrize("call,says", [
    (lambda: fit_two_terms([1, 2, 3], [1, 2, 3], [1, 2]), "2 losses"), (lambda: fit_two_terms([1, 2, 2], [1, 2, 3], [3, 2, 1]), "three"),
    (lambda: fit_two_terms([1, 2, 3], [1, 2, 2], [3, 2, 1]), "three"), (lambda: TRUTH.best_split(0), "budget")])
def test_bad_calls(call, says):
    with pytest.raises(ValueError, match=says):
        call()
