"""Programs in processes of their own that need not import PyTorch: each is a fork of a parent that has done so.

A new process imports for two to four seconds, and the tests start more than a hundred. Here one parent for each test process imports
what others have written, never the package. A fork then runs the code as `python -c` would: with files, arguments, environment and
folder of its own, and with the interpreter's own end. Where there is no fork, or where the environment asks for something that
Python or PyTorch reads when it begins, a new process starts as usual.
"""
import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

CAN_FORK = sys.platform.startswith("linux")
ALREADY = ("torch", "torch._dynamo", "numpy", "accelerate", "huggingface_hub", "pooch", "rich.console", "sacrebleu", "safetensors.torch",
           "tokenizers", "typer")
AT_ONCE = "PYTHON", "LC_", "LANG", "OMP_", "MKL_", "TORCH_"         # variables that are read when a process begins
_parents = []                                                       # at most one for each test process


# In the parent

def serve(requests: socket.socket) -> str:
    """Fork for each request. Returns in a fork alone: the code that it is to run."""
    for name in ALREADY:
        __import__(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)                   # a minder that ends leaves no zombie
    while True:
        message, files, *_ = socket.recv_fds(requests, 1 << 20, 4)
        if not message:
            os._exit(0)                                             # the tests have ended
        if os.fork() == 0:
            requests.close()
            return mind(json.loads(message), files)
        for file in files:
            os.close(file)


def mind(order: dict, files: Sequence[int]) -> str:
    """Fork once more, say the process id, wait for the end and say its code; the fork returns what it is to run."""
    *streams, told = files
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for stream in streams:
            os.close(stream)
        os.write(told, array.array("q", [child]).tobytes())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(told, array.array("q", [code]).tobytes())
        os._exit(0)
    os.close(told)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.argv = ["-c", *map(os.fsdecode, map(bytes.fromhex, order["words"]))]
    sys.path[0] = ""
    return order["code"]


# In the process of the tests

def parent() -> socket.socket:
    """The socket of this process's parent, which starts at the first call."""
    if not _parents:
        ours, theirs = socket.socketpair()
        here = os.path.dirname(os.path.abspath(__file__))
        code = f"import socket, sys; sys.path.insert(0, {here!r}); import forked; sys.path.remove({here!r})\n" \
               f"exec(forked.serve(socket.socket(fileno={theirs.fileno()})), {{'__name__': '__main__'}})"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
        theirs.close()
        _parents.append(ours)
    return _parents[0]


class Fork:
    """A running fork, with those methods of `subprocess.Popen` that tests call."""

    def __init__(self, code: str, words: Sequence, env: Mapping[str, str], stdin, stdout, stderr):
        reading, writing = os.pipe()
        words = [os.fsencode(word).hex() for word in words]
        order = {"code": code, "words": words, "env": dict(env), "cwd": os.getcwd()}
        socket.send_fds(parent(), [json.dumps(order).encode()], [*(file.fileno() for file in (stdin, stdout, stderr)), writing])
        os.close(writing)
        self._told, self.returncode, self.stdout = open(reading, "rb", buffering=0), None, None
        self.pid = self._number()

    def _number(self) -> int:
        told = self._told.read(8)
        if len(told) < 8:
            raise RuntimeError("the parent of the forks has ended")
        return array.array("q", told)[0]

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = self._number()
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a fork of the parent is what a new process with this environment would be."""
    asked = {**os.environ, "OMP_NUM_THREADS": "1"}
    return CAN_FORK and all(asked.get(name) == environment.get(name) for name in asked.keys() | environment.keys() if name.startswith(AT_ONCE))


def run(code: str, *words, stdin: bytes = b"", env: Mapping[str, str], timeout: float = 300) -> subprocess.CompletedProcess:
    """`subprocess.run` of `python -c code words…` with its output captured."""
    if not can_fork(env):
        return subprocess.run([sys.executable, "-c", code, *map(os.fsencode, words)], input=stdin, capture_output=True, env=env, timeout=timeout)
    with contextlib.ExitStack() as opened:
        given, out, err = (opened.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        process = Fork(code, words, env, given, out, err)
        with limited(process, timeout):
            process.wait()
        return subprocess.CompletedProcess([code, *words], process.returncode, *(read(file) for file in (out, err)))


@contextlib.contextmanager
def limited(process: Fork, seconds: float):
    """Kill a process that is not done in time."""
    import threading
    late = threading.Timer(seconds, process.kill)
    late.start()
    try:
        yield
    finally:
        late.cancel()


def read(file) -> bytes:
    file.seek(0)
    return file.read()


def start(code: str, *words) -> Fork | subprocess.Popen:
    """`subprocess.Popen` of `python -c code words…` whose output is read as text."""
    if not can_fork(os.environ):
        return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)
    reading, writing = os.pipe()
    with open(os.devnull) as nothing, open(writing, "wb") as out:
        process = Fork(code, words, os.environ, nothing, out, sys.__stderr__)
    process.stdout = open(reading, encoding="utf-8")
    return process
