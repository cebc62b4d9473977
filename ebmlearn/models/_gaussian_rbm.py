import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PyTree, Shaped

from .. import _checks
from .._types import AnyArray, Key
from ..factors import AbstractFactor, Dense
from ..units import Gaussian
from ..units._binary import binary
from ._arrays import check_layers, gaussian, parameter, states
from ._base import AbstractPlainModel, Arrays, field_of, Kinds
from ._boltzmann import BoltzmannMachine
from ._rbm import RBM


class GaussianRBM(AbstractPlainModel):
    """An RBM with real visible units, Gaussian given the binary hidden ones:

    $E(v, h) = \\sum_i \\frac{(v_i - b_i)^2}{2 \\sigma_i^2}
    - \\sum_{ij} \\frac{v_i}{\\sigma_i} W_{ij} h_j - c^\\top h$

    (Salakhutdinov 2009, section 5.2), with a scale $\\sigma_i$ for each visible unit.
    [`ebmlearn.BP`][] with Gaussian messages, [`ebmlearn.Exact`][] and [`ebmlearn.query`][] give
    means and variances of the visible units. Samplers, and learners that use them, work too;
    inferences that maximise do not. `hidden_marginal` gives the distribution of the hidden units as
    a [`ebmlearn.BoltzmannMachine`][], on which every inference works.

    !!! example

        ```python
        from ebmlearn import datasets

        grey = datasets.shifted_digits().train.x
        model = ebmlearn.GaussianRBM.init(visible=64, hidden=32, key=0)
        fitted = ebmlearn.fit(model, ebmlearn.CD(), grey, epochs=2)
        ```

    **Arguments:**

    - `weights`: $W$, of shape `[visible, hidden]`.
    - `visible_bias`: $b$, of shape `[*batch, visible]`: the mean of the visible units if all hidden
      units are 0.
    - `hidden_bias`: $c$, of shape `[*batch, hidden]`.
    - `log_sigma`: $\\log \\sigma$, of shape `[visible]`.
    """

    weights: Float[Array, "visible hidden"] = eqx.field(converter=parameter("weights"))
    visible_bias: Float[Array, "*#batch visible"] = eqx.field(converter=parameter("visible_bias"))
    hidden_bias: Float[Array, "*#batch hidden"] = eqx.field(converter=parameter("hidden_bias"))
    log_sigma: Float[Array, " visible"] = eqx.field(converter=parameter("log_sigma"))

    hint: ClassVar[str] = (
        "use `BP`, `Exact` or a sampler, or `model.hidden_marginal()`, whose log Z is smaller by"
        " `model.log_volume`"
    )

    def __check_init__(self):
        check_layers(self.weights, self.visible_bias, self.hidden_bias)
        rows = self.weights.shape[:1]
        _checks.exact_shape("log_sigma", self.log_sigma, rows, "as `weights` has rows")
        _checks.one_dtype(**vars(self))
        _checks.finite(**vars(self))

    @classmethod
    @_checks.usage("GaussianRBM.init(visible=784, hidden=500, key=0)")
    def init(
        cls,
        visible: int,
        hidden: int,
        *,
        key: Key = 0,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "GaussianRBM":
        """A random Gaussian RBM.

        **Arguments:**

        - `visible`, `hidden`: the numbers of units.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `scale`: standard deviation of the weights. Biases are zero and scales $\\sigma$ are one:
          standardise the data, or set the biases and scales to match them.
        - `dtype`: float32 or float64; by default the default dtype of JAX.
        """
        _checks.count("visible", visible)
        _checks.count("hidden", hidden)
        weights = gaussian((visible, hidden), scale, dtype, _checks.as_key(key))
        zeros = jnp.zeros(visible, weights.dtype)
        return cls(weights, zeros, jnp.zeros(hidden, weights.dtype), zeros)

    @property
    def num_visible(self) -> int:
        return self.weights.shape[0]

    @property
    def num_hidden(self) -> int:
        return self.weights.shape[1]

    @property
    def sigma(self) -> Float[Array, " visible"]:
        """The standard deviation of each visible unit given the hidden ones."""
        return jnp.exp(self.log_sigma)

    def energy(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        hidden: Shaped[AnyArray, "*#batch hidden"],
    ) -> Float[Array, "*batch"]:
        """The energy $E(v, h)$ of configurations; leading axes broadcast."""
        energy = self._binary().energy(visible, hidden)
        return energy + jnp.broadcast_to(self._apart(visible), energy.shape)

    def free_energy(self, visible: Shaped[AnyArray, "*#batch visible"]) -> Float[Array, "*batch"]:
        """$F(v) = -\\log \\sum_h e^{-E(v, h)}$, so that $p(v) \\propto e^{-F(v)}$."""
        energy = self._binary().free_energy(visible)
        return energy + jnp.broadcast_to(self._apart(visible), energy.shape)

    def hidden_given(
        self, visible: Shaped[AnyArray, "*#batch visible"]
    ) -> Float[Array, "*batch hidden"]:
        """$p(h_j = 1 \\mid v)$ for every hidden unit."""
        return self._binary().hidden_given(visible)

    def visible_given(
        self, hidden: Shaped[AnyArray, "*#batch hidden"]
    ) -> Float[Array, "*batch visible"]:
        """The mean of every visible unit given the hidden ones, $b + \\sigma W h$; its standard
        deviation is `sigma`.
        """
        return self.layers[0].mean(field_of(self, 0, None, hidden))

    def hidden_marginal(self) -> BoltzmannMachine:
        """The hidden units alone, the visible ones integrated out: a Boltzmann machine with
        couplings $W^\\top W$ and biases $c_j + \\sum_i W_{ij} b_i / \\sigma_i + \\tfrac12 \\sum_i
        W_{ij}^2$.

        !!! example

            ```python
            log_z = ebmlearn.Exact()(model.hidden_marginal()).log_partition + model.log_volume
            ```
        """
        products = self.weights.T @ self.weights
        diagonal = jnp.diagonal(products)
        couplings = jnp.where(jnp.eye(self.num_hidden, dtype=bool), 0, products)
        sent = (self.visible_bias / jnp.broadcast_to(self.sigma, self.visible_bias.shape)) @ (
            self.weights
        )
        shape = jnp.broadcast_shapes(sent.shape, self.hidden_bias.shape)
        bias = jnp.broadcast_to(sent, shape) + jnp.broadcast_to(self.hidden_bias, shape)
        # A product with its transpose is symmetric but for rounding.
        return BoltzmannMachine(
            (couplings + couplings.T) / 2, bias + jnp.broadcast_to(diagonal / 2, shape)
        )

    @property
    def log_volume(self) -> Float[Array, ""]:
        """$\\sum_i \\log \\sqrt{2 \\pi} \\sigma_i$: log Z of this model minus log Z of its
        `hidden_marginal`.
        """
        return (self.log_sigma + 0.5 * math.log(2 * math.pi)).sum()

    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        return (Dense("visible", "hidden", self.weights / self.sigma[:, None]),)

    def unary(self) -> Arrays:
        """What is linear in each unit: $b / \\sigma^2$ and $c$."""
        precision = jnp.broadcast_to(jnp.exp(-2 * self.log_sigma), self.visible_bias.shape)
        return self.visible_bias * precision, self.hidden_bias

    @property
    def names(self) -> tuple[str, str]:
        return "visible", "hidden"

    @property
    def layers(self) -> Kinds:
        visible = Gaussian(self.num_visible, self.log_sigma, self.visible_bias)
        return visible, binary(self.num_hidden)

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "GaussianRBM":
        log_sigma = layers[0].log_scale  # pyright: ignore
        visible, hidden = unary
        variance = jnp.broadcast_to(jnp.exp(2 * log_sigma), visible.shape)
        return eqx.tree_at(
            lambda m: (m.weights, m.visible_bias, m.hidden_bias, m.log_sigma),
            self,
            (jnp.exp(log_sigma)[:, None] * parameters[0], visible * variance, hidden, log_sigma),
        )

    def by_factor(self, values: tuple[PyTree, ...]) -> PyTree:
        return values[0]

    def _binary(self) -> RBM:
        """The model without the energy of its visible units alone, as a function."""
        weights = self.weights / self.sigma[:, None]
        return RBM(weights, jnp.zeros_like(self.visible_bias), self.hidden_bias)

    def _apart(self, visible: Shaped[AnyArray, "..."]) -> Float[Array, "..."]:
        """The energy of the visible units alone."""
        v = states("visible", visible, self.num_visible, self.dtype)
        shape = jnp.broadcast_shapes(v.shape, self.visible_bias.shape)
        v, b, sigma = (jnp.broadcast_to(x, shape) for x in (v, self.visible_bias, self.sigma))
        return (((v - b) / sigma) ** 2).sum(-1) / 2
