import functools
import gc
import os
import tempfile

import programs
import pytest


os.environ[programs.UNOPTIMISED] = "1"


def quick(make):
    """Flags of XLA hold for a whole process, but some tests here do optimise."""
    import jax

    @functools.wraps(make)
    def options(*args, env_options_overrides=None, **kwargs):
        if jax.config.read("jax_disable_most_optimizations"):
            env_options_overrides = programs.QUICK | (env_options_overrides or {})
        return make(*args, env_options_overrides=env_options_overrides, **kwargs)

    return options


def pytest_configure(config):
    """All workers, and the programs that they start, share what they compile for as long as the
    run, bytecode too where none is kept.
    """
    if not hasattr(config, "workerinput"):
        config.compiled = tempfile.TemporaryDirectory(prefix="ebmlearn-tests-")
        os.environ[programs.COMPILED] = config.compiled.name
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.02"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
            os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(config.compiled.name, "bytecode")
    # What only hands out tests to workers needs no JAX, and starts them the sooner.
    if not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no":
        return
    import jax
    from jax._src import compiler

    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    # Nearly all the time of these tests is compilation. What optimisation may break, the
    # reductions and the tutorials, which are programs as users start them, is tested with it.
    jax.config.update("jax_disable_most_optimizations", True)
    compiler.get_compile_options = quick(compiler.get_compile_options)
    jax.config.update("jax_compilation_cache_dir", os.environ[programs.COMPILED])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_finish():
    """Tracing makes many small objects that live for long: looking through them takes time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_unconfigure(config):
    if hasattr(config, "compiled"):
        config.compiled.cleanup()


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    import oracle

    with oracle.x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def as_a_user():
    """Without the type checker of the other tests, which would speak first."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
