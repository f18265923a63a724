"""Several processes: what starts them, which of them speaks, and which device each takes."""
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from transformer_course.training import loop
from transformer_course.training.settings import Settings


def test_a_launch_that_started_one_process_is_told(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")       # as `accelerate launch --cpu --num_processes 2` leaves it
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.warns(UserWarning, match="asked for several processes and started one.*torchrun"):
        loop.accelerator_for(Settings(device="cpu"))


def test_a_launch_of_one_process_says_nothing(monkeypatch, recwarn):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    loop.accelerator_for(Settings(device="cpu"))
    assert not [w for w in recwarn if "started one" in str(w.message)]


@pytest.mark.parametrize("way", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_a_launch_that_would_split_the_model_is_refused(monkeypatch, way):
    monkeypatch.setenv(f"ACCELERATE_USE_{way}", "true")
    with pytest.raises(ValueError, match=f"asked for {way}, which splits a model"):
        loop.accelerator_for(Settings(device="cpu"))


def test_the_pages_configuration_trains_two_processes_with_equal_weights(tmp_path):
    """The file and the command of docs/several_machines.md, as printed."""
    page = (Path(__file__).resolve().parents[1] / "docs" / "several_machines.md").read_text(encoding="utf-8")
    (configuration,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    (command,) = re.findall(r"^accelerate launch --config_file .*$", page, re.M)
    (tmp_path / "ddp.yaml").write_text(configuration.replace("machine_rank: 0", "machine_rank: 0\nmain_process_port: 0"))
    words = command.split()
    done = subprocess.run([sys.executable, "-m", "accelerate.commands.accelerate_cli", *words[1:]], cwd=tmp_path, capture_output=True,
                          text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("saved in") == 1 and (tmp_path / "model" / "model.safetensors").is_file()


def test_one_of_several_gpus_can_be_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Settings(device="cuda:1").device == "cuda:1"
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    loop._check_launch("cuda:1")
    assert chosen == ["cuda:1"]
    for wrong, words in (("cuda:2", "not available"), ("cpu:1", "must be"), ("cuda:x", "must be")):
        with pytest.raises(ValueError, match=words):
            Settings(device=wrong)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="each takes a GPU of its own"):
        loop._check_launch("cuda:1")


def test_two_nodes_train_together_and_one_speaks(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def node(rank: int) -> subprocess.CompletedProcess:
        words = ["--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port),
                 "-m", "transformer_course", "train", "--preset", "micro", "--steps", "2", "--device", "cpu", "--folder", str(tmp_path / "model")]
        return subprocess.run([sys.executable, "-m", "torch.distributed.run", *words], capture_output=True, text=True,
                              env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300)

    with ThreadPoolExecutor(2) as both:
        first, second = both.map(node, (0, 1))
    assert first.returncode == second.returncode == 0, first.stderr[-2000:] + second.stderr[-2000:]
    assert "saved in" in first.stdout and "2 steps" in first.stdout and second.stdout == ""
    assert (tmp_path / "model" / "model.safetensors").is_file()
