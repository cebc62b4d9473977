"""The engine of a model: the forms of its groups, and the messages of its factors."""

import contextlib
import contextvars
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _checks
from .._sentinels import LIMIT
from .._types import AnyArray
from ..factors import AbstractFactor, Dense, Lattice, Tables
from ..models import AbstractPlainModel, only_trained, two_sides
from ..units import AbstractUnits, Binary
from ._edge import odds_serve
from ._engine import Engine
from ._expectation import Gaussians, GaussianSent
from ._factor_messages import DenseSent, TablesSent
from ._forms import (
    AbstractNumbered,
    AbstractSent,
    Form,
    LogOdds,
    Maximised,
    Pairs,
    Product,
    Schedule,
    Scores,
)
from ._neighbours import is_narrow, LatticeSent
from ._odds import OddsSent


class Site(NamedTuple):
    """Where a factor stands: what its messages need to know of a model and of an inference.
    `maximised` says over which units of each group messages maximise: all, none, or a mask.
    """

    units: Mapping[str, AbstractUnits]
    numbers: Mapping[str, int]
    forms: tuple[AbstractNumbered | Gaussians, ...]
    sides: tuple[int, ...] | None
    maximised: tuple[Any, ...]
    product: Product
    form: Form
    schedule: Schedule
    is_damped: bool
    beta: Float[AnyArray, ""]
    leaves: frozenset[str] = frozenset()

    def ends(self, factor: AbstractFactor) -> tuple[int, ...]:
        """The numbers of the groups that a factor joins."""
        return tuple(self.numbers[group] for group in factor.groups)

    def masks(self, ends: Iterable[int] | None = None) -> Maximised:
        """Over which units of some groups, or of each, mixed-product maximises; None for other
        products.
        """
        if self.product != "mixed":
            return None
        sizes = [own.size for own in self.units.values()]
        return tuple(
            jnp.broadcast_to(jnp.asarray(self.maximised[k]), sizes[k])
            for k in (range(len(sizes)) if ends is None else ends)
        )


Maker: TypeAlias = Callable[..., AbstractSent]


def _tables(factor: Tables, site: Site) -> TablesSent:
    ends = site.ends(factor)
    return TablesSent(
        tables=jnp.clip(factor.tempered(site.beta).log_potentials, -LIMIT, LIMIT),
        members=factor.members,
        forms=tuple(site.forms[end] for end in ends),  # pyright: ignore
        ends=ends,
        product=site.product,
        maximised=site.masks(ends),
    )


def _dense(factor: Dense, site: Site) -> AbstractSent:
    ends = site.ends(factor)
    units: list[Any] = [site.units[group] for group in factor.groups]
    families = [u.family for u in units]
    if all(isinstance(site.forms[end], LogOdds) for end in ends):
        in_place = site.schedule == "layers" and not site.is_damped
        leader = site.sides[ends[0]] if in_place and site.sides is not None else None
        # Odds that are damped are not.
        form = "log-odds" if site.is_damped else site.form
        how = form, site.product, tuple(site.maximised[end] for end in ends), leader
        return OddsSent(factor.weights, site.beta, ends, *how)  # pyright: ignore
    if set(families) == {"gaussian", "binary"}:
        real = families.index("gaussian")
        form: Any = site.forms[ends[real]]
        return GaussianSent(
            weights=form.standard(factor.weights.T if real else factor.weights),
            sigma=form.sigma,
            least=form.least,
            ends=(ends[real], ends[1 - real]),
            takes_turns=site.schedule == "layers",
            is_turned=real == 1,
        )
    return DenseSent(
        tables=factor.tempered(site.beta).pairs(site.units),
        inside=tuple(u.states_inside(factor.weights.dtype) for u in units),  # pyright: ignore
        forms=tuple(site.forms[end] for end in ends),  # pyright: ignore
        ends=ends,
        product=site.product,
        maximised=site.masks(ends),
    )


def _lattice(factor: Lattice, site: Site, *more: Lattice) -> LatticeSent:
    alone = [group for group in factor.groups if group in site.leaves and not any(factor.offset)]
    leaf = site.numbers[alone[-1]] if alone else None
    ends = site.ends(factor)
    how = ends, site.form, site.product, site.masks(ends), leaf, site.beta
    return LatticeSent((factor, *more), *how)


# From the class of a factor to what makes its messages. Hosts add those of their own factors.
MAKERS: dict[type, Maker] = {Tables: _tables, Dense: _dense, Lattice: _lattice}


def _parts(factors: tuple[AbstractFactor, ...], site: Site) -> Iterator[AbstractSent]:
    """The messages of all factors. Lattices of one group that follow each other send together."""

    def together(place: tuple[int, AbstractFactor]) -> Hashable:
        k, factor = place
        inside = isinstance(factor, Lattice) and factor.first == factor.second
        return (factor.first, factor.shape) if inside else k  # pyright: ignore

    for _, places in itertools.groupby(enumerate(factors), together):
        (_, first), *more = places
        yield MAKERS[type(first)](first, site, *(factor for _, factor in more))


class Outline(NamedTuple):
    """What messages need to know about a model. Its factors are built once."""

    kind: str
    units: Mapping[str, AbstractUnits]
    factors: tuple[AbstractFactor, ...]

    @property
    def name(self) -> str:
        """The kind of model, as errors say it."""
        return _checks.article(self.kind)

    @property
    def is_real(self) -> bool:
        """Whether some units are real numbers."""
        return not all(own.numbered for own in self.units.values())

    @property
    def serves(self) -> bool:
        """Whether there are messages between all units that are joined."""
        families = {name: own.family for name, own in self.units.items()}
        if not set(families.values()) <= {"binary", "categorical", "gaussian"}:
            return False
        both = {"gaussian", "binary"}
        if self.is_real and any({families[g] for g in f.groups} != both for f in self.factors):
            return False
        return all(type(factor) in MAKERS for factor in self.factors)

    @property
    def sides(self) -> tuple[int, ...] | None:
        """The side of each group, 0 or 1, if no two units of a side are joined. None if there are
        no such sides.
        """
        names = list(self.units)
        joined = [tuple(names.index(group) for group in f.groups) for f in self.factors]
        # A factor of one unit sends to its own group in every turn.
        if any(len(ends) != 2 or ends[0] == ends[1] for ends in joined):
            return None
        # Gaussian units send first, because their messages are not kept.
        real = [int(own.numbered) for own in self.units.values()]
        sides = real if self.is_real else two_sides(len(names), joined)
        return None if any(sides[a] == sides[b] for a, b in joined) else tuple(sides)

    @property
    def size(self) -> int:
        """How many numbers the messages of an instance are."""
        return sum(factor.size(self.units) for factor in self.factors)

    def moderate(self, temperature: Float[AnyArray, ""], damped: bool = False) -> Any:
        """Whether the fast forms of all messages are accurate enough; None if there are none."""
        own = [f for f in self.factors if type(f) in FAST]
        found = [FAST[type(f)](f, self.units, temperature, damped) for f in own]
        known = [x for x in found if x is not None]
        if not known:
            return None
        both = np.logical_and if _checks.is_concrete(known) else jnp.logical_and
        return functools.reduce(both, known)

    def fits(
        self, temperature: Float[AnyArray, ""], product: Product, damped: bool
    ) -> bool | Bool[AnyArray, ""]:
        """Whether messages are sent in the fast form: if it is accurate enough for sum-product."""
        if product == "max":
            return False
        if _ASSUMED.get() is not None and not _checks.is_concrete((self.factors, temperature)):
            # Temperatures that are traced are parameters, too.
            warm = not _checks.is_concrete(temperature) or float(temperature) >= 1
            return bool(_ASSUMED.get()) and warm
        found = self.moderate(temperature, damped)
        if found is None:
            return False
        return bool(found) if _checks.is_concrete(found) else found

    def check(self, product: Product, temperature: Float[AnyArray, ""]) -> None:
        """Raises `ValueError` for settings that these messages do not support."""
        known = _checks.is_concrete(temperature)
        if self.is_real and product != "sum":
            raise ValueError(f'`product` must be "sum" for {self.name}, got {product!r}.')
        if self.is_real and (not known or float(temperature) != 1):
            raise ValueError(f"`temperature` must be 1 for {self.name}, got {temperature}.")
        tables = [f for f in self.factors if not isinstance(f, Dense)]
        if not tables:
            return
        arrays = [x for factor in tables for x in factor.parameters if x.size]
        if not known or not _checks.is_concrete(arrays) or float(temperature) >= 1:
            return
        # Log-potentials divided by it must remain small against what stands for minus infinity.
        peaks = [float(np.where(np.abs(x) < LIMIT / 2, np.abs(x), 0).max()) for x in arrays]
        least = max([1e-4, *(4 * peak / LIMIT for peak in peaks)])
        if float(temperature) < least:
            raise ValueError(
                f"`temperature` must be at least {least:.3g} for log-potentials as large as"
                f' {max(peaks, default=0):.3g}, or `product="max"` for 0, got'
                f" {float(temperature):.3g}."
            )

    def check_mixed(self, argument: str) -> None:
        """Raises `ValueError` if messages cannot be mixed, which this argument of `BP` asks for."""
        if self.is_real:
            raise ValueError(
                f"`{argument}` must be left out for {self.name}: its messages are Gaussians, which"
                " cannot be mixed."
            )


def outline(model: Any) -> Outline:
    """What messages need to know about a model."""
    units = dict(zip(model.names, model.layers, strict=True))
    # On the class: Equinox wraps each method of an instance in a new module.
    return Outline(type(model).__name__, units, type(model).factors(model))


def serves(model: Any) -> bool:
    """Whether there are messages between all units of a model that are joined.

    !!! example

        ```python
        from ebmlearn import messages

        messages.serves(ebmlearn.RBM.init(4, 3))  # True
        ```

    **Arguments:**

    - `model`: any model.
    """
    return isinstance(model, AbstractPlainModel) and outline(model).serves


def engine(
    model: Any,
    *,
    product: Product = "sum",
    form: Form = "log-odds",
    schedule: Schedule = "flooding",
    damping: Float[AnyArray, ""] | None = None,
    temperature: Float[AnyArray, ""],
    leaves: bool = True,
    outputs: Bool[Array, " variables"] | None = None,
) -> Engine:
    """The messages of a model at a temperature. With `leaves`, groups that hear nothing before the
    end are left alone until then. `outputs` are the variables over which mixed-product maximises;
    without them, the units of the groups that are not named hidden.

    !!! example

        ```python
        from ebmlearn import messages
        from ebmlearn.models import Instance

        rbm = ebmlearn.RBM.init(4, 3)
        engine = messages.engine(rbm, temperature=jnp.ones(()))
        instance = engine.posed(Instance(rbm.unary(), (None, None)))
        state = engine.start(instance, "centred")
        for _ in range(10):
            state = engine.update(state, instance)
        engine.beliefs(state, instance)  # log-odds of the visible and the hidden units
        ```

    **Arguments:**

    - `model`: a model that messages serve.
    - `product`: `"sum"`, `"max"` or `"mixed"`.
    - `form`: `"odds"`, which is faster, or `"log-odds"`, which is always exact.
    - `schedule`: `"flooding"` (all groups send at once) or `"layers"` (one side, then the other).
    - `damping`: the share of its old value that a message keeps; None for no damping.
    - `temperature`: 1 for sum-product.
    - `leaves`: whether groups that hear nothing before the end wait until then.
    - `outputs`: the variables over which mixed-product maximises.
    """
    names, sides = model.names, outline(model).sides
    factors = only_trained(model).factors("max" if product == "max" else "sum")
    beta = jnp.asarray(1 / temperature)
    units = dict(zip(names, model.layers, strict=True))
    forms = tuple(_form(name, units, factors) for name in names)
    maximised: tuple[Any, ...] = (product == "max",) * len(names)
    if product == "mixed":
        # What is maximised over sends what it has heard.
        leaves = False
        maximised = (
            tuple(k in (model.variables.maximised or ()) for k in range(len(names)))
            if outputs is None
            else tuple(_split(model.layers, outputs, -1))
        )
    numbers = {name: k for k, name in enumerate(names)}
    joined = Counter(group for factor in factors for group in set(factor.groups))
    alone = {name for name in names if leaves and schedule == "flooding" and joined[name] == 1}
    how = product, form, schedule, damping is not None, beta, frozenset(alone)
    site = Site(units, numbers, forms, sides, maximised, *how)
    return Engine(
        parts=tuple(_parts(factors, site)),
        forms=forms,
        factors=tuple(factor.tempered(beta) for factor in factors),
        damping=None if damping is None else jnp.asarray(damping),
        temperature=temperature,
        maximised=site.masks(),
        names=names,
        sides=sides,
        product=product,
        schedule=schedule,
    )


def _form(
    name: str, units: Mapping[str, Any], factors: tuple[AbstractFactor, ...]
) -> AbstractNumbered | Gaussians:
    own, joined = units[name], [f for f in factors if name in f.groups]
    if own.numbered:
        return form_of(own, all(isinstance(f, Dense) for f in joined))
    weights: Any = [f.weights.T if f.first != name else f.weights for f in joined]  # pyright: ignore
    return Gaussians(jnp.exp(own.log_scale), weights)


def form_of(units: AbstractUnits, products: bool = True) -> AbstractNumbered:
    """The form of what is known of binary or categorical units, if `products` alone join them."""
    if not isinstance(units, Binary):
        return Scores()
    return LogOdds() if products else Pairs()


def _fast_dense(
    factor: Dense, units: Mapping[str, Any], temperature: Float[AnyArray, ""], damped: bool
) -> Any:
    if damped or any(units[group].family != "binary" for group in factor.groups):
        return None
    return odds_serve((factor.weights,), temperature)


# From the class of a factor to whether the fast form of its messages, if there is one, is accurate
# enough at a temperature. Hosts add those of their own factors.
FAST: dict[type, Callable[[Any, Mapping[str, Any], Float[AnyArray, ""], bool], Any]] = {
    Dense: _fast_dense,
    Lattice: is_narrow,
}


# What a program may be compiled for: whether parameters that are traced are moderate.
_ASSUMED: contextvars.ContextVar[bool | None] = contextvars.ContextVar("moderate", default=None)


@contextlib.contextmanager
def assuming(moderate: bool | None) -> Iterator[None]:
    """Compiles messages for parameters that are moderate, or for any. Without it, both are compiled
    where parameters are traced, and the choice is made at run time.
    """
    token = _ASSUMED.set(moderate)
    try:
        yield
    finally:
        _ASSUMED.reset(token)


def moderate(model: Any) -> Bool[AnyArray, ""] | None:
    """Whether the parameters of a model are so small that messages may be sent in a faster form;
    None if there is none.
    """
    if not serves(model):
        return None
    found = outline(model).moderate(np.ones((), model.dtype))
    return None if found is None else jnp.asarray(found)


def probabilities(
    units: tuple[Any, ...], p: Float[Array, "*batch variables most"]
) -> tuple[Float[Array, "..."], ...]:
    """Probabilities of all states as means, by group."""
    parts = zip(units, _split(units, p, -2), strict=True)
    return tuple(x[..., 1] if isinstance(own, Binary) else x[..., : own.number] for own, x in parts)


def _split(units: tuple[Any, ...], x: Array, axis: int) -> list[Array]:
    return jnp.split(x, np.cumsum([own.size for own in units])[:-1], axis=axis)
