"""Kernels that are forks: their own memory, folder and errors, gone with their tests; no slower road is taken unseen."""
import os
import subprocess
import sys
import time
import warnings

import nbformat
import pytest

forked_kernels = pytest.importorskip("forked_kernels")
pytestmark = pytest.mark.skipif(not forked_kernels.CAN_FORK, reason="kernels are forked on Linux alone")


def notebook(path, *cells):
    """A notebook of cells, each a pair: its source, and the text that it should print."""
    nb = nbformat.v4.new_notebook()
    for count, (source, text) in enumerate(cells, 1):
        cell = nbformat.v4.new_code_cell(source, execution_count=count)
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []
        nb.cells.append(cell)
    nbformat.write(nb, path)
    return path


def run(root, *paths, **how):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.forked_kernels",
               "--nbval", "--nbval-current-env", "--rootdir", paths[0].parent, *paths]
    return subprocess.run(command, cwd=root, text=True, capture_output=True, timeout=300, **how)


def test_each_notebook_has_a_kernel_of_its_own(root, tmp_path):
    asks = "import os, sys, torch; print('mark' in vars(torch), os.path.basename(os.getcwd()))\ntorch.mark = 1"
    backend = "import matplotlib; print(matplotlib.get_backend().rpartition('.')[2])"
    paths = [notebook(tmp_path / f"{name}.ipynb", (asks, f"False {tmp_path.name}\n"), (backend, "backend_inline\n"),
                      ("import sys; print(sys.path[0] == '', 'forked_kernels' in sys.argv[0])", "True False\n"))
             for name in "ab"]
    got = run(root, *paths)
    assert got.returncode == 0 and "6 passed" in got.stdout, got.stdout + got.stderr


def test_a_difference_and_an_error_are_seen(root, tmp_path):
    wrong = notebook(tmp_path / "wrong.ipynb", ("print(1 + 1)", "3\n"))
    error = notebook(tmp_path / "error.ipynb", ("1 / 0", ""))
    right = notebook(tmp_path / "right.ipynb", ("print(5)", "5\n"))
    got = run(root, wrong, error, right)
    assert got.returncode == 1 and "2 failed, 1 passed" in got.stdout, got.stdout + got.stderr


def test_kernels_end_with_their_tests(root, tmp_path):
    told = tmp_path / "pid"
    slow = notebook(tmp_path / "slow.ipynb", (f"import os, time\nopen({str(told)!r}, 'w').write(str(os.getpid()))\ntime.sleep(200)", ""))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.forked_kernels",
               "--nbval", "--nbval-current-env", "--rootdir", tmp_path, slow]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tests:
        assert waited(lambda: told.exists() and told.read_text()), "the cell did not start"
        tests.kill()
    kernel = int(told.read_text())
    assert waited(lambda: not alive(kernel)), "the kernel outlives the tests that started it"


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def waited(condition, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_a_kernel_that_does_not_start_is_started_again(deaths):
    calls = []

    def start(stderr, cwd):
        calls.append(cwd)
        if len(calls) <= deaths:
            stderr.write(f"no air {len(calls)}")
            stderr.flush()
            raise RuntimeError("Kernel died")
        return "manager", "client"

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert forked_kernels.starting_anew(start)(stderr=None, cwd="here") == ("manager", "client")
    assert calls == ["here"] * (deaths + 1)
    assert [f"no air {number}" in str(warning.message) for number, warning in enumerate(told, 1)] == [True] * deaths


def test_a_kernel_that_never_starts_says_why():
    def start(stderr):
        stderr.write("no air")
        stderr.flush()
        raise RuntimeError("Kernel died")

    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="Kernel died; its standard error: no air"):
        warnings.simplefilter("ignore")
        forked_kernels.starting_anew(start)(stderr=None)
