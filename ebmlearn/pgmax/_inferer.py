import math
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from pgmax import infer
from pgmax.infer import bp_state as bp_states
from pgmax.infer.bp import BeliefPropagation

from .. import _checks
from .._sentinels import LEAST, LIMIT
from .._types import AnyArray
from ..inference._base import limited, Limits
from ..inference._bp import in_form, passed
from ..messages import Engine, Form, MAKERS, ODDS_LIMIT, Scores, Site, State
from ..models._groups import as_rows, cut_units
from ..models._problem import Instance
from ._dense_group import RBMFactor
from ._factors import factors_of
from ._layout import lay_out, Layout, Wires
from ._wired import KindSent


class _Slices(NamedTuple):
    """Where the parts of PGMax's flat arrays are."""

    groups: tuple[tuple[int, tuple[int, ...], bool], ...]
    dense: tuple[int, int]
    rest: tuple[tuple[int, int], ...]

    @property
    def weights(self) -> list[tuple[int, tuple[int, ...]]]:
        """Those of dense groups, and their shapes."""
        return [(start, shape) for start, shape, dense in self.groups if dense]


def MatrixBP(bp_state: infer.BPState, temperature: float = 0.0) -> BeliefPropagation:
    """Belief propagation for PGMax graphs with dense groups: these by matrices, logical and pool
    factors by updates that lose no digits, all other factors by PGMax's own. It has the functions
    of `pgmax.infer.build_inferer(bp_state, backend="bp")`, with the same arguments and equal
    results: `init`, `update`, `run`, `run_with_diffs`, `run_bp`, `get_beliefs` and `to_bp_state`.
    It compiles once for each number of iterations.

    !!! example

        ```python
        bp = MatrixBP(graph.bp_state)
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
    groups: dict[Any, list] = {kind: [] for kind in state.wiring}
    for group in state.factor_group_to_potentials_starts:
        groups[group.factor_type].append(group)
    layout, wires, owners = lay_out(
        state.variable_groups, groups, state.vars_to_starts, state.wiring
    )
    starts = state.factor_group_to_potentials_starts
    groups_of = zip(owners, layout.groups, strict=True)
    ranges = {k: (int(a), int(b)) for k, (a, b) in state.factor_type_to_msgs_range.items()}
    slices = _Slices(
        tuple((int(starts[group]), *shape) for group, shape in groups_of),
        ranges[RBMFactor],
        tuple(ranges[kind.type] for kind in layout.kinds),
    )
    default = temperature

    def update(
        bp_arrays: infer.BPArrays | None = None,
        log_potentials_updates: dict | None = None,
        ftov_msgs_updates: dict | None = None,
        evidence_updates: dict | None = None,
    ) -> infer.BPArrays:
        if bp_arrays is None:
            values = bp_state.log_potentials, bp_state.ftov_msgs, bp_state.evidence
            arrays = [jnp.asarray(x.value) for x in values]
        else:
            arrays = [bp_arrays.log_potentials, bp_arrays.ftov_msgs, bp_arrays.evidence]
        changes = (
            (bp_states.update_log_potentials, log_potentials_updates),
            (bp_states.update_ftov_msgs, ftov_msgs_updates),
            (bp_states.update_evidence, evidence_updates),
        )
        for k, (change, new) in enumerate(changes):
            if new is not None:
                arrays[k] = change(arrays[k], new, state)
        return infer.BPArrays(*arrays)

    def init(
        log_potentials_updates: dict | None = None,
        ftov_msgs_updates: dict | None = None,
        evidence_updates: dict | None = None,
    ) -> infer.BPArrays:
        return update(None, log_potentials_updates, ftov_msgs_updates, evidence_updates)

    def passed_on(
        bp_arrays: infer.BPArrays, num_iters: int, damping: Any, temperature: Any, diffs: bool
    ) -> tuple[infer.BPArrays, Float[Array, " num_iters"] | None]:
        _checks.count("num_iters", num_iters)
        _checks.number("damping", damping, 0, 1, "[0, 1]")
        _checks.number("temperature", temperature, 0, float("inf"), "[0, inf)")
        hard = _checks.is_concrete(temperature) and float(temperature) == 0
        undamped = _checks.is_concrete(damping) and float(damping) == 0
        given = _parts(bp_arrays)
        dtype = given[2].dtype
        scale = jnp.asarray(1.0 if hard else temperature, dtype)
        fits = None if undamped and not hard and layout.dense else False
        if fits is None and _checks.is_concrete((given, scale)):
            fits = bool(_fits(slices, given, scale))
        kept = None if undamped else jnp.asarray(damping, dtype)
        limits = limited(num_iters, None, dtype, unroll=True)
        messages, changes = _run(
            layout, wires, slices, given, scale, kept, limits, hard, fits, diffs
        )
        new = infer.BPArrays(bp_arrays.log_potentials, messages, bp_arrays.evidence)
        return new, changes

    def run_with_diffs(
        bp_arrays: infer.BPArrays,
        num_iters: int,
        damping: float | Float[Array, ""] = 0.5,
        temperature: float | Float[Array, ""] = default,
    ) -> Any:
        return passed_on(bp_arrays, num_iters, damping, temperature, True)

    def run(
        bp_arrays: infer.BPArrays,
        num_iters: int,
        damping: float | Float[Array, ""] = 0.5,
        temperature: float | Float[Array, ""] = default,
    ) -> infer.BPArrays:
        return passed_on(bp_arrays, num_iters, damping, temperature, False)[0]

    def run_bp(
        bp_arrays: infer.BPArrays, num_iters: int, damping: float | Float[Array, ""] = 0.5
    ) -> infer.BPArrays:
        warnings.warn("`run_bp` is deprecated in PGMax: call `run`.", stacklevel=2)
        return run(bp_arrays, num_iters, damping, default)

    def get_beliefs(bp_arrays: infer.BPArrays) -> dict[Any, Any]:
        given = _parts(bp_arrays)
        flat = _beliefs(layout, wires, slices, given)
        out, at = {}, 0
        for group in state.variable_groups:
            size = int(np.asarray(group.num_states).sum())
            out[group] = group.unflatten(flat[at : at + size], True)
            at += size
        return out

    def to_bp_state(bp_arrays: infer.BPArrays) -> Any:
        log_potentials, messages, evidence = (np.asarray(x) for x in _parts(bp_arrays))
        return infer.BPState(
            log_potentials=infer.LogPotentials(fg_state=state, value=log_potentials),
            ftov_msgs=infer.FToVMessages(fg_state=state, value=messages),
            evidence=infer.Evidence(fg_state=state, value=evidence),
        )

    return BeliefPropagation(
        init=init,
        update=update,
        to_bp_state=to_bp_state,
        get_beliefs=get_beliefs,
        run=run,
        run_bp=run_bp,
        run_with_diffs=run_with_diffs,
    )


def _parts(arrays: infer.BPArrays) -> tuple[Array, Array, Array]:
    return (
        jnp.asarray(arrays.log_potentials),
        jnp.asarray(arrays.ftov_msgs),
        jnp.asarray(arrays.evidence),
    )


def _values(slices: _Slices, log_potentials: Array) -> list[Float[Array, "..."]]:
    """The log-potentials of each group."""
    return [
        log_potentials[start : start + math.prod(shape)].reshape(shape)
        for start, shape, _ in slices.groups
    ]


def _dense(slices: _Slices, messages: Array) -> list[tuple[Array, Array]]:
    """The log-odds of the messages of dense groups, towards both ends."""
    out, at = [], slices.dense[0]
    for _, shape in slices.weights:
        size = 4 * shape[0] * shape[1]
        both = messages[at : at + size].reshape(*shape, 2, 2)
        out.append(tuple(both[:, :, end, 1] - both[:, :, end, 0] for end in (0, 1)))
        at += size
    return out


@eqx.filter_jit
def _fits(slices: _Slices, given: tuple, temperature: Float[AnyArray, ""]) -> Bool[Array, ""]:
    """Whether odds may be sent instead of log-odds: weights are moderate, and so are the messages
    to start from.
    """
    peaks = [jnp.zeros((), given[0].dtype)]
    values = zip(_values(slices, given[0]), slices.groups, strict=True)
    weights = [x for x, (_, _, dense) in values if dense]
    for w, pair in zip(weights, _dense(slices, given[1]), strict=True):
        peaks.append(jnp.abs(w).max())
        peaks += [2 * jnp.abs(m - w / 2).max() for m in pair]
    return jnp.stack(peaks).max() <= ODDS_LIMIT * temperature


@eqx.filter_jit
def _run(
    layout: Layout,
    wires: Wires,
    slices: _Slices,
    given: tuple[Array, Array, Array],
    temperature: Float[AnyArray, ""],
    damping: Float[AnyArray, ""] | None,
    limits: Limits,
    hard: bool,
    fits: bool | None,
    diffs: bool,
) -> tuple[Float[Array, " edge_states"], Float[Array, " num_iters"] | None]:
    """New messages in PGMax's flat form; with `diffs`, the largest change of one of them in each
    iteration too.
    """
    log_potentials, messages, evidence = given
    dtype = evidence.dtype
    values = [x.astype(dtype) / temperature for x in _values(slices, log_potentials)]
    weights = [values[k] for k in layout.dense]
    values = [
        x if d else jnp.clip(x, -LIMIT, LIMIT)
        for x, (_, d) in zip(values, layout.groups, strict=True)
    ]
    product = "max" if hard else "sum"
    none = (None,) * len(layout.kinds)
    factors = factors_of(layout, wires, none, values, product, dtype)
    rest = jnp.concatenate([jnp.zeros(0, dtype), *(messages[a:b] for a, b in slices.rest)])
    pairs = [
        tuple(m.astype(dtype) / temperature - w / 2 for m in pair)
        for w, pair in zip(weights, _dense(slices, messages), strict=True)
    ]

    def flat_pairs(messages: Any, form: Form) -> list[Float[Array, "m n 2 2"]]:
        """The messages of dense groups as PGMax keeps them."""
        out = []
        for w, pair in zip(weights, messages, strict=True):
            sent = [jnp.log(m) for m in pair] if form == "odds" else pair
            both = temperature * (jnp.stack(sent, -1) + (w / 2)[:, :, None])
            top = jnp.maximum(both, 0)
            out.append(jnp.stack([-top, both - top], -1))
        return out

    def run(form: Form) -> tuple[list[Array], Array, Array | None]:
        one = jnp.ones((), dtype)
        site = Site({}, {}, (), None, (), product, form, "flooding", damping is not None, one)
        engine = Engine(
            parts=tuple(MAKERS[type(own)](own, site) for own in factors),
            forms=(Scores(),) * len(layout.variables),
            factors=(),
            damping=damping,
            temperature=one,
            names=layout.names,
            sides=None,
            maximised=(),
            product=product,
            schedule="flooding",
        )
        rows = as_rows(evidence / temperature, layout.every_count, LEAST)
        groups = cut_units(rows, tuple(((math.prod(s),), n) for s, n in layout.variables))
        instance = Instance(groups, (None,) * len(groups))
        dense, kinds, begin = iter(pairs), iter(layout.kinds), []
        for part in engine.parts:
            if isinstance(part, KindSent):
                own = rest[slice(*next(kinds).messages)].astype(dtype)
                begin.append(part.normalised(own / temperature))
            else:
                pair = next(dense)
                begin.append(tuple(map(jnp.exp, pair)) if form == "odds" else pair)
        first = engine.resume(State(tuple(begin), groups), instance)

        def apart(state: State) -> tuple[list[Array], Array]:
            both = list(zip(engine.parts, state.messages, strict=True))
            listed = [own for part, own in both if isinstance(part, KindSent)]
            sent = [own for part, own in both if not isinstance(part, KindSent)]
            return flat_pairs(sent, form), jnp.concatenate([jnp.zeros(0, dtype), *listed])

        if not diffs:
            # Two at a time, so that each message can be overwritten by its answer's answer.
            state, _, _ = passed(engine, instance, first, limits, unroll=2)
            return *apart(state), None

        @jax.checkpoint
        def again(old: Any, _: None) -> tuple[Any, Float[Array, ""]]:
            new = engine.update(old, instance)
            (one, rest), (two, new_rest) = apart(old), apart(new)
            moved = [jnp.abs(b - a).reshape(-1) for a, b in zip(one, two, strict=True)]
            moved.append(jnp.abs(new_rest - rest) * temperature)
            return new, jnp.concatenate(moved).max(initial=0)

        state, changes = jax.lax.scan(again, first, length=limits.length)
        return *apart(state), changes

    sent, rest, changes = in_form(_fits(slices, given, temperature) if fits is None else fits, run)
    parts, at = {}, 0
    for a, b in slices.rest:
        parts[a] = temperature * rest[at : at + b - a]
        at += b - a
    parts[slices.dense[0]] = jnp.concatenate([jnp.zeros(0, dtype), *(x.reshape(-1) for x in sent)])
    return jnp.concatenate([part for _, part in sorted(parts.items()) if part.size]), changes


@eqx.filter_jit
def _beliefs(
    layout: Layout, wires: Wires, slices: _Slices, given: tuple[Array, Array, Array]
) -> Float[Array, " states"]:
    """The scores that messages add up to."""
    _, messages, evidence = given
    rest = [jnp.zeros(0, messages.dtype), *(messages[a:b] for a, b in slices.rest)]
    out = evidence.at[wires.states].add(jnp.concatenate(rest).astype(evidence.dtype))
    at = slices.dense[0]
    for (_, shape), pair in zip(slices.weights, wires.ends, strict=True):
        size = 4 * shape[0] * shape[1]
        both = messages[at : at + size].reshape(*shape, 2, 2).astype(evidence.dtype)
        at += size
        for end, axis in ((0, 1), (1, 0)):
            towards = both[:, :, end].sum(axis)
            out = out.at[pair[end]].add(towards[:, 0]).at[pair[end] + 1].add(towards[:, 1])
    return out
