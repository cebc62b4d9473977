import jax
import jaxtyping
import oracle
import pytest


jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Nearly all the time of these tests is compilation. What optimisation may break, the reductions
# and the programs as users start them, is tested with it.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with oracle.x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def as_a_user():
    """Without the type checker of the other tests, which would speak first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
