import ctypes
import gc
import itertools
import os
import threading
import time
from pathlib import Path

import programs
import pytest


# Before JAX reads it. Nearly all the time of these tests is compilation; what optimisation may
# break is tested with it, in processes of their own: see `test_numerics.py`.
if programs.AS_USERS not in os.environ:
    os.environ.update(programs.quickly())
    os.environ[programs.UNOPTIMISED] = "1"


# Where compiled programs are kept, and for how long.
_KEPT = Path(__file__).parents[1] / ".cache" / "tests"
_SECONDS = 14 * 24 * 3600


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the tests that are marked slow, too")


def pytest_collection_modifyitems(config, items):
    """Leaves out what is slow, unless it is asked for: by `--all`, by `-m`, or by its name."""
    named = any("::" in argument for argument in config.args)
    if config.getoption("all") or config.getoption("markexpr") or named:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_configure(config):
    """All workers, the programs that they start and later runs share what is compiled, bytecode too
    where none is kept. JAX knows its own version and settings by the name of a file.
    """
    if not hasattr(config, "workerinput"):
        _KEPT.mkdir(parents=True, exist_ok=True)
        for path in _KEPT.iterdir():
            if path.is_file() and time.time() - path.stat().st_mtime > _SECONDS:
                path.unlink(missing_ok=True)
        os.environ[programs.COMPILED] = str(_KEPT)
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.02"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
            os.environ["PYTHONPYCACHEPREFIX"] = str(_KEPT / "bytecode")
    # What only hands out tests to workers needs no JAX, and starts them the sooner.
    if not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no":
        return
    import jax

    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_disable_most_optimizations", programs.AS_USERS not in os.environ)
    jax.config.update("jax_compilation_cache_dir", os.environ[programs.COMPILED])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _share_contexts()


def _share_contexts():
    """JAX makes a context of MLIR for every program, which takes a third of the time of compiling a
    single operation. Here 200 programs of a thread share one, but for those within others.
    """
    try:
        from jax._src.interpreters import mlir
        from jax._src.lib.mlir import ir  # pyright: ignore

        make = mlir.make_ir_context
    except (ImportError, AttributeError):  # They are private: without them tests take longer.
        return
    own = threading.local()

    def shared():
        if ir.Context.current is not None:
            return make()
        left = getattr(own, "left", 0)
        if not left:
            own.context, left = make(), 200
        own.left = left - 1
        return own.context

    mlir.make_ir_context = shared


def pytest_collection_finish():
    """Tracing makes many small objects that live for long: looking through them takes time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


# How large a worker may grow before it forgets what it has compiled, which stays on the disk.
_MOST = 1.5e9


@pytest.fixture(autouse=True)
def forget():
    """Keeps a worker small, where the system tells how large it is."""
    yield
    about = Path("/proc/self/statm")
    if about.exists() and int(about.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > _MOST:
        import jax

        jax.clear_caches()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # What is free goes back to the system.
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    import oracle

    with oracle.x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def in_float64():
    import oracle

    with oracle.x64(True):
        yield


@pytest.fixture
def as_a_user():
    """Without the type checker of the other tests, which would speak first."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def slow_clock(monkeypatch):
    """Each look at the clock of long calls takes a second."""
    from ebmlearn import _watch

    ticks = itertools.count()
    monkeypatch.setattr(_watch, "clock", lambda: float(next(ticks)))
