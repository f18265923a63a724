"""The same models on a GPU: equal to the CPU, trainable at their own precision, resumable. Skipped without one."""
import pytest
import torch
from torch.testing import assert_close

from transformer_course.data.batching import PairBatches
from transformer_course.models.induction import RepeatedBlocks, attention_shares, copy_losses
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.pipelines.presets import MODELS
from transformer_course.search.beam import beam_search, greedy_search
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import Trainer, fit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
B, S, T, V = 3, 5, 7, 19


def batch():
    torch.manual_seed(2)
    src, tgt = torch.randint(4, V, (B, S)), torch.randint(4, V, (B, T))
    src[1, 3:], tgt[0, 5:], tgt[:, 0] = 0, 0, 1
    return src, tgt


@pytest.mark.parametrize("name", MODELS)
def test_values_gradients_and_search_are_those_of_the_cpu(name):
    torch.manual_seed(1)
    model, (src, tgt) = MODELS[name](V, V).eval(), batch()
    here = model(src, tgt), model.loss(src, tgt), beam_search(model, src, 3, 9), greedy_search(model, src, 9)
    here[1].backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model.cuda()
    there = (model(src.cuda(), tgt.cuda()), model.loss(src.cuda(), tgt.cuda()),
             beam_search(model, src.cuda(), 3, 9), greedy_search(model, src.cuda(), 9))
    there[1].backward()
    assert_close(there[0].cpu(), here[0], rtol=1e-3, atol=1e-4)
    assert_close(there[1].cpu(), here[1], rtol=1e-3, atol=1e-4)
    for n, p in model.named_parameters():
        assert_close(p.grad.cpu(), grads[n], rtol=1e-2, atol=1e-3)
    for a, b in zip(there[2:], here[2:]):
        assert_close(a.scores.cpu(), b.scores, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_training_at_its_own_precision_lowers_the_loss(name, tmp_path):
    torch.manual_seed(1)
    examples = [([4 + i % 5, 2], [1, 5 + i % 7, 6, 2]) for i in range(40)]
    settings, batches = Settings(device="cuda"), PairBatches(examples, 40)
    first = fit(MODELS[name](V, V), batches, lambda step, progress: 1e-3, steps=30, valid=batches, settings=settings,
                folder=tmp_path, progress=False)
    assert first.history[-1]["valid"] < first.history[0]["valid"]
    again = Trainer(MODELS[name](V, V), batches, first.schedule, batches, settings, folder=tmp_path)
    again.load()
    assert again.loop.step == 30


def test_tensors_on_two_devices_are_told_in_one_line():
    model, (src, tgt) = MODELS["transformer"](V, V).cuda(), batch()
    with pytest.raises(ValueError, match="table is on cuda:0, and ids on cpu: move one to the other's device"):
        model(src, tgt)
    with pytest.raises(ValueError, match="src is on cuda:0, and tgt on cpu"):
        model.loss(src.cuda(), tgt)


def test_induction_is_measured_where_the_model_is():
    torch.manual_seed(1)
    data = RepeatedBlocks(name="test", batches=2)
    model = TransformerLM(data.words, 16, 2, 2, 32).eval()
    losses, shares = copy_losses(model, data), attention_shares(model, data)
    model.cuda()
    assert copy_losses(model, data) == pytest.approx(losses, rel=1e-3)
    for name, share in attention_shares(model, data).items():
        assert_close(share.cpu(), shares[name], rtol=1e-3, atol=1e-4)
