import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from pgmax import fgraph, infer
from pgmax.factor import EnumFactor

from .. import _checks
from .._sentinels import EXCLUDED
from .._types import AnyArray, Batch, ByGroup
from ..factors import scaled_potentials, Stacks
from ..messages import Start
from ..models import (
    AbstractFactorModel,
    Block,
    cut_states,
    cut_units,
    excludes,
    put,
    refuse,
    Sizes,
    taken,
    unless_held,
)
from ..units import Categorical
from ._compat import starts_of
from ._factors import DenseFactor, factors_of, KindFactor
from ._identities import Named, Names
from ._layout import check_graph, initial, lay_out, Layout, Wires
from ._nnbm_group import NNBMFactor
from ._sites import Sites, sites_of
from ._split import Listed, listed_in
from ._told import apart, by_group, joined, parts_of


# Up to 2**_WHOLE entries, a table is never split for others than `Exact`.
_WHOLE = 20


class FactorGraphModel(AbstractFactorModel):
    """Any PGMax graph as a model with parameters: the log-potentials of its factor groups and the
    evidence of its variables. [`ebmlearn.BP`][], [`ebmlearn.Exact`][], [`ebmlearn.query`][],
    samplers, learners and [`ebmlearn.fit`][] work on it. The graph itself is not changed, and what
    was learned goes back to PGMax by `bp_arrays`.

    !!! example

        ```python
        model = FactorGraphModel(graph)
        beliefs = ebmlearn.BP(iterations=20)(model, evidence={visible: states})
        beliefs[hidden], beliefs.log_partition, beliefs.converged
        model.log_potentials_of(group)

        fitted = ebmlearn.fit(
            model, ebmlearn.MLE(ebmlearn.BP(iterations=20)), {visible: rows},
            optimizer=optax.adam(1e-2), epochs=20, batch_size=50, key=key,
        )
        ```

    To tie parameters, pass a function from free parameters to the model as `build` to `fit`:

        ```python
        def build(table):  # one table of 3×3 for all factors of a group
            return model.with_log_potentials({pairs: table})

        ebmlearn.fit(jnp.zeros((3, 3)), learner, data, build=build, ...)
        ```

    Graphs of one shape share what is compiled for them. [`ebmlearn.save`][] and [`ebmlearn.load`][]
    keep a model in a file, from which [`ebmlearn.pgmax.to_pgmax`][] builds the graph again.
    """

    log_potentials: tuple[Float[Array, "..."], ...]
    evidence: tuple[Float[Array, "..."], ...]
    wires: Wires
    variables: Names
    factor_groups: Names
    sites: Sites
    listed: tuple[Listed | None, ...]
    layout: Layout = eqx.field(static=True)
    start: Start | None = eqx.field(static=True)

    def __init__(self, graph: fgraph.FactorGraph, start: Start | None = None):
        """**Arguments:**

        - `graph`: a PGMax graph, built after `import ebmlearn.pgmax`. Evidence starts at zero: give
          other values with `with_evidence`.
        - `start`: `"plain"` lets messages start as in PGMax, so that [`ebmlearn.BP`][] with
          PGMax's damping and number of iterations, and [`ebmlearn.PMP`][] with the same noise, give
          what PGMax gives before they converge too. Without it the inference decides, and `BP` and
          `PMP` start `"centred"`. The two differ only in dense groups.
        """
        if start is not None:
            _checks.choice("start", start, ("centred", "plain"))
        self.start = start
        if not isinstance(graph, fgraph.FactorGraph):
            got = _checks.describe(graph)
            raise TypeError(f"`graph` must be a PGMax FactorGraph, got {got}.")
        check_graph(graph)
        groups = list(graph.variable_groups)  # pyright: ignore
        self.layout, self.wires, owners = lay_out(groups, graph.factor_groups, starts_of(graph))
        self.variables, self.factor_groups = Names(groups), Names(owners)
        self.sites = sites_of(self.layout, self.wires)
        self.listed = listed_in(self.layout, self.wires)
        self.log_potentials = tuple(map(initial, owners))
        self.evidence = tuple(jnp.zeros((*shape, s), float) for shape, s in self.layout.variables)

    @property
    def kind(self) -> str:
        """A graph of factors."""
        return "factors"

    @property
    def layers(self) -> tuple[Categorical, ...]:
        """The variables of each group."""
        return tuple(Categorical(math.prod(shape), n) for shape, n in self.layout.variables)

    @property
    def counts(self) -> tuple[int, ...]:  # pyright: ignore
        """The number of states of each variable."""
        return self.layout.every_count

    @property
    def colours(self) -> Int[AnyArray, "turns width"]:  # pyright: ignore
        return self.sites.turns

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the evidence."""
        return self.evidence[0].dtype

    @property
    def sizes(self) -> Sizes:
        return self.layout.variables

    @property
    def group_names(self) -> tuple[str, ...]:
        """`x`, or a number for each group of variables, as `x_0`."""
        return self.layout.names

    def tempered(self, beta: float | Float[Array, ""]) -> "FactorGraphModel":
        """The model of $p(x)^\\beta$."""
        parts = self.log_potentials, self.evidence
        scaled = jax.tree.map(lambda x: scaled_potentials(x, beta), parts)
        return eqx.tree_at(lambda m: (m.log_potentials, m.evidence), self, scaled)

    def factors(self, product: str = "sum") -> tuple[DenseFactor | KindFactor, ...]:
        """The dense groups, and the other factors by type."""
        wired = self.layout, self.wires, self.listed
        return factors_of(*wired, self.log_potentials, product, self.dtype, self.start)

    def mended(self, states: tuple[Array, ...], clamp: tuple[Any, ...]) -> tuple[Array, ...]:
        """Children of OR, AND and pool factors follow, unless factors contend for one of them."""
        if self.sites.problem is not None:
            return states
        held = None
        if clamp[0] is not None:
            held = jnp.concatenate([x >= 0 for x in clamp])[None]
        rows = self.sites.followed(jnp.concatenate(states)[None], held)[0]
        return tuple(jnp.split(rows, np.cumsum([len(x) for x in states])[:-1]))

    def whole_tables(self) -> Stacks:
        """All factors as stacks of tables of the variables of the graph alone."""
        if not _checks.is_concrete(self.wires):
            hint = "use it as a constant"
            refuse(self, "not be an argument of a compiled function for this", hint)
        wired = self.layout, self.wires, listed_in(self.layout, self.wires, _WHOLE)
        found = factors_of(*wired, self.log_potentials, "sum", self.dtype)
        stacks: list[Any] = [f.stacks({}, {}) for f in found]
        if None in stacks:
            refuse(self, "have factors that list their configurations, dense or logical ones")
        if any(f.helpers for f in found):
            few = f"factors of at most {_WHOLE} binary variables"
            refuse(self, f"have {few} to become tables")
        return sum(stacks, ())

    def scores(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        held: Bool[Array, "rows variables"] | None,
    ) -> Float[Array, "rows width most"]:
        if not self.sites.depth:
            return super().scores(rows, members, held)
        own = taken(rows, members)

        def with_state(state: Int[Array, ""]) -> Float[Array, " rows"]:
            return -self.energy(self.placed(rows, members, jnp.full_like(own, state)))

        states = jnp.arange(self.layout.max_states, dtype=rows.dtype)
        found = jax.vmap(with_state, out_axes=1)(states)[:, None]
        number = jnp.asarray(self.num_states, rows.dtype)[members][:, None]
        there = jnp.broadcast_to(states, found.shape) < jnp.broadcast_to(number, found.shape)
        found = jnp.where(there & (found >= EXCLUDED / 2), found, -jnp.inf)
        return unless_held(found, own, None if held is None else taken(held, members))

    def placed(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        states: Int[Array, "rows width"],
    ) -> Int[Array, "rows variables"]:
        return self.sites.followed(put(rows, members, states))

    def completed(
        self, rows: Int[Array, "rows variables"], fixed: Bool[Array, "rows variables"]
    ) -> Int[Array, "rows variables"]:
        """Choices of pools begin at 0, and what others determine follows them."""
        at = jnp.asarray(self.sites.choices)
        kept = jnp.where(fixed[:, at], rows[:, at], jnp.zeros_like(rows[:, at]))
        return self.sites.followed(rows.at[:, at].set(kept))

    @property
    def determined(self) -> Int[AnyArray, " _"]:
        return self.sites.children

    def base_log_partition(self, base: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        if len(set(np.asarray(self.sites.choices).tolist())) < sum(self.sites.pools):
            refuse(self, "have no choices that two pools share for annealing", "take `BP`")
        (unary,) = self.unary()
        if self.sites.depth and excludes(unary):
            refuse(self, "exclude no states of variables by evidence for annealing", "take `BP`")
        counts = self.padded((unary >= EXCLUDED / 2).astype(self.dtype)).sum(-1)
        counts = jnp.asarray(counts).at[np.asarray(self.determined)].set(1.0)
        counts = counts.at[np.asarray(self.sites.choices)].set(1.0)
        # A pool has one choice, or none.
        pools = jnp.asarray([n + 1 for n in self.sites.pools], self.dtype)
        return jnp.log(counts).sum() + jnp.log(pools).sum()

    def no_chains(self) -> str | None:
        if self.sites.problem is not None:
            return f"{self.sites.problem}; take `PMP`"
        if any(kind.type is NNBMFactor for kind in self.layout.kinds):
            return "the states of its quantised units have weights, which chains ignore; take `BP`"
        if any(excludes(x) for x in self.log_potentials) or any(
            kind.type is EnumFactor and found is not None and not found.is_full
            for kind, found in zip(self.layout.kinds, self.listed, strict=True)
        ):
            return (
                "its factors exclude configurations, so that variables may not come past each"
                " other; take `PMP`, or log-potentials that are finite"
            )
        return None

    def no_moves(self) -> str | None:
        if self.sites.depth:
            return (
                "its OR, AND or pool factors let no variable change alone; take `Gibbs`, which"
                " moves what they determine with what determines it"
            )
        return self.no_chains()

    def log_potentials_of(self, group: Hashable) -> Float[Array, "..."]:
        """The current log-potentials of a factor group; after training, the learned ones.

        **Arguments:**

        - `group`: a factor group of the graph.
        """
        return self.log_potentials[self.factor_groups.index(group, "`group`", "factor group")]

    def with_log_potentials(
        self, updates: Mapping[Any, Float[AnyArray, "..."]]
    ) -> "FactorGraphModel":
        """The model with other log-potentials.

        **Arguments:**

        - `updates`: from factor groups to arrays: `[factors, configurations]` for enumeration
          groups, `[factors, states, states]` for pairwise ones, `[visible, hidden]` for dense ones.
          Without the first axis, one table is shared by all factors of the group.
        """
        values = list(self.log_potentials)
        for group, value in by_group(updates, "updates").items():
            k = self.factor_groups.index(group, "`updates`", "factor group")
            values[k] = _filled("updates", value, values[k])
        return eqx.tree_at(lambda m: m.log_potentials, self, tuple(values))

    def with_evidence(self, updates: ByGroup) -> "FactorGraphModel":
        """The model with other evidence.

        **Arguments:**

        - `updates`: from variable groups to arrays `[*shape, states]`, or to what broadcasts to
          that, such as `[states]` for all variables alike; from a `VarDict` to a dictionary of
          arrays `[states]` by name; from single variables to arrays `[states]`. Minus infinity
          forbids a state.
        """
        values = list(self.evidence)
        sizes = self.layout.variables
        whole, single = parts_of(updates, self.variables, sizes, "updates")
        for k, value in whole.items():
            values[k] = _filled("updates", value, values[k])
        counts = cut_states(self.num_states, sizes)
        for k, columns in single.items():
            for at, value in columns.items():
                place = np.unravel_index(at, sizes[k][0])
                own = (*place, slice(int(counts[k][place])))
                values[k] = values[k].at[own].set(_filled("updates", value, values[k][own]))
        return eqx.tree_at(lambda m: m.evidence, self, tuple(values))

    def bp_arrays(self, bp_state: infer.BPState) -> infer.BPArrays:
        """The parameters in PGMax's own form, for its inferers: `bp.run(model.bp_arrays(state))`.

        **Arguments:**

        - `bp_state`: of the graph of this model.
        """
        flat = [x.reshape(-1) for x in self.log_potentials]
        log_potentials = jnp.concatenate([jnp.zeros(0), *flat])
        messages = np.asarray(bp_state.ftov_msgs.value)
        (evidence,) = self.unary()
        theirs: Any = bp_state.log_potentials.value, bp_state.evidence.value
        for name, mine, own in zip(
            ("log-potentials", "states"), (log_potentials, evidence), theirs, strict=True
        ):
            if mine.shape != own.shape:
                raise ValueError(
                    f"`bp_state` must come from the graph of this model, with {mine.size} {name},"
                    f" got {own.size}."
                )
        return infer.BPArrays(
            log_potentials=log_potentials, ftov_msgs=jnp.zeros(messages.shape), evidence=evidence
        )

    def unary(self) -> tuple[Float[Array, " states"]]:
        most = self.layout.max_states
        rows = [
            jnp.pad(x.reshape(-1, x.shape[-1]), ((0, 0), (0, most - x.shape[-1])))
            for x in self.evidence
        ]
        return (self.flattened(jnp.concatenate(rows)),)

    def blocks(self) -> tuple[Block, ...]:
        return tuple(Block(0, 1, self.log_potentials[k]) for k in self.layout.dense)

    def rows(self, data: Batch, name: str = "data") -> Int[AnyArray, "*batch variables"]:
        """Observed states as one array, in the order of the graph's variables.

        **Arguments:**

        - `data`: from variable groups to states, `[*batch, *shape]`, integers or booleans, -1 where
          not known; from a `VarDict` to a dictionary of states `[*batch]` by name; from single
          variables to states `[*batch]`. Or such an array as is returned here.

        **Returns:**

        An array `[*batch, variables]`, -1 where a variable is not observed.
        """
        data = self._joined(data, name, False) if isinstance(data, Mapping) else data
        return super().rows(data, name)

    def likelihood(self, data: Batch) -> tuple[Batch, Float[Array, "*batch states"] | None]:
        if not isinstance(data, Mapping):
            return data, None
        soft, data = apart(data)
        if not soft:
            return data, None
        return data, super().likelihood(self._joined(soft, "evidence", True))[1]

    def _index(self, group: Any, what: str) -> int:
        """The group itself: `rows` and `likelihood` tell groups by their places."""
        return group

    def _joined(self, data: Mapping[Any, Any], name: str, soft: bool) -> dict[int, Any]:
        """What is said of the variables of each group, by the place of the group."""
        sizes = self.layout.variables
        parts = parts_of(data, self.variables, sizes, name)
        return joined(parts, sizes, self.num_states, soft, name)

    def units(self, layers: Sequence[Float[Array, "*batch variables most"]]) -> Named:  # pyright: ignore
        shapes = tuple(shape for shape, _ in self.layout.variables)
        return Named(cut_units(layers[0], self.layout.variables), self.variables, shapes)

    def configuration(self, states: Int[AnyArray, "*batch variables"]) -> Named:  # pyright: ignore
        shapes = tuple(shape for shape, _ in self.layout.variables)
        return Named(cut_states(states, self.layout.variables), self.variables, shapes)

    def by_factor(self, blocks: tuple[Float[Array, "..."], ...]) -> Named:
        return Named(tuple(blocks), self.factor_groups, None)


def _filled(name: str, value: Any, like: Float[Array, "..."]) -> Float[Array, "..."]:
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            f"`{name}` must hold floating-point numbers, got {_checks.describe(value)}."
        )
    if value.ndim > like.ndim or value.shape != like.shape[like.ndim - value.ndim :]:
        raise ValueError(
            f"`{name}` must hold arrays of shape {like.shape}, or without leading axes to share one"
            f" table, got {_checks.describe(value)}."
        )
    return jnp.broadcast_to(_checks.log_potentials(name, value.astype(like.dtype)), like.shape)
