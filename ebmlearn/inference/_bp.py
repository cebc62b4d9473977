import math
from collections.abc import Callable
from typing import Any, ClassVar, get_args, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _checks
from .._types import AnyArray
from ..models import AbstractPairwiseModel
from ..models._graph import AbstractGraphModel, GraphState
from ..models._groups import LIMIT
from ..models._view import Form, odds_serve, Product, Schedule, Start, State
from ._base import AbstractBeliefs, AbstractInference, most_likely, Statistics
from ._gaussian import GaussianBeliefs, GaussianProblem
from ._gaussian_bp import gaussian_bp, GaussianSettings
from ._graph import AbstractGraphBeliefs, GraphProblem
from ._instances import chunk_of, each, each_and_mean, Problem
from ._iterate import check_limits, Limits, traced


class BP(AbstractInference):
    """Belief propagation on all edges at once, by matrices (Ping & Ihler 2017, Algorithm 1).

    - `product="sum"` estimates marginals, `product="max"` the most likely configuration, and
      `product="mixed"` the most likely visible configuration with the hidden units summed out
      (marginal MAP; for bipartite models, that is RBM and DBM).
    - `temperature` lies between the first two, as in PGMax: 1 is sum-product, and towards 0 it
      becomes max-product. Log-odds at temperature $T$ are $T$ times those of the model of
      $p(x)^{1/T}$; `log_partition` is $T \\log \\sum_x \\tilde p(x)^{1/T}$.
    - Messages to the visible units of a [`ebmlearn.GaussianRBM`][] are Gaussians that keep mean and
      variance of the belief (expectation propagation; Lázaro-Gredilla et al. 2021, appendix D.3).
      It knows sum-product at temperature 1 only, and gives [`ebmlearn.GaussianBeliefs`][].

    !!! example

        ```python
        beliefs = ebmlearn.BP(iterations=50, tol=1e-5)(rbm)
        beliefs.visible, beliefs.hidden, beliefs.pairwise, beliefs.log_partition
        assert beliefs.converged
        ```
    """

    iterations: int | Int[Array, ""]
    product: Product = eqx.field(static=True, default="sum")
    temperature: float | Float[Array, ""] = 1.0
    damping: float | Float[Array, ""] = 0.0
    tol: float | Float[Array, ""] | None = None
    start: Start = eqx.field(static=True, default="centred")
    schedule: Schedule | None = eqx.field(static=True, default=None)
    unroll: bool = eqx.field(static=True, default=False)
    chunk: int | None = eqx.field(static=True, default=None)
    on_gaussian: ClassVar[bool] = True

    def __init__(
        self,
        iterations: int | Int[Array, ""],
        product: Product = "sum",
        temperature: float | Float[Array, ""] = 1.0,
        damping: float | Float[Array, ""] = 0.0,
        tol: float | Float[Array, ""] | None = None,
        start: Start = "centred",
        schedule: Schedule | None = None,
        unroll: bool = False,
        chunk: int | None = None,
    ):
        """**Arguments:**

        - `iterations`: how many sweeps, at most. Another number compiles nothing anew.
        - `product`: `"sum"`, `"max"` or `"mixed"`.
        - `temperature`: a positive number.
        - `damping`: the share of its old value that a message keeps, from 0 up to but not 1.
        - `tol`: stop an instance once no probability (of $p^{1/T}$) has changed by more in a
          sweep. Without it all sweeps are done, and `converged` is judged by 1e-3.
        - `start`: `"centred"`, without messages in ±1 form, so that exchanging 0 and 1 changes
          nothing; or `"plain"`, without messages in {0, 1} form, as in the paper. For a
          GaussianRBM it is the start of its paper, with messages of precision 1.
        - `schedule`: `"layers"`, even layers send, then odd layers: the default where the model is
          bipartite; or `"flooding"`, everybody sends at once. There 2N sweeps tell the visible
          units as much as N by layers do, and the same if all units are binary.
        - `unroll`: a fixed number of sweeps that can be differentiated in reverse mode. Memory is
          bounded by recomputing each sweep. `iterations` must then be a Python integer.
        - `chunk`: how many instances are treated at once; by default, what fits in 256 MiB of
          messages. Messages of a larger batch are not kept, and `pairwise` and `log_partition`
          run the inference again.
        """
        self.iterations = iterations
        self.product = product
        self.temperature = temperature
        self.damping = damping
        self.tol = tol
        self.start = start
        self.schedule = schedule
        self.unroll = unroll
        self.chunk = chunk

    def __check_init__(self):
        _checks.choice("product", self.product, get_args(Product))
        _checks.choice("start", self.start, get_args(Start))
        if self.schedule is not None:
            _checks.choice("schedule", self.schedule, get_args(Schedule))
        check_limits(self.iterations, self.damping, self.tol)
        _checks.number("temperature", self.temperature, 0, float("inf"), "(0, inf)")
        if self.chunk is not None:
            _checks.count("chunk", self.chunk)
        if self.unroll and self.tol is not None:
            raise ValueError(f"`unroll` does all sweeps: `tol` must be None, got {self.tol}.")
        if self.unroll and not isinstance(self.iterations, int):
            got = _checks.describe(self.iterations)
            raise TypeError(f"`iterations` must be a Python integer with `unroll`, got {got}.")

    def _beliefs(
        self, problem: Problem | GraphProblem | GaussianProblem
    ) -> "BPBeliefs | GraphBPBeliefs | GaussianBeliefs":
        if isinstance(problem, GaussianProblem):
            return gaussian_bp(self._gaussian(problem.model.weights.dtype), problem)
        settings = self._settings(problem.model)
        log_odds, converged, iterations, residual, kept = _solved(settings, problem)
        if isinstance(problem, GraphProblem):
            return GraphBPBeliefs(
                scores=problem.model.units(log_odds),
                converged=converged,
                iterations=iterations,
                residual=residual,
                _settings=settings,
                _problem=problem,
                _kept=kept,
            )
        return BPBeliefs(
            log_odds=problem.model.units(log_odds),
            converged=converged,
            iterations=iterations,
            residual=residual,
            _settings=settings,
            _problem=problem,
            _kept=kept,
        )

    def _statistics(self, problem: Problem | GraphProblem) -> Statistics:
        return _statistics(self._settings(problem.model), problem)

    def _gaussian(self, dtype: Any) -> GaussianSettings:
        if self.product != "sum":
            raise ValueError(f'`product` must be "sum" for a GaussianRBM, got {self.product!r}.')
        if not _checks.is_concrete(self.temperature) or float(self.temperature) != 1:
            raise ValueError(f"`temperature` must be 1 for a GaussianRBM, got {self.temperature}.")
        undamped = isinstance(self.damping, (int, float)) and self.damping == 0
        return GaussianSettings(
            limits=Limits(self.iterations, self.tol, dtype, self.unroll),
            damping=None if undamped else traced(self.damping, dtype),
            start=self.start,
            schedule=self.schedule or "layers",
            chunk=self.chunk,
        )

    def _settings(self, model: AbstractPairwiseModel | AbstractGraphModel) -> "_Settings":
        kind = type(model).__name__
        bipartite = model.is_bipartite
        if self.product == "mixed" and not bipartite:
            raise ValueError(f'`product="mixed"` needs a bipartite model, got a {kind}.')
        if self.schedule == "layers" and not bipartite:
            raise ValueError(f'`schedule="layers"` needs a bipartite model, got a {kind}.')
        dtype = model.unary()[0].dtype
        undamped = isinstance(self.damping, (int, float)) and self.damping == 0
        temperature = traced(self.temperature, dtype)
        if isinstance(model, AbstractGraphModel):
            _check_temperature(model, temperature)
        if self.product == "max":
            fits = False
        elif _checks.is_concrete((model, temperature)):
            with jax.ensure_compile_time_eval():
                fits = bool(_fits(model, temperature, not undamped))
        else:
            fits = _fits(model, temperature, not undamped)
        return _Settings(
            limits=Limits(self.iterations, self.tol, dtype, self.unroll),
            temperature=temperature,
            damping=None if undamped else traced(self.damping, dtype),
            form=("odds" if fits else "log-odds") if isinstance(fits, bool) else None,
            product=self.product,
            start=self.start,
            schedule=self.schedule or ("layers" if bipartite else "flooding"),
            unroll=self.unroll,
            chunk=self.chunk or chunk_of(model),
        )


class BPBeliefs(AbstractBeliefs):
    """The beliefs that [`ebmlearn.BP`][] returns."""

    log_odds: Any
    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    _settings: "_Settings"
    _problem: Problem
    _kept: State | None

    @property
    def pairwise(self) -> Any:
        """The belief that both ends of an edge are 1: [*batch, visible, hidden] for an RBM,
        [*batch, n, n] for a BoltzmannMachine (marginals on its diagonal), a tuple in the order of
        the weights for a DBM, and the pair (weights, couplings) for a SemiRestrictedBM.
        """
        return self._problem.model.factors(_derived(self, "pairwise"))

    @property
    def log_partition(self) -> Float[Array, "*batch"]:
        """The Bethe approximation of log Z, exact on trees. For max-product it is that of the
        largest log-potential, for mixed-product that of the chosen visible configuration.
        """
        return _derived(self, "log_partition")

    def decode(self) -> Any:
        return most_likely(self.log_odds)


class GraphBPBeliefs(AbstractGraphBeliefs):
    """The beliefs that [`ebmlearn.BP`][] returns of a graph."""

    scores: Any
    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    _settings: "_Settings"
    _problem: GraphProblem
    _kept: GraphState | None

    @property
    def factors(self) -> Any:
        """The belief of each configuration of each factor, in the shape of the log-potentials of
        its group: `factors[group]`. Of a dense group, that both ends of an edge are 1.
        """
        return self._problem.model.factors(_derived(self, "pairwise"))

    @property
    def log_partition(self) -> Float[Array, "*batch"]:
        """The Bethe approximation of log Z, exact on trees; of the largest log-potential for
        max-product.
        """
        return _derived(self, "log_partition")


class _Settings(eqx.Module):
    """A BP fitted to one model, its numbers as arrays so that new values compile nothing."""

    limits: Limits
    temperature: Float[AnyArray, ""]
    damping: Float[AnyArray, ""] | None
    form: Form | None = eqx.field(static=True)
    product: Product = eqx.field(static=True)
    start: Start = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)
    unroll: bool = eqx.field(static=True)
    chunk: int = eqx.field(static=True)

    def view(self, model: Any, form: Form) -> Any:
        # BP at temperature T is T times BP at 1 on the parameters divided by T.
        beta = jnp.asarray(1 / self.temperature)
        return model.view(self.product, form, self.schedule, self.damping, beta)

    def tempered(self, instance: Any) -> Any:
        return instance._replace(unary=tuple(u / self.temperature for u in instance.unary))

    def in_form(self, model: Any, run: Callable[[Form], PyTree]) -> PyTree:
        """Runs in the fast form of the messages where it serves, else in the general one. While
        the weights are traced the choice is made at run time.
        """
        if self.form is not None:
            return run(self.form)
        fits = _fits(model, self.temperature, self.damping is not None)
        return jax.lax.cond(fits, lambda: run("odds"), lambda: run("log-odds"))

    def in_log_odds(self, model: Any, state: Any) -> Any:
        """The messages of a state as log-odds, whichever form `in_form` chose for them."""
        if self.form is None:
            fits = _fits(model, self.temperature, self.damping is not None)
            return _in_log_odds(state, fits)
        return _in_log_odds(state, self.form == "odds")

    def run(
        self, view: Any, instance: Any, begin: Any = None
    ) -> tuple[Any, Int[Array, ""], Float[Array, ""]]:
        """Passes messages, from those of another state on if it is given."""

        def sweep(state: Any) -> tuple[Any, Float[Array, ""]]:
            new = view.update(state, instance)
            return new, view.change(state, new, instance)

        start = view.start(instance, self.start) if begin is None else view.resume(begin, instance)
        limits = self.limits
        if limits.early or limits.length is not None:
            return limits.iterate(sweep, start)
        # How much the last sweep changed need be found only once.
        state, fields = jax.lax.fori_loop(
            0,
            limits.iterations,
            lambda _, carry: (view.update(carry[0], instance), carry[0].fields),
            (start, start.fields),
        )
        residual = view.change(state._replace(fields=fields), state, instance)
        iterations = jnp.add(limits.iterations, 0)
        return state, iterations, jnp.where(iterations > 0, residual, jnp.inf)


def _check_temperature(model: AbstractGraphModel, temperature: Float[AnyArray, ""]) -> None:
    """Raises `ValueError` where log-potentials divided by a temperature are no longer small against
    what stands for minus infinity.
    """
    if not _checks.is_concrete((model, temperature)) or float(temperature) >= 1:
        return
    with jax.ensure_compile_time_eval():
        sizes = [jnp.abs(x) for x in model.log_potentials if x.size]
        peaks = [float(jnp.where(x < LIMIT / 2, x, 0).max()) for x in sizes]
        least = max([1e-4, *(4 * peak / LIMIT for peak in peaks)])
        if float(temperature) < least:
            raise ValueError(
                f"`temperature` must be at least {least:.3g} for log-potentials as large as"
                f' {max(peaks, default=0):.3g}, or `product="max"` for 0, got'
                f" {float(temperature):.3g}."
            )


def _fits(model: Any, temperature: Float[AnyArray, ""], damped: bool) -> bool | Bool[Array, ""]:
    """Whether the fast form of the messages is exact enough for the weights."""
    if isinstance(model, AbstractGraphModel):
        return model.fast(temperature, damped)
    return False if damped else odds_serve(model.blocks(), temperature)


def _in_log_odds(state: Any, odds: bool | Bool[Array, ""]) -> Any:
    if odds is False:
        return state

    def convert(x: Array) -> Array:
        return jnp.where(odds, jnp.log(jnp.where(odds, x, jnp.ones_like(x))), x)

    return state._replace(messages=jax.tree.map(convert, state.messages))


@eqx.filter_jit
def _solved(settings: _Settings, problem: Any) -> tuple[PyTree, Array, Array, Array, PyTree]:
    """Log-odds, whether converged, sweeps, last change, and the messages if they may be kept."""
    model, batch, shape = problem.model, problem.instances(), problem.shape
    keep = math.prod(shape) <= settings.chunk

    def run(form: Form) -> PyTree:
        view = settings.view(model, form)

        def one(instance: Any) -> PyTree:
            instance = settings.tempered(instance)
            state, iterations, residual = settings.run(view, instance)
            log_odds = view.beliefs(state, instance)
            return log_odds, iterations, residual, state if keep else None

        return each(one, batch, shape, settings.chunk)

    log_odds, iterations, residual, kept = settings.in_form(model, run)
    log_odds = tuple(settings.temperature * x for x in log_odds)
    return log_odds, residual <= settings.limits.tol, iterations, residual, kept


@eqx.filter_jit
def _derived(beliefs: Any, what: Literal["pairwise", "log_partition"]) -> PyTree:
    """`pairwise` or `log_partition` from the kept messages, or from a second run if none were."""
    settings, problem = beliefs._settings, beliefs._problem
    model, batch, shape = problem.model, problem.instances(), problem.shape
    view = settings.view(model, "log-odds")

    def finish(state: Any, instance: Any) -> PyTree:
        if what == "pairwise":
            return view.pairwise(state, instance, jnp.asarray(settings.temperature))
        if not settings.unroll:
            # The Bethe free energy is stationary in the messages at a fixed point, so its gradient
            # needs none through them.
            state = jax.lax.stop_gradient(state)
        return settings.temperature * view.log_partition(state, instance)

    if beliefs._kept is not None:

        def one(kept: tuple[Any, Any]) -> PyTree:
            instance, state = kept
            return finish(settings.in_log_odds(model, state), settings.tempered(instance))

        size = math.prod(shape)
        flat = jax.tree.map(lambda x: x.reshape(size, *x.shape[len(shape) :]), beliefs._kept)
        return each(one, (batch, flat), shape, settings.chunk)

    def run(form: Form) -> PyTree:
        sweeping = settings.view(model, form)

        def one(instance: Any) -> PyTree:
            instance = settings.tempered(instance)
            state, _, _ = settings.run(sweeping, instance)
            return finish(_in_log_odds(state, form == "odds"), instance)

        return each(one, batch, shape, settings.chunk)

    return settings.in_form(model, run)


@eqx.filter_jit
def _statistics(settings: _Settings, problem: Any) -> Statistics:
    model = problem.model
    view = settings.view(model, "log-odds")

    def run(form: Form) -> PyTree:
        sweeping = settings.view(model, form)

        def one(instance: Any) -> PyTree:
            instance = settings.tempered(instance)
            state, iterations, residual = settings.run(sweeping, instance)
            units, pairs = view.statistics(_in_log_odds(state, form == "odds"), instance)
            return (units, iterations, residual), pairs

        return each_and_mean(one, problem.instances(), problem.shape, settings.chunk)

    (units, iterations, residual), pairs = settings.in_form(model, run)
    return Statistics(
        units=model.units(units),
        pairwise=model.factors(pairs),
        converged=residual <= settings.limits.tol,
        iterations=iterations,
        residual=residual,
    )
