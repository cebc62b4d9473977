import jax
import oracle
import pytest


jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with oracle.x64(request.param == "float64"):
        yield request.param
