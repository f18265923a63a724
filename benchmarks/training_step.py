"""A training step (forward, smoothed loss, backward, Adam) of this library and of others, on the same batches.

    python benchmarks/training_step.py [--preset tiny] [--rounds 12] [--batches 6] [--device cpu] [--peers torch compiled marian ...]

All Transformers have the preset's sizes; all models read the same tensors, one after the other in every round. Before anything is timed,
the losses of those that can take this library's weights (torch.nn.Transformer; Marian, which is post-norm, against a
post-norm model here) must agree without dropout. "Same sites": dropout also on attention weights and inside the
feed-forward network, where the others have it; "default sites": where the paper has it. JoeyNMT's recurrent model is set
against `AdditiveSeq2Seq`: GRU and embeddings of 512 whatever the preset, bidirectional encoder, one table of words for source,
target and output. "compiled" (not by default: it takes minutes to start) is torch.nn.Transformer after torch.compile with
dynamic shapes; its memory is not measured. Precisions are float32 and medium on a CPU, float32 and bf16 (autocast) on a GPU.
"% of the peak": the operations of the step's matrix products, as PyTorch counts them, padding included, over the time of the
whole step, as a share of the rate of one large product, which takes its turn in each round (PyTorch does not count those of
its GPU kernel for GRUs, JoeyNMT's there). Memory is what the process grows by in three steps, each model in a process of its
own. Batches are random ids with the lengths of captions; as many rounds as there are batches come first and do not count.
Results go to benchmarks/results/training_step_PRESET_DEVICE.json.
"""
import argparse
import json
import random
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from peers import JoeyRecurrent, Marian, TorchTransformer, XTransformers
from timing import arithmetic, grown, interleaved, precisions, record, show, summary
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from transformer_course.data.batching import batch_plan, collate
from transformer_course.models.additive import AdditiveSeq2Seq
from transformer_course.models.transformer import Transformer
from transformer_course.pipelines.presets import PRESETS

warnings.filterwarnings("ignore", message="enable_nested_tensor")
OURS, SAME, TORCH = "this library, default sites", "this library, same sites", "torch.nn.Transformer"
LARGE, SIZE = "one large product", 4096
RECURRENT, JOEY = "this library, additive", "JoeyNMT, recurrent"
GRU = {"d_model": 512, "d_hidden": 512, "dropout": 0.2}      # one table of words for source, target and output, in both
PEERS = {"torch": TORCH, "compiled": f"{TORCH}, compiled", "marian": "Marian (Hugging Face)", "x-transformers": "x-transformers", "joeynmt": JOEY}


def batches(vocabulary: int, max_tokens: int, count: int, device: torch.device) -> list:
    """Random ids with the lengths of captions, cut into batches as in training."""
    draw = random.Random(1)
    words = lambda n: [draw.randrange(4, vocabulary) for word in range(n)]
    lengths = [max(4, round(draw.gauss(14, 4))) for sentence in range(20 * count * max_tokens // 200)]
    examples = [(words(n) + [2], [1] + words(max(3, n + draw.randrange(-2, 3))) + [2]) for n in lengths]
    return [collate(examples, batch, 0, device) for batch in batch_plan(examples, max_tokens)[:count]]


def stepper(model: nn.Module, data: list, precision: str) -> Callable[[], None]:
    """A function that trains on the next batch each time it is called."""
    device = data[0][0].device
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    turn, backward = iter(range(10**9)), "highest" if precision == "bf16" else precision     # autocast ends before it
    model.train()

    def step():
        with arithmetic(precision, device):
            loss = model.loss(*data[next(turn) % len(data)])
        with arithmetic(backward, device):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return step


def makers(preset: str) -> dict[str, Callable[[], nn.Module]]:
    """For each model a function that makes it."""
    sizes, vocabulary = PRESETS[preset].sizes["transformer"], PRESETS[preset].vocabulary

    def ours(**changes):
        torch.manual_seed(1)
        return Transformer(vocabulary, vocabulary, **sizes | changes)

    everywhere = {"attention_dropout": sizes["dropout"], "ff_dropout": sizes["dropout"]}

    def compiled():
        model = TorchTransformer(ours(), sizes)
        model.loss = torch.compile(model.loss, dynamic=True)
        return model

    return {TORCH: lambda: TorchTransformer(ours(), sizes), PEERS["compiled"]: compiled, SAME: lambda: ours(**everywhere), OURS: ours,
            PEERS["marian"]: lambda: Marian(ours(norm="post"), sizes), PEERS["x-transformers"]: lambda: XTransformers(ours(), sizes),
            JOEY: lambda: JoeyRecurrent(vocabulary, **GRU), RECURRENT: lambda: AdditiveSeq2Seq(vocabulary, vocabulary, **GRU)}


def check(preset: str, wanted: list[str], batch: tuple, device: torch.device) -> None:
    """The same weights give the same loss where a peer has a place for them."""
    sizes, vocabulary = PRESETS[preset].sizes["transformer"], PRESETS[preset].vocabulary
    for name, norm, peer in (("torch", "pre", TorchTransformer), ("torch", "post", TorchTransformer), ("marian", "post", Marian)):
        if name in wanted:
            ours = Transformer(vocabulary, vocabulary, **sizes | {"norm": norm}).to(device).eval()
            theirs = peer(ours, sizes | {"norm": norm}).to(device).eval()
            with torch.no_grad():
                assert_close(theirs.loss(*batch), ours.loss(*batch), rtol=1e-4, atol=1e-4)


def installed(wanted: list[str], make: dict[str, Callable]) -> list[str]:
    """The names of the models to time; a peer that is not here is named and left out."""
    names = [SAME, OURS]
    for peer in wanted:
        try:
            make[PEERS[peer]]()
            names += [RECURRENT, JOEY] if peer == "joeynmt" else [PEERS[peer]]
        except ImportError as missing:
            print(f"{PEERS[peer]} is left out: {missing}; see benchmarks/requirements.txt")
    return names


def large_product(precision: str, device: torch.device) -> Callable[[], None]:
    """A function that multiplies two square matrices."""
    a = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)

    def multiply():
        with arithmetic(precision, device):
            a @ a
    return multiply


def operations(model: nn.Module, batch: tuple) -> int:
    """Floating-point operations of the matrix products of a step, as PyTorch counts them."""
    with FlopCounterMode(display=False) as counter:
        model.loss(*batch).backward()
    model.zero_grad(set_to_none=True)
    return counter.get_total_flops()


def memory(name: str, preset: str, batch_tokens: int, device: torch.device, precision: str) -> float | None:
    """Megabytes that one model's steps need; this process must do nothing else."""
    data = batches(PRESETS[preset].vocabulary, batch_tokens, 3, device)
    return grown(stepper(makers(preset)[name]().to(device), data, precision), 3, device)


def memory_apart(name: str, given: argparse.Namespace, precision: str) -> float | None:
    """`memory` in a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--preset", given.preset, "--device", given.device,
               "--batch-tokens", str(given.batch_tokens), "--memory-of", name, precision]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny", choices=[name for name in PRESETS if name != "micro"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-tokens", type=int, help="Default: the preset's.")
    parser.add_argument("--peers", nargs="*", default=[name for name in PEERS if name != "compiled"], choices=PEERS)
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    device, preset = torch.device(given.device), PRESETS[given.preset]
    given.batch_tokens = given.batch_tokens or preset.batch_tokens
    if given.memory_of:
        return print(json.dumps(memory(given.memory_of[0], given.preset, given.batch_tokens, device, given.memory_of[1])))
    data, make = batches(preset.vocabulary, given.batch_tokens, given.batches, device), makers(given.preset)
    names = installed(given.peers, make)
    if PEERS["compiled"] in names and TORCH not in names:
        parser.error("--peers compiled needs torch beside it")
    check(given.preset, [peer for peer in given.peers if PEERS[peer] in names], data[0], device)
    models = {name: make[name]().to(device) for name in names}
    counted = {name: statistics.mean(operations(models[TORCH if name == PEERS["compiled"] else name], batch) for batch in data)
               for name in names}
    parameters = {name: sum(p.numel() for p in model.parameters() if p.requires_grad) for name, model in models.items()}
    base, tokens = TORCH if TORCH in names else SAME, sum(int((tgt[:, 1:] != 0).sum()) for src, tgt in data) / len(data)
    figures = {"preset": given.preset, "sizes": preset.sizes["transformer"], "recurrent sizes": GRU, "batch_tokens": given.batch_tokens,
               "batches": given.batches, "real target tokens in a batch": tokens, "rounds": given.rounds}
    for precision in precisions(device):
        candidates = {name: stepper(model, data, precision) for name, model in models.items()}
        candidates[LARGE] = large_product(precision, device)
        groups = {"training step": ([n for n in names if n not in (JOEY, RECURRENT)], base)}
        groups |= {"recurrent training step": ([JOEY, RECURRENT], JOEY)} if JOEY in names else {}
        for title, (members, first) in groups.items():
            turns = {name: candidates[name] for name in (*members, LARGE)}
            rows = summary(interleaved(turns, given.rounds, device, warm=len(data)), first)
            peak = 2 * SIZE**3 / rows[LARGE]["milliseconds"]                      # operations in a millisecond
            for name in members:
                compiled = name == PEERS["compiled"]
                rows[name] |= {"tokens per second": 1000 * tokens / rows[name]["milliseconds"], "parameters": parameters[name],
                               "operations": counted[name], "% of the peak": 100 * counted[name] / rows[name]["milliseconds"] / peak,
                               "megabytes": None if compiled else memory_apart(name, given, precision)}
            show(f"{title}, {given.preset}, {precision} precision", rows, first)
            figures[f"{title}, {precision}"] = rows
    print(f"\nrecorded in {record(f'training_step_{given.preset}_{device.type}', figures, device)}")


if __name__ == "__main__":
    main()
