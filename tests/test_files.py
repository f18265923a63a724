"""Files under a power cut, a full disk and a second writer: the old set or the new one, never a mixture."""
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from transformer_course.files import FolderLock, expect, read_files, read_json, write_files, write_folder

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither SIGKILL nor limits on files")
OLD, NEW = ({f"{name}.bin": (word + name.encode()) * 2000 for name in ("config", "model", "vocabulary")} for word in (b"old ", b"new "))
WRITER = textwrap.dedent("""
    import builtins, io, os, signal, sys
    from transformer_course.files import write_files
    folder, fatal = sys.argv[1], int(sys.argv[2])
    done = 0

    def dies(act):
        def counted(*given, **named):
            global done
            done += 1
            if done == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*given, **named)
        return counted

    class HalfWritten(io.FileIO):
        def write(self, content):
            global done
            done += 1
            if done == fatal:
                super().write(content[:len(content) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return super().write(content)

    for name in ("replace", "fsync", "mkdir", "rmdir", "unlink"):
        setattr(os, name, dies(getattr(os, name)))
    whole_open = builtins.open
    builtins.open = lambda path, mode="r", **more: HalfWritten(path, "w") if mode == "wb" else whole_open(path, mode, **more)
    names = ("config.bin", "model.bin", "vocabulary.bin")
    write_files(folder, {name: (b"new " + name[:-4].encode()) * 2000 for name in names})
    print(done)
""")


def write_in_child(folder: Path, fatal: int) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", WRITER, str(folder), str(fatal)], capture_output=True, text=True)


@posix
def test_a_writer_that_is_killed_at_any_step_leaves_the_old_set_or_the_new_one(tmp_path):
    steps = int(write_in_child(tmp_path / "count", 0).stdout)
    found = []
    for fatal in range(1, steps + 1):
        folder = tmp_path / str(fatal)
        write_files(folder, OLD)
        (folder / "run.json").write_text("stays")
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "step-1").write_text("stays too")
        killed = write_in_child(folder, fatal)
        assert killed.returncode == -signal.SIGKILL, (fatal, killed.stderr)
        left = read_files(folder)
        assert left in (OLD, NEW), f"killed at step {fatal} of {steps}"
        found.append(left == NEW)
        write_files(folder, OLD)                       # and the next one can write
        assert read_files(folder) == OLD and (folder / "run.json").read_text() == "stays"
        assert (folder / "checkpoints" / "step-1").read_text() == "stays too"
        assert {path.name for path in folder.iterdir()} == {*OLD, "checksums.json", "run.json", "checkpoints"}
    assert found == sorted(found) and not found[0] and found[-1]      # old up to one step, new from there on


@posix
@pytest.mark.parametrize("size", [0, 100, 9_000, 20_000])
def test_a_full_disk_keeps_the_old_set(tmp_path, size):
    write_files(tmp_path, OLD)
    code = ("import resource, signal, sys; from transformer_course.files import write_files\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
            "write_files(sys.argv[1], {'config.bin': b'short', 'model.bin': bytes(30_000), 'vocabulary.bin': b'more'})")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), str(size)], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "File too large" in last and str(tmp_path / (".writing.lock" if size == 0 else "model.bin")) in last, done.stderr
    assert read_files(tmp_path) == OLD
    assert {path.name for path in tmp_path.iterdir()} == {*OLD, "checksums.json"}


def test_readers_see_one_set_while_another_thread_writes(tmp_path):
    write_files(tmp_path, OLD)
    end, seen, faults = threading.Event(), set(), []

    def read():
        while not end.is_set():
            try:
                found = read_files(tmp_path)
                seen.add("old" if found == OLD else "new" if found == NEW else "mixed")
            except Exception as problem:                # any error is a fault
                faults.append(problem)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(20):
        write_files(tmp_path, NEW)
        write_files(tmp_path, OLD)
    end.set()
    for reader in readers:
        reader.join()
    assert not faults and "mixed" not in seen, faults


def test_a_folder_replaces_an_earlier_one_whole(tmp_path):
    write_folder(tmp_path / "set", OLD)
    write_folder(tmp_path / "set", {"other.bin": b"1"})
    assert read_files(tmp_path / "set") == {"other.bin": b"1"} and [path.name for path in tmp_path.iterdir()] == ["set"]


HOLDER = ("import sys, time; from transformer_course.files import FolderLock\n"
          "with FolderLock(sys.argv[1]):\n    print('held', flush=True); sys.stdin.readline()")


def hold(folder: Path) -> subprocess.Popen:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    folder = tmp_path / "run"
    holder = hold(folder)
    with pytest.raises(ValueError, match=f"in use by process {holder.pid} on "):
        with FolderLock(folder):
            pass
    holder.communicate("go\n")
    assert holder.returncode == 0 and not folder.exists()
    with FolderLock(folder):
        assert json.loads((folder / "run.lock").read_text())["process"] == os.getpid()


@posix
def test_a_lock_of_a_process_that_was_killed_is_none(tmp_path):
    holder = hold(tmp_path)
    holder.kill()
    holder.communicate()
    assert (tmp_path / "run.lock").exists()
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / "run.lock").read_text())["process"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_many_threads_ask_and_one_at_a_time_holds(tmp_path):
    inside, most, refused = [], [], []

    def ask():
        for _ in range(50):
            try:
                with FolderLock(tmp_path):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except ValueError:
                refused.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1} and len(most) + len(refused) == 200 and not list(tmp_path.iterdir())


def test_json_of_the_wrong_kind_is_one_error_that_names_the_file():
    for content in (b"", b"\xff", b"[" * 10_000, b"3", b"null"):
        with pytest.raises(ValueError, match="state.json is damaged") as caught:
            read_json("state.json", content)
        assert "\n" not in str(caught.value)
    for value in ({}, {"step": 1.5}, {"step": [1]}):
        with pytest.raises(ValueError, match="state.json is damaged: 'step'"):
            expect("state.json", value, {"step": int})
    expect("state.json", {"step": 1}, {"step": int, "name": str}, required=("step",))


@posix
def test_a_lock_that_is_a_link_leaves_its_target_alone(tmp_path):
    precious, folder = tmp_path / "precious.txt", tmp_path / "run"
    precious.write_text("years of work")
    folder.mkdir()
    (folder / "run.lock").symlink_to(precious)
    with pytest.raises(ValueError, match="run.lock is a link"):
        with FolderLock(folder):
            pass
    assert precious.read_text() == "years of work" and (folder / "run.lock").is_symlink()


EMPTY = hashlib.sha256(b"").hexdigest()


def read_within_a_second(folder):
    "Read the set, or fail where a reader would wait for ever."
    def late(*given):
        raise TimeoutError("it was still reading after a second")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        return read_files(folder)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@posix
@pytest.mark.parametrize("name", ["/dev/null", "../outside.bin", "..", ".", "", "sub/a.bin", "a\0b"])
def test_checksums_name_files_of_their_own_folder_only(tmp_path, name):
    write_folder(tmp_path / "set", {"a.bin": b"1"})
    (tmp_path / "outside.bin").write_bytes(b"")
    (tmp_path / "set" / "sub").mkdir()
    (tmp_path / "set" / "sub" / "a.bin").write_bytes(b"")
    (tmp_path / "set" / "checksums.json").write_text(json.dumps({name: EMPTY}))
    with pytest.raises(ValueError, match="checksums.json is damaged: .* is not the name of a file beside it"):
        read_within_a_second(tmp_path / "set")


@posix
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
@pytest.mark.parametrize("name", ["a.bin", "checksums.json"])
def test_what_is_no_regular_file_is_not_read(tmp_path, make, name):
    write_folder(tmp_path, {"a.bin": b"1"})
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is not a regular file"):
        read_within_a_second(tmp_path)


@posix
def test_a_link_to_a_file_is_read(tmp_path):
    "As in the cache of the Hub, whose snapshots are links."
    write_folder(tmp_path / "set", OLD)
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "set").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    assert read_files(tmp_path / "snapshot") == OLD


def test_a_checksum_that_is_no_text(tmp_path):
    write_folder(tmp_path, {"a.bin": b"1"})
    (tmp_path / "checksums.json").write_text('{"a.bin": [1]}')
    with pytest.raises(ValueError, match="a.bin was altered or cut short"):
        read_files(tmp_path)
