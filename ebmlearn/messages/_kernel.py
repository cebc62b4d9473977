"""A sweep of one block of edges in a single pass over its messages: a kernel for NVIDIA GPUs.

Compilers read and write the messages once for each direction, because a layer must add up what it
is sent before it answers. The kernel takes the edges of a few units of the first layer at a time.
It has all that these units are sent, so that they answer at once, and what they answer is added up
over the edges at hand. The rest of that sum is a small array.

- `turns`: undamped layers that take turns keep one direction, which is read and written once a
  sweep; two passes do that twice. It is the one towards the second layer, and after the `last`
  sweep the one towards the first.
- `damped`, `flooding`: both directions are read and written once.
"""

import functools
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._pallas import has_gpu, triton
from .._sentinels import CLAMPED
from ._edge import hard, odds, soft_by
from ._forms import Form


# A program of the kernel has so many units of the first layer, one after the other, and each of its
# threads so many edges of a unit: by form and product, as measured on an H200. Products of the
# terms of eight odds stay inside the range of float32.
_TILES = {("odds", "sum"): (8, 4), ("log-odds", "sum"): (8, 4), ("log-odds", "max"): (8, 16)}
# One instance alone has so few units that all programs together run side by side.
_AT_LEAST = 2
_WIDEST = 4096

Sums = tuple[Float[Array, " n"], ...]


class Block(NamedTuple):
    """What a sweep does not change.

    - `weights`: half of the weights, or their exponentials as messages are odds.
    - `unary`: the log-odds of the first layer without any messages, multiples of 1/64 and the rest.
    - `clamp`: 1 or -1 where a unit of the first layer is held, else 0.
    - `damping`: the share that messages keep, for two directions.
    """

    weights: Float[Array, "m n"]
    unary: tuple[Float[Array, " m"], Float[Array, " m"]]
    clamp: Float[Array, " m"]
    damping: Float[Array, ""]


class Rule(NamedTuple):
    """How messages are sent: all that the kernel is compiled for."""

    form: Form
    product: Literal["sum", "max"]
    order: Literal["turns", "damped", "flooding"]
    few: bool = False
    interpret: bool = False
    last: bool = False


def serves(shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether there is a GPU that may run the kernel for a block of this shape."""
    fits = shape[0] > 0 and 0 < shape[1] <= _WIDEST and dtype == jnp.float32
    return fits and has_gpu()


def sweep(
    rule: Rule,
    block: Block,
    messages: tuple[Float[Array, "m n"], ...],
    first: Float[Array, " m"],
    second: Float[Array, " n"],
    active: Bool[Array, ""],
) -> tuple[tuple[Float[Array, "m n"], ...], Float[Array, " m"], Sums]:
    """One sweep: the new messages, the log-odds of the first layer, and the parts of the sum of
    what its units send to each unit of the second one.

    The sweep begins with the second layer, whose log-odds are `second`, and ends with the first,
    except that in `flooding` both send at the same time. `messages` are those towards the first
    layer, and but for `turns` those towards the second. Where it is not `active`, messages and
    log-odds of the first layer stay as they are.
    """
    from jax.experimental import pallas as pl

    m, n = block.weights.shape
    units, each = _TILES[rule.form, rule.product]
    units = _AT_LEAST if rule.few else units
    columns, steps = 1 << (n - 1).bit_length(), -(-m // units)
    number = len(messages)
    parts = 2 if (rule.form, rule.product) == ("log-odds", "sum") else 1

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, block.weights.dtype)

    call = pl.pallas_call(
        functools.partial(_kernel, rule, (m, n), (units, columns), number),
        out_shape=(*[array(m, n)] * number, array(m), *[array(steps, n)] * parts),
        grid=(steps,),
        # Written where they were read, also by a batch of instances and in a loop.
        input_output_aliases={k: k for k in range(number + 1)},
        compiler_params=triton().CompilerParams(
            num_warps=max(1, min(16, columns // (32 * each))), num_stages=1
        ),
        interpret=rule.interpret,
        name="messages",
    )
    scalars = block.damping.reshape(1), active.astype(jnp.int32).reshape(1)
    out = call(*messages, first, second, block.weights, *block.unary, block.clamp, *scalars)
    return tuple(out[:number]), out[number], tuple(x.sum(0) for x in out[number + 1 :])


def _kernel(
    rule: Rule, shape: tuple[int, int], tile: tuple[int, int], number: int, *refs: Any
) -> None:
    """The edges of the next units of the first layer. `tile` is how many units, and a power of 2:
    the columns and what lies beyond the last.
    """
    from jax.experimental import pallas as pl

    old, given, out = refs[:number], refs[number : number + 8], refs[number + 8 :]
    first_ref, second_ref, w_ref, coarse_ref, rest_ref, clamp_ref, damping_ref, active_ref = given
    new, first_out, sums_out = out[:number], out[number], out[number + 1 :]
    load, store = triton().load, triton().store
    nothing = 1.0 if rule.form == "odds" else 0.0
    step = pl.program_id(0)

    @pl.when(active_ref[0] > 0)
    def _() -> None:
        columns = jnp.arange(tile[1])
        inside = columns < shape[1]
        second = load(second_ref.at[columns], mask=inside, other=0.0)
        keep = damping_ref[0]
        sums: list[Array] = []
        for row in (step * tile[0] + k for k in range(tile[0])):
            there = row < shape[0]
            real = inside & there

            def edges(ref: Any, row: Any = row, real: Any = real) -> Array:
                return load(ref.at[row, columns], mask=real, other=nothing)

            def unit(ref: Any, row: Any = row, there: Any = there) -> Array:
                return load(ref.at[row], mask=there, other=0.0)

            clamp, parts = unit(clamp_ref), (unit(coarse_ref), unit(rest_ref))

            def held(field: Array, clamp: Any = clamp) -> Array:
                return jnp.where(clamp == 0, field, clamp * CLAMPED)

            w, arrays = edges(w_ref), [edges(ref) for ref in old]
            if rule.order == "turns":
                towards = _send(rule, w, second, *arrays)
                field = _added(rule, real, parts, towards)
                away = _send(rule, w, held(field), towards)
                arrays = [towards if rule.last else away]
            else:
                to_first, to_second = arrays
                towards = keep * to_first + (1 - keep) * _send(rule, w, second, to_second)
                field = _added(rule, real, parts, towards)
                heard = held(field), towards
                if rule.order == "flooding":
                    heard = held(unit(first_ref)), to_first
                away = keep * to_second + (1 - keep) * _send(rule, w, *heard)
                arrays = [towards, away]
            sent = _split(rule, real, away)
            for ref, x in zip(new, arrays, strict=True):
                store(ref.at[row, columns], x, mask=real)
            store(first_out.at[row], field, mask=there)
            join = jnp.multiply if rule.form == "odds" else jnp.add
            sums = [join(a, b) for a, b in zip(sums, sent, strict=True)] if sums else sent
        if rule.form == "odds":
            sums = [jnp.log(x) for x in sums]
        for ref, x in zip(sums_out, sums, strict=True):
            store(ref.at[step, columns], x, mask=inside)


def _send(rule: Rule, w: Array, field: Array, incoming: Array) -> Array:
    if rule.form == "odds":
        return odds(w, field, incoming)
    if rule.product == "max":
        return hard(w, field - incoming)
    functions = (jnp.exp, jnp.divide) if rule.interpret else (_exp, _divide)
    return soft_by(*functions, w, field - incoming)


def _exp(x: Array) -> Array:
    return _instruction("ex2.approx.ftz.f32", x / math.log(2))


def _divide(a: Array, b: Array) -> Array:
    return a * _instruction("rcp.approx.ftz.f32", b)


def _instruction(name: str, x: Array) -> Array:
    """One of the GPU, as exact as float32 is, where compilers write several for the sake of numbers
    that messages never have.
    """
    (out,) = triton().elementwise_inline_asm(
        f"{name} $0, $1;",
        args=[x],
        constraints="=f,f",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
    )
    return out


def _split(rule: Rule, real: Array, x: Array) -> list[Array]:
    """Log-odds as multiples of 1/64, which add without any rounding, and the rest; of max-product
    only signs matter in the end. Odds are multiplied as they are.
    """
    if rule.form == "odds":
        return [x]
    x = jnp.where(real, x, jnp.zeros_like(x))
    if rule.product == "max":
        return [x]
    coarse = jnp.floor(64 * x + 0.5) / 64
    return [coarse, x - coarse]


def _added(rule: Rule, real: Array, alone: tuple[Array, Array], x: Array) -> Array:
    """The log-odds of a unit: its own, in two parts, and what it is sent."""
    parts = [jnp.log(x)] if rule.form == "odds" else _split(rule, real, x)
    *coarse, rest = (part.sum() for part in parts)
    return sum(coarse, alone[0]) + (rest + alone[1])
