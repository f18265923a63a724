"""Training that is killed, and checkpoints that are damaged: nothing is lost, and nothing changes."""
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest
import safetensors.torch
import torch
from torch.testing import assert_close

from transformer_course.data.batching import PairBatches, batch_plan
from transformer_course.data.corpora import load
from transformer_course.files import CHECKSUMS, FolderLock, first_line, read_files
from transformer_course.models.transformer import Transformer
from transformer_course.training import loop as loop_module
from transformer_course.training.checkpoints import checkpoint_folders, optimizer_state, put_optimizer_state
from transformer_course.training import trainer as training
from transformer_course.training.loop import evaluate_loss
from transformer_course.training.pacing import Budget
from transformer_course.training.settings import Settings, adam, matmul_precision
from transformer_course.training.trainer import Trainer, fit

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no such signals to one process alone")
STEPS = 40
MODEL = textwrap.dedent("""
    import os, sys, torch, random
    from transformer_course.data.batching import PairBatches
    from transformer_course.models.transformer import Transformer
    from transformer_course.training.settings import Settings
    from transformer_course.training.trainer import Trainer
    import safetensors.torch

    torch.set_num_threads(1)
    torch.manual_seed(7)
    draw = random.Random(2)
    words = lambda n: [draw.randrange(4, 19) for word in range(n)]
    examples = [(words(draw.randrange(1, 9)) + [2], [1] + words(draw.randrange(1, 9)) + [2]) for i in range(60)]
    learn, valid = PairBatches(examples, 40), PairBatches(examples[:9], 40)

    def transformer(dropout):
        return Transformer(19, 19, d_model=12, n_heads=3, n_layers=2, d_ff=16, dropout=dropout, norm="pre")

    def schedule(step, progress):
        os.write(1, b"%d\\n" % step)     # in one piece, so that the parent knows when to strike
        return 0.01 / step
""")
CHILD = MODEL + textwrap.dedent("""
    folder, result = sys.argv[1:]
    model = transformer(0.2)
    settings = Settings(average=2, device="cpu", checkpoint_seconds=0.0)
    trainer = Trainer(model, learn, schedule, valid, settings, folder=folder)
    trainer.load()
    trainer.run(steps=%d, progress=sys.stderr.isatty())
    trainer.put_result()
    safetensors.torch.save_file(dict(model.named_parameters()), result)
""" % STEPS)


def start(folder: Path, result: Path) -> forked.Fork | subprocess.Popen:
    return forked.start(CHILD, str(folder), str(result))


def run_until(process: forked.Fork | subprocess.Popen, step: int) -> bool:
    "Read the child's steps; True when it reaches `step`, False when it ends before."
    for line in process.stdout:
        if int(line) >= step:
            return True
    assert process.wait() == 0
    return False


def test_killed_at_random_steps_ends_with_the_same_bits(tmp_path):
    whole = start(tmp_path / "whole", tmp_path / "whole.safetensors")
    draw, strikes = random.Random(time.time_ns()), []
    target = 0
    for attempt in range(3):
        target += draw.randrange(3, 12)
        process = start(tmp_path / "killed", tmp_path / "killed.safetensors")
        assert run_until(process, target)
        time.sleep(draw.random() * 0.01)      # anywhere within the step, or within writing a checkpoint
        process.kill()
        process.wait()
        strikes.append(target)
        process.stdout.close()
    process = start(tmp_path / "killed", tmp_path / "killed.safetensors")
    assert not run_until(process, STEPS + 1)
    assert not run_until(whole, STEPS + 1)
    killed, untouched = (safetensors.torch.load_file(tmp_path / f"{n}.safetensors") for n in ("killed", "whole"))
    for name in untouched:
        assert torch.equal(killed[name], untouched[name]), f"{name} differs after kills at steps {strikes}"


@posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_that_asks_for_an_end_leaves_a_checkpoint_of_the_step_it_finished(tmp_path, name):
    process = start(tmp_path / "run", tmp_path / "result.safetensors")
    assert run_until(process, 5)
    process.send_signal(getattr(signal, name))
    steps = process.stdout.read().split()
    assert process.wait() == 0 and len(steps) < STEPS - 5
    newest = checkpoint_folders(tmp_path / "run")[-1]
    assert int(newest.name[5:]) == int(steps[-1] if steps else 5) and read_files(newest)


@posix
def test_a_terminal_that_is_closed_leaves_a_checkpoint(tmp_path):
    ours, its = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "run"), str(tmp_path / "result")],
                               stdout=subprocess.PIPE, stderr=its, text=True)
    os.close(its)
    assert run_until(process, 5)
    os.close(ours)                                  # from here on, showing the bar is an error
    time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    steps = process.stdout.read().split()
    assert process.wait() == 0 and len(steps) < STEPS - 5
    assert int(checkpoint_folders(tmp_path / "run")[-1].name[5:]) == int(steps[-1] if steps else 5)


@posix
def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    "`nohup` starts a program with SIGHUP ignored."
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + CHILD,
                                str(tmp_path / "run"), str(tmp_path / "result")], stdout=subprocess.PIPE, text=True)
    assert run_until(process, 5)
    process.send_signal(signal.SIGHUP)
    assert not run_until(process, STEPS + 1) and (tmp_path / "result").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
def test_a_full_disk_names_the_file_and_keeps_the_old_one(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(b"old")
    code = ("import resource, signal, sys; from transformer_course.files import write_atomically\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
            "write_atomically(sys.argv[1], bytes(100))")
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True)
    assert done.returncode == 1 and str(file) in done.stderr.splitlines()[-1]
    assert file.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["weights"]


def examples(count=30):
    return [([4 + i % 5, 2], [1, 5 + i % 7, 6, 2]) for i in range(count)]


BATCHES = PairBatches(examples(), 20)


def trainer(folder, **settings):
    torch.manual_seed(0)
    model = Transformer(19, 19, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    return Trainer(model, BATCHES, lambda step, progress: 0.01, settings=Settings(device="cpu", **settings), folder=folder)


def test_all_checkpoints_damaged_is_said_and_nothing_is_deleted(tmp_path, capsys):
    first = trainer(tmp_path, checkpoint_seconds=0.0)
    first.run(steps=4, progress=False)
    files = [path / "weights.safetensors" for path in checkpoint_folders(tmp_path)]
    assert len(files) == 2
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="no whole checkpoint is left") as caught:
        trainer(tmp_path).load()
    assert "\n" not in str(caught.value) and all(file.exists() for file in files)
    assert "altered or cut short" in capsys.readouterr().err


def test_a_half_written_checkpoint_is_not_taken_for_one(tmp_path):
    first = trainer(tmp_path)
    first.run(steps=3, progress=False)
    part = tmp_path / "step-00000009.part"
    part.mkdir()
    (part / "weights.safetensors").write_bytes(b"half")
    again = trainer(tmp_path)
    assert again.load().name == "step-00000003" and again.loop.step == 3


def test_without_checkpoint_there_is_nothing_to_load(tmp_path):
    assert trainer(tmp_path / "new").load() is None
    with pytest.raises(ValueError, match="no folder"):
        trainer(None).load()


def test_budget_and_settings_are_checked(tmp_path):
    for budget in ({}, {"steps": 1, "minutes": 1.0}):
        with pytest.raises(ValueError, match="either steps or minutes"):
            trainer(None).run(**budget)
    with pytest.raises(ValueError, match="tokens, max_tokens is 3"):
        batch_plan([([4, 5, 6, 7, 2], [1, 2])], max_tokens=3)


def test_minutes_end_the_run_and_progress_reaches_the_schedule():
    seen = []
    torch.manual_seed(0)
    model = Transformer(19, 19, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    run = fit(model, BATCHES, lambda step, progress: seen.append(progress) or 0.01, minutes=0.01,
              settings=Settings(device="cpu"), progress=False)
    assert 0.6 <= run.seconds < 10 and seen[0] == 0 and seen == sorted(seen) and 0.5 < seen[-1] < 1


def test_weights_that_are_not_numbers_never_replace_good_ones(tmp_path):
    run = trainer(tmp_path, checkpoint_seconds=0.0)
    run.run(steps=2, progress=False)
    good = checkpoint_folders(tmp_path)
    run.loop.schedule = lambda step, progress: float("nan")
    with pytest.raises(FloatingPointError):
        run.run(steps=40, progress=False)
    assert checkpoint_folders(tmp_path) == good and len(good) == 2
    for path in good:
        kept = safetensors.torch.load(read_files(path)["weights.safetensors"])
        weights = [tensor for name, tensor in kept.items() if name.startswith("model.")]
        assert weights and all(torch.isfinite(weight).all() for weight in weights)


def test_fewer_averaged_epochs_than_the_checkpoint_holds_is_another_run(tmp_path):
    trainer(tmp_path, average=4).run(steps=30, progress=False)
    with pytest.raises(ValueError, match="its average is 4, here it is 2"):
        trainer(tmp_path, average=2).load()


def test_an_epoch_that_ends_with_the_budget_is_recorded():
    run = trainer(None)
    plan = len(batch_plan(examples(), 20))
    run.run(steps=plan, progress=False)
    assert len(run.loop.history) == 1 and run.loop.epoch == 1 and run.loop.position == 0


def test_sentences_too_long_are_refused_before_anything_is_trained():
    with pytest.raises(ValueError, match="max_tokens is 20"):
        PairBatches([([4] * 30, [1, 2])], 20)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        PairBatches(examples(), 0)


@pytest.mark.skipif(sys.platform == "win32", reason="PyTorch's launcher is not tried on Windows")
def test_two_processes_train_one_model(tmp_path):
    "`torchrun` starts the command line twice: the two share each step, write one folder, and resume."
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in load("micro-hindi")["train"][:500]), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
               "-m", "transformer_course.cli.app", "train", "--preset", "micro", "--tsv", str(pairs), "--pair", "en-hi", "--device", "cpu",
               "--precision", "highest", "--folder", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    for words in (["--steps", "3"], ["--steps", "4", "--resume"]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=400, env=environment)
        assert done.returncode == 0, done.stderr
    training = json.loads((tmp_path / "two" / "config.json").read_text())["training"]
    state = json.loads(read_files(checkpoint_folders(tmp_path / "two" / "checkpoints")[-1])["state.json"])
    assert training["steps"] == 4 and state["run"]["processes"] == 2
    assert training["tokens"] > 4 * 600            # two batches of some 450 real tokens to a step


def test_a_loss_that_is_not_finite_is_reported():
    torch.manual_seed(0)
    model = Transformer(19, 19, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    with pytest.raises(FloatingPointError, match="loss became nan"):
        fit(model, BATCHES, lambda step, progress: float("nan"), steps=30, settings=Settings(device="cpu"), progress=False)


RANKS = MODEL + textwrap.dedent("""
    folder, steps, joined, dropout = sys.argv[1], *map(float, sys.argv[2:])

    class Joined(PairBatches):
        "So many batches as one."
        def plan(self, seed, epoch):
            batches, size = super().plan(seed, epoch), int(joined)
            return [sum(batches[first:first + size], []) for first in range(0, len(batches), size)]

    settings = Settings(device="cpu", precision="highest", checkpoint_seconds=0.0, average=2)
    trainer = Trainer(transformer(dropout), Joined(examples, 40), schedule, valid, settings, folder=folder)
    trainer.load()
    trainer.run(steps=int(steps), progress=False)
    if torch.distributed.is_initialized():     # all is written; when PyTorch ends the group's threads, now and then
        torch.distributed.barrier()            # a process aborts with "terminate called …": so leave without that
        os._exit(0)
""")


def ranks(processes: int, folder: Path, steps: int, joined: int = 1, dropout: float = 0.0) -> subprocess.Popen:
    "Start a run of several processes with PyTorch's launcher."
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes),
               str(folder / "script.py"), *map(str, (folder, steps, joined, dropout))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finished(run: subprocess.Popen, folder: Path) -> tuple[dict, dict]:
    "Facts and tensors of the newest checkpoint of a run that has ended."
    _, told = run.communicate(timeout=300)
    assert run.returncode == 0, told
    files = read_files(checkpoint_folders(folder)[-1])
    return json.loads(files["state.json"]), safetensors.torch.load(files["weights.safetensors"])


needs_launcher = pytest.mark.skipif(sys.platform == "win32", reason="PyTorch's launcher is not tried on Windows")


@needs_launcher
def test_two_processes_that_were_stopped_end_with_the_same_bits(tmp_path):
    "Dropout draws from each process's own generator: both must come back."
    whole = finished(ranks(2, tmp_path / "whole", 17, dropout=0.3), tmp_path / "whole")
    stopped = ranks(2, tmp_path / "stopped", 17, dropout=0.3)
    assert any(int(line) >= 6 for line in stopped.stdout)
    stopped.send_signal(signal.SIGTERM)                 # as a batch system does; the launcher hands it on
    stopped.communicate(timeout=300)
    assert 6 <= int(checkpoint_folders(tmp_path / "stopped")[-1].name[5:]) < 17
    again = finished(ranks(2, tmp_path / "stopped", 17, dropout=0.3), tmp_path / "stopped")
    assert again[0]["step"] == whole[0]["step"] == 17 and again[0]["loss_sums"] == whole[0]["loss_sums"]
    assert again[1].keys() == whole[1].keys() and {"random.0.cpu", "random.1.cpu"} <= again[1].keys()
    for name, tensor in whole[1].items():
        assert torch.equal(again[1][name], tensor), name
    assert not torch.equal(whole[1]["random.0.cpu"], whole[1]["random.1.cpu"])


@needs_launcher
def test_one_two_and_four_processes_with_the_same_global_batch_follow_the_same_loss(tmp_path):
    found = {}
    for processes in (1, 2, 4):
        run = ranks(processes, tmp_path / str(processes), 10, joined=4 // processes)
        found[processes] = finished(run, tmp_path / str(processes))
    one = found[1][0]
    assert len(one["history"]) >= 2 and one["position"] > 0
    for facts, tensors in (found[2], found[4]):
        assert (facts["step"], facts["epoch"], facts["tokens"]) == (one["step"], one["epoch"], one["tokens"])
        for ours, theirs in zip(facts["history"], one["history"], strict=True):
            assert ours["step"] == theirs["step"]
            assert abs(ours["loss"] - theirs["loss"]) < 1e-5 and abs(ours["valid"] - theirs["valid"]) < 1e-5
        for name, tensor in found[1][1].items():
            if name.startswith("model.") and not name.endswith(("in_proj.bias", "kv_proj.bias")):      # a key's bias has no gradient but rounding
                assert_close(tensors[name], tensor, rtol=1e-3, atol=1e-4)


def seal(folder: Path, name: str, content: bytes) -> None:
    "Change a file and its checksum."
    (folder / name).write_bytes(content)
    sums = json.loads((folder / CHECKSUMS).read_text())
    (folder / CHECKSUMS).write_text(json.dumps(sums | {name: hashlib.sha256(content).hexdigest()}))


def spoilt_states(facts: dict):
    "Contents of state.json that no run has written."
    yield b"[" * 100_000
    yield b"null"
    for name in facts:
        yield json.dumps({key: value for key, value in facts.items() if key != name}).encode()
        yield json.dumps(facts | {name: "seven"}).encode()
    for change in ({"position": 10**9}, {"step": -1}, {"loss_sums": []}, {"loss_sums": ["x"]}, {"loss_sums": [float("nan")]}, {"history": [3]},
                   {"history": [{}]}, {"epochs": {"1": "f00"}}, {"epochs": {"../x": None}}, {"run": {}}):
        yield json.dumps(facts | change).encode()


def spoilt_tensors(tensors: dict):
    "Contents of weights.safetensors that no run has written."
    yield b"no tensors"
    yield (10**9).to_bytes(8, "little") + b"{" * 100
    for name in ("model.", "optimizer.", "random.0.cpu"):
        first = min(key for key in tensors if key.startswith(name))
        yield safetensors.torch.save({key: tensor for key, tensor in tensors.items() if not key.startswith(name)})[:None if name != "optimizer." else 50]
        yield safetensors.torch.save(tensors | {first: torch.zeros(2, 3)[:, 1:].contiguous()})
    yield safetensors.torch.save(tensors | {"optimizer.999.exp_avg": torch.zeros(1), "optimizer.x": torch.zeros(1)})


def test_files_that_carry_a_valid_checksum_and_hold_something_else_are_one_error_that_names_them(tmp_path):
    run = trainer(tmp_path, average=2)
    run.run(steps=len(run.loop.steps_of(0)) + 2, progress=False)
    (newest,) = checkpoint_folders(tmp_path)
    files = read_files(newest)
    spoilt = [("state.json", content) for content in spoilt_states(json.loads(files["state.json"]))]
    spoilt += [("weights.safetensors", content) for content in spoilt_tensors(safetensors.torch.load(files["weights.safetensors"]))]
    for name, content in spoilt:
        seal(newest, name, content)
        with pytest.raises(ValueError) as caught:
            trainer(tmp_path, average=2).load()
        assert newest.name in str(caught.value) and "\n" not in str(caught.value), (content[:200], caught.value)
        seal(newest, name, files[name])
    assert trainer(tmp_path, average=2).load() == newest


def test_two_runs_in_one_new_folder_are_told_apart(tmp_path):
    began, go_on = threading.Event(), threading.Event()

    def schedule(step, progress):
        began.set()
        go_on.wait(60)
        return 0.01

    start = lambda schedule: fit(Transformer(19, 19, d_model=8, n_heads=2, n_layers=1, d_ff=8), BATCHES, schedule, steps=3,
                                 settings=Settings(device="cpu"), folder=tmp_path / "run", progress=False)
    first = threading.Thread(target=start, args=(schedule,))
    first.start()
    assert began.wait(60)
    with pytest.raises(ValueError, match=f"in use by process {os.getpid()} on"):
        start(lambda step, progress: 0.01)
    go_on.set()
    first.join()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000003"]
    with pytest.raises(ValueError, match="checkpoints of an earlier run"):
        start(lambda step, progress: 0.01)
    with FolderLock(tmp_path / "run"):
        pass


def test_another_number_of_threads_is_said(tmp_path, capsys):
    trainer(tmp_path).run(steps=2, progress=False)
    before = torch.get_num_threads()
    trainer(tmp_path).load()
    assert "threads" not in capsys.readouterr().err
    try:
        torch.set_num_threads(before + 1)
        trainer(tmp_path).load()
    finally:
        torch.set_num_threads(before)
    assert f"began with {before} threads and goes on with {before + 1}" in capsys.readouterr().err


def test_a_precision_that_does_not_exist_changes_nothing():
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ValueError, match="not 'half'"):
        with matmul_precision("half"):
            pass
    with matmul_precision("medium"):
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == before


def test_the_weights_of_an_epoch_are_written_once(tmp_path):
    run = trainer(tmp_path, average=3, checkpoint_seconds=0.0)
    epoch = len(run.loop.steps_of(0))
    run.run(steps=2 * epoch + 1, progress=False)
    written = {path.name: (path / "weights.safetensors").stat().st_mtime_ns for path in tmp_path.glob("epoch-*")}
    run.run(steps=2 * epoch + 3, progress=False)
    assert written == {path.name: (path / "weights.safetensors").stat().st_mtime_ns for path in tmp_path.glob("epoch-*")}
    assert sorted(written) == ["epoch-1", "epoch-2"]
    sizes = [len(safetensors.torch.load(read_files(path)["weights.safetensors"])) for path in checkpoint_folders(tmp_path)]
    assert len(set(sizes)) == 1                       # a checkpoint does not grow with the epochs that it names
    run.run(steps=6 * epoch, progress=False)
    epochs = sorted(path.name for path in tmp_path.glob("epoch-*"))
    assert epochs == ["epoch-3", "epoch-4", "epoch-5", "epoch-6"]      # the checkpoint before the newest needs 3 to 5


def test_another_optimizer_is_another_run_and_any_can_be_resumed(tmp_path):
    model = lambda: Transformer(19, 19, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    makers = {"sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9),
              "decay": lambda model: adam(model, weight_decay=0.1)}
    for name, maker in makers.items():
        finals = []
        for stops in ((12,), (5, 12)):
            for stop in stops:
                torch.manual_seed(0)
                run = Trainer(model(), BATCHES, lambda step, progress: 0.01, settings=Settings(device="cpu"), optimizer=maker,
                              folder=tmp_path / f"{name} {len(stops)}")
                run.load()
                run.run(steps=stop, progress=False)
            finals.append(run.model)
        for a, b in zip(*(final.parameters() for final in finals), strict=True):
            assert torch.equal(a, b)
    with pytest.raises(ValueError, match="of another run: its optimizer is"):
        Trainer(model(), BATCHES, None, settings=Settings(device="cpu"), folder=tmp_path / "decay 1").load()


def test_an_optimizer_refuses_what_belongs_to_another():
    layer = torch.nn.Linear(3, 2)
    optimizer = adam(layer)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    kept = optimizer_state(optimizer)
    for wrong in ({"2.exp_avg": torch.zeros(2)}, {"x.exp_avg": torch.zeros(2)}, {"0.exp_avg": torch.zeros(3, 2)}):
        with pytest.raises(ValueError, match="the optimizer"):
            put_optimizer_state(optimizer, kept | wrong)


# Values that cannot be, and runs that stop at awkward moments

def small_model():
    torch.manual_seed(0)
    return Transformer(19, 19, d_model=8, n_heads=2, n_layers=1, d_ff=8, dropout=0.0)


def same_weights(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_a_kill_during_validation_loses_no_record(tmp_path):
    class Killed(PairBatches):
        def in_order(self):
            if armed:
                raise KeyboardInterrupt
            return super().in_order()

    def made():
        return Trainer(small_model(), BATCHES, lambda step, progress: 0.01, Killed(examples(9), 20),
                       Settings(device="cpu", checkpoint_seconds=0.0), folder=tmp_path)

    armed, epoch = False, len(BATCHES.plan(1, 0))
    killed = made()
    armed = True
    with pytest.raises(KeyboardInterrupt):
        killed.run(steps=epoch, progress=False)
    armed = False
    again = made()
    again.load()
    again.run(steps=epoch, progress=False)
    assert [record["step"] for record in again.loop.history] == [epoch] and (again.loop.epoch, again.loop.position) == (1, 0)


def test_the_clock_of_many_processes_goes_on_after_months(monkeypatch):
    run = trainer(None).loop
    monkeypatch.setattr(run, "accelerator", SimpleNamespace(num_processes=2))
    monkeypatch.setattr(loop_module, "gather", lambda numbers: torch.cat([numbers, numbers]))
    run.clock.seconds = 3e7                           # float32 would count in steps of two seconds from here
    run.clock.start()
    time.sleep(0.001)
    assert not run._agree(False)
    assert 0.001 < run.seconds - 3e7 < 1


@pytest.mark.parametrize("cause", ["rate", "gradient"])
def test_a_last_step_that_ruins_the_weights_is_not_saved(tmp_path, cause):
    run = trainer(tmp_path)
    run.run(steps=2, progress=False)
    if cause == "rate":
        run.loop.schedule = lambda step, progress: float("nan")
    else:
        next(run.model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(FloatingPointError, match="a weight became"):
        run.run(steps=3, progress=False)
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["step-00000002"]


def test_a_validation_loss_that_is_not_finite_is_reported(tmp_path):
    class OnlyInTraining(Transformer):
        def loss(self, *batch, smoothing=0.1):
            return super().loss(*batch, smoothing=smoothing) * (1.0 if self.training else float("nan"))

    model = OnlyInTraining(19, 19, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    with pytest.raises(FloatingPointError, match="validation loss became nan in epoch 1"):
        fit(model, BATCHES, lambda step, progress: 0.01, steps=30, valid=BATCHES, progress=False,
            settings=Settings(device="cpu"))


def test_after_the_result_a_run_goes_on_from_where_training_was(tmp_path):
    steps = 3 * len(BATCHES.plan(1, 0)) + 2
    rate = lambda step, progress: 0.01 if step < 12 else 0.3
    make = lambda folder=None: Trainer(small_model(), BATCHES, rate, BATCHES, Settings(device="cpu", average=3), folder=folder)
    whole, shown = make(), make(tmp_path)
    whole.run(steps=steps, progress=False)
    shown.run(steps=steps, progress=False)
    shown.put_result()
    result = small_model()
    result.load_state_dict(shown.model.state_dict())
    assert not same_weights(shown.model, whole.model)
    shown.put_result()                                # asked again, it is the same
    assert same_weights(shown.model, result)
    shown.save()
    again = make(tmp_path)
    again.load()
    assert same_weights(again.model, whole.model)     # a checkpoint holds what training goes on from
    for run in (whole, shown, again):
        run.run(steps=steps + 4, progress=False)
    assert same_weights(shown.model, whole.model) and same_weights(again.model, whole.model)


@pytest.mark.parametrize("name, value", [
    ("clip", 0.0), ("clip", -1.0), ("clip", float("nan")), ("smoothing", -0.1), ("smoothing", 1.0), ("smoothing", float("nan")),
    ("checkpoint_seconds", -1.0), ("checkpoint_seconds", float("nan")), ("average", 0)])
def test_settings_that_cannot_be_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*, not {value}"):
        Settings(**{name: value})


def test_no_clipping_and_no_checkpoint_before_the_end_are_possible(tmp_path):
    endless = {"clip": float("inf"), "checkpoint_seconds": float("inf")}
    trainer(tmp_path, **endless).run(steps=3, progress=False)
    again = trainer(tmp_path, **endless)
    assert again.load().name == "step-00000003"


class NoTargets(PairBatches):
    def tokens(self, batch):
        return 0


def test_batches_without_targets_are_refused_before_anything_is_trained():
    rate, settings = lambda step, progress: 0.01, Settings(device="cpu")
    with pytest.raises(ValueError, match="epoch 1 has no targets"):
        Trainer(small_model(), NoTargets(examples(), 20), rate, settings=settings).run(steps=1, progress=False)
    with pytest.raises(ValueError, match="no targets"):
        evaluate_loss(small_model(), NoTargets(examples(), 20))
    with pytest.raises(ValueError, match="validation batches have no targets"):
        Trainer(small_model(), BATCHES, rate, NoTargets(examples(), 20), settings)


def test_an_evaluation_that_fails_puts_the_mode_back():
    model = small_model().train()
    model.loss = lambda *batch, smoothing: 1 / 0
    with pytest.raises(ZeroDivisionError):
        evaluate_loss(model, BATCHES)
    assert model.training


def test_all_processes_follow_the_first_ones_validation_loss(monkeypatch):
    trainer = Trainer(small_model(), BATCHES, lambda step, progress: 0.01, BATCHES, Settings(device="cpu"))
    trainer.run(steps=1, progress=False)
    run = trainer.loop
    monkeypatch.setattr(run, "accelerator", SimpleNamespace(num_processes=2, autocast=nullcontext, is_main_process=False))
    monkeypatch.setattr(loop_module, "gather", lambda numbers: torch.tensor([[2.5]]))
    monkeypatch.setattr(loop_module, "reduce", lambda total, kind: total)
    run._end_epoch([BATCHES.plan(1, 0)])
    assert run.history[-1]["valid"] == 2.5


@pytest.mark.parametrize("change", [{"position": 10**6}, {"seconds": -1.0}, {"history": [{"epoch": 1, "loss": 2.0, "valid": float("nan")}]}])
def test_a_state_that_cannot_be_is_refused_before_the_weights_change(tmp_path, change):
    trainer(tmp_path).run(steps=3, progress=False)
    (newest,) = checkpoint_folders(tmp_path)
    facts = json.loads(read_files(newest)["state.json"])
    seal(newest, "state.json", json.dumps(facts | change).encode())
    again, before = trainer(tmp_path), small_model()
    assert same_weights(again.model, before)
    with pytest.raises(ValueError, match="its epoch has|holds a negative or non-finite number"):
        again.load()
    assert same_weights(again.model, before) and (again.loop.step, again.loop.position) == (0, 0)


def test_a_folder_that_the_main_process_cannot_have_stops_all(tmp_path, monkeypatch):
    "Here we are the second of two processes, and hear what the first one says."
    monkeypatch.setattr(training, "gather_object", lambda objects: [ValueError("in use by process 7"), *objects])
    with pytest.raises(ValueError, match="in use by process 7"):
        with training._held(tmp_path / "new", SimpleNamespace(is_main_process=False), resume=False):
            raise AssertionError
    assert not (tmp_path / "new").exists()


@posix
def test_an_interrupt_leaves_the_model_in_evaluation_mode():
    def rate(step, progress):
        os.kill(os.getpid(), signal.SIGINT)
        return 0.01

    model = small_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, BATCHES, rate, steps=9, settings=Settings(device="cpu"), progress=False)
    assert not model.training


def test_a_loop_that_is_left_goes_on_with_the_same_bits():
    whole = trainer(None).loop
    for _ in whole.train(Budget(steps=17)):
        pass
    paused = trainer(None).loop                          # it draws its dropout from the seed, too
    while paused.step < 17:
        for _ in paused.train(Budget(steps=17)):
            if paused.step % 3 == 0:
                break
    assert same_weights(whole.model, paused.model) and paused.tokens == whole.tokens
    assert [record["loss"] for record in paused.history] == [record["loss"] for record in whole.history] != []


def test_the_data_are_hashed_once(tmp_path):
    class Counted(PairBatches):
        hashed = 0

        def fingerprint(self):
            self.hashed += 1
            return super().fingerprint()

    learn, valid = Counted(examples(), 20), Counted(examples(9), 20)
    run = Trainer(small_model(), learn, lambda step, progress: 0.01, valid, Settings(device="cpu", checkpoint_seconds=0.0),
                  folder=tmp_path)
    run.run(steps=7, progress=False)
    run.load()
    assert learn.hashed == valid.hashed == 1


def test_a_position_after_the_last_step_of_an_epoch_is_refused(tmp_path):
    """From there no step would be left, and the loop could not go on."""
    trainer(tmp_path).run(steps=3, progress=False)
    (newest,) = checkpoint_folders(tmp_path)
    facts, steps = json.loads(read_files(newest)["state.json"]), len(trainer(None).loop.steps_of(0))
    seal(newest, "state.json", json.dumps(facts | {"position": steps}).encode())
    with pytest.raises(ValueError, match=f"its epoch has {steps} steps"):
        trainer(tmp_path).load()


def test_an_error_without_a_message_is_said_by_its_kind():
    assert first_line(KeyError()) == "KeyError" and first_line(ValueError(" \n")) == "ValueError"
    assert first_line(ValueError("one\ntwo")) == "one"


class NoTarget(torch.nn.Module):
    "The mean over no target is 0 / 0, as in PyTorch's own losses."

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(19, 19)

    def loss(self, src, tgt, smoothing):
        logits = self.table(tgt[:, :-1]).flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, tgt[:, 1:].flatten(), ignore_index=0, label_smoothing=smoothing)


def test_a_batch_without_targets_teaches_nothing_and_spoils_nothing():
    "Its loss is not a number; the others' weights, sums and validation loss are as without it."
    runs = []
    for more in ([], [([4, 2], [1])] * 3):
        model, source = NoTarget(), PairBatches([([4, 5, 2], [1, 5 + i, 6, 2]) for i in range(9)] + more, 9)
        run = Trainer(model, source, lambda step, progress: 0.01, source, Settings(smoothing=0.0, device="cpu"))
        if more:                                                          # the same order, with an empty batch in between
            (empty,) = (batch for batch in source.in_order() if not source.tokens(batch))
            full = PairBatches(source.examples[:9], 9)
            plan = lambda seed, epoch: [full.plan(seed, epoch)[0], empty, *full.plan(seed, epoch)[1:]]
            object.__setattr__(source, "plan", plan)
        run.run(steps=len(run.loop.steps_of(0)), progress=False)
        runs.append(run)
    (without, with_one), history = runs, runs[1].loop.history[0]
    assert {name: history[name] for name in ("loss", "valid")} == {name: without.loop.history[0][name] for name in ("loss", "valid")}
    assert_close(with_one.model.table.weight, without.model.table.weight, rtol=0, atol=0)


def test_a_process_without_targets_of_its_own_reads_a_batch_that_has_some():
    loop = trainer(None).loop
    loop.accelerator, loop.batches = SimpleNamespace(process_index=1), SimpleNamespace(tokens=len)
    assert loop._share([[7, 8], [], [9]]) == ([7, 8], 0, 3) and loop._share([[9], [7, 8]]) == ([7, 8], 2, 3)
    assert loop._share([[], [], [9]]) == ([9], 0, 1) and loop._share([[9]]) == ([9], 0, 1)


class Told(torch.nn.Module):
    "Notes the smoothing that its loss is called with."

    def __init__(self):
        super().__init__()
        self.weight, self.told = torch.nn.Parameter(torch.ones(())), []

    def loss(self, src, tgt, smoothing):
        self.told.append(smoothing)
        return self.weight * 1


def test_a_loss_gets_a_number_unless_its_model_says_that_it_takes_several():
    model = Told()
    Trainer(model, BATCHES, lambda step, progress: 0.01, settings=Settings(smoothing=0.2, device="cpu")).run(steps=2, progress=False)
    assert model.told == [0.2, 0.2]

    class Several(Told):
        def loss(self, src, tgt, smoothing: float | tuple[float, ...] = 0.0):
            return super().loss(src, tgt, smoothing).expand(2)

    model = Several()
    Trainer(model, BATCHES, lambda step, progress: 0.01, settings=Settings(smoothing=0.2, device="cpu")).run(steps=1, progress=False)
    assert model.told == [(0.2, 0.0)]


@pytest.mark.parametrize("loss,says", [
    (None, "a Told has no loss"), (lambda src, tgt: 0.0, "must take smoothing"),
    (lambda src, tgt, smoothing: torch.zeros(3), r"must return one number, not \(3,\)"), (lambda src, tgt, smoothing: 1.5, "not float")])
def test_a_model_that_cannot_be_trained_is_told_in_one_line(loss, says):
    model = Told()
    model.loss = loss
    with pytest.raises(ValueError, match=says):
        Trainer(model, BATCHES, lambda step, progress: 0.01, settings=Settings(device="cpu")).run(steps=1, progress=False)


def test_a_damaged_epoch_costs_the_mean_and_not_the_run(tmp_path, capsys):
    first = trainer(tmp_path, average=3, checkpoint_seconds=0.0)
    epoch = len(first.loop.steps_of(0))
    first.run(steps=2 * epoch + 2, progress=False)                        # both checkpoints name epochs 1 and 2
    file = tmp_path / "epoch-1" / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    again = trainer(tmp_path, average=3)
    assert again.load() == checkpoint_folders(tmp_path)[-1] and again.loop.step == 2 * epoch + 2
    assert [*again.kept] == [2] and "epoch-1" in capsys.readouterr().err
    for name, weight in first.model.named_parameters():
        assert torch.equal(weight, dict(again.model.named_parameters())[name])
    again.run(steps=3 * epoch, progress=False)
    again.put_result()
    assert [*again.kept] == [2, 3] and again.loop.history[-1]["epoch"] == 3


def test_a_whole_checkpoint_comes_before_a_newer_one_with_a_damaged_epoch(tmp_path):
    first = trainer(tmp_path, average=3, checkpoint_seconds=0.0)
    epoch = len(first.loop.steps_of(0))
    first.run(steps=2 * epoch, progress=False)                            # only the newest names epoch 2
    (tmp_path / "epoch-2" / "weights.safetensors").write_bytes(b"")
    again = trainer(tmp_path, average=3)
    assert again.load() == checkpoint_folders(tmp_path)[0] and again.loop.step == 2 * epoch - 1 and [*again.kept] == [1]


@pytest.mark.parametrize("close", [lambda stream: None, lambda stream: stream.close() or stream], ids=["none", "closed"])
def test_without_a_standard_error_a_run_is_trained_and_its_warnings_stay_off_standard_output(tmp_path, monkeypatch, capsys, close):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", close(open(os.devnull, "w")))
        run = trainer(tmp_path, checkpoint_seconds=0.0)
        assert run.run(steps=3, progress=True)
        (checkpoint_folders(tmp_path)[-1] / "state.json").write_bytes(b"{}")
        assert trainer(tmp_path).load().name == "step-00000002"
    assert capsys.readouterr().out == ""
