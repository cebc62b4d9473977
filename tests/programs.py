"""The environments in which tests start programs of their own."""

import os


# Where nothing is optimised, kernels also come from the emitter that compiles them in a third of
# the time, and in one piece.
QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
COMPILED = "JAX_COMPILATION_CACHE_DIR"
UNOPTIMISED = "JAX_DISABLE_MOST_OPTIMIZATIONS"


def quickly(**flags) -> dict[str, str]:
    """With all that makes the tests themselves quick, and these flags of XLA."""
    words = [f"--{name}={str(value).lower()}" for name, value in (QUICK | flags).items()]
    return {**os.environ, "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *words])}


def as_users() -> dict[str, str]:
    """With all that the compiler does, and nothing compiled before."""
    return {k: v for k, v in os.environ.items() if k not in (COMPILED, UNOPTIMISED)}
