from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int, PyTree, Shaped

from .. import _checks
from .._types import AnyArray, Key
from ..factors import AbstractFactor, Dense
from ..units import Categorical
from ..units._binary import binary
from ._arrays import check_layers, gaussian, optional, parameter, symmetrised
from ._base import AbstractPlainModel, Arrays, energy_of, field_of, from_spins, Kinds, to_spins


class SemiRestrictedBM(AbstractPlainModel):
    """A semi-restricted Boltzmann machine: an RBM with couplings between its visible units,

    $E(v, h) = -v^\\top W h - \\tfrac12 v^\\top L v - b^\\top v - c^\\top h$

    (Salakhutdinov 2009), with $L$ symmetric and zero on its diagonal. Optional label units $y$, of
    which exactly one is 1, are joined to the hidden units and add $-y^\\top U h - d^\\top y$. With
    label units, samplers and stochastic learners work; inferences do not.

    !!! example

        ```python
        model = ebmlearn.SemiRestrictedBM.init(visible=64, hidden=32, labels=10, key=0)
        ```

    **Arguments:**

    - `weights`: $W$, of shape `[visible, hidden]`.
    - `couplings`: $L$, of shape `[visible, visible]`, symmetric, zero on the diagonal.
    - `visible_bias`: array of shape `[*batch, visible]`.
    - `hidden_bias`: array of shape `[*batch, hidden]`.
    - `label_weights`, `label_bias`: $U$, of shape `[labels, hidden]`, and $d$; both or none.
    """

    weights: Float[Array, "visible hidden"] = eqx.field(converter=parameter("weights"))
    couplings: Float[Array, "visible visible"] = eqx.field(converter=parameter("couplings"))
    visible_bias: Float[Array, "*#batch visible"] = eqx.field(converter=parameter("visible_bias"))
    hidden_bias: Float[Array, "*#batch hidden"] = eqx.field(converter=parameter("hidden_bias"))
    label_weights: Float[Array, "labels hidden"] | None = eqx.field(
        converter=optional("label_weights"), default=None
    )
    label_bias: Float[Array, " labels"] | None = eqx.field(
        converter=optional("label_bias"), default=None
    )
    hint: ClassVar[str] = "use a sampler, such as `Gibbs()`, and `SAP` to train it"

    def __check_init__(self):
        if (self.label_weights is None) != (self.label_bias is None):
            missing = "label_weights" if self.label_weights is None else "label_bias"
            raise ValueError(f"`label_weights` and `label_bias` go together, got no `{missing}`.")
        check_layers(self.weights, self.visible_bias, self.hidden_bias)
        visible, hidden = self.weights.shape
        parameters = {name: x for name, x in vars(self).items() if x is not None}
        _checks.finite(**parameters)
        _checks.symmetric("couplings", self.couplings)
        shape = (visible, visible)
        _checks.exact_shape("couplings", self.couplings, shape, "as `weights` has rows")
        if self.label_weights is not None and self.label_bias is not None:
            _checks.rank("label_weights", self.label_weights, 2, "[labels, hidden]")
            labels = self.label_weights.shape[0]
            _checks.exact_shape(
                "label_weights", self.label_weights, (labels, hidden), "as `weights` has columns"
            )
            _checks.exact_shape(
                "label_bias", self.label_bias, (labels,), "as `label_weights` has rows"
            )
        _checks.one_dtype(**parameters)

    @classmethod
    @_checks.usage("SemiRestrictedBM.init(visible=784, hidden=500, labels=10, key=0)")
    def init(
        cls,
        visible: int,
        hidden: int,
        labels: int = 0,
        *,
        key: Key = 0,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "SemiRestrictedBM":
        """A random semi-restricted Boltzmann machine.

        **Arguments:**

        - `visible`, `hidden`, `labels`: the numbers of units.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `scale`: standard deviation of weights and couplings. Biases are zero.
        - `dtype`: float32 or float64; by default the default dtype of JAX.
        """
        _checks.count("visible", visible)
        _checks.count("hidden", hidden)
        _checks.count("labels", labels, 0)
        one, two, three = jax.random.split(_checks.as_key(key), 3)
        weights = gaussian((visible, hidden), scale, dtype, one)
        upper = jnp.triu(gaussian((visible, visible), scale, dtype, two), 1)
        zeros = jnp.zeros(visible, upper.dtype), jnp.zeros(hidden, upper.dtype)
        if labels == 0:
            return cls(weights, upper + upper.T, *zeros)
        joined = gaussian((labels, hidden), scale, dtype, three)
        return cls(weights, upper + upper.T, *zeros, joined, jnp.zeros(labels, upper.dtype))

    @classmethod
    def from_spins(
        cls,
        weights: Float[AnyArray, "visible hidden"],
        couplings: Float[AnyArray, "visible visible"],
        visible_bias: Float[AnyArray, "*#batch visible"],
        hidden_bias: Float[AnyArray, "*#batch hidden"],
    ) -> "SemiRestrictedBM":
        """The model whose energy, up to a constant, is $-s^\\top J t - \\tfrac12 s^\\top K s -
        f^\\top s - g^\\top t$ on spins ±1.

        **Arguments:**

        - `weights`: $J$, of shape `[visible, hidden]`.
        - `couplings`: $K$, of shape `[visible, visible]`, symmetric, zero on the diagonal.
        - `visible_bias`, `hidden_bias`: $f$ and $g$.
        """
        return from_spins(cls(weights, couplings, visible_bias, hidden_bias))

    def to_spins(
        self,
    ) -> tuple[
        Float[Array, "visible hidden"],
        Float[Array, "visible visible"],
        Float[Array, "... visible"],
        Float[Array, "... hidden"],
    ]:
        """The parameters of the same distribution on spins ±1, as `SemiRestrictedBM.from_spins`
        takes them. The model must have no label units.
        """
        if self.num_labels:
            raise ValueError(
                f"`to_spins` needs a model without label units, got {self.num_labels} of them."
            )
        spins = to_spins(self)
        return spins.weights, spins.couplings, spins.visible_bias, spins.hidden_bias

    @property
    def num_visible(self) -> int:
        return self.weights.shape[0]

    @property
    def num_hidden(self) -> int:
        return self.weights.shape[1]

    @property
    def num_labels(self) -> int:
        return 0 if self.label_weights is None else self.label_weights.shape[0]

    def energy(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        hidden: Shaped[AnyArray, "*#batch hidden"],
        label: Int[AnyArray, "*#batch"] | int | None = None,
    ) -> Float[Array, "*batch"]:
        """The energy $E(v, h)$ or $E(v, h, y)$ of configurations; leading axes broadcast. `label`
        is the number of the label unit that is 1.
        """
        return energy_of(self, *self._parts(visible, hidden, label))

    def free_energy(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        label: Int[AnyArray, "*#batch"] | int | None = None,
    ) -> Float[Array, "*batch"]:
        """$F(v) = -\\log \\sum_h e^{-E(v, h)}$, so that $p(v) \\propto e^{-F(v)}$. With label
        units, $F(v, y)$ if `label` is given; otherwise labels are summed out too.
        """
        if label is None and self.num_labels:
            return -jax.nn.logsumexp(self._label_scores(visible), axis=-1)
        return energy_of(self, *self._parts(visible, None, label))

    def label_given(
        self, visible: Shaped[AnyArray, "*#batch visible"]
    ) -> Float[Array, "*batch labels"]:
        """$p(y \\mid v)$, the hidden units summed out: the softmax of $-F(v, y)$."""
        if not self.num_labels:
            raise ValueError("`label_given` needs a model with label units, got none.")
        return jax.nn.softmax(self._label_scores(visible), axis=-1)

    def hidden_given(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        label: Int[AnyArray, "*#batch"] | int | None = None,
    ) -> Float[Array, "*batch hidden"]:
        """$p(h_j = 1 \\mid v)$, or given a label too, for every hidden unit."""
        return jax.nn.sigmoid(field_of(self, 1, *self._parts(visible, None, label)))

    def visible_given(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        hidden: Shaped[AnyArray, "*#batch hidden"],
    ) -> Float[Array, "*batch visible"]:
        """$p(v_i = 1 \\mid h, v_j, j \\ne i)$ for every visible unit."""
        labels = (None,) * (len(self.names) - 2)
        return jax.nn.sigmoid(field_of(self, 0, visible, hidden, *labels))

    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        lateral = Dense("visible", "visible", symmetrised(self.couplings))
        factors = Dense("visible", "hidden", self.weights), lateral
        if self.label_weights is None:
            return factors
        return *factors, Dense("label", "hidden", self.label_weights)

    def inside(self) -> tuple[PyTree, ...]:
        return (self.couplings,)

    def unary(self) -> Arrays:
        biases = self.visible_bias, self.hidden_bias
        return biases if self.label_bias is None else (*biases, self.label_bias)

    @property
    def names(self) -> tuple[str, ...]:
        return ("visible", "hidden", "label") if self.num_labels else ("visible", "hidden")

    @property
    def layers(self) -> Kinds:
        plain = binary(self.num_visible), binary(self.num_hidden)
        return (*plain, Categorical(1, self.num_labels)) if self.num_labels else plain

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "SemiRestrictedBM":
        def parts(model: SemiRestrictedBM) -> Any:
            weights, biases = [model.weights, model.couplings], [model.visible_bias]
            biases.append(model.hidden_bias)
            if model.label_weights is not None and model.label_bias is not None:
                weights.append(model.label_weights)
                biases.append(model.label_bias)
            return [*weights, *biases]

        return eqx.tree_at(parts, self, [*parameters, *unary])

    def _parts(self, visible: Any, hidden: Any, label: Any) -> tuple[Any, ...]:
        """States of all groups, the label as one-hot numbers if there are labels."""
        if not self.num_labels:
            if label is not None:
                raise ValueError("`label` must be None for a model without label units, got one.")
            return visible, hidden
        if label is None:
            raise ValueError("`label` must be given for a model with label units, got None.")
        _checks.labels("label", label, self.num_labels)
        return visible, hidden, jax.nn.one_hot(label, self.num_labels, dtype=self.dtype)

    def _label_scores(
        self, visible: Shaped[AnyArray, "*#batch visible"]
    ) -> Float[Array, "*batch labels"]:
        """$-F(v, y)$ of every label."""
        scores = [-self.free_energy(visible, label) for label in range(self.num_labels)]
        return jnp.stack(scores, axis=-1)
