"""One engine translates rows of ids in a process of its own, word by word, and says what it wrote, its time and its memory.

    python experiments/engines.py ENGINE FOLDER TASK.json

TASK.json has `rows` (source ids with EOS, or pieces for CTranslate2), `limits`, `timed` (how many of the rows are timed) and the sizes of
the cache. small_devices.py writes it, starts this script for each engine, and reads the JSON on the last line. One sentence at a time, as
on a device that one person uses; greedy; one thread. Times are seconds of the processor, so other processes do not count. Each engine
imports its own library only, so `memory` is what a program with this engine takes, at most, in MB.
"""
import json
import sys
import time
from pathlib import Path


def memory() -> float:
    """The most memory that this process has had at one time, in MB; Linux only."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def torch_search(model, task: dict):
    import torch

    from transformer_course.search.beam import greedy_search

    def translate(i: int) -> list[int]:
        with torch.inference_mode():
            return greedy_search(model, torch.tensor([task["rows"][i]]), task["limits"][i]).tokens[0].tolist()
    return translate


def pytorch(kind: str, folder: str, task: dict):
    """The course's model: "fp32", "fast" (lesson 27's decoder), "ours" in int8, or "ao", PyTorch's own int8."""
    import torch

    from transformer_course.models.fast_decoding import fast
    from transformer_course.models.int8 import quantised
    from transformer_course.pipelines.translator import Translator
    torch.set_num_threads(1)
    model = Translator.from_pretrained(folder).model.eval()
    if kind == "ours":
        model = quantised(model)
    if kind == "ao":
        import warnings
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    return torch_search(fast(model) if kind == "fast" else model, task)


def onnx(kind: str, folder: str, task: dict):
    import numpy as np
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    encoder, step = (onnxruntime.InferenceSession(f"{folder}/{name}.onnx", options) for name in ("encoder", "step"))
    L, H, K = task["cache"]

    def translate(i: int) -> list[int]:
        memory, mask = encoder.run(None, {"ids": np.array([task["rows"][i]], np.int64)})
        cache, token, written = np.zeros((L, 2, 1, H, 0, K), np.float32), np.array([task["bos"]], np.int64), []
        while len(written) < task["limits"][i] and token[0] != task["eos"]:
            logits, cache = step.run(None, {"token": token, "memory": memory, "mask": mask, "cache": cache})
            logits[:, task["never"]] = -np.inf
            token = logits.argmax(-1)
            written.append(int(token[0]))
        return written
    return translate


def ctranslate2(kind: str, folder: str, task: dict):
    import ctranslate2
    engine = ctranslate2.Translator(folder, inter_threads=1, intra_threads=1)

    def translate(i: int) -> list[str]:
        return engine.translate_batch([task["rows"][i]], beam_size=1, max_decoding_length=task["limits"][i],
                                      suppress_sequences=[["<pad>"], ["<bos>"]])[0].hypotheses[0]
    return translate


def nothing(kind: str, folder: str, task: dict):
    """Python with numpy, and no engine."""
    import numpy
    return lambda i: [numpy.int64(0).item()]


ENGINES = {"nothing": nothing, "pytorch": pytorch, "onnx": onnx, "ctranslate2": ctranslate2}


def main(name: str, folder: str, task: str) -> None:
    given = json.loads(Path(task).read_text(encoding="utf-8"))
    library, _, kind = name.partition(":")
    translate = ENGINES[library](kind, folder, given)
    found = [translate(i) for i in range(len(given["rows"]))]
    begun = time.process_time()
    for i in range(given["timed"]):
        translate(i)
    seconds = time.process_time() - begun
    print(json.dumps({"found": found, "seconds": seconds, "memory": round(memory(), 1)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
