import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from .. import _checks
from .._types import AnyArray
from ._gaussian_rbm import GaussianRBM
from ._rbm import RBM


class Stack(eqx.Module):
    """Models one on top of another: each is a model of the hidden units of the one below
    (Salakhutdinov 2009, section 5.2, where the lowest is a [`ebmlearn.GaussianRBM`][] that turns
    grey levels into bits). They are trained one after another.

    !!! example

        ```python
        from ebmlearn import datasets

        grey = datasets.shifted_digits().train.x
        lower, upper = ebmlearn.GaussianRBM.init(64, 32), ebmlearn.RBM.init(32, 16)
        bits = ebmlearn.models.Stack([lower, upper]).activities(grey, key=0)
        upper = ebmlearn.fit(upper, ebmlearn.SAP(), bits, epochs=2).model
        top = ebmlearn.sample(upper, ebmlearn.Gibbs(), 100, burn_in=100)
        images = ebmlearn.models.Stack([lower, upper]).down(top.visible)
        ```
    """

    models: tuple[RBM | GaussianRBM, ...]

    def __init__(self, models: list[RBM | GaussianRBM] | tuple[RBM | GaussianRBM, ...]):
        """**Arguments:**

        - `models`: two or more RBMs, from the lowest up. The lowest may be a GaussianRBM.
        """
        self.models = tuple(models)

    def __check_init__(self):
        if len(self.models) < 2:
            raise ValueError(f"`models` must contain at least two models, got {len(self.models)}.")
        for k, model in enumerate(self.models):
            if not isinstance(model, RBM if k else (RBM, GaussianRBM)):
                wanted = "an RBM" if k else "an RBM or a GaussianRBM"
                got = _checks.describe(model)
                raise TypeError(f"`models[{k}]` must be {wanted}, got {got}.")
            if k and self.models[k - 1].num_hidden != model.num_visible:
                raise ValueError(
                    f"`models[{k}]` must have {self.models[k - 1].num_hidden} visible units, as the"
                    f" model below has hidden units, got {model.num_visible}."
                )

    def activities(
        self, visible: Shaped[AnyArray, "*batch visible"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*batch units"] | Int[Array, "*batch units"]:
        """Data for the top model: the visible units passed up through all models below it.

        **Arguments:**

        - `visible`: visible units of the lowest model.
        - `key`: a seed or a key with which hidden units are drawn at each level. Without it, their
          probabilities are passed on.
        """
        if key is not None:
            key = _checks.as_key(key)
        x = jnp.asarray(visible)
        for model in self.models[:-1]:
            x = model.hidden_given(x)
            if key is not None:
                key, own = jax.random.split(key)
                x = jax.random.bernoulli(own, x).astype(jnp.int32)
        return x

    def down(
        self, units: Shaped[AnyArray, "*batch units"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*batch visible"]:
        """Passes visible units of the top model down to the lowest model and returns the means of
        its visible units. With `key`, states are drawn on the way; without it, means are passed on.
        """
        if key is not None:
            key = _checks.as_key(key)
        x = jnp.asarray(units)
        for k, model in enumerate(reversed(self.models[:-1])):
            if k and key is not None:
                key, own = jax.random.split(key)
                x = jax.random.bernoulli(own, x).astype(jnp.int32)
            x = model.visible_given(x)
        return x.astype(self.models[0].weights.dtype)
