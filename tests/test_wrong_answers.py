"""Wrong answers that once passed, or were told as something else; right ones that were refused."""
import pytest
import torch

from transformer_course.checking.diagnosis import diagnose
from transformer_course.checking.exercise_notebooks import all_exercises, function_from, prepared

WRONG = [   # exercise, answer, words of the reason, words that would mislead
    ("min_p_first", """
def min_p_first(logits, share, temperature):
    p = logits.softmax(-1)
    kept = p >= share * p.amax(-1, keepdim=True)
    p = p.masked_fill(~kept, 0) ** (1 / temperature)
    return p / p.sum(-1, keepdim=True)""", ["temperature", "0 / 0"], []),
    ("wrong_names", """
def wrong_names(needed, found, copies):
    there = set(found) | {copies[name] for name in found if name in copies}
    missing = [name for name in needed if name not in there]
    other = [name for name in needed if name in found and found[name] != needed[name]]
    return sorted(missing + other + [name for name in found if name not in needed and name not in copies])""", ["original", "missing"], []),
    ("feed_real_words", """
def feed_real_words(x, real, W_1, b_1, W_2, b_2):
    return ((x @ W_1 + b_1).clamp(min=0) @ W_2 + b_2) * real[..., None]""", ["infinite", "NaN"], []),
    ("filled", """
def filled(source, target, first_mark):
    gaps, text = [], []
    for token in target:
        if token >= first_mark:
            gaps.append([])
        else:
            gaps[-1].append(token)
    gaps = iter(gaps)
    for token in source:
        text += next(gaps) if token >= first_mark else [token]
    return text""", ["in turn", "mark"], []),
    ("by_key", """
def by_key(scores):
    T, S = scores.shape
    found = torch.zeros_like(scores)
    for i in range(T):
        for j in range(S - T + i + 1):
            d = S - T + i - j
            found[i, j] = scores[i, min(S - d, S - 1)]
    return found""", ["S − 1 − d"], []),
    ("by_key", """
def by_key(scores):
    T, S = scores.shape
    found = torch.zeros_like(scores)
    for i in range(T):
        for j in range(S - T + i + 1):
            found[i, j] = scores[i, S - (S - T + i - j)] if i + S - T > j else 0
    return found""", ["S − 1 − d"], []),
    ("by_key", """
def by_key(scores):
    T, S = scores.shape
    found = torch.zeros_like(scores)
    for i in range(T):
        for j in range(S - T + i + 1):
            found[i, j] = scores[i, S - (S - T + i - j)]
    return found""", ["S − 1 − d"], []),
    ("penalised", "def penalised(logp, words, theta):\n    written = torch.zeros_like(logp, dtype=torch.bool).scatter(1, words, True)\n"
                  "    return torch.where(written, logp / theta, logp)", ["divide", "theta times log p"], ["p to the theta is log p"]),
    ("renumber", "def renumber(W_in, W_out, order):\n    return W_in[order], W_out[:, order]", [], []),
    ("renumber", "def renumber(W_in, W_out, order):\n    return W_in[:, order.argsort()], W_out[order.argsort()]", ["other way"], []),
    ("renumber", "def renumber(W_in, W_out, order):\n    new = torch.empty_like(W_in)\n    new[:, order] = W_in\n    return new, W_out[order]", [], []),
    ("renumber", "def renumber(W_in, W_out, order):\n    P = torch.eye(len(order))[order]\n    return W_in @ P, P @ W_out", [], []),
    ("next_word_loss", "def next_word_loss(logits, tokens):\n    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())", ["no shift"], []),
    ("next_word_loss", "def next_word_loss(logits, tokens):\n    return -logits.log_softmax(-1).gather(-1, tokens[..., None]).mean()", ["no shift"], []),
    ("next_word_loss", "def next_word_loss(logits, tokens):\n    logp = logits.log_softmax(-1)[:, 1:]\n    return -logp.gather(-1, tokens[:, 1:, None]).mean()", ["no shift"], []),
]


def told(name, source):
    exercise = all_exercises()[name]
    return diagnose(function_from(source, prepared(exercise), name), exercise)


@pytest.mark.parametrize("name, source, words, misleading", WRONG)
def test_a_wrong_answer_is_told_what_it_did(name, source, words, misleading):
    found = told(name, source)
    assert found.status in ("wrong", "error")
    assert all(word in found.reason for word in words) and not any(word in found.reason for word in misleading), found.reason


def test_a_default_of_double_precision_breaks_no_right_answer():
    torch.set_default_dtype(torch.float64)
    try:
        found = [told(name, all_exercises()[name].source)
                 for name in ("steady_softmax", "clock_codes", "scaled_attention")]
    finally:
        torch.set_default_dtype(torch.float32)
    assert [report.status for report in found] == ["passed"] * 3, [report.reason for report in found]


def test_the_task_of_the_clock_names_its_number_type(root):
    assert "float32" in (root / "nbs" / "exercises" / "ex21_positions.ipynb").read_text(encoding="utf-8").partition("## 21.1")[2].partition("def clock_codes")[0]
