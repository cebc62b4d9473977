from typing import ClassVar, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, PyTree, Shaped

from .. import _checks
from .._types import AnyArray, Batch, Evidence, Key, Observed
from ..factors import AbstractFactor, Dense
from ..units._binary import binary
from ._arrays import check_layers, gaussian, parameter, states
from ._base import (
    AbstractModel,
    AbstractPlainModel,
    Arrays,
    energy_of,
    field_of,
    from_spins,
    Kinds,
    refuse,
    to_spins,
)
from ._observed import rows_of
from ._variables import Layers


class RBM(AbstractPlainModel):
    """A restricted Boltzmann machine: binary visible units $v$ joined to binary hidden units $h$,

    $E(v, h) = -v^\\top W h - b^\\top v - c^\\top h$  (Ping & Ihler 2017, eq. (1)),

    with weights $W$, visible biases $b$ and hidden biases $c$. The biases may carry leading batch
    axes: one model per instance with shared weights, as [`ebmlearn.CRBM`][]`.condition` returns.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(visible=64, hidden=32, key=0)
        rbm = ebmlearn.RBM(np.zeros((64, 32)), np.zeros(64), np.zeros(32))  # of arrays
        ```

    **Arguments:**

    - `weights`: array of shape `[visible, hidden]`.
    - `visible_bias`: array of shape `[*batch, visible]`.
    - `hidden_bias`: array of shape `[*batch, hidden]`.
    """

    weights: Float[Array, "visible hidden"] = eqx.field(converter=parameter("weights"))
    visible_bias: Float[Array, "*#batch visible"] = eqx.field(converter=parameter("visible_bias"))
    hidden_bias: Float[Array, "*#batch hidden"] = eqx.field(converter=parameter("hidden_bias"))

    def __check_init__(self):
        check_layers(self.weights, self.visible_bias, self.hidden_bias)
        _checks.one_dtype(**vars(self))
        _checks.finite(**vars(self))

    @classmethod
    @_checks.usage("RBM.init(visible=784, hidden=500, key=0)")
    def init(
        cls,
        visible: int,
        hidden: int,
        *,
        key: Key = 0,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "RBM":
        """A random RBM.

        **Arguments:**

        - `visible`, `hidden`: the numbers of units.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `scale`: standard deviation of the weights. Biases are zero.
        - `dtype`: float32 or float64; by default the default dtype of JAX.
        """
        _checks.count("visible", visible)
        _checks.count("hidden", hidden, 0)
        weights = gaussian((visible, hidden), scale, dtype, _checks.as_key(key))
        return cls(weights, jnp.zeros(visible, weights.dtype), jnp.zeros(hidden, weights.dtype))

    @classmethod
    def from_spins(
        cls,
        couplings: Float[AnyArray, "visible hidden"],
        visible_field: Float[AnyArray, "*#batch visible"],
        hidden_field: Float[AnyArray, "*#batch hidden"],
    ) -> "RBM":
        """The RBM whose energy, up to a constant, is $-s^\\top J t - f^\\top s - g^\\top t$ on
        spins $s, t \\in \\lbrace -1, 1 \\rbrace$.

        **Arguments:**

        - `couplings`: $J$, of shape `[visible, hidden]`.
        - `visible_field`, `hidden_field`: $f$ and $g$.
        """
        couplings = _checks.parameter("couplings", couplings)
        visible_field = _checks.parameter("visible_field", visible_field)
        hidden_field = _checks.parameter("hidden_field", hidden_field)
        _checks.rank("couplings", couplings, 2, "[visible, hidden]")
        rows, columns = couplings.shape
        _checks.trailing("visible_field", visible_field, (rows,), "as `couplings` has rows")
        _checks.trailing("hidden_field", hidden_field, (columns,), "as `couplings` has columns")
        _checks.finite(couplings=couplings, visible_field=visible_field, hidden_field=hidden_field)
        return from_spins(cls(couplings, visible_field, hidden_field))

    def to_spins(
        self,
    ) -> tuple[
        Float[Array, "visible hidden"],
        Float[Array, "... visible"],
        Float[Array, "... hidden"],
    ]:
        """The couplings and the fields of the same distribution on spins ±1, as
        `RBM.from_spins` takes them.
        """
        spins = to_spins(self)
        return spins.weights, spins.visible_bias, spins.hidden_bias

    @property
    def num_visible(self) -> int:
        return self.weights.shape[0]

    @property
    def num_hidden(self) -> int:
        return self.weights.shape[1]

    def energy(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        hidden: Shaped[AnyArray, "*#batch hidden"],
    ) -> Float[Array, "*batch"]:
        """The energy $E(v, h)$ of configurations; leading axes broadcast."""
        return energy_of(self, visible, hidden)

    def free_energy(self, visible: Shaped[AnyArray, "*#batch visible"]) -> Float[Array, "*batch"]:
        """$F(v) = -\\log \\sum_h e^{-E(v, h)}$, so that $p(v) \\propto e^{-F(v)}$ (eq. (4))."""
        return energy_of(self, visible, None)

    def hidden_given(
        self, visible: Shaped[AnyArray, "*#batch visible"]
    ) -> Float[Array, "*batch hidden"]:
        """$p(h_j = 1 \\mid v)$ for every hidden unit (eq. (3))."""
        return jax.nn.sigmoid(field_of(self, 1, visible, None))

    def visible_given(
        self, hidden: Shaped[AnyArray, "*#batch hidden"]
    ) -> Float[Array, "*batch visible"]:
        """$p(v_i = 1 \\mid h)$ for every visible unit (eq. (3))."""
        return jax.nn.sigmoid(field_of(self, 0, None, hidden))

    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        return (Dense("visible", "hidden", self.weights),)

    @property
    def names(self) -> tuple[str, str]:
        return "visible", "hidden"

    @property
    def layers(self) -> Kinds:
        return binary(self.num_visible), binary(self.num_hidden)

    def unary(self) -> Arrays:
        return self.visible_bias, self.hidden_bias

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "RBM":
        parts = (*parameters, *unary)
        return eqx.tree_at(lambda m: (m.weights, m.visible_bias, m.hidden_bias), self, parts)

    def by_factor(self, values: tuple[PyTree, ...]) -> PyTree:
        return values[0]


class CRBM(AbstractModel):
    """A conditional restricted Boltzmann machine: an RBM whose biases depend on features $x$,

    $E(v, h, x) = -v^\\top W h - v^\\top (A x + b) - h^\\top (C x + c)$
    (Ping & Ihler 2017, eq. (2)).

    `condition(x)` returns the [`ebmlearn.RBM`][] of $p(v, h \\mid x)$, with one instance for each
    row of features; every inference works on it. Without hidden units a CRBM is logistic
    regression.

    !!! example

        ```python
        from ebmlearn import datasets

        x = datasets.digits().test.x
        crbm = ebmlearn.CRBM.init(visible=64, hidden=32, features=64, key=0)
        beliefs = ebmlearn.BP(10)(crbm.condition(x))
        ```

    **Arguments:**

    - `weights`: $W$, of shape `[visible, hidden]`.
    - `visible_features`: $A$, of shape `[visible, features]`.
    - `hidden_features`: $C$, of shape `[hidden, features]`.
    - `visible_bias`, `hidden_bias`: $b$ and $c$.
    """

    weights: Float[Array, "visible hidden"] = eqx.field(converter=parameter("weights"))
    visible_features: Float[Array, "visible features"] = eqx.field(
        converter=parameter("visible_features")
    )
    hidden_features: Float[Array, "hidden features"] = eqx.field(
        converter=parameter("hidden_features")
    )
    visible_bias: Float[Array, " visible"] = eqx.field(converter=parameter("visible_bias"))
    hidden_bias: Float[Array, " hidden"] = eqx.field(converter=parameter("hidden_bias"))

    conditional: ClassVar[bool] = True
    hint: ClassVar[str] = "call `model.condition(features)` first, or train it with `MLE` or `CD`"

    def __check_init__(self):
        _checks.rank("weights", self.weights, 2, "[visible, hidden]")
        visible, hidden = self.weights.shape
        _checks.rank("visible_features", self.visible_features, 2, "[visible, features]")
        features = self.visible_features.shape[1]
        rows, columns = "as `weights` has rows", "as `weights` has columns"
        _checks.exact_shape("visible_features", self.visible_features, (visible, features), rows)
        _checks.exact_shape(
            "hidden_features", self.hidden_features, (hidden, features), f"{columns}, and features"
        )
        _checks.exact_shape("visible_bias", self.visible_bias, (visible,), rows)
        _checks.exact_shape("hidden_bias", self.hidden_bias, (hidden,), columns)
        _checks.one_dtype(**vars(self))
        _checks.finite(**vars(self))

    @classmethod
    @_checks.usage("CRBM.init(visible=784, hidden=500, features=10, key=0)")
    def init(
        cls,
        visible: int,
        hidden: int,
        features: int,
        *,
        key: Key = 0,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "CRBM":
        """A random CRBM.

        **Arguments:**

        - `visible`, `hidden`: the numbers of units. `hidden` may be zero.
        - `features`: the length of the feature vector.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `scale`: standard deviation of the weights. Biases are zero.
        - `dtype`: float32 or float64; by default the default dtype of JAX.
        """
        _checks.count("visible", visible)
        _checks.count("hidden", hidden, 0)
        _checks.count("features", features)
        keys = jax.random.split(_checks.as_key(key), 3)
        weights = gaussian((visible, hidden), scale, dtype, keys[0])
        return cls(
            weights,
            gaussian((visible, features), scale, dtype, keys[1]),
            gaussian((hidden, features), scale, dtype, keys[2]),
            jnp.zeros(visible, weights.dtype),
            jnp.zeros(hidden, weights.dtype),
        )

    @property
    def num_visible(self) -> int:
        return self.weights.shape[0]

    @property
    def num_hidden(self) -> int:
        return self.weights.shape[1]

    @property
    def num_features(self) -> int:
        return self.visible_features.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parameters."""
        return self.weights.dtype

    def check(self, batch: Batch, name: str = "batch") -> None:
        """Raises an error if a batch is not a pair (features, visible) for this model."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            got = f"{len(batch)} arrays" if isinstance(batch, (tuple, list)) else "one array"
            if not hasattr(batch, "shape") and not isinstance(batch, (tuple, list)):
                got = _checks.describe(batch)
            raise ValueError(
                f"`{name}` must be the pair (features, visible) for a CRBM, got {got}."
            )
        x = rows_of(f"{name}[0]", batch[0], self.num_features, "[rows, features]")
        _checks.finite_rows(f"{name}[0]", x)
        v = rows_of(f"{name}[1]", batch[1], self.num_visible, "[rows, visible]")
        _checks.binary_rows(f"{name}[1]", v)
        if x.shape[0] != v.shape[0]:
            raise ValueError(
                f"`{name}` must hold the same number of rows of features and visible units, got"
                f" {x.shape[0]} and {v.shape[0]}."
            )

    def observe(
        self, batch: Batch, name: str = "batch"
    ) -> tuple[RBM, tuple[Float[Array, "rows visible"], None], None]:
        """Checks the pair (features, visible), and conditions on the features."""
        self.check(batch, name)
        features, visible = batch
        return self.condition(features), (jnp.asarray(visible).astype(self.dtype), None), None

    def condition(self, features: Shaped[AnyArray, "*batch features"]) -> RBM:
        """The RBM of $p(v, h \\mid x)$, its biases with the leading axes of `features`."""
        x = states("features", features, self.num_features, self.weights.dtype)
        visible = x @ self.visible_features.T
        hidden = x @ self.hidden_features.T
        return RBM(
            self.weights,
            visible + jnp.broadcast_to(self.visible_bias, visible.shape),
            hidden + jnp.broadcast_to(self.hidden_bias, hidden.shape),
        )

    def energy(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        hidden: Shaped[AnyArray, "*#batch hidden"],
        features: Shaped[AnyArray, "*#batch features"],
    ) -> Float[Array, "*batch"]:
        """The energy $E(v, h, x)$; leading axes broadcast."""
        return self.condition(features).energy(visible, hidden)

    def free_energy(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        features: Shaped[AnyArray, "*#batch features"],
    ) -> Float[Array, "*batch"]:
        """$F(v, x) = -\\log \\sum_h e^{-E(v, h, x)}$ (eq. (4))."""
        return self.condition(features).free_energy(visible)

    def hidden_given(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        features: Shaped[AnyArray, "*#batch features"],
    ) -> Float[Array, "*batch hidden"]:
        """$p(h_j = 1 \\mid v, x)$ for every hidden unit (eq. (3))."""
        return self.condition(features).hidden_given(visible)

    def visible_given(
        self,
        hidden: Shaped[AnyArray, "*#batch hidden"],
        features: Shaped[AnyArray, "*#batch features"],
    ) -> Float[Array, "*batch visible"]:
        """$p(v_i = 1 \\mid h, x)$ for every visible unit (eq. (3))."""
        return self.condition(features).visible_given(hidden)

    def tempered(self, beta: float | Float[Array, ""]) -> "CRBM":
        """The model of $p(v, h \\mid x)^\\beta$: every parameter times `beta`."""
        return jax.tree.map(lambda x: x * jnp.asarray(beta, x.dtype), self)

    def problem(self, evidence: Evidence, observed: Observed) -> NoReturn:
        """Raises `TypeError`: inferences need the features."""
        return refuse(self, "be an RBM")

    def bare(self) -> RBM:
        """The RBM for features that are all 0."""
        return RBM(self.weights, self.visible_bias, self.hidden_bias)

    def given_features(self, features: AnyArray | None) -> RBM:
        """`condition(features)`."""
        if features is None:
            raise ValueError("`features` must be given for a CRBM, got None.")
        return self.condition(features)

    def uncentred(self, offsets: Layers, batch: Batch | None = None) -> "CRBM":
        """The model whose energy is, up to a constant, this one's at $v - \\mu$, $h - \\lambda$ and
        $x - \\xi$, with `offsets` $(\\mu, \\lambda)$ and the mean $\\xi$ of the features of a
        batch.
        """
        assert batch is not None
        features = jnp.asarray(batch[0]).astype(self.dtype).mean(0)  # pyright: ignore
        visible = self.weights @ offsets.hidden + self.visible_features @ features
        hidden = offsets.visible @ self.weights + self.hidden_features @ features
        biases = self.visible_bias - visible, self.hidden_bias - hidden
        return eqx.tree_at(lambda model: (model.visible_bias, model.hidden_bias), self, biases)
