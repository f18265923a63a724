"""Forked programs: what they print, how they end, and that nothing is shared; no slower road is taken unseen."""
import os
import signal

import forked
import pytest

pytestmark = pytest.mark.skipif(not forked.CAN_FORK, reason="programs are forked on Linux alone")
PLAIN = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_a_program_has_its_own_words_streams_folder_environment_and_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = ("import os, sys, torch\nprint('mark' in vars(torch), 'transformer_course' in sys.modules, __name__, sys.argv, os.getcwd(),"
            " os.environ['COLOUR'], sys.stdin.read())\nprint('ü', file=sys.stderr)\ntorch.mark = 1")
    for word in ("one", "two words"):
        done = forked.run(code, word, stdin=b"read", env={**PLAIN, "COLOUR": "blue"})
        assert done.stdout.decode() == f"False False __main__ ['-c', {word!r}] {tmp_path} blue read\n", done.stderr
        assert (done.returncode, done.stderr.decode()) == (0, "ü\n")


@pytest.mark.parametrize("code, status", [("raise SystemExit(3)", 3), ("1 / 0", 1), ("import os; os.kill(os.getpid(), 9)", -9),
                                          ("raise KeyboardInterrupt", -signal.SIGINT), ("import atexit; atexit.register(print, 'end')", 0)])
def test_a_program_ends_as_a_new_process_would(code, status):
    done = forked.run(code, env=PLAIN)
    assert done.returncode == status and (b"ZeroDivisionError" in done.stderr) == ("/" in code) and (done.stdout == b"end\n") == (status == 0)


def test_a_program_that_runs_can_be_read_and_stopped():
    process = forked.start("import time\nprint('on', flush=True)\ntime.sleep(100)")
    assert isinstance(process, forked.Fork) and process.stdout.readline() == "on\n"
    process.kill()
    assert process.wait() == -signal.SIGKILL and process.stdout.read() == ""


def test_one_that_hangs_is_killed():
    assert forked.run("import time; time.sleep(100)", env=PLAIN, timeout=0.5).returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", ["PYTHONUTF8", "LC_ALL", "OMP_NUM_THREADS"])
def test_what_is_read_at_the_beginning_asks_for_a_new_process(name):
    assert forked.can_fork(PLAIN) and not forked.can_fork({**PLAIN, name: "5"})
    assert forked.run("import sys; print(len(sys.modules))", env={**PLAIN, name: "1" if name.startswith("P") else "C"}).returncode == 0
