import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from pgmax import fgraph, infer

from .. import _checks
from .._types import AnyArray, ByGroup
from ..factors import Stacks
from ..messages import Start
from ..models import AbstractGrouped, AbstractPlainModel, refuse, where_there
from ..units import AbstractUnits, Categorical
from ._compat import starts_of
from ._evidence import by_group, joined, parts_of
from ._factors import DenseFactor, factors_of, KindFactor
from ._flat import cut_states
from ._identities import Named, Names
from ._layout import check_graph, initial, lay_out, Layout, Wires
from ._sites import Sites, sites_of
from ._sparse_tables import Listed, listed_in
from ._variable_turns import Following


# Up to 2**_WHOLE entries, a table is never split for others than `Exact`.
_WHOLE = 20


class FactorGraphModel(AbstractGrouped, AbstractPlainModel):
    """Any PGMax graph as a model with parameters: the log-potentials of its factor groups and the
    evidence of its variables. [`ebmlearn.BP`][], [`ebmlearn.Exact`][], [`ebmlearn.query`][],
    samplers, learners and [`ebmlearn.fit`][] work on it. The graph itself is not changed, and what
    was learned goes back to PGMax by `bp_arrays`.

    !!! example

        ```python
        from ebmlearn.pgmax import FactorGraphModel, RBMFactorGroup
        from pgmax import fgraph, vgroup

        visible = vgroup.NDVarArray(num_states=2, shape=(16,))
        hidden = vgroup.NDVarArray(num_states=2, shape=(8,))
        group = RBMFactorGroup(visible, hidden, np.zeros((16, 8)))
        graph = fgraph.FactorGraph([visible, hidden])
        graph.add_factors(group)
        model, rows = FactorGraphModel(graph), np.zeros((100, 16), int)
        beliefs = ebmlearn.BP(20)(model, evidence={visible: rows})
        beliefs[hidden], beliefs.log_partition, beliefs.converged

        fitted = ebmlearn.fit(model, ebmlearn.MLE(ebmlearn.BP(20)), {visible: rows}, epochs=2)
        ```

    To tie parameters, pass a function from free parameters to the model as `build` to `fit`:

        ```python
        def build(weight):  # one weight for all edges
            return model.with_log_potentials({group: jnp.full((16, 8), weight)})

        ebmlearn.fit(jnp.zeros(()), ebmlearn.MLE(), {visible: rows}, build=build, epochs=2)
        ```

    Graphs of one shape share what is compiled for them. [`ebmlearn.save`][] and [`ebmlearn.load`][]
    keep a model in a file, from which [`ebmlearn.pgmax.to_pgmax`][] builds the graph again.
    """

    log_potentials: tuple[Float[Array, "..."], ...]
    evidence: tuple[Float[Array, "..."], ...]
    wires: Wires
    variable_groups: Names
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
        self.variable_groups, self.factor_groups = Names(groups), Names(owners)
        self.sites = sites_of(self.layout, self.wires)
        self.listed = listed_in(self.layout, self.wires)
        self.log_potentials = tuple(map(initial, owners))
        self.evidence = tuple(jnp.zeros((*shape, s), float) for shape, s in self.layout.variables)

    @property
    def names(self) -> tuple[str, ...]:
        """`x`, or a number for each group of variables, as `x_0`."""
        return self.layout.names

    @property
    def layers(self) -> tuple[Categorical, ...]:
        """The variables of each group."""
        return _layers(self.layout)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(shape for shape, _ in self.layout.variables)

    @property
    def turns(self) -> Following:
        """Variables are drawn with those that they determine."""
        return Following(self)  # pyright: ignore

    def unary(self) -> tuple[Float[Array, " _"], ...]:
        pairs = zip(self.layers, self.evidence, strict=True)
        return tuple(where_there(units, x.reshape(-1)) for units, x in pairs)

    def remade(
        self,
        layers: tuple[AbstractUnits, ...],
        parameters: tuple[Float[Array, "..."], ...],
        unary: tuple[Float[Array, " _"], ...],
    ) -> "FactorGraphModel":
        evidence = tuple(x.reshape(old.shape) for x, old in zip(unary, self.evidence, strict=True))
        parts = tuple(parameters), evidence
        return eqx.tree_at(lambda m: (m.log_potentials, m.evidence), self, parts)

    def factors(self, product: str = "sum") -> tuple[DenseFactor | KindFactor, ...]:
        """The dense groups, and the other factors by type."""
        wired = self.layout, self.wires, self.listed
        return factors_of(*wired, self.log_potentials, product, self.dtype, self.start)

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
        whole, single = parts_of(updates, self.variable_groups, sizes, "updates")
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
        evidence = self.layout.flat([x.reshape(-1, x.shape[-1]) for x in self.evidence])
        theirs: Any = bp_state
        for name, mine, own in (
            ("log-potentials", log_potentials, theirs.log_potentials.value),
            ("states", evidence, theirs.evidence.value),
        ):
            if mine.shape != own.shape:
                raise ValueError(
                    f"`bp_state` must come from the graph of this model, with {mine.size} {name},"
                    f" got {own.size}."
                )
        messages = jnp.zeros(theirs.ftov_msgs.value.shape)
        return infer.BPArrays(log_potentials, messages, evidence)

    def places(self, data: Mapping[Any, Any], name: str, soft: bool) -> dict[int, Any]:
        """The values for each group, by its number. They may be given for whole groups, for the
        variables of a `VarDict` by name, and for single variables.
        """
        sizes = self.layout.variables
        parts = parts_of(data, self.variable_groups, sizes, name)
        return joined(parts, sizes, np.asarray(self.layout.every_count), soft, name)

    def named(self, values: Sequence[Any]) -> Named:
        return Named(tuple(values), self.variable_groups, self.shapes)

    def by_factor(self, values: tuple[Float[Array, "..."], ...]) -> Named:
        return Named(tuple(values), self.factor_groups, None)


@functools.lru_cache(maxsize=64)
def _layers(layout: Layout) -> tuple[Categorical, ...]:
    counts = cut_states(np.asarray(layout.every_count), layout.variables)
    out = []
    for (shape, most), own in zip(layout.variables, counts, strict=True):
        fewer = None if (own == most).all() else tuple(own.reshape(-1).tolist())
        out.append(Categorical(math.prod(shape), most, fewer))
    return tuple(out)


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
