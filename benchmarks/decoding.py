"""Translating 1,000 sentences, greedily and with a beam of 5, by this library and by others.

    python benchmarks/decoding.py [--preset tiny] [--length 50] [--device cpu]

Marian (Hugging Face) and CTranslate2 do both; torch.nn.Transformer, which has no cache, and x-transformers have no beam. All
have the same weights (random, post-norm as Marian is; but for x-transformers, which has no place for them) and read the same
batches of 100 sentences with the lengths of captions, longest first; every hypothesis has exactly `length` words, since with
random weights the end is not where it would be. Before anything is timed, the logits of this library and of Marian must
agree, and the first words of the translations of one batch by all with the same weights, for nine sentences in ten (greedy)
and one in two (beam; near ties). Precisions are float32 and medium on a CPU, float32 and bf16 on a GPU; CTranslate2 keeps float32.
All take turns; a turn is as many batches as there are threads (at most four), and ratios are medians over the turns. "On each core": these
batches at the same time, each with one thread (`on_each_core`, which was tried for the library and gained too little; CTranslate2's inter_threads).
"Rows": this library's beam search without the tree of lesson 23, every hypothesis with its own copy of all it has read.
Results go to benchmarks/results/decoding_PRESET_DEVICE.json.
"""
import argparse
import copy
import statistics
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from peers import BOS, LONGEST, PAD, CTranslate2, Marian, TorchTransformer, XTransformers
from timing import arithmetic, interleaved, precisions, record, show, summary
from torch.testing import assert_close

from transformer_course.presets import PRESETS
from transformer_course.search import beam_search, greedy_search
from transformer_course.text import pad
from transformer_course.transformer import State, Transformer, Tree

warnings.filterwarnings("ignore", message=".*nested tensor")
SENTENCES, BATCH, BEAM = 1000, 100, 5
OURS, ROWS, MARIAN, CT2 = "this library", "this library, rows", "Marian (Hugging Face)", "CTranslate2"
TORCH, XT = "torch.nn.Transformer, no cache", "x-transformers"
EACH, CT2_EACH = f"{OURS}, on each core", f"{CT2}, on each core"


class Rows(State):
    """A state in which no two hypotheses share anything."""

    def select(self, rows: torch.Tensor) -> "Rows":
        pick = lambda part: part.index_select(0, rows)
        source = tuple((pick(key), pick(value)) for key, value in self.source)
        past = tuple(cache.select(rows) for cache in self.past)
        return Rows(source, pick(self.source_mask), past, Tree.chains(len(rows), self.position, rows.device))


def without_tree(model: Transformer) -> Transformer:
    """The same model, but its states are Rows."""
    other = copy.copy(model)
    other.start = lambda src: Rows(**vars(model.start(src)))
    return other


def sources(vocabulary: int, device: torch.device) -> list[torch.Tensor]:
    """Random ids with the lengths of captions, longest first, in batches."""
    draw = torch.Generator().manual_seed(1)
    lengths = sorted((14 + 4 * torch.randn(SENTENCES, generator=draw)).round().clamp(4, 30).int().tolist(), reverse=True)
    rows = [torch.randint(4, vocabulary, (n,), generator=draw).tolist() + [2] for n in lengths]
    return [pad(rows[first:first + BATCH], 0, device) for first in range(0, SENTENCES, BATCH)]


def ours_decode(model: Transformer, src: torch.Tensor, beam_size: int, length: int) -> torch.Tensor:
    """Exactly `length` words for each sentence (here alone the last of them may be the end)."""
    if beam_size == 1:
        return greedy_search(model, src, length, min_len=length).tokens
    return beam_search(model, src, beam_size, length, min_len=length).tokens


def on_each_core(work: Callable, items: list) -> list:
    """[work(item) for item in items], up to four at a time, each with its share of PyTorch's threads."""
    threads = torch.get_num_threads()
    workers = min(threads, len(items), 4)
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)         # a thread that is made later asks for the number that was set last


def check(model: Transformer, peers: dict, src: torch.Tensor) -> dict[str, float]:
    """The same weights give the same logits and, but for rounding, the same words; the share of sentences in which they do."""
    found = {}
    tgt_in = torch.randint(4, len(model.tgt_embedding.weight), (len(src), 7), device=src.device)
    tgt_in[:, 0] = 1
    if MARIAN in peers:
        with torch.no_grad():
            assert_close(peers[MARIAN].logits(src, tgt_in)[..., 2:], model(src, tgt_in)[..., 2:], rtol=1e-3, atol=1e-3)
    for beam_size, least in ((1, 0.9), (BEAM, 0.5)):        # in a beam, many hypotheses are nearly as good as the best
        ours = ours_decode(model, src, beam_size, 12)[:, :11]
        for name in [name for name, peer in peers.items() if name not in (XT, CT2_EACH) and (peer.beams or beam_size == 1)]:
            same = (peers[name].decode(src, beam_size, 12)[:, :11].cpu() == ours.cpu()).all(1).float().mean().item()
            print(f"{name}: {same:.0%} of the translations are the same with beam {beam_size}")
            assert same >= least
            found[f"{name}, beam {beam_size}"] = same
    return found


def turns(calls: dict, groups: list[list[torch.Tensor]]) -> dict:
    """Candidates for `interleaved`: each call takes the next group of batches, the first twice (its first round does not count)."""
    def through(call):
        order = iter([groups[0], *groups])
        return lambda: call(next(order))
    return {name: through(call) for name, call in calls.items()}


def installed(model: Transformer, sizes: dict, at_once: int, device: torch.device) -> dict:
    """The peers with the model's weights; one that is missing is named and left out."""
    threads = torch.get_num_threads()
    marian = lambda: Marian(model, sizes, never=(PAD, BOS))
    makers = {TORCH: lambda: TorchTransformer(model, sizes).to(device).eval(), XT: lambda: XTransformers(model, sizes).to(device).eval(),
              MARIAN: lambda: marian().to(device).eval(), CT2: lambda: CTranslate2(marian().eval(), threads, device.type)}
    if at_once > 1:
        makers[CT2_EACH] = lambda: CTranslate2(marian().eval(), threads // at_once, searches=at_once)
    peers = {}
    for name, make in makers.items():
        try:
            peers[name] = make()
        except ImportError as missing:
            print(f"{name} is left out: {missing}; see benchmarks/requirements.txt")
    return peers


def searches(model: Transformer, peers: dict, groups: list[list[torch.Tensor]], beam_size: int, length: int) -> dict:
    """For each name a function that searches a group of batches."""
    one_by_one = lambda search: lambda group: [search(src) for src in group]
    ours = lambda src: ours_decode(model, src, beam_size, length)
    calls = {OURS: one_by_one(ours)}
    if len(groups[0]) > 1:
        calls[EACH] = lambda group: on_each_core(ours, group)
    if beam_size > 1:
        calls[ROWS] = one_by_one(lambda src: ours_decode(without_tree(model), src, beam_size, length))
    for name, peer in peers.items():
        if isinstance(peer, CTranslate2):        # words are made beforehand: it is the search that is timed
            words = {id(group): [text for src in group for text in peer.texts(src)] for group in groups}
            calls[name] = lambda group, peer=peer, words=words: peer.decode_texts(words[id(group)], beam_size, length, BATCH)
        elif peer.beams or beam_size == 1:
            calls[name] = one_by_one(lambda src, peer=peer: peer.decode(src, beam_size, length))
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny", choices=[name for name in PRESETS if name != "micro"])
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if not 12 <= given.length < LONGEST:
        parser.error(f"--length must be from 12 to {LONGEST - 1}, the positions that the others have")
    device, preset = torch.device(given.device), PRESETS[given.preset]
    sizes, vocabulary = preset.sizes["transformer"] | {"norm": "post"}, preset.vocabulary
    torch.manual_seed(1)
    model = Transformer(vocabulary, vocabulary, **sizes).to(device).eval()
    batches, at_once = sources(vocabulary, device), min(torch.get_num_threads(), 4) if device.type == "cpu" else 1
    groups = [batches[first:first + at_once] for first in range(0, len(batches) - at_once + 1, at_once)]
    peers = installed(model, sizes, at_once, device)
    figures = {"preset": given.preset, "sizes": sizes, "sentences": BATCH * at_once * len(groups), "batch": BATCH, "batches in a turn": at_once,
               "length": given.length, "the same words": check(model, peers, batches[0])}
    for title, beam_size in (("greedy", 1), (f"beam {BEAM}", BEAM)):
        calls = searches(model, peers, groups, beam_size, given.length)
        for precision in precisions(device):
            with arithmetic(precision, device):
                seconds = interleaved(turns(calls, groups), len(groups), device, pause=0.5)
            rows = summary(seconds, OURS)
            for name, row in rows.items():
                row |= {"sentences per second": at_once * BATCH / statistics.median(seconds[name]),
                        "its time / ours": statistics.median(its / our for our, its in zip(seconds[OURS], seconds[name]))}
                if EACH in rows:
                    row["its time / ours on each core"] = statistics.median(its / our for our, its in zip(seconds[EACH], seconds[name]))
            show(f"{title}, {given.preset}, {precision} precision (CTranslate2: float32)", rows, OURS)
            print("   ".join(f"{name}: {row['sentences per second']:.0f} sentences/s" for name, row in rows.items()))
            figures[f"{title}, {precision}"] = rows
    print(f"\nrecorded in {record(f'decoding_{given.preset}_{device.type}', figures, device)}")


if __name__ == "__main__":
    main()
