import dataclasses
import math
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from pgmax import infer
from pgmax.infer import bp

from .. import _checks
from .._sentinels import LEAST
from .._types import AnyArray
from ..inference import in_form
from ..messages import Engine, Form, MAKERS, ODDS_LIMIT, Scores, Site, State
from ..models import Instance
from ._dense_group import RBMFactor
from ._factors import DenseFactor, factors_of
from ._flat import as_rows, cut_units
from ._graph_messages import KindSent
from ._layout import lay_out, Layout, Wires


class _Slices(NamedTuple):
    """Where the parts of PGMax's flat arrays are: the log-potentials of each group, whose shapes
    are those of `Layout.groups`, and the messages of dense groups and of other types.
    """

    starts: tuple[int, ...]
    groups: tuple[tuple[tuple[int, ...], bool], ...]
    dense: tuple[int, int]
    rest: tuple[tuple[int, int], ...]

    def values(self, log_potentials: Array, dense: bool) -> list[Float[Array, "..."]]:
        """The log-potentials of the dense groups, or of all."""
        return [
            log_potentials[start : start + math.prod(shape)].reshape(shape)
            for start, (shape, is_dense) in zip(self.starts, self.groups, strict=True)
            if is_dense or not dense
        ]

    def pairs(self, messages: Array) -> list[tuple[Array, Array]]:
        """The log-odds of the messages of dense groups, towards both ends."""
        shapes = [shape for shape, dense in self.groups if dense]
        ends = self.dense[0] + np.cumsum([4 * math.prod(shape) for shape in shapes], dtype=int)
        parts = jnp.split(messages, [self.dense[0], *ends])[1:]
        both = [x.reshape(*shape, 2, 2) for x, shape in zip(parts, shapes, strict=False)]
        return [(x[:, :, 0, 1] - x[:, :, 0, 0], x[:, :, 1, 1] - x[:, :, 1, 0]) for x in both]


def MatrixBP(bp_state: infer.BPState, temperature: float = 0.0) -> bp.BeliefPropagation:
    """Belief propagation for PGMax graphs with dense groups: these by matrices, logical and pool
    factors by updates that lose no digits, all other factors by PGMax's own. It has the functions
    of `pgmax.infer.build_inferer(bp_state, backend="bp")`, with the same arguments and equal
    results: `init`, `update`, `run`, `run_with_diffs`, `run_bp`, `get_beliefs` and `to_bp_state`.
    It compiles once for each number of iterations.

    !!! example

        ```python
        from ebmlearn.pgmax import MatrixBP, to_pgmax
        from pgmax import infer

        bp = MatrixBP(to_pgmax(ebmlearn.RBM.init(16, 8)).graph.bp_state)
        arrays = bp.run(bp.init(), num_iters=50, damping=0.0, temperature=1.0)
        marginals = infer.get_marginals(bp.get_beliefs(arrays))
        ```

    **Arguments:**

    - `bp_state`: the state of a graph that was built after `import ebmlearn.pgmax`.
    - `temperature`: the default of `run`: 1 is sum-product, 0 is max-product.
    """
    state = bp_state.fg_state
    if RBMFactor not in state.wiring:
        raise ValueError(
            "`bp_state` must come from a graph built after `import ebmlearn.pgmax`, got one built"
            " before it."
        )
    starts = state.factor_group_to_potentials_starts
    groups: dict[Any, list] = {kind: [] for kind in state.wiring}
    for group in starts:
        groups[group.factor_type].append(group)
    layout, wires, owners = lay_out(
        state.variable_groups, groups, state.vars_to_starts, state.wiring
    )
    ranges = {k: (int(a), int(b)) for k, (a, b) in state.factor_type_to_msgs_range.items()}
    slices = _Slices(
        tuple(int(starts[group]) for group in owners),
        layout.groups,
        ranges[RBMFactor],
        tuple(ranges[kind.type] for kind in layout.kinds),
    )
    default = temperature

    def runner(diffs: bool) -> Any:
        def run(
            bp_arrays: infer.BPArrays,
            num_iters: int,
            damping: float | Float[Array, ""] = 0.5,
            temperature: float | Float[Array, ""] = default,
        ) -> Any:
            _checks.count("num_iters", num_iters)
            _checks.number("damping", damping, 0, 1, "[0, 1]")
            _checks.number("temperature", temperature, 0, float("inf"), "[0, inf)")
            hard = _checks.is_concrete(temperature) and float(temperature) == 0
            undamped = _checks.is_concrete(damping) and float(damping) == 0
            flat = bp_arrays.log_potentials, bp_arrays.ftov_msgs, bp_arrays.evidence
            given = tuple(map(jnp.asarray, flat))
            dtype = given[2].dtype
            scale = jnp.asarray(1.0 if hard else temperature, dtype)
            fits = None if undamped and not hard and layout.dense else False
            if fits is None and _checks.is_concrete((given, scale)):
                fits = bool(_fits(slices, given, scale))
            kept = None if undamped else jnp.asarray(damping, dtype)
            messages, changes = _run(
                layout, wires, slices, given, scale, kept, num_iters, hard, fits, diffs
            )
            new = dataclasses.replace(bp_arrays, ftov_msgs=messages)
            return (new, changes) if diffs else new

        return run

    run = runner(False)

    def run_bp(
        bp_arrays: infer.BPArrays, num_iters: int, damping: float | Float[Array, ""] = 0.5
    ) -> infer.BPArrays:
        warnings.warn("`run_bp` is deprecated in PGMax: call `run`.", stacklevel=2)
        return run(bp_arrays, num_iters, damping)

    own: Any = {"run": run, "run_bp": run_bp, "run_with_diffs": runner(True)}
    return dataclasses.replace(bp.BP(bp_state), **own)


@eqx.filter_jit
def _fits(slices: _Slices, given: tuple, temperature: Float[AnyArray, ""]) -> Bool[Array, ""]:
    """Whether odds may be sent instead of log-odds: weights are moderate, and so are the messages
    to start from.
    """
    peaks = [jnp.zeros((), given[0].dtype)]
    weights = slices.values(given[0], dense=True)
    for w, pair in zip(weights, slices.pairs(given[1]), strict=True):
        peaks.append(jnp.abs(w).max())
        peaks += [2 * jnp.abs(m - w / 2).max() for m in pair]
    return jnp.stack(peaks).max() <= ODDS_LIMIT * temperature


@eqx.filter_jit
def _run(
    layout: Layout,
    wires: Wires,
    slices: _Slices,
    given: tuple[Array, ...],
    temperature: Float[AnyArray, ""],
    damping: Float[Array, ""] | None,
    num_iters: int,
    hard: bool,
    fits: bool | None,
    diffs: bool,
) -> tuple[Float[Array, " edge_states"], Float[Array, " num_iters"] | None]:
    """New messages in PGMax's flat form; with `diffs`, the largest change of one of them in each
    iteration too.
    """
    log_potentials, messages, evidence = given
    dtype = evidence.dtype
    values = [x.astype(dtype) / temperature for x in slices.values(log_potentials, dense=False)]
    product = "max" if hard else "sum"
    factors = factors_of(layout, wires, (None,) * len(layout.kinds), values, product, dtype)
    rows = as_rows(evidence / temperature, layout.every_count, LEAST)
    groups = cut_units(rows, tuple(((math.prod(s),), n) for s, n in layout.variables))
    instance = Instance(groups, (None,) * len(groups))
    one = jnp.ones((), dtype)

    def run(form: Form) -> tuple[Array, Array | None]:
        site = Site({}, {}, (), None, (), product, form, "flooding", damping is not None, one)
        engine = Engine(
            parts=tuple(MAKERS[type(own)](own, site) for own in factors),
            forms=(Scores(),) * len(layout.variables),
            factors=(),
            damping=damping,
            temperature=one,
            names=layout.names,
            sides=None,
            maximised=None,
            product=product,
            schedule="flooding",
        )
        dense, rest = iter(slices.pairs(messages)), iter(slices.rest)
        begin = []
        for own, part in zip(factors, engine.parts, strict=True):
            if isinstance(part, KindSent):
                begin.append(
                    part.normalised(messages[slice(*next(rest))].astype(dtype) / temperature)
                )
                continue
            pair = (m.astype(dtype) / temperature - own.potentials / 2 for m in next(dense))
            begin.append(tuple(map(jnp.exp, pair) if form == "odds" else pair))
        first = engine.resume(State(tuple(begin), groups), instance)

        def flat(state: State) -> Array:
            """Messages as PGMax keeps them."""
            parts = {slices.dense[0]: [jnp.zeros(0, dtype)]}
            rest = iter(slices.rest)
            for own, sent in zip(factors, state.messages, strict=True):
                if isinstance(own, DenseFactor):
                    logs = [jnp.log(m) for m in sent] if form == "odds" else sent
                    both = temperature * (jnp.stack(logs, -1) + (own.weights / 2)[:, :, None])
                    top = jnp.maximum(both, 0)
                    own = jnp.stack([-top, both - top], -1)
                    parts[slices.dense[0]].append(own.reshape(-1))
                else:
                    parts[next(rest)[0]] = [temperature * sent]
            return jnp.concatenate([x for _, own in sorted(parts.items()) for x in own])

        @jax.checkpoint
        def again(old: State, _: None) -> tuple[State, Float[Array, ""] | None]:
            new = engine.update(old, instance)
            return new, jnp.abs(flat(new) - flat(old)).max(initial=0) if diffs else None

        # Two at a time, so that each message can be overwritten by its answer's answer. GPUs are
        # given a few without a loop.
        few = jax.default_backend() == "gpu" and num_iters <= 8
        unroll = num_iters if few else 2
        state, changes = jax.lax.scan(again, first, length=num_iters, unroll=unroll)
        return flat(state), changes

    return in_form(_fits(slices, given, temperature) if fits is None else fits, run)
