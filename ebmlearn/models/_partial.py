"""Rows of data of which some values are missing."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Num, PyTree

from .. import _checks
from .._types import AnyArray, Evidence, Observed


class Partial(NamedTuple):
    """Rows, with zeros for what is missing, and which values are there."""

    states: Num[AnyArray, "rows units"]
    observed: Bool[AnyArray, "rows units"]


def apart(x: Any) -> tuple[Any, Any]:
    """Rows, and which of their values are there; None if all are. NaN is a missing value, where
    values can be looked at.
    """
    if isinstance(x, Partial):
        return x
    if not _has_gaps(x):
        return x, None
    there = ~np.isnan(x)
    return np.where(there, x, np.zeros_like(x)), there


def marked(x: PyTree) -> PyTree:
    """Rows as `Partial`, if some of their values are missing."""
    states, observed = apart(x)
    return x if observed is None else Partial(states, observed)


def observed_evidence(evidence: Evidence, observed: Observed) -> tuple[Any, Any]:
    """Evidence in which NaN is a unit that is not observed."""
    found, there = apart(evidence)
    if there is None:
        return evidence, observed
    if observed is None:
        return found, there
    with jax.numpy_rank_promotion("allow"):
        return found, jnp.asarray(observed) & there


def _has_gaps(x: Any) -> bool:
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.floating):
        return False
    return _checks.is_concrete(x) and bool(np.isnan(x).any())
