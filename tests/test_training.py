"""Training that is killed, and checkpoints that are damaged: nothing is lost, and nothing changes."""
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from transformer_course.batching import batch_plan
from transformer_course.checkpoints import checkpoint_folders
from transformer_course.files import read_files
from transformer_course.training import Settings, Trainer, fit, load_checkpoint
from transformer_course.transformer import Transformer

STEPS = 40
CHILD = textwrap.dedent("""
    import sys, torch, random
    from transformer_course.training import Settings, Trainer, average_weights, load_checkpoint
    from transformer_course.transformer import Transformer
    import safetensors.torch

    folder, result = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = Transformer(19, 19, d_model=12, n_heads=3, n_layers=2, d_ff=16, dropout=0.2, norm="pre")
    draw = random.Random(2)
    words = lambda n: [draw.randrange(4, 19) for word in range(n)]
    examples = [(words(draw.randrange(1, 9)) + [2], [1] + words(draw.randrange(1, 9)) + [2]) for i in range(60)]

    def schedule(step, progress):
        print(step, flush=True)          # so that the parent knows when to strike
        return 0.01 * (1 - progress)

    settings = Settings(batch_tokens=40, average=2, device="cpu", checkpoint_steps=3)
    trainer = Trainer(model, examples, schedule, examples[:9], settings, folder)
    load_checkpoint(trainer)
    trainer.run(steps=%d, progress=False)
    average_weights(trainer)
    safetensors.torch.save_file(dict(model.named_parameters()), result)
""" % STEPS)


def start(folder: Path, result: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(folder), str(result)], stdout=subprocess.PIPE, text=True)


def run_until(process: subprocess.Popen, step: int) -> bool:
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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process alone")
def test_ctrl_c_leaves_a_checkpoint_of_the_step_it_finished(tmp_path):
    process = start(tmp_path / "run", tmp_path / "never.safetensors")
    assert run_until(process, 5)
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    process.wait()
    newest = checkpoint_folders(tmp_path / "run")[-1]
    assert int(newest.name[5:]) >= 5 and read_files(newest)


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


def trainer(folder, **settings):
    torch.manual_seed(0)
    model = Transformer(19, 19, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    return Trainer(model, examples(), lambda step, progress: 0.01, settings=Settings(batch_tokens=20, device="cpu", **settings),
                   folder=folder)


def test_all_checkpoints_damaged_is_said_and_nothing_is_deleted(tmp_path, capsys):
    first = trainer(tmp_path, checkpoint_steps=2)
    first.run(steps=4, progress=False)
    files = [path / "state.safetensors" for path in checkpoint_folders(tmp_path)]
    assert len(files) == 2
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="no whole checkpoint is left") as caught:
        load_checkpoint(trainer(tmp_path))
    assert "\n" not in str(caught.value) and all(file.exists() for file in files)
    assert "altered or cut short" in capsys.readouterr().err


def test_a_half_written_checkpoint_is_not_taken_for_one(tmp_path):
    first = trainer(tmp_path)
    first.run(steps=3, progress=False)
    part = tmp_path / "step-00000009.part"
    part.mkdir()
    (part / "state.safetensors").write_bytes(b"half")
    again = trainer(tmp_path)
    assert load_checkpoint(again).name == "step-00000003" and again.step == 3


def test_without_checkpoint_there_is_nothing_to_load(tmp_path):
    assert load_checkpoint(trainer(tmp_path / "new")) is None
    with pytest.raises(ValueError, match="no folder"):
        load_checkpoint(trainer(None))


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
    run = fit(model, examples(), lambda step, progress: seen.append(progress) or 0.01, minutes=0.01,
              settings=Settings(batch_tokens=20, device="cpu"), progress=False)
    assert 0.6 <= run.seconds < 10 and seen[0] == 0 and seen == sorted(seen) and 0.5 < seen[-1] < 1


def test_weights_that_are_not_numbers_never_replace_good_ones(tmp_path):
    run = trainer(tmp_path, checkpoint_steps=2)
    run.run(steps=2, progress=False)
    good = checkpoint_folders(tmp_path)
    run.schedule = lambda step, progress: float("nan")
    with pytest.raises(FloatingPointError):
        run.run(steps=40, progress=False)
    assert checkpoint_folders(tmp_path)[:1] == good[-1:] and all(
        not torch.isnan(safetensors.torch.load(read_files(path)["state.safetensors"])["model.tgt_embedding.weight"]).any()
        for path in good)


def test_fewer_averaged_epochs_than_the_checkpoint_holds_is_another_run(tmp_path):
    trainer(tmp_path, average=4).run(steps=30, progress=False)
    with pytest.raises(ValueError, match="its average is 4, here it is 2"):
        load_checkpoint(trainer(tmp_path, average=2))


def test_an_epoch_that_ends_with_the_budget_is_recorded():
    run = trainer(None)
    plan = len(batch_plan(examples(), 20))
    run.run(steps=plan, progress=False)
    assert len(run.history) == 1 and run.epoch == 1 and run.position == 0


def test_valid_sentences_too_long_are_refused_at_the_start():
    model = Transformer(19, 19, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    with pytest.raises(ValueError, match="max_tokens is 20"):
        Trainer(model, examples(), lambda step, progress: 0.01, [([4] * 30, [1, 2])], Settings(batch_tokens=20, device="cpu"))


@pytest.mark.skipif(sys.platform == "win32", reason="PyTorch's launcher is not tried on Windows")
def test_two_processes_train_one_model(tmp_path):
    "`torchrun` starts the command line twice: the two share each step, write one folder, and resume."
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
               "-m", "transformer_course.cli", "train", "--preset", "micro", "--data", "micro-hindi", "--device", "cpu",
               "--precision", "highest", "--out", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    for words in (["--steps", "3"], ["--steps", "4", "--resume"]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
    training = json.loads((tmp_path / "two" / "config.json").read_text())["training"]
    state = json.loads(read_files(checkpoint_folders(tmp_path / "two" / "checkpoints")[-1])["state.json"])
    assert training["steps"] == 4 and state["run"]["processes"] == 2
    assert training["tokens"] > 4 * 600            # two batches of some 450 real tokens to a step


def test_a_loss_that_is_not_finite_is_reported():
    torch.manual_seed(0)
    model = Transformer(19, 19, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    with pytest.raises(FloatingPointError, match="loss became nan"):
        fit(model, examples(), lambda step, progress: float("nan"), steps=30,
            settings=Settings(batch_tokens=20, device="cpu"), progress=False)
