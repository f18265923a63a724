"""What every test here can count on: one thread each, repeatable examples, and real data or a stated reason."""
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")           # workers share the cores; set before torch is imported
os.environ.setdefault("MPLBACKEND", "agg")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("course", deadline=None, derandomize=True, max_examples=30,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "course"))

ROOT = Path(__file__).resolve().parents[1]
ALONE = "test_howto.py", "test_several_processes.py", "test_training.py"     # files without a fixture that tests share
sys.path.insert(0, str(ROOT / "tools"))                 # what the tests share with the commands of development


def pytest_configure():
    """Started in the background, a shell's child ignores Ctrl-C and the closing of its terminal; tests of both need the usual signals."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The tests of a file go to one worker, for they share what a fixture has made. Not so the slow ones of files that share nothing:
    each of these goes to the worker that is free, so that no worker is idle at the end."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return nodeid if nodeid.split("::")[0].endswith(ALONE) else super()._split_scope(nodeid)

    return ByFile(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def root():
    """The top folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def real_data():
    """The folder with copies of the downloaded data sets; without one the test is skipped."""
    folder = os.environ.get("TRANSFORMER_COURSE_DATA")
    if not folder:
        pytest.skip("needs TRANSFORMER_COURSE_DATA: a folder that holds the downloaded data sets")
    if not Path(folder).is_dir():
        pytest.fail(f"TRANSFORMER_COURSE_DATA names {folder!r}, which is not a folder")
    return Path(folder)
