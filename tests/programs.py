"""The environments in which tests start programs of their own."""

import os


# Where nothing is optimised, kernels also come from the emitter that compiles them in a third of
# the time, and in one piece.
QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
COMPILED = "JAX_COMPILATION_CACHE_DIR"
UNOPTIMISED = "JAX_DISABLE_MOST_OPTIMIZATIONS"
# Set where tests run as users compile.
AS_USERS = "EBMLEARN_TESTS_AS_USERS"
_FLAGS = "XLA_FLAGS"


def quickly(**flags) -> dict[str, str]:
    """With all that makes the tests themselves quick, and these flags of XLA."""
    words = os.environ.get(_FLAGS, "").split()
    words += [f"--{name}={str(value).lower()}" for name, value in (QUICK | flags).items()]
    return {**os.environ, _FLAGS: " ".join(dict.fromkeys(words))}


def as_users() -> dict[str, str]:
    """With all that the compiler does, and nothing compiled before."""
    quick = {f"--{name}={str(value).lower()}" for name, value in QUICK.items()}
    words = [word for word in os.environ.get(_FLAGS, "").split() if word not in quick]
    left_out = (COMPILED, UNOPTIMISED, _FLAGS)
    env = {k: v for k, v in os.environ.items() if k not in left_out}
    return {**env, AS_USERS: "1"} | ({_FLAGS: " ".join(words)} if words else {})
