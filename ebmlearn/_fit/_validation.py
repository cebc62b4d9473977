"""When and how a run is validated."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int, PyTree, Shaped

from .. import _checks, messages
from .._types import AnyArray
from ._simple import Comparison
from ._state import Training


class Validation(NamedTuple):
    """The metric of a run, its data, and when to call it."""

    metric: Callable[[Any, Any, Any], Any] | None
    data: Any
    every: int | None  # steps; None is the end of an epoch
    comparison: Comparison
    chains: Callable[[Any, Any, int], tuple[float, float, float]] | None = None

    @property
    def wanted(self) -> bool:
        return self.metric is not None or self.chains is not None

    def values(
        self, training: Training, parameters: PyTree, epoch: int
    ) -> Float64[np.ndarray, " lanes"]:
        """The metric of each lane, NaN if there is none. That of a single one is called as it is;
        that of many is compiled.
        """
        if self.metric is None:
            return np.array([np.nan])
        if training.many:
            try:
                at = np.asarray(epoch, np.int32)
                found = np.asarray(_in_lanes(training, self.metric, parameters, self.data, at))
            except _NOT_TRACEABLE as error:
                raise TypeError(
                    "`metric` must be traceable in `fit_many`: use only `jax.numpy` and return a"
                    " JAX array, without `float`, `if` or NumPy; or call `fit` for each run."
                ) from error
        else:
            found = [self.metric(training.model(parameters), self.data, epoch)]
        try:
            return np.array([float(x) for x in found])
        except (TypeError, ValueError) as error:
            got = _checks.describe(found[0])
            raise TypeError(f"`metric` must return a number, got {got}.") from error


_NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@eqx.filter_jit
def _in_lanes(
    training: Training, metric: Callable, parameters: PyTree, data: Any, epoch: Int[AnyArray, ""]
) -> Shaped[Array, "lanes *shape"]:
    def judged(moderate: bool | None) -> Array:
        def one(parameters: PyTree) -> Array:
            return jnp.asarray(metric(training.model(parameters), data, epoch))

        with messages.assuming(moderate):
            return training.each(one)(parameters)

    # One way for all of them: a choice for each lane would be made by running both.
    found = training.are_moderate(metric, parameters)
    if found is None:
        return judged(None)
    return jax.lax.cond(found.all(), lambda: judged(True), lambda: judged(False))
