"""Word-level distillation against loops and torch's own divergence, gradients, padding, and the labels of a teacher."""
import math

import pytest
import torch
from torch.nn import functional as F

from transformer_course.models.distillation import distillation_loss, labelled, soft_targets, word_level_loss
from transformer_course.models.transformer import Transformer

B, T, V = 2, 5, 7
SRC, TGT = torch.tensor([[4, 9, 12, 6, 3], [7, 5, 3, 0, 0]]), torch.tensor([[2, 5, 8, 11, 16, 7, 3], [2, 9, 4, 3, 0, 0, 0]])


def model(seed, n_layers=(2, 1), d_model=12):
    torch.manual_seed(seed)
    return Transformer(13, 17, d_model=d_model, n_heads=3, n_layers=n_layers, d_ff=10, dropout=0.0, tied=False).double()


@pytest.fixture
def logits():
    torch.manual_seed(3)
    return torch.randn(B, T, V).double(), torch.randn(B, T, V).double()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_soft_targets_are_exponentials_of_divided_logits(temperature):
    z = torch.randn(V).double()
    powers = [math.exp(one / temperature) for one in z.tolist()]
    torch.testing.assert_close(soft_targets(z, temperature), torch.tensor([one / sum(powers) for one in powers]).double())


def test_temperature_two_takes_roots():
    torch.testing.assert_close(soft_targets(torch.tensor([16.0, 4.0, 1.0]).log(), 2.0), torch.tensor([4.0, 2.0, 1.0]) / 7)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_word_level_loss_by_loops(logits, temperature):
    student, teacher = logits
    real = torch.tensor([[True] * T, [True, True, False, False, False]])
    total = 0.0
    for b in range(B):
        for t in range(T):
            if real[b, t]:
                p, q = ([math.exp(z / temperature) for z in one[b, t].tolist()] for one in (teacher, student))
                total -= sum(x / sum(p) * math.log(y / sum(q)) for x, y in zip(p, q))
    assert word_level_loss(student, teacher, real, temperature).item() == pytest.approx(temperature ** 2 * total / (T + 2), rel=1e-9)


def test_it_is_the_divergence_and_the_teachers_entropy(logits):
    student, teacher = logits
    real = torch.ones(B, T, dtype=torch.bool)
    divergence = F.kl_div(student.log_softmax(-1).flatten(0, 1), teacher.log_softmax(-1).flatten(0, 1), reduction="batchmean", log_target=True)
    entropy = torch.distributions.Categorical(logits=teacher).entropy().mean()
    torch.testing.assert_close(word_level_loss(student, teacher, real), divergence + entropy)


def test_a_teacher_that_is_certain_of_the_gold_word_teaches_what_the_data_teach(logits):
    student, gold = logits[0], torch.randint(V, (B, T))
    certain = 1000.0 * F.one_hot(gold, V).double()
    expected = F.cross_entropy(student.flatten(0, 1), gold.flatten())
    torch.testing.assert_close(word_level_loss(student, certain, torch.ones(B, T, dtype=torch.bool)), expected)


def test_gradients_keep_their_size_at_high_temperatures(logits):
    """At high temperatures the slope is that of half the squared difference of centred logits, over V [Hinton et al. 2015, eq. 4]."""
    student, teacher = logits[0].requires_grad_(), logits[1]
    word_level_loss(student, teacher, torch.ones(B, T, dtype=torch.bool), temperature=1e4).backward()
    centred = lambda z: z - z.mean(-1, keepdim=True)
    expected = (centred(student) - centred(teacher)).detach() / V / (B * T)
    torch.testing.assert_close(student.grad, expected, rtol=1e-3, atol=1e-6)


def test_the_weight_mixes_teacher_and_data():
    student, teacher = model(1), model(2, n_layers=2, d_model=18).eval()
    gold = distillation_loss(student, teacher, SRC, TGT, weight=0.0)
    assert gold.item() == pytest.approx(student.loss(SRC, TGT, smoothing=0.0).item(), rel=1e-5)
    soft = distillation_loss(student, teacher, SRC, TGT)
    logits = student(SRC, TGT[:, :-1]), teacher(SRC, TGT[:, :-1])
    torch.testing.assert_close(soft, word_level_loss(*logits, TGT[:, 1:] != 0))
    torch.testing.assert_close(distillation_loss(student, teacher, SRC, TGT, weight=0.3), 0.3 * soft + 0.7 * gold)


def test_the_teacher_gets_no_gradient_and_padding_changes_nothing():
    student, teacher = model(1), model(2).eval()
    loss = distillation_loss(student, teacher, SRC, TGT, weight=0.5, temperature=2.0)
    loss.backward()
    assert all(p.grad is None for p in teacher.parameters()) and any(p.grad is not None for p in student.parameters())
    wider = distillation_loss(student, teacher, F.pad(SRC, (0, 2)), F.pad(TGT, (0, 3)), weight=0.5, temperature=2.0)
    torch.testing.assert_close(loss, wider)


def test_a_student_that_is_its_teacher_has_nothing_to_learn():
    student, teacher = model(1), model(1).eval()
    distillation_loss(student, teacher, SRC, TGT).backward()
    assert max(p.grad.abs().max().item() for p in student.parameters() if p.grad is not None) < 1e-12


def test_labels_are_the_teachers_and_empty_ones_are_left_out():
    pairs = labelled(lambda sources: [source.upper() if len(source) > 1 else " " for source in sources], ["ab", "c", "de"])
    assert [(pair.source, pair.target) for pair in pairs] == [("ab", "AB"), ("de", "DE")]
    assert labelled(lambda sources: [], []) == []


def test_wrong_calls_are_told_in_one_line():
    student, teacher = model(1), model(2)
    other = Transformer(13, 19, d_model=12, n_heads=3, n_layers=1, d_ff=10, tied=False).double().eval()
    for call, message in ((lambda: soft_targets(torch.zeros(3), 0), "temperature must be above 0, not 0"),
                          (lambda: distillation_loss(student, teacher, SRC, TGT), "the teacher is in training mode"),
                          (lambda: distillation_loss(student, other, SRC, TGT), "the same vocabulary"),
                          (lambda: labelled(lambda sources: ["one"], ["a", "b"]), "2 sentences have 1 translations")):
        with pytest.raises(ValueError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
