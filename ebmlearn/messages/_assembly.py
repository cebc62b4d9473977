"""The engine of a model: the forms of its groups, and the messages of its factors."""

import contextlib
import contextvars
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _checks
from .._sentinels import LIMIT
from .._types import AnyArray
from ..factors import AbstractFactor, Dense, Lattice, Tables
from ..models import AbstractPlainModel
from ..models._base import only_trained
from ..models._sides import two_sides
from ..units import AbstractUnits, Binary
from ._edge import odds_serve
from ._engine import Engine
from ._expectation import Gaussians, GaussianSent
from ._forms import AbstractForm, AbstractNumbered, LogOdds, Scores
from ._neighbours import is_narrow, LatticeSent
from ._odds import OddsSent
from ._sent import AbstractSent, DenseSent, TablesSent
from ._types import Form, Product, Rule, Schedule


class Site(NamedTuple):
    """Where a factor stands: what its messages need to know of a model and of an inference."""

    units: Mapping[str, AbstractUnits]
    numbers: Mapping[str, int]
    forms: tuple[AbstractForm, ...]
    sides: tuple[int, ...] | None
    maximised: tuple[int, ...]
    product: Product
    form: Form
    schedule: Schedule
    is_damped: bool
    beta: Float[AnyArray, ""]
    leaves: frozenset[str] = frozenset()

    def ends(self, factor: AbstractFactor) -> tuple[int, ...]:
        """The numbers of the groups that a factor joins."""
        return tuple(self.numbers[group] for group in factor.groups)

    def rules(self, factor: AbstractFactor) -> tuple[Rule, ...]:
        """How each end of a factor sends."""
        ends = self.ends(factor)
        if self.product != "mixed":
            return (self.product,) * len(ends)
        return tuple(
            "sum"
            if end not in self.maximised
            else ("max" if all(other in self.maximised for other in ends) else "plug")
            for end in ends
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
        rules=site.rules(factor),
    )


def _dense(factor: Dense, site: Site) -> AbstractSent:
    ends, rules = site.ends(factor), site.rules(factor)
    units: list[Any] = [site.units[group] for group in factor.groups]
    families = [u.family for u in units]
    if families == ["binary", "binary"]:
        in_place = site.schedule == "layers" and not site.is_damped
        leader = site.sides[ends[0]] if in_place and site.sides is not None else None
        # Odds that are damped are not.
        form = "log-odds" if site.is_damped else site.form
        how = form, site.product, rules, leader
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
        rules=rules,
    )


def _lattice(factor: Lattice, site: Site, *more: Lattice) -> LatticeSent:
    alone = [group for group in factor.groups if group in site.leaves and not any(factor.offset)]
    leaf = site.numbers[alone[-1]] if alone else None
    ends, form, product = site.ends(factor), site.form, site.product
    return LatticeSent((factor, *more), ends, form, product, leaf, site.beta)


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


def names_of(model: Any) -> tuple[str, ...]:
    """The names of the groups of a model."""
    return getattr(model, "group_names", None) or model.names


class Outline(NamedTuple):
    """What messages need to know about a model. Its factors are built once."""

    name: str
    units: Mapping[str, AbstractUnits]
    factors: tuple[AbstractFactor, ...]

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
        if any(len(ends) > 2 or (len(ends) == 2 and ends[0] == ends[1]) for ends in joined):
            return None
        pairs = [ends for ends in joined if len(ends) == 2]
        sides = two_sides(len(names), pairs)
        return None if any(sides[a] == sides[b] for a, b in pairs) else tuple(sides)

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
        if product == "mixed":
            raise ValueError(
                f'`product` must be "sum" or "max" for messages of {self.name}, got "mixed": take'
                ' `Exact(product="mixed")`, or `LSSVM` to train it.'
            )
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
    units = dict(zip(names_of(model), model.layers, strict=True))
    # On the class: Equinox wraps each method of an instance in a new module.
    return Outline(_checks.article(type(model).__name__), units, type(model).factors(model))


def serves(model: Any) -> bool:
    """Whether there are messages between all units of a model that are joined."""
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
) -> Engine:
    """The messages of a model at a temperature. With `leaves`, groups that hear nothing before the
    end are left alone until then.
    """
    names, sides = names_of(model), outline(model).sides
    factors = only_trained(model).factors("max" if product == "max" else "sum")
    beta = jnp.asarray(1 / temperature)
    units = dict(zip(names, model.layers, strict=True))
    forms = tuple(_form(name, units, factors) for name in names)
    maximised = tuple(model.seen) if product == "mixed" else ()
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
        names=names,
        sides=sides,
        maximised=maximised,
        product=product,
        schedule=schedule,
    )


def _form(name: str, units: Mapping[str, Any], factors: tuple[AbstractFactor, ...]) -> AbstractForm:
    own = units[name]
    if own.numbered:
        return form_of(own)
    joined = [f for f in factors if name in f.groups]
    weights: Any = [f.weights.T if f.first != name else f.weights for f in joined]  # pyright: ignore
    return Gaussians(jnp.exp(own.log_scale), weights)


def form_of(units: AbstractUnits) -> AbstractNumbered:
    """The form of what is known of binary or categorical units."""
    return LogOdds() if isinstance(units, Binary) else Scores()


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
    parts = zip(units, _split(units, p), strict=True)
    return tuple(x[..., 1] if isinstance(own, Binary) else x[..., : own.number] for own, x in parts)


def _split(units: tuple[Any, ...], x: Array) -> list[Array]:
    return jnp.split(x, np.cumsum([own.size for own in units])[:-1], axis=-2)
