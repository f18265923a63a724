"""What the scripts in experiments/ compute themselves, against PyTorch's own losses and the library's own search."""
import math
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from transformer_course.data.batching import PairBatches
from transformer_course.data.corpora import load
from transformer_course.data.reviews import NEGATIVE, POSITIVE
from transformer_course.data.masking import PretrainingBatches
from transformer_course.models.bert import Bert, BertForPreTraining
from transformer_course.models.language_models import NGramModel
from transformer_course.models.modern import ModernLM
from transformer_course.models.segments import window_losses
from transformer_course.models.transformer import Transformer
from transformer_course.search.beam import beam_search
from transformer_course.training.checkpoints import put_weights
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import Trainer

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
import adapting    # noqa: E402
import bert    # noqa: E402
import entailment    # noqa: E402
import language_models    # noqa: E402
import minilm    # noqa: E402
import minilm_lora    # noqa: E402
import minilm_tuned    # noqa: E402
import optimisers    # noqa: E402
import rates    # noqa: E402
import records    # noqa: E402
import text_to_text    # noqa: E402
import transformer_xl    # noqa: E402
import units    # noqa: E402
from after_training import Ensemble, last_epochs, mean    # noqa: E402
from small_data import RDrop    # noqa: E402

SIZES = {"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20}


def batch():
    "Ids (5, 7) and (5, 9) of a vocabulary of 23, padded."
    src, tgt = torch.randint(4, 23, (5, 7)), torch.randint(4, 23, (5, 9))
    src[2, 5:], tgt[1, 6:], tgt[:, 0] = 0, 0, 1
    return src, tgt


def test_r_drop_is_both_cross_entropies_and_both_divergences():
    torch.manual_seed(1)
    model, (src, tgt) = RDrop(23, 23, r_drop=5.0, dropout=0.3, **SIZES), batch()
    torch.manual_seed(2)
    found = model.loss(src, tgt, smoothing=0.2)
    torch.manual_seed(2)                                      # the same dropout
    real = (tgt[:, 1:] != 0).repeat(2, 1)
    first, second = model(src.repeat(2, 1), tgt[:, :-1].repeat(2, 1))[real].chunk(2)
    gold, (p, q) = tgt[:, 1:][tgt[:, 1:] != 0], (first.log_softmax(-1), second.log_softmax(-1))
    assert not torch.allclose(p, q)                           # dropout made them different
    apart = sum(F.kl_div(a, b, log_target=True, reduction="batchmean") for a, b in ((p, q), (q, p)))
    wrong = sum(F.cross_entropy(logits, gold, label_smoothing=0.2) for logits in (first, second)) / 2
    assert_close(found, wrong + 5 / 4 * apart)
    model.eval()
    assert_close(model.loss(src, tgt, smoothing=0.2), Transformer.loss(model, src, tgt, smoothing=0.2))


def test_an_ensemble_sees_the_mean_of_the_probabilities():
    torch.manual_seed(1)
    models, (src, _) = [Transformer(23, 23, **SIZES).eval() for member in range(3)], batch()
    both, token = Ensemble(models).eval(), torch.randint(4, 23, (5,))
    with torch.no_grad():
        found = both.step(both.start(src), token)[0].softmax(-1)
        expected = torch.stack([model.step(model.start(src), token)[0].softmax(-1) for model in models]).mean(0)
    assert_close(found, expected)
    assert not torch.allclose(expected, models[0].step(models[0].start(src), token)[0].softmax(-1))
    alone, thrice = (beam_search(model, src, 4, 11) for model in (models[0], Ensemble([models[0]] * 3).eval()))
    assert torch.equal(alone.tokens, thrice.tokens)
    assert_close(alone.scores, thrice.scores)


def test_last_epochs_and_their_mean_are_those_of_the_trainer(tmp_path):
    torch.manual_seed(1)
    examples = [([4 + i % 19, 2], [1, 4 + i % 17, 2]) for i in range(40)]
    settings = Settings(average=3, device="cpu", precision="highest")
    for extra in (0, 2):                                      # stopped at the end of an epoch, and within one
        model, folder = Transformer(23, 23, dropout=0.0, **SIZES), tmp_path / str(extra) / "checkpoints"
        trainer = Trainer(model, PairBatches(examples, 30), lambda step, progress: 1e-2, settings=settings, folder=folder)
        trainer.run(steps=4 * len(trainer.loop.steps_of(0)) + extra, progress=False)
        trainer.save()
        now = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        trainer.put_result()
        epochs = last_epochs(tmp_path / str(extra), Transformer(23, 23, **SIZES))
        assert len(epochs) == 3 + (extra > 0)
        own = dict(epochs[0].named_parameters())
        assert all(torch.equal(own[name], weight) for name, weight in now.items())
        for a, b in zip(mean(epochs[:3]).parameters(), model.parameters(), strict=True):
            assert_close(a, b)
        put_weights(model, now)
        assert any(not torch.allclose(a, b) for a, b in zip(mean(epochs[:3]).parameters(), model.parameters()))


def scored(rate, seed, perplexity):
    "A run of optimisers.py, as far as the choice of the next one looks at it."
    return {"rate": rate, "seed": seed} | ({"valid": {"perplexity": perplexity}} if perplexity else {})


def test_each_optimiser_gets_its_own_rate_before_the_other_seeds_are_run():
    variant, seeds, runs = optimisers.Variant(None, "constant", (1.0, 2.0, 4.0), 2.0), [1, 2, 3], []
    assert optimisers.wanted(variant, runs, seeds) == [(1.0, 1), (2.0, 1), (4.0, 1)]
    runs += [scored(1.0, 1, 9.0), scored(2.0, 1, 8.0), scored(4.0, 1, 7.0)]
    assert optimisers.wanted(variant, runs, seeds) == [(8.0, 1)]                     # the best is at the upper end
    runs.append(scored(8.0, 1, None))                                                # this one ended in NaN
    assert optimisers.wanted(variant, runs, seeds) == [(4.0, 2), (4.0, 3)]
    runs += [scored(4.0, 2, 6.0), scored(4.0, 3, 99.0)]
    assert optimisers.wanted(variant, runs, seeds) == []
    lower = [scored(1.0, 1, 5.0), scored(2.0, 1, 8.0), scored(4.0, 1, 7.0)]
    assert optimisers.wanted(variant, lower, seeds) == [(0.5, 1)]
    endless = [scored(2.0**i, 1, 9.0 - i) for i in range(optimisers.MOST)]
    assert optimisers.wanted(variant, endless, seeds) == [(32.0, 2), (32.0, 3)]      # no more rates than that


def test_the_best_rate_has_the_lowest_mean_loss_and_nan_is_never_best():
    run = lambda rate, loss: {"rate": rate, "valid": None if loss is None else {"loss": loss}}
    assert rates.best([run(1, 3.0), run(2, 1.0), run(4, 2.0), run(1, 3.0), run(2, 4.0), run(4, 2.0)]) == 4
    assert rates.best([run(1, None), run(2, 9.0), run(4, None)]) == 2


def test_descent_steps_by_rate_times_gradient_and_remembers_with_momentum():
    layer = torch.nn.Linear(3, 1, bias=False)
    for momentum, factor in ((0.0, 2.0), (0.9, 2.9)):
        before, optimizer = layer.weight.detach().clone(), optimisers.descent(layer, momentum)
        optimizer.param_groups[0]["lr"] = 0.1
        for step in range(2):
            layer.weight.grad = torch.ones(1, 3)
            optimizer.step()
        assert_close(layer.weight.detach(), before - 0.1 * factor)


def double(number: int) -> dict:
    "Work for another process."
    return {"doubled": 2 * number, "threads": torch.get_num_threads()}


def test_tasks_are_shared_between_processes_of_one_thread():
    found = dict(records.shared(double, [(1,), (2,), (3,)], jobs=2))
    assert found == {(n,): {"doubled": 2 * n, "threads": 1} for n in (1, 2, 3)}


def test_a_partner_is_the_nearest_of_all_others():
    near = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.5, 0.5]])
    assert minilm.partners(F.normalize(near, dim=-1)) == 3           # the last but one is nearest to the last, which is nearer to the second
    texts = ["The bat flew.", "a bat"]
    assert_close(minilm.bags(texts, ["a", "bat", "flew", "the"]), torch.tensor([[0, 1, 1, 1], [3**.5 / 2**.5, 3**.5 / 2**.5, 0, 0]]) / 3**.5)
    words = [word for pair in minilm.PAIRS for sentence in pair for word in sentence.split()]
    assert minilm.partners(minilm.bags([s for pair in minilm.PAIRS for s in pair], sorted({w.lower().replace(".", "") for w in words}))) == 0


def test_few_labels_reads_the_chosen_rows_alone():
    torch.manual_seed(3)
    y = torch.arange(60) % 2
    x = torch.randn(60, 3) + 6 * y[:, None]
    assert minilm.few_labels(x, y, 10, 1, slice(20, 40), slice(40, None)) == 1.0
    wrong = x.clone()
    wrong[:20] = x[:20].flip(1) * 0
    assert abs(minilm.few_labels(wrong, y, 10, 1, slice(20, 40), slice(40, None)) - 0.5) < 0.1   # nothing to learn from


def tiny_bert():
    "An encoder with both output layers, and three sources of puzzles: pairs, single texts, both."
    torch.manual_seed(1)
    model = BertForPreTraining(Bert(23, 12, 3, 1, 20, dropout=0.0)).eval()
    documents = [[[5 + n, 6], [7, 8 + n]] for n in range(5)]
    pairs, singles = PretrainingBatches(documents, 23, 4, rows=2), bert.Singles([[5, 6 + n, 7] for n in range(7)], 23, 4, 0.4, rows=3)
    return model, pairs, singles, bert.Mixed([pairs, singles])


def test_single_texts_are_not_asked_the_second_question():
    model, pairs, singles, both = tiny_bert()
    assert sorted(map(len, singles.plan(1, 0))) == [1, 3, 3] and singles.plan(1, 0) == singles.plan(1, 0) != singles.plan(1, 1)
    assert sorted(map(len, both.plan(1, 0))) == [1, 1, 2, 2, 3, 3]
    asked, deaf = bert.Asked(model, True), bert.Asked(model, False)
    for batch in singles.in_order():
        tokens, segments, targets, is_random = singles.collate(batch)
        assert (is_random == -1).all() and (segments == 0).all() and (targets >= 0).sum() == len(batch)
        words = F.cross_entropy(model(tokens, segments)[0][targets >= 0], targets[targets >= 0])
        assert_close(asked.loss(tokens, segments, targets, is_random), words)
    batch = pairs.collate(pairs.in_order()[0])
    assert_close(asked.loss(*batch), model.loss(*batch))
    assert asked.loss(*batch) > deaf.loss(*batch) + 0.3
    assert set(bert.asked(model, pairs)) == {"nats", "right", "second"} and set(bert.asked(model, singles)) == {"nats", "right"}


def test_a_few_labels_are_among_the_many():
    rows = list(range(50))
    assert bert.drawn(rows, 50, 1) != rows and sorted(bert.drawn(rows, 50, 1)) == rows
    assert bert.drawn(rows, 7, 1) == bert.drawn(rows, 20, 1)[:7] != bert.drawn(rows, 7, 2)


def test_fine_tuning_leaves_the_encoder_as_it_was():
    model, *_ = tiny_bert()
    before = [p.clone() for p in model.bert.parameters()]
    rows = [([1, 5 + n % 2, 9, 2], [0, 0, 0, 0], n % 2) for n in range(8)]
    tuned = bert.tune(model.bert, rows, 2, 1e-2, 40, 1)
    assert all(bert.right(tuned, rows)) and all(map(torch.equal, before, model.bert.parameters()))


def test_the_controls_of_entailment_differ_in_one_thing(monkeypatch):
    calls = []
    monkeypatch.setattr(entailment, "tune", lambda bert, rows, classes, rate, steps, seed: calls.append((len(rows), steps)))
    monkeypatch.setattr(entailment, "right", lambda model, rows: [True] * len(rows))
    begin = entailment.Begin(entailment.Pairs())
    rows = {split: begin.data.rows(split) for split in ("train", "valid", "test")}
    for start in [start for start in entailment.STARTS if start != "pre-trained"]:
        about, run = entailment.run(begin, rows, start, 0.001, 2)
        assert about == {"seed": 2} and (run["labels"], run["steps"]) == calls[-1]
    assert calls == [(1000, 1200), (1000, 4200), (6000, 1200), (6000, 4200)]


def test_tasks_come_in_turn_and_each_gets_its_batches():
    sources = [PairBatches([([4 + n, 5, 2], [0, 6 + i, 2]) for i in range(7)], 12) for n in range(3)]
    batches = text_to_text.InTurn(sources, own=5)
    plan = batches.plan(1, 0)
    assert [n for n, batch in plan] == [0, 1, 2] * 5 and plan == batches.plan(1, 0) != batches.plan(2, 0)
    for n, source in enumerate(sources):
        mine = [batch for k, batch in plan if k == n]
        epoch = len(source.plan(1, 0))
        assert len(mine) == 5 and mine[:epoch] == source.plan(1, 0) and mine[epoch] == source.plan(1, 1)[0]
        assert all(torch.equal(a, b) for a, b in zip(batches.collate((n, mine[0])), source.collate(mine[0])))
        assert batches.tokens((n, mine[0])) == source.tokens(mine[0])
    assert text_to_text.InTurn(sources, own=5, times=3).plan(1, 0) == 3 * plan


def test_the_language_of_a_text_is_that_of_more_telling_words():
    telling = text_to_text.telling_words({"de": ["Ein Mann in Paris.", "Ein Hund."], "fr": ["Un homme in Paris.", "Un chien"]})
    assert telling == {"de": {"ein", "mann", "hund"}, "fr": {"un", "homme", "chien"}}
    assert [text_to_text.language_of(text, telling) for text in ("EIN Hund, un ...", "un in Paris", "ein chien", "in Paris")] == ["de", "fr", None, None]


def test_a_sentence_to_judge_shares_its_words_with_others_of_both_answers(monkeypatch):
    monkeypatch.setattr(text_to_text, "JUDGED", {"train": 31, "valid": 7, "test": 11})
    found = text_to_text.judgements()
    assert {split: len(of) for split, of in found.items()} == {"train": 124, "valid": 28, "test": 44}
    met = {}
    for split, of in found.items():
        for four in (of[i:i + 4] for i in range(0, len(of), 4)):
            assert [t.target for t in four] == ["yes", "yes", "no", "no"] and len({t.source for t in four}) == 4
            right, wrong = (sorted(w for t in two for w in t.source.split()) for two in (four[:2], four[2:]))
            assert right == wrong and four[0].source != four[1].source                    # no word tells
        met[split] = {t.source for t in of}
    assert not met["train"] & met["test"] and not met["valid"] & met["test"]
    assert text_to_text.by_word_counts(found) == 0.5


def test_the_rate_is_chosen_on_valid_and_test_is_read_with_that_rate_alone():
    calls, entry, valid = [], {}, {1.25e-3: 0.1, 2.5e-3: 0.2, 5e-3: 0.6, 1e-2: 0.4}
    def run(rate, seed):
        calls.append((rate, seed))
        def score(split):
            calls.append((rate, seed, split))
            return {"a": valid[rate], "b": 0.5}
        return score
    text_to_text.with_best_rate(entry, [1, 2], run, lambda: None)
    assert entry["rate"] == 5e-3 and [r["seed"] for r in entry["runs"]] == [1, 2]
    tried = [call for rate in (2.5e-3, 5e-3, 1e-2) for call in ((rate, 1), (rate, 1, "valid"))]          # until one is worse
    assert calls == [*tried, (5e-3, 1, "test"), (5e-3, 2), (5e-3, 2, "test")]
    text_to_text.with_best_rate(entry, [1, 2], run, lambda: None)
    assert len(calls) == 9                                            # nothing is run twice
    old = {"rate": 2.5e-3, "runs": [{"seed": 1, "test": {}}, {"seed": 2, "test": {}}]}    # from before another rate was tried
    text_to_text.with_best_rate(old, [1], run, lambda: None)
    assert old["rate"] == 5e-3 and old["runs"] == [{"seed": 1, "test": {"a": 0.6, "b": 0.5}}]
    given = {}
    text_to_text.with_best_rate(given, [1], run, lambda: None, fixed=1e-2)
    assert given["rate"] == 1e-2 and given["valid"] == {} and calls[-2:] == [(1e-2, 1), (1e-2, 1, "test")]


def test_bert_tells_the_kinds_of_tokens_and_their_shares_sum_to_one():
    corpus = load("micro-reviews")["test"]
    for item in list(corpus)[:30]:
        found, tokens = bert.kinds(item), ["[CLS]", *item.text.split(), "[SEP]"]
        assert len(found) == len(tokens) and found[0] == found[-1] == "[CLS], [SEP]"
        opinions = [word for word, kind in zip(tokens, found) if kind.startswith("opinion")]
        assert opinions == [word for word in tokens if word in (*POSITIVE, *NEGATIVE)]
        assert "opinion that decides" in found
    torch.manual_seed(1)
    data = bert.Reviews()
    shares = bert.looks(Bert(len(data.words), **bert.SIZES).eval(), data)
    assert_close(torch.tensor(list(shares.values())).sum(0), torch.ones(2), atol=1e-3, rtol=0)


def test_minilm_tuned_takes_the_rate_that_is_better_on_valid():
    both = minilm_tuned.RATES["entailment"]
    assert minilm_tuned.rates("entailment", []) == both
    runs = [{"seed": 1, "rate": rate, "valid": valid} for rate, valid in zip(both, (0.6, 0.7))]
    assert minilm_tuned.rates("entailment", runs) == both[1:]


def test_a_classifier_on_the_mean_learns_and_leaves_the_given_encoder_alone():
    torch.manual_seed(0)
    bert = Bert(11, d_model=8, n_heads=2, n_layers=1, d_ff=12, max_len=9)
    before = [p.clone() for p in bert.parameters()]
    rows = [([2, 4 + label, 5, 6][:2 + i % 3], [0] * (2 + i % 3), label) for i, label in enumerate([0, 1] * 10)]
    model = minilm_tuned.tuned(bert, rows, 2, 0.03, 40, seed=1)
    assert minilm_tuned.right(model, rows) == 1.0
    assert all((p == q).all() for p, q in zip(before, bert.parameters()))


def test_padding_does_not_change_what_a_classifier_on_the_mean_says():
    torch.manual_seed(0)
    model = minilm_tuned.MeanClassifier(Bert(11, d_model=8, n_heads=2, n_layers=2, d_ff=12, max_len=9), 3).eval()
    short, long = ([4, 5, 6], [0, 0, 1], 0), ([5, 6, 7, 8, 9], [0, 0, 0, 1, 1], 1)
    alone = model(*minilm_tuned.batch_of([short])[:2])
    assert_close(model(*minilm_tuned.batch_of([short, long])[:2])[:1], alone)


def test_three_ways_of_adapting_start_alike_and_train_what_they_say():
    torch.manual_seed(0)
    bert = Bert(11, d_model=24, n_heads=3, n_layers=2, d_ff=40, max_len=9).eval()
    tokens, segments = torch.randint(4, 11, (5, 7)), torch.zeros(5, 7, dtype=torch.long)
    models = {way: minilm_lora.classifier(bert, way, seed=2).eval() for way in minilm_lora.FIRST}
    for model in models.values():
        assert torch.equal(model(tokens, segments), models["output alone"](tokens, segments))
    learning = {way: {name for name, p in model.named_parameters() if p.requires_grad} for way, model in models.items()}
    output = {"output.weight", "output.bias"}
    assert learning["output alone"] == output
    assert learning["all numbers"] == {name for name, _ in models["all numbers"].named_parameters()}
    assert output < learning["LoRA"] and {name.rpartition(".")[2] for name in learning["LoRA"] - output} == {"down", "up"}
    assert len(learning["LoRA"] - output) == 2 * 2 * 4                  # layers, four maps in each, A and B
    assert all(p.requires_grad for p in bert.parameters())


@pytest.mark.parametrize("way", minilm_lora.FIRST)
def test_adapting_an_encoder_learns_and_changes_only_what_learns(way, monkeypatch):
    monkeypatch.setattr(minilm_lora, "STEPS", 40)
    torch.manual_seed(0)
    bert = Bert(11, d_model=24, n_heads=3, n_layers=1, d_ff=40, max_len=9)
    rows = [([2, 4 + label, 5, 6][:2 + i % 3], [0] * (2 + i % 3), label) for i, label in enumerate([0, 1] * 10)]
    model = minilm_lora.trained(bert, rows, way, 0.3 if way == "output alone" else 0.02, seed=1)
    assert minilm_tuned.right(model, rows) == 1.0
    now = {name.replace(".linear.", "."): p for name, p in model.bert.named_parameters()}
    same = {name: torch.equal(p, now[name]) for name, p in bert.named_parameters()}
    assert all(same.values()) if way != "all numbers" else not any(same[name] for name in same if "feed_forward" in name)


def test_kept_neighbours_are_those_of_a_loop(monkeypatch):
    monkeypatch.setattr(minilm_lora, "NEAREST", 3)
    torch.manual_seed(0)
    x, y = (F.normalize(torch.randn(11, 5), dim=-1) for _ in range(2))
    found = 0
    for i in range(11):
        first, second = (sorted((j for j in range(11) if j != i), key=lambda j: -(z[i] @ z[j]).item())[:3] for z in (x, y))
        found += len({*first} & {*second})
    assert minilm_lora.kept(x, y) == round(found / 33, 4)
    assert minilm_lora.kept(x, x) == 1.0


def test_a_head_of_its_own_starts_as_the_shared_one_and_alone_learns():
    torch.manual_seed(0)
    model = ModernLM(19, d_model=64, n_heads=4, n_layers=2).eval()
    found, tokens = adapting.with_head(model), torch.randint(4, 19, (2, 9))
    assert_close(found(tokens), model(tokens))
    assert {name for name, p in found.named_parameters() if p.requires_grad} == {"output.table.weight"}
    with torch.no_grad():
        found.output.table.weight.zero_()
    assert not found(tokens).any() and model(tokens).any()


def test_right_answers_are_counted_one_by_one():
    data = adapting.Stories()
    torch.manual_seed(0)
    model, items = data.new_model().eval(), list(data.tasks("valid"))[:70]      # more than one batch
    with torch.no_grad():
        guesses = [model(torch.tensor([data.words.encode(question)]))[0, -1].argmax().item() for question, _ in items]
    items = [(question, data.words.decode([guess]) if n % 3 else answer)
             for n, ((question, answer), guess) in enumerate(zip(items, guesses))]
    expected = sum(data.words.encode(answer)[0] == guess for (_, answer), guess in zip(items, guesses)) / len(items)
    assert adapting.right(model, *data.rows(items)) == round(expected, 4) > 0.5


def test_an_n_gram_at_the_beginning_of_a_segment_gives_way_to_the_one_that_fits():
    train, valid, segment = [4, 5, 6, 4, 5, 7, 4, 6, 6, 5] * 3, [4, 5, 6, 6, 5, 4, 5, 7], [4, 5, 7, 5, 6, 4]
    models = {n: NGramModel(n).fit([train], [valid], 9) for n in (1, 2, 3, 4)}
    for order in models:
        expected = []
        for place in range(1, len(segment)):
            n = min(order, place + 1)                                     # it looks at n - 1 words, all of them in the segment
            expected.append(-models[n].probabilities([1, *segment[:place]])[segment[place]].log().item())
        assert language_models.counted_losses(models, order, segment) == pytest.approx(expected)


def test_every_unit_gets_the_same_documents_in_each_step():
    short = [[1, *[4] * n, 2] for n in (3, 5, 2, 6, 4, 7, 1)]
    long = [[1, *[5] * (3 * len(row)), 2] for row in short]
    one, other = units.Documents(short, 3), units.Documents(long, 3)
    assert one.plan(1, 0) == other.plan(1, 0) != one.plan(1, 1)
    for batches in (one.plan(1, 0), one.in_order()):
        assert sorted(i for batch in batches for i in batch) == list(range(7)) and max(map(len, batches)) == 3
    (rows,) = one.collate([0, 3])
    assert rows.shape == (2, 8) and one.tokens([0, 3]) == 11 == (rows[:, 1:] != 0).sum()


def test_scores_per_character_word_and_token_tell_the_same_loss():
    part = {"counted": {"test": {"characters": 90, "words": 20, "tokens": 35}}}
    found = units.scores(42.0, part)
    assert 2 ** (90 * found["bits per character"]) == pytest.approx(math.exp(42), rel=0.02)
    assert found["perplexity per word"] ** 20 == pytest.approx(math.exp(42), rel=0.01)
    assert found["perplexity per token"] ** 35 == pytest.approx(math.exp(42), rel=0.01)


@pytest.mark.parametrize("lowest", [0.08, 0.01, 0.0006])
def test_the_best_rate_has_a_worse_one_on_either_side(lowest):
    best, tried = records.best_rate(lambda rate: abs(math.log(rate / lowest)), 0.01)
    rates = [float(rate) for rate in tried]
    assert rates == sorted(rates) and rates[0] < best < rates[-1]
    assert tried[str(best)] == min(tried.values()) and abs(math.log2(best / lowest)) <= 0.5


def test_a_best_rate_at_the_edge_is_an_error_and_nan_is_the_worst():
    with pytest.raises(ValueError, match="still at the edge"):
        records.best_rate(lambda rate: -rate, 0.01, most=4)
    assert records.best_rate(lambda rate: math.nan if rate > 0.03 else -rate if rate > 0.004 else 1.0, 0.01)[0] == 0.02


def test_windows_teach_their_last_words_only_and_cover_the_text():
    ids = torch.arange(3, 53) % 11
    batches = transformer_xl.WindowBatches(ids, length=12, new=5, rows=3)
    plan = batches.plan(1, 0)
    assert plan == batches.plan(1, 0) != batches.plan(1, 1) and batches.tokens(plan[0]) == 15
    scored = sorted(start + place for batch in plan for start in batch for place in range(8, 13))          # places of words with a loss
    assert scored == list(range(scored[0], scored[-1] + 1)) and 8 <= scored[0] < 13 and scored[-1] > len(ids) - 6
    torch.manual_seed(1)
    model = transformer_xl.TransformerXL(11, memory=0, d_model=12, n_heads=2, n_layers=1, dropout=0.0).eval()
    (tokens,) = batches.collate(plan[0])
    losses = torch.stack([window_losses(model, row, 12)[-5:] for row in tokens])
    assert_close(transformer_xl.LastWords(model, 5).loss(tokens), losses.mean())


def test_descending_is_adam_with_clipped_gradients_and_a_rate_for_each_step():
    found = []
    for by_hand in (True, False):
        torch.manual_seed(1)
        model, rate, seen = torch.nn.Linear(3, 2), (lambda step: 0.1 / step), []
        batches = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(2))
        loss = lambda step: 100 * model(batches[step - 1]).pow(2).mean()
        if by_hand:
            adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
            for step in range(1, 6):
                for group in adam.param_groups:
                    group["lr"] = rate(step)
                adam.zero_grad()
                loss(step).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                adam.step()
        else:
            assert records.descend(model, loss, rate, 5, seen.append) is model and seen == [1, 2, 3, 4, 5]
        found.append(model.weight)
    assert torch.equal(*found)


def test_what_is_kept_is_made_once(tmp_path):
    made = []
    for _ in range(2):
        assert records.kept(tmp_path / "new" / "sum.pt", lambda: made.append(1) or {"sum": 5.5}) == {"sum": 5.5}
    assert made == [1]
