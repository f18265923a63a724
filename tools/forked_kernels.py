"""A pytest plugin that starts each notebook's kernel as a fork of a process that has imported PyTorch already.

    python -m pytest -p tools.forked_kernels --nbval --nbval-current-env nbs

A kernel begins with seconds of imports, and there are some hundred notebooks. Here one parent for each test process
imports what nearly all of them need, and every kernel is a fork of that parent: a process of its own, with its own
memory, that no other notebook can touch. Before its third kernel, the parent also imports the library and draws the
sentences of micro-Hindi. Where there is no fork (Windows) or where it is not safe (macOS), kernels start as usual.

A kernel and its client talk over sockets that are files. With TCP, the usual way, five free ports are chosen before the
kernel takes them, and in between another process can take one: that kernel dies before its first cell. A kernel that
does not start for whatever reason is started anew, twice at most, and what it wrote to its standard error is shown.
"""
import array
import contextlib
import gc
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import warnings

STARTS = 3                                              # how often a kernel that dies before its first cell is started
CAN_FORK = sys.platform.startswith("linux")
FIRST = "torch", "numpy", "matplotlib.pyplot", "matplotlib_inline.backend_inline", "ipykernel.kernelapp", "IPython"
MORE = ("torch._dynamo", "accelerate", "huggingface_hub", "ipywidgets", "pooch", "sacrebleu", "safetensors.torch", "tokenizers",
        "transformer_course.checking", "transformer_course.drawing.transformer", "transformer_course.pipelines.translator")
FEW = 2                                                 # kernels for which it does not pay to import more
_parents = []                                           # at most one for each test process


# In the parent of the kernels

def serve(requests):
    """Fork a kernel for each request (arguments, environment, folder, and one file for its errors); say its process id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)       # a kernel that ends leaves no zombie
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"          # as a kernel sets it
    prepare(FIRST)
    for count in itertools.count():
        if count == FEW:
            prepare(MORE)
            sys.modules["transformer_course.data.corpora"].load("micro-hindi")      # kept by the function itself
        gc.freeze()
        message, files, *_ = socket.recv_fds(requests, 1 << 20, 1)
        if not message:
            return                                      # the tests have ended
        order = json.loads(message)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            requests.close()
            run_kernel(order, *files)
        for file in files:
            os.close(file)
        os.setpgid(child, child)                        # a manager ends a kernel by its group, which must not be ours
        requests.sendall(array.array("q", [child]).tobytes())


def prepare(names):
    """Import them, so that the kernels need not."""
    for name in names:
        __import__(name)


def run_kernel(order, errors):
    """Become the kernel of one notebook; never returns."""
    from ipykernel.kernelapp import IPKernelApp

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(errors, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[0] = ""                                    # the notebook's folder, as for `python -m ipykernel_launcher`
    end_with = f"--IPKernelApp.parent_handle={os.getppid()}"        # if the tests are killed, so are their kernels
    sys.argv = ["ipykernel_launcher.py", *order["arguments"], end_with]
    IPKernelApp.launch_instance()
    os._exit(0)


# In the process of the tests

class Fork:
    """A forked kernel, with those methods of `subprocess.Popen` that a kernel's manager calls."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None
        self.stdin = self.stdout = self.stderr = None

    def poll(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            self.returncode = 0
        return self.returncode

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("kernel", timeout)
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def parent():
    """The socket of this process's parent of kernels, which starts at the first call."""
    if not _parents:
        ours, theirs = socket.socketpair()
        code = f"import socket, sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); " \
               f"import forked_kernels; forked_kernels.serve(socket.socket(fileno={theirs.fileno()}))"
        subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        _parents.append(ours)
    return _parents[0]


def forked(command, stderr=None, **how):
    """What `jupyter_client.launcher.launch_kernel` does, by a fork."""
    arguments = command[command.index("ipykernel_launcher") + 1:]
    order = {"arguments": arguments, "cwd": str(how.get("cwd") or os.getcwd()), "env": dict(how.get("env") or os.environ)}
    with contextlib.ExitStack() as files:
        errors = stderr or files.enter_context(open(os.devnull, "w"))
        socket.send_fds(parent(), [json.dumps(order).encode()], [errors.fileno()])
    answer = parent().recv(8)
    if len(answer) < 8:
        raise RuntimeError("the parent of the kernels has ended")
    return Fork(array.array("q", answer)[0])


def over_files(manager, folder):
    """A maker of kernel managers whose sockets are files in `folder` (a path of more than 107 letters is refused)."""
    return lambda **how: manager(transport="ipc", ip=os.path.join(folder, uuid.uuid4().hex[:12]), **how)


def starting_anew(start):
    """`nbval.kernel.start_new_kernel`, tried again where the kernel dies before its first cell."""
    def start_new_kernel(*args, stderr=None, **how):
        for attempt in range(1, STARTS + 1):
            with tempfile.TemporaryFile("w+") as errors:
                try:
                    return start(*args, stderr=errors, **how)
                except RuntimeError as error:
                    errors.seek(0)
                    said = f"{error}; its standard error: {errors.read()[-2000:] or 'empty'}"
                    if attempt == STARTS:
                        raise RuntimeError(said) from error
                    warnings.warn(f"attempt {attempt + 1} of {STARTS} to start a kernel: {said}")
    return start_new_kernel


def pytest_configure(config):
    if CAN_FORK:
        import nbval.kernel
        from jupyter_client.provisioning import local_provisioner

        folder = tempfile.TemporaryDirectory(prefix="kernels")
        config.add_cleanup(folder.cleanup)
        local_provisioner.launch_kernel = forked
        nbval.kernel.KernelManager = over_files(nbval.kernel.KernelManager, folder.name)
        nbval.kernel.start_new_kernel = starting_anew(nbval.kernel.start_new_kernel)
