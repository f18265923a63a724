"""Translating a file of 1,000 sentences, greedily and with a beam of 5, by this library and by others.

    python benchmarks/decoding.py [--preset tiny] [--length 50] [--rounds 5] [--beam-rounds 3] [--device cpu]

All have the same random weights (post-norm, as Marian is) and read the same sentences, with the lengths of captions, longest
first, in batches of 100. Every hypothesis has exactly `length` words, since with random weights the end is not where it would be.
Before anything is timed, the logits of this library and of Marian must agree, and the first words of the translations of one
batch by all: for nine sentences in ten (greedy) and one in two (beam; near ties).

This library searches with `FastDecoder` (lesson 27): "on each core" is a search at a time on each core (`on_each_core`), "one
search" uses all cores for one batch; "plain" is the same search with the model of lesson 23 itself, on each core. CTranslate2
(float32) has the same two modes: inter_threads searches of one thread, or one search of intra_threads.
All take turns with half a second's rest, each round begins with another, and ratios are medians over the rounds. The two that are
compared, this library and CTranslate2 on each core, read the whole file in each turn; the others, which are there for scale, 200
sentences. Results go to benchmarks/results/decoding_PRESET_DEVICE.json.
"""
import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from peers import BOS, LONGEST, PAD, CTranslate2, Marian
from timing import THREADS, interleaved, record
from torch.testing import assert_close

from transformer_course.data.text import pad
from transformer_course.models.fast_decoding import FastDecoder, on_each_core
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.presets import PRESETS
from transformer_course.search.beam import beam_search, greedy_search

SENTENCES, BATCH, PART, BEAM = 1000, 100, 200, 5
EACH, ONE, PLAIN = "this library, on each core", "this library, one search", "this library, plain, on each core"
CT2_EACH, CT2, MARIAN = "CTranslate2, on each core", "CTranslate2, one search", "Marian (Hugging Face)"


def sources(vocabulary: int, device: torch.device) -> list[torch.Tensor]:
    """Random ids with the lengths of captions, longest first, in batches."""
    draw = torch.Generator().manual_seed(1)
    lengths = sorted((14 + 4 * torch.randn(SENTENCES, generator=draw)).round().clamp(4, 30).int().tolist(), reverse=True)
    rows = [torch.randint(4, vocabulary, (n,), generator=draw).tolist() + [2] for n in lengths]
    return [pad(rows[first:first + BATCH], 0, device) for first in range(0, SENTENCES, BATCH)]


def search(model, beam_size: int, length: int, src: torch.Tensor) -> torch.Tensor:
    """Exactly `length` words for each sentence (here alone the last of them may be the end)."""
    if beam_size == 1:
        return greedy_search(model, src, length, min_len=length).tokens
    return beam_search(model, src, beam_size, length, min_len=length).tokens


def check(model: Transformer, quick: FastDecoder, peers: dict, src: torch.Tensor) -> dict[str, float]:
    """The same weights give the same logits and, but for rounding, the same words; the share of sentences in which they do."""
    found = {}
    tgt_in = torch.randint(4, len(model.tgt_embedding.weight), (len(src), 7), device=src.device)
    tgt_in[:, 0] = BOS
    if MARIAN in peers:
        with torch.no_grad():
            assert_close(peers[MARIAN].logits(src, tgt_in)[..., 2:], model(src, tgt_in)[..., 2:], rtol=1e-3, atol=1e-3)
    for beam_size, least in ((1, 0.9), (BEAM, 0.5)):        # in a beam, many hypotheses are nearly as good as the best
        ours = search(model, beam_size, 12, src)[:, :11]
        others = {ONE: search(quick, beam_size, 12, src)} | {name: peer.decode(src, beam_size, 12) for name, peer in peers.items()}
        for name, words in others.items():
            same = (words[:, :11].cpu() == ours.cpu()).all(1).float().mean().item()
            print(f"{name}: {same:.0%} of the translations are those of the plain search with beam {beam_size}")
            assert same >= least
            found[f"{name}, beam {beam_size}"] = same
    return found


def installed(model: Transformer, sizes: dict, threads: int, device: torch.device) -> dict:
    """The peers with the model's weights; one that is missing is named and left out."""
    marian = lambda: Marian(model, sizes, never=(PAD, BOS)).to(device).eval()
    makers = {MARIAN: marian, CT2: lambda: CTranslate2(marian().cpu(), threads, device.type)}
    if threads > 1 and device.type == "cpu":
        makers[CT2_EACH] = lambda: CTranslate2(marian(), 1, searches=threads)
    peers = {}
    for name, make in makers.items():
        try:
            peers[name] = make()
        except ImportError as missing:
            print(f"{name} is left out: {missing}; see benchmarks/requirements.txt")
    return peers


def readers(model: Transformer, quick: FastDecoder, peers: dict, batches: list[torch.Tensor], beam_size: int, length: int) -> dict:
    """For each name a function that translates its sentences, and how many these are."""
    middle = len(batches) // 2
    part = batches[middle:middle + PART // BATCH]
    plain, ours = partial(search, model, beam_size, length), partial(search, quick, beam_size, length)
    found = {EACH: (lambda: list(on_each_core(ours, batches)), SENTENCES), ONE: (lambda: [ours(src) for src in part], PART),
             PLAIN: (lambda: list(on_each_core(plain, part)), PART)}
    for name, peer in peers.items():
        file = batches if name == CT2_EACH else part
        if isinstance(peer, CTranslate2):        # words are made beforehand: it is the search that is timed
            texts = [text for src in file for text in peer.texts(src)]
            call = partial(peer.decode_texts, texts, beam_size, length, BATCH)
        else:
            call = lambda peer=peer, file=file: [peer.decode(src, beam_size, length) for src in file]
        found[name] = call, BATCH * len(file)
    return found


def compared(calls: dict[str, tuple[Callable, int]], rounds: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Sentences a second of each, the median over the rounds, and the median of this library's rate over its own."""
    seconds = interleaved({name: call for name, (call, count) in calls.items()}, rounds, device, pause=0.5)
    rates = {name: [calls[name][1] / s for s in own] for name, own in seconds.items()}
    return {name: {"sentences per second": statistics.median(own), "lowest": min(own), "highest": max(own), "sentences": calls[name][1],
                   "this library on each core / it": statistics.median(ours / its for ours, its in zip(rates[EACH], own))}
            for name, own in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny", choices=[name for name in PRESETS if name != "micro"])
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beam-rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if not 12 <= given.length < LONGEST:
        parser.error(f"--length must be from 12 to {LONGEST - 1}, the positions that the others have")
    device, preset, threads = torch.device(given.device), PRESETS[given.preset], THREADS
    sizes, vocabulary = preset.sizes["transformer"] | {"norm": "post"}, preset.vocabulary
    torch.manual_seed(1)
    model = Transformer(vocabulary, vocabulary, **sizes).to(device).eval()
    quick, batches, peers = FastDecoder(model), sources(vocabulary, device), installed(model, sizes, threads, device)
    figures = {"preset": given.preset, "sizes": sizes, "batch": BATCH, "length": given.length, "rounds": [given.rounds, given.beam_rounds],
               "the same words": check(model, quick, peers, batches[0])}
    for title, beam_size, rounds in (("greedy", 1, given.rounds), (f"beam {BEAM}", BEAM, given.beam_rounds)):
        rows = compared(readers(model, quick, peers, batches, beam_size, given.length), rounds, device)
        print(f"\n{title}, {given.preset}, float32, {threads} threads: sentences a second (lowest to highest), this library's over it")
        for name, row in rows.items():
            print(f"{name:36} {row['sentences per second']:7.1f}  ({row['lowest']:.1f} to {row['highest']:.1f})  {row['this library on each core / it']:.2f}")
        figures[title] = rows
    print(f"\nrecorded in {record(f'decoding_{given.preset}_{device.type}', figures, device)}")


if __name__ == "__main__":
    main()
