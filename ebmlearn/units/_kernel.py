"""A kernel for NVIDIA GPUs that draws two rows at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from .._pallas import has_gpu, triton


# Below this a kernel of its own costs more than it saves.
_MANY = 2**17
_ROWS, _COLUMNS = 4, 256


def serves(x: Array) -> bool:
    """Whether there is a GPU that may run the kernel, and enough to draw."""
    return x.ndim == 2 and x.size >= _MANY and x.dtype == jnp.float32 and has_gpu()


def by_halves(
    function: Callable[..., list[Array]],
    x: Float[Array, "rows n"],
    data: UInt32[Array, "2"],
    interpret: bool = False,
) -> Float[Array, "rows n"]:
    """Applies `function(data, counts, first, second)` to the first and the second half of the rows
    together. `counts` are the places in the first half, numbered by rows.
    """
    from jax.experimental import pallas as pl

    rows, columns = x.shape
    half = -(-rows // 2)
    load, store = triton().load, triton().store

    def kernel(x_ref: Any, data_ref: Any, out_ref: Any) -> None:
        i = pl.program_id(0) * _ROWS + jnp.arange(_ROWS)[:, None]
        j = pl.program_id(1) * _COLUMNS + jnp.arange(_COLUMNS)[None, :]
        inside = (i < half) & (j < columns)
        masks = inside, inside & (i + half < rows)
        places = (i, j), (i + half, j)
        halves = [
            load(x_ref.at[at], mask=mask, other=0.0) for at, mask in zip(places, masks, strict=True)
        ]
        counts = (i * columns + j).astype(jnp.uint32)
        drawn = function((data_ref[0], data_ref[1]), counts, *halves)
        for at, mask, new in zip(places, masks, drawn, strict=True):
            store(out_ref.at[at], new, mask=mask)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(-(-half // _ROWS), -(-columns // _COLUMNS)),
        compiler_params=triton().CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="draws",
    )(x, data)
