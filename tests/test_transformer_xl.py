"""Transformer-XL: the paper's sum in loops as oracle, lesson 30 without a memory, what the memory carries and what it does not."""
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from transformer_course import protocols
from transformer_course.models.functional import causal_mask
from transformer_course.models.memory_worth import multiply_adds
from transformer_course.models.positions import sinusoids
from transformer_course.models.segments import window_losses
from transformer_course.models.sliding import RecentCache, SlidingWindow, visible
from transformer_course.models.transformer_lm import TransformerLM
from transformer_course.search.beam import beam_search, greedy_search, sample
from transformer_course.models.streams import StreamBatches, Streaming, stream_losses
from transformer_course.models.transformer_xl import RelativeXL, TransformerXL, WithMemory, shift
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import Trainer

V, D, H, F = 17, 12, 3, 20


def small(memory=5, seed=1, **options):
    """All sizes different, float64, every parameter redrawn."""
    torch.manual_seed(seed)
    model = TransformerXL(V, **{"d_model": D, "n_heads": H, "n_layers": 2, "d_ff": F, "dropout": 0.1, "memory": memory, **options}).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def text(n, seed=2):
    return torch.randint(3, V, (n,), generator=torch.Generator().manual_seed(seed))


def by_loops(model, tokens, memory):
    """One row through the paper's equations [Dai et al. 2019, §3.3], pair by pair; layers in pre-norm as GPT-2 has them."""
    old, states, K = memory[0].shape[0] if memory else 0, [], D // H
    x = [model.lm.embedding.weight[token] for token in tokens]
    for number, layer in enumerate(model.lm.stack.layers):
        states.append(torch.stack(x))
        places, heads, (first, second) = layer.self_attention.positions, layer.self_attention.heads, (layer.norm_1, layer.norm_2)
        read = [*(memory[number] if memory else []), *x]
        W_q, W_k, W_v = heads.in_proj.weight.chunk(3)
        b_q, b_k, b_v = heads.in_proj.bias.chunk(3)
        after = []
        for i, own in enumerate(x):
            answers = []
            for h in range(H):
                rows = slice(h * K, (h + 1) * K)
                q, scores, values = (W_q @ first(own) + b_q)[rows], [], []
                for j in range(old + i + 1):
                    if model.same_length and j <= old + i - model.memory:
                        continue
                    R = sinusoids(torch.tensor([old + i - j]), D)[0].double()
                    k = (W_k @ first(read[j]) + b_k)[rows]
                    kR = (places.project.weight @ R)[rows]
                    scores.append((q @ k + q @ kR + places.u[h, 0] @ k + places.v[h, 0] @ kR) / math.sqrt(K))
                    values.append((W_v @ first(read[j]) + b_v)[rows])
                weights = torch.stack(scores).softmax(0)
                answers.append(sum(w * v for w, v in zip(weights, values)))
            y = own + heads.out_proj(torch.cat(answers))
            after.append(y + layer.feed_forward(second(y)))
        x = after
    return model.lm.stack.final_norm(torch.stack(x)), [torch.cat((memory[n], s))[-model.memory:] if memory else s[-model.memory:] for n, s in enumerate(states)]


# positions

@pytest.mark.parametrize("T, S", [(1, 1), (1, 5), (4, 4), (3, 7), (6, 9)])
def test_shift_is_a_gather(T, S):
    scores = torch.randn(2, 3, T, S)
    columns = torch.tensor([[T - 1 - i + j for j in range(S)] for i in range(T)])
    legal = visible(S - T, T)
    found = scores.gather(-1, columns.clamp(max=S - 1).expand(2, 3, T, S))
    assert torch.equal(shift(scores)[..., legal], found[..., legal])


def test_relative_positions_refuse_what_they_cannot_do():
    places = RelativeXL(D, H)
    with pytest.raises(ValueError, match="4 queries from position 1 do not end with the last of 7 keys"):
        places.score_bias(torch.randn(2, H, 4, D // H), 7, 1)
    with pytest.raises(ValueError, match="n_heads=5 does not divide d_model=12"):
        RelativeXL(12, 5)
    bias = places.score_bias(torch.randn(2, H, 4, D // H), 7, 3)
    assert torch.equal((bias == -torch.inf)[0, 0], ~causal_mask(7)[3:])


def test_distances_alone_matter():
    """The same query and keys three places later have the same scores."""
    places = RelativeXL(D, H)
    nn.init.normal_(places.v)
    query = torch.randn(2, H, 4, D // H)
    assert_close(places.score_bias(query, 7, 3)[..., 3:], places.score_bias(query, 4, 0))


# the model

@pytest.mark.parametrize("same_length", [False, True])
def test_it_is_the_papers_sum_in_loops(same_length):
    model, tokens = small(same_length=same_length), text(2 * 11).view(2, 11)
    for memory_in in (False, True):
        ids, memory = (tokens[:, 4:], model.read_segment(tokens[:, :4])[1]) if memory_in else (tokens, None)
        hidden, after = model.read_segment(ids, memory)
        for row in range(2):
            expected, states = by_loops(model, ids[row], [m[row] for m in memory] if memory_in else ())
            assert_close(hidden[row], expected, rtol=0, atol=1e-12)
            for mine, theirs in zip(after, states):
                assert_close(mine[row], theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_without_memory_it_is_lesson_30s_model(norm):
    model = small(memory=0, norm=norm)
    plain = TransformerXL(V, D, H, 2, 0, d_ff=F, norm=norm).lm.double().eval()
    plain.load_state_dict(model.lm.state_dict())
    tokens = text(3 * 8).view(3, 8)
    assert_close(model(tokens), plain(tokens), rtol=0, atol=0)
    assert_close(model.loss(tokens), plain.loss(tokens), rtol=0, atol=0)
    assert model.read_segment(tokens)[1].shape == (2, 3, 0, D)
    state, other = model.start(tokens[:, :3]), plain.start(tokens[:, :3])
    assert_close(model.step(state, tokens[:, 2])[0], plain.step(other, tokens[:, 2])[0], rtol=0, atol=0)
    assert_close(small(memory=5, norm=norm)(tokens), small(memory=0, norm=norm)(tokens))      # nor is there one at a text's beginning
    assert_close(stream_losses(model, text(30), 7), window_losses(model, text(30), 7))


def test_a_memory_is_the_text_that_it_was_made_of():
    """In one layer: a segment with a memory of all before is the end of one long segment. With more layers, too: nothing was cut off."""
    for layers in (1, 2):
        model, tokens = small(memory=9, n_layers=layers), text(2 * 15).view(2, 15)
        memory = model.read_segment(tokens[:, :9])[1]
        assert [m.shape for m in memory] == layers * [(2, 9, D)]
        assert_close(model.read_segment(tokens[:, 9:], memory)[0], model.read_segment(tokens)[0][:, 9:])


def test_memory_keeps_the_last_words_of_old_and_new():
    model, tokens = small(memory=5), text(2 * 20).view(2, 20)
    memory, seen = None, []
    for start, stop in ((0, 3), (3, 6), (6, 14), (14, 16)):                       # shorter, then longer than the memory
        before = memory
        memory = model.read_segment(tokens[:, start:stop], memory)[1]
        seen.append(tokens[:, start:stop])
        assert_close(memory[0], model.lm.embedding(torch.cat(seen, 1))[:, -5:])   # the first layer's inputs are the words
        if stop == 16:
            assert_close(memory[1][:, :3], before[1][:, 2:])


def test_how_a_text_is_cut_does_not_matter_at_the_same_length():
    model, ids = small(memory=6, same_length=True), text(41)
    whole = stream_losses(model, ids, 40)
    for length in (1, 3, 7, 16):
        assert_close(stream_losses(model, ids, length), whole)
        assert_close(stream_losses(model, ids, length, project=True), whole)
    other = small(memory=6)
    assert (stream_losses(other, ids, 3) - stream_losses(other, ids, 16)).abs().max() > 1e-3


@pytest.mark.parametrize("same_length", [False, True])
def test_kept_keys_are_the_kept_inputs(same_length):
    model, tokens = small(memory=5, same_length=same_length), text(2 * 30).view(2, 30)
    memory, state = None, model.new_state()
    for start, stop in ((0, 2), (2, 9), (9, 10), (10, 13), (13, 30)):
        left, memory = model.read_segment(tokens[:, start:stop], memory)
        right, state = model.read(state, tokens[:, start:stop])
        assert_close(left, right)
        assert state.position == min(5, stop) and memory[0].shape[1] == min(5, stop)


def test_no_word_sees_the_future_and_the_past_reaches_as_far_as_the_layers():
    model, tokens = small(memory=3, n_layers=2), text(24).view(1, 24)

    def read(ids):
        memory, parts = None, []
        for start in range(0, 24, 3):
            hidden, memory = model.read_segment(ids[:, start:start + 3], memory)
            parts.append(hidden)
        return torch.cat(parts, 1)

    changed = tokens.clone()
    changed[0, 10] = 3 + (tokens[0, 10] - 2) % 14
    moved = (read(changed) - read(tokens)).abs().amax(-1)[0] > 1e-9
    # word 10 is in the segment 9 ... 11; one layer carries it into 12 ... 14, the second into 15 ... 17
    assert moved.tolist() == [10 <= place < 18 for place in range(24)]


def test_gradient_reaches_the_weights_through_the_memory_but_no_older_state():
    model, tokens = small(memory=4), text(2 * 9).view(2, 9)
    memory = model.read_segment(tokens[:, :4])[1]
    assert not memory.requires_grad
    leaves = memory.clone().requires_grad_()
    hidden = model.read_segment(tokens[:, 4:5], leaves)[0]          # one word: its own key is one of five
    hidden.sum().backward()
    assert all(grad.abs().max() > 1e-6 for grad in leaves.grad)              # an older state would get a gradient, were it not detached

    def key_value_gradient(share):
        """Of the loss of one word, when the memory is shown to the projection with or without a graph."""
        model.zero_grad()
        weight = model.lm.stack.layers[1].self_attention.heads.in_proj.weight
        hidden = model.read_segment(tokens[:, 4:5], memory if share else None)[0]
        (hidden * torch.arange(D)).sum().backward()
        return weight.grad[D:].clone()

    # numbers: a finite difference of the last layer's W_k and W_v, memory held fixed
    weight = model.lm.stack.layers[1].self_attention.heads.in_proj.weight
    grad = key_value_gradient(True)
    with torch.no_grad():
        for row, column in ((D, 0), (2 * D - 1, 5), (2 * D, 3), (3 * D - 1, 11)):
            results = []
            for change in (1e-6, -2e-6, 1e-6):
                weight[row, column] += change
                results.append((model.read_segment(tokens[:, 4:5], memory)[0] * torch.arange(D)).sum())
            assert_close((results[0] - results[1]) / 2e-6, grad[row - D, column], rtol=1e-4, atol=1e-6)
    alone = key_value_gradient(False)
    assert alone[:D].abs().max() < 1e-12 < grad[:D].abs().max()              # a word alone has no choice of key: only the memory teaches W_k


def test_padding_and_smoothing():
    model = small()
    tokens = torch.tensor([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0]])
    logp = model(tokens[:, :-1]).log_softmax(-1)
    each = [-logp[b, t, tokens[b, t + 1]] for b in range(2) for t in range(4) if tokens[b, t + 1] != 0]
    assert_close(model.loss(tokens).double(), sum(each) / 6, rtol=1e-6, atol=1e-6)
    smooth = model.loss(tokens, smoothing=(0.2, 0.0))
    assert smooth.shape == (2,) and smooth[0] > smooth[1]


# writing

def test_it_keeps_the_protocol_and_writes_with_a_bounded_state():
    model, tokens = small(memory=4), text(3 * 12).view(3, 12)
    assert isinstance(model, protocols.LanguageModel) and isinstance(RecentCache(3), protocols.Cache)
    state, slow = model.start(tokens[:, :7]), model.start(tokens[:, :1])     # a prompt at once, and word by word
    for t in range(6):
        logits, slow = model.step(slow, tokens[:, t])
    for t in range(6, 12):
        logits, state = model.step(state, tokens[:, t])
        expected, slow = model.step(slow, tokens[:, t])
        assert_close(logits, expected)
        assert all(cache.keys.shape[2] <= 5 for cache in state.caches)
        if t == 8:
            rows = torch.tensor([2, 0, 2])
            state, slow, tokens = state.select(rows), slow.select(rows), tokens[rows]
    within = small(memory=12)                                                # nothing is dropped: as one pass
    state = within.start(tokens[:, :3])
    for t in range(2, 12):
        logits, state = within.step(state, tokens[:, t])
        assert_close(logits, within(tokens)[:, t])
    assert RecentCache(3).select(rows).length == 0


@pytest.mark.parametrize("same_length, words", [(False, 5), (True, 4)])
def test_a_word_that_is_written_reads_the_last_words_only(same_length, words):
    """One layer: the word and the M before it (at the same length M in all) decide what comes next, and no other."""
    torch.manual_seed(1)
    model = SlidingWindow(TransformerLM(V, D, H, 1, F, positions="alibi").eval(), 4, same_length)

    def after(ids):
        return model.step(model.start(ids), ids[:, -1])[0]

    ids = text(12)[None]
    for place in range(12):
        changed = ids.clone()
        changed[0, place] = 3 + (ids[0, place] - 2) % 14
        assert torch.equal(after(changed), after(ids)) == (place < 12 - words)


def test_searches_write_with_it():
    model, prompts = small(memory=4, same_length=True), text(8).view(2, 4)
    greedy, beam = greedy_search(model, prompts, 6, 6), beam_search(model, prompts, 1, 6, 6)
    assert torch.equal(greedy.tokens[:, :5], beam.tokens[:, :5])
    tokens = prompts
    for t in range(5):
        logits = model(tokens)[:, -1]                                        # a band over the whole text is the same length everywhere
        logits[:, [0, 1, 2]] = -torch.inf
        tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(greedy.tokens[:, :5], tokens[:, 4:])
    assert sample(model, prompts, 9, generator=torch.Generator().manual_seed(1)).tokens.shape[0] == 2


# streams

@pytest.mark.parametrize("n, length, rows", [(50, 7, 3), (29, 4, 5), (9, 4, 2)])
def test_streams_go_on_where_they_stopped(n, length, rows):
    ids = torch.arange(n)
    batches = StreamBatches(ids, length, rows)
    assert isinstance(batches, protocols.BatchSource)
    for plan in (batches.plan(3, 0), batches.plan(3, 1), batches.in_order()):
        collated = [batches.collate(batch) for batch in plan]
        assert collated[0][1] == 0
        for (tokens, before), (later, after) in zip(collated, collated[1:]):
            assert torch.equal(tokens[:, -1], later[:, 0]) and after == before + tokens.shape[1] - 1
        assert all(tokens.shape[0] == rows and tokens.shape[1] <= length + 1 for tokens, before in collated)
        predicted = torch.cat([tokens[:, 1:].flatten() for tokens, before in collated])
        assert len(predicted.unique()) == len(predicted) == sum(map(batches.tokens, plan)) > n - 1 - length - rows
    assert batches.plan(3, 1) == batches.plan(3, 1)
    assert len({batches.plan(3, epoch)[0][0] for epoch in range(20)}) > 1
    assert batches.fingerprint() != StreamBatches(ids, length - 1, rows).fingerprint()


def test_every_word_of_a_text_is_scored_once_in_any_number_of_rows():
    model, ids = small(memory=5), text(38)
    for rows in (1, 3, 4):
        each = -(-37 // rows)
        expected = torch.cat([stream_losses(model, ids[i * each:(i + 1) * each + 1], 4) for i in range(rows)])
        assert_close(stream_losses(model, ids, 4, rows), expected)
    memory, losses = None, []
    for start in range(0, 37, 4):
        loss, memory = model.stream_loss(ids[None, start:start + 5], memory)
        losses.append(loss * min(4, 37 - start))
    assert_close(sum(losses).double() / 37, stream_losses(model, ids, 4).mean().double(), rtol=1e-6, atol=1e-6)


def settings(**options):
    return Settings(smoothing=0.0, seed=4, device="cpu", precision="highest", **options)


def streaming(seed=1, memory=5, rows=3):
    torch.manual_seed(seed)
    return Streaming(TransformerXL(V, D, H, 2, memory, d_ff=F), rows)


def test_the_loop_carries_the_memory():
    """The course's loop is a plain one that hands the memory on."""
    ids, model = text(80), streaming()
    batches = StreamBatches(ids, 4, 3)
    Trainer(model, batches, lambda step, part: 0.01, settings=settings()).run(steps=13, progress=False)

    other = streaming().model
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, fused=True)
    memory, steps, epoch = None, 0, 0
    while steps < 13:
        for batch in batches.plan(4, epoch):
            tokens, before = batches.collate(batch)
            loss, memory = other.stream_loss(tokens, memory if before else None)
            loss.backward()
            nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == 13:
                break
        epoch += 1
    assert epoch == 2                                                        # the memory was emptied between epochs
    for (name, mine), theirs in zip(model.model.named_parameters(), other.parameters()):
        assert_close(mine, theirs, rtol=0, atol=1e-6, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("interrupted", [2, 8])
def test_a_run_resumes_with_its_memory(tmp_path, interrupted):
    batches, valid = StreamBatches(text(80), 4, 3), StreamBatches(text(40, 5), 4, 3)

    def trainer(folder, seed=1):
        return Trainer(streaming(seed), batches, lambda step, part: 0.01, valid, settings(checkpoint_seconds=0.0), folder=tmp_path / folder)

    whole = trainer("whole")
    whole.run(steps=11, progress=False)
    trainer("parts").run(steps=interrupted, progress=False)
    again = trainer("parts", seed=9)                                         # other weights, until it loads
    again.load()
    assert again.model.memory.abs().amax((0, 1, 3)).count_nonzero() == 5     # before it goes on: all 5 places hold a word
    again.run(steps=11, progress=False)
    for (name, mine), (_, theirs) in zip(again.model.named_parameters(), whole.model.named_parameters()):
        assert torch.equal(mine, theirs), name
    assert torch.equal(again.model.memory, whole.model.memory)
    assert "memory" not in dict(again.model.named_parameters())              # a buffer: no optimizer steps on it
    assert again.loop.history[-1]["valid"] == whole.loop.history[-1]["valid"]


def test_training_pays_and_a_memory_finds_what_a_segment_cannot():
    """A text that repeats itself after nine words: three words are not enough to see it, twelve are."""
    generator, losses = torch.Generator().manual_seed(3), {}
    ids = torch.cat([torch.randint(3, V, (9,), generator=generator).repeat(8) for block in range(30)])
    for memory in (0, 12):
        torch.manual_seed(1)
        model = Streaming(TransformerXL(V, 24, 3, 2, memory, d_ff=48, dropout=0.0), 6)
        batches = StreamBatches(ids, 3, 6)
        Trainer(model, batches, lambda step, part: 0.01, settings=settings()).run(steps=200, progress=False)
        losses[memory] = evaluate_loss(model, batches)
    assert losses[12] < losses[0] - 0.2, losses


# costs

@pytest.mark.parametrize("new, old, project", [(7, 0, False), (4, 9, False), (4, 9, True), (1, 5, False)])
def test_operations_are_what_pytorch_counts(new, old, project):
    model, tokens = small(memory=old).float(), text(16)[None]
    with torch.no_grad():
        memory, state = None, model.new_state()
        if old:
            memory, state = model.read_segment(tokens[:, :old])[1], model.read(state, tokens[:, :old])[1]
        with FlopCounterMode(display=False) as counter:
            hidden = (model.read_segment(tokens[:, old:old + new], memory) if project or not old else model.read(state, tokens[:, old:old + new]))[0]
            model.lm.output(hidden[:, -2:])
    assert counter.get_total_flops() == 2 * multiply_adds(model.lm, new, old, min(2, new), project)
    projections = sum(layer.self_attention.positions.codes(old + new).numel() * D for layer in model.lm.stack.layers)
    assert multiply_adds(model.lm, new, old) - multiply_adds(model.lm, new, old, codes=False) == projections


def test_windows_of_the_same_network_are_what_pytorch_counts():
    """As the cost of a memory is compared: windows of 8 by half over 32 words are seven passes, distances included."""
    model, ids = small(memory=8).float(), text(33)
    with FlopCounterMode(display=False) as counter:
        window_losses(model.lm, ids, 8, 4, rows=1)
    assert counter.get_total_flops() == 2 * 7 * multiply_adds(model.lm, 8)
    plain = TransformerLM(V, D, H, 2, F, positions="none")
    assert multiply_adds(model.lm, 8) - multiply_adds(plain, 8) == 2 * (8 * 8 * D + 8 * D * D)      # layers: a product for each pair, codes


# bad input

def test_what_cannot_have_a_memory_is_refused():
    for positions in ("learned", "sinusoidal"):
        with pytest.raises(ValueError, match="the same number"):
            WithMemory(TransformerLM(V, D, H, 1, positions=positions), memory=4)
        WithMemory(TransformerLM(V, D, H, 1, positions=positions), memory=0)
    with pytest.raises(ValueError, match="cannot get another one"):
        WithMemory(TransformerLM(V, D, H, 1, positions="rotary"), memory=4)
    for memory, same in ((-1, False), (2.0, False), (True, False), (0, True)):
        with pytest.raises(ValueError, match="memory must be a whole number"):
            TransformerXL(V, D, H, 1, memory=memory, same_length=same)
    with pytest.raises(ValueError, match="n_heads"):
        TransformerXL(V, D, 5, 1)


@pytest.mark.parametrize("positions", ["relative", "alibi", "none"])
def test_other_distances_can_have_one(positions):
    lm = TransformerLM(V, D, H, 2, F, positions=positions).eval()
    model, tokens = WithMemory(lm, 9), text(2 * 15).view(2, 15)
    memory, state = model.read_segment(tokens[:, :9])[1], model.read(model.new_state(), tokens[:, :9])[1]
    assert_close(model.read_segment(tokens[:, 9:], memory)[0], model.read_segment(tokens)[0][:, 9:])
    assert_close(model.read(state, tokens[:, 9:])[0], model.read_segment(tokens)[0][:, 9:])


def test_bad_input_is_named():
    model = small()
    with pytest.raises(ValueError, match="an empty prompt"):
        model.start(torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(ValueError, match="different lengths"):
        model.start(torch.tensor([[3, 4], [3, 0]]))
    with pytest.raises(ValueError, match="length=0 and rows=1"):
        stream_losses(model, text(9), 0)
    with pytest.raises(ValueError, match="a text of 3 words"):
        stream_losses(model, text(3), 2, rows=4)
    with pytest.raises(TypeError, match="needs a model with a memory, not LanguageModel"):
        stream_losses(model.lm, text(9), 2)
    with pytest.raises(ValueError, match="rows must be a positive whole number, not 0"):
        StreamBatches(text(9), 3, 0)
    with pytest.raises(ValueError, match="length must be a positive whole number, not 2.5"):
        StreamBatches(text(9), 2.5, 2)
    with pytest.raises(ValueError, match="length=5 is more than the 4 words that each of rows=2 streams predicts in a text of 10"):
        StreamBatches(text(10), 5, 2)
    StreamBatches(text(11), 5, 2)                                            # exactly one segment in each
    with pytest.raises(ValueError, match="too short for rows=9"):
        StreamBatches(text(9), 3, 9)
    with pytest.raises(ValueError, match="2 streams in the batch, 3 in the memory"):
        streaming().loss(text(10).view(2, 5), torch.tensor(0))


@pytest.mark.parametrize("memory", [0, 5])
def test_padded_prompts_are_noticed_where_padding_has_the_id_of_the_end(memory):
    end = V - 1
    model = small(memory, pad_id=end, bos_id=end, eos_id=end)
    for rows in ([[5, 6, end], [5, 6, 7]], [[end, 5, 6], [7, 5, 6]], [[5, end, end], [5, 6, end]]):
        with pytest.raises(ValueError, match=f"start: prompts of different lengths .some begin or end with id {end}"):
            model.start(torch.tensor(rows))
    for rows in ([[end, 5, 6], [end, 8, 7]], [[5, 6, end], [8, 7, end]], [[5, end, 6], [5, 7, 6]]):
        model.start(torch.tensor(rows))
