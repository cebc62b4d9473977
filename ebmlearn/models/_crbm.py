import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, Shaped

from .. import _checks
from .._types import AnyArray
from ._base import gaussian, Layers, scaled, states
from ._rbm import RBM


class CRBM(eqx.Module):
    """A conditional restricted Boltzmann machine: an RBM whose biases depend on features $x$,

    $E(v, h, x) = -v^\\top W h - v^\\top (A x + b) - h^\\top (C x + c)$
    (Ping & Ihler 2017, eq. (2)).

    It is a maker of RBMs: `condition(x)` gives the [`ebmlearn.RBM`][] of $p(v, h \\mid x)$, one
    instance for each row of features, and every inference works on that. With no hidden units it
    is logistic regression.

    !!! example

        ```python
        crbm = ebmlearn.CRBM.init(visible=64, hidden=32, features=64, key=jax.random.key(0))
        beliefs = ebmlearn.BP(iterations=10)(crbm.condition(x))
        ```
    """

    weights: Float[Array, "visible hidden"]
    visible_features: Float[Array, "visible features"]
    hidden_features: Float[Array, "hidden features"]
    visible_bias: Float[Array, " visible"]
    hidden_bias: Float[Array, " hidden"]

    def __init__(
        self,
        weights: Float[AnyArray, "visible hidden"],
        visible_features: Float[AnyArray, "visible features"],
        hidden_features: Float[AnyArray, "hidden features"],
        visible_bias: Float[AnyArray, " visible"],
        hidden_bias: Float[AnyArray, " hidden"],
    ):
        """**Arguments:**

        - `weights`: $W$, of shape `[visible, hidden]`.
        - `visible_features`: $A$, of shape `[visible, features]`.
        - `hidden_features`: $C$, of shape `[hidden, features]`.
        - `visible_bias`, `hidden_bias`: $b$ and $c$.
        """
        self.weights = _checks.parameter("weights", weights)
        self.visible_features = _checks.parameter("visible_features", visible_features)
        self.hidden_features = _checks.parameter("hidden_features", hidden_features)
        self.visible_bias = _checks.parameter("visible_bias", visible_bias)
        self.hidden_bias = _checks.parameter("hidden_bias", hidden_bias)

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
    def init(
        cls,
        visible: int,
        hidden: int,
        features: int,
        *,
        key: PRNGKeyArray,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "CRBM":
        """A random CRBM.

        **Arguments:**

        - `visible`, `hidden`: the numbers of units. `hidden` may be zero.
        - `features`: the length of the feature vector.
        - `key`: a typed key, from `jax.random.key(seed)`.
        - `scale`: standard deviation of the weights. Biases are zero.
        - `dtype`: float32 or float64; the default dtype of JAX if not given.
        """
        _checks.count("visible", visible)
        _checks.count("hidden", hidden, 0)
        _checks.count("features", features)
        _checks.typed_key(key)
        keys = jax.random.split(key, 3)
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
        return scaled(self, beta)

    def uncentred(self, offsets: Layers, features: Float[Array, " features"]) -> "CRBM":
        """The model whose energy is, up to a constant, this one's at $v - \\mu$, $h - \\lambda$ and
        $x - \\xi$, with `offsets` $(\\mu, \\lambda)$ and `features` $\\xi$.
        """
        visible = self.weights @ offsets.hidden + self.visible_features @ features
        hidden = offsets.visible @ self.weights + self.hidden_features @ features
        biases = self.visible_bias - visible, self.hidden_bias - hidden
        return eqx.tree_at(lambda model: (model.visible_bias, model.hidden_bias), self, biases)
