import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from .. import _checks
from .._types import AnyArray, Key


def flip(
    x: Shaped[AnyArray, "*batch units"], rate: float, *, key: Key
) -> Shaped[Array, "*batch units"]:
    """Flips each unit, 0 or 1, with probability `rate`.

    !!! example

        ```python
        from ebmlearn import datasets

        images = datasets.digits().train.x
        noisy = datasets.flip(images, 0.1, key=0)
        ```

    **Arguments:**

    - `x`: binary units of any dtype. The result has the same dtype.
    - `rate`: a number in [0, 1].
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    """
    key = _checks.as_key(key)
    _checks.number("rate", rate, 0, 1, "[0, 1]")
    x = jnp.asarray(x)
    _checks.binary_rows("x", x)
    flipped = jax.random.uniform(key, x.shape) < rate
    return jnp.where(flipped, (~x.astype(bool)).astype(x.dtype), x)


def occlude(
    x: Shaped[AnyArray, "*batch units"],
    size: int,
    *,
    key: Key,
    shape: tuple[int, int] = (28, 28),
    value: int = 0,
) -> Shaped[Array, "*batch units"]:
    """Sets a square patch of each image to `value`, at a uniformly random place.

    !!! example

        ```python
        from ebmlearn import datasets

        images = datasets.digits().train.x
        hidden = datasets.occlude(images, 3, shape=(8, 8), key=0)
        ```

    **Arguments:**

    - `x`: images, flattened row by row.
    - `size`: the side of the patch.
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    - `shape`: rows and columns of an image.
    - `value`: 0 or 1.
    """
    key = _checks.as_key(key)
    _checks.count("size", size, 0)
    if value not in (0, 1):
        raise ValueError(f"`value` must be 0 or 1, got {value!r}.")
    x = jnp.asarray(x)
    rows, columns = shape
    _checks.trailing("x", x, (rows * columns,), f"images of {rows}x{columns}")
    if size > min(shape):
        raise ValueError(f"`size` must be at most {min(shape)}, to fit the image, got {size}.")
    batch = x.shape[:-1]
    one, two = jax.random.split(key)
    top = jax.random.randint(one, (*batch, 1, 1), 0, rows - size + 1)
    left = jax.random.randint(two, (*batch, 1, 1), 0, columns - size + 1)
    lead = (1,) * len(batch)
    down = jnp.arange(rows).reshape(*lead, rows, 1) - top
    across = jnp.arange(columns).reshape(*lead, 1, columns) - left
    patch = (down >= 0) & (down < size) & (across >= 0) & (across < size)
    return jnp.where(patch.reshape(x.shape), jnp.asarray(value, x.dtype), x)
