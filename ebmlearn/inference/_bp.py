import math
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar, get_args, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .. import _checks, messages
from .._types import AnyArray, Key
from ..messages import Engine, Form, Moments, Product, Schedule, Start
from ..models import AbstractModel, AbstractPlainModel, refuse, Statistics
from ._base import (
    AbstractInference,
    check_limits,
    each,
    each_and_mean,
    KEPT,
    limited,
    Limits,
    outputs_of,
    Problem,
    static_fields,
    swept_at_once,
    traced,
)
from ._beliefs import AbstractDerived, Beliefs, Normal
from ._passing import begun, Ends, judged, paced, passed


class BP(AbstractInference):
    """Belief propagation with matrices, on all edges at once (Ping & Ihler 2017, Algorithm 1).

    - `product="sum"` estimates marginals, `product="max"` the most likely configuration, and
      `product="mixed"` the most likely configuration of all visible layers with the hidden ones
      summed out (marginal MAP). `maximised`, an argument of the call, says which units take the
      part of the visible ones: graphs need it, unless groups are named `hidden`.
    - `temperature` interpolates between sum-product (1) and max-product (towards 0), as in PGMax.
      Log-odds at temperature $T$ are $T$ times those of the model of $p(x)^{1/T}$, and
      `log_partition` is $T \\log \\sum_x \\tilde p(x)^{1/T}$.
    - `starts` passes messages from several starts. A model of strong couplings may have several
      fixed points, and messages then converge to one of them, which may be far from the truth.
      `stable` of the beliefs says whether all starts led to the same answer. If not, the beliefs
      combine the distinct fixed points, each with the weight $Z$ that Bethe's approximation gives
      it; max-product and mixed-product keep the best configuration.
    - Messages to Gaussian visible units are Gaussians that match the mean and the variance of the
      belief (expectation propagation; Lázaro-Gredilla et al. 2021, appendix D.3). They need
      `product="sum"` and temperature 1.

    !!! example

        ```python
        beliefs = ebmlearn.BP()(ebmlearn.RBM.init(16, 8))
        beliefs.visible, beliefs.hidden, beliefs.pairwise, beliefs.log_partition
        assert beliefs.converged
        ```

    **Arguments:**

    - `iterations`: the largest number of sweeps; 1000 if not given. A new number needs no
      compilation.
    - `product`: `"sum"`, `"max"` or `"mixed"`.
    - `temperature`: a positive number.
    - `damping`: the share of its old value that a message keeps, in [0, 1). `"auto"` starts without
      damping and raises it, for each instance by itself, whenever ten sweeps bring no progress.
    - `tol`: stop an instance when no probability (of $p^{1/T}$) changes by more than this in a
      sweep; 1e-5 if `iterations` is not given either. If only `iterations` is given, all sweeps are
      made, and `converged` uses a tolerance of 1e-3.
    - `start`: `"centred"` starts with zero messages in the ±1 form, so exchanging 0 and 1 changes
      nothing; `"plain"` with zero messages in the {0, 1} form, as in the paper. For Gaussian units
      `"plain"` starts as in their paper, with messages of precision 1.
    - `schedule`: `"layers"` (the layers on one side of a bipartite model send, then those on the
      other: in a DBM the even ones, then the odd ones), `"flooding"` (all layers send at once) or
      `"residual"` (in a sweep, only those messages are sent that would change at least half as much
      as the one that would change most). The last converges more often and takes more sweeps. The
      default is `"layers"` if the model is bipartite.
    - `starts`: from how many starts messages are passed. Each costs as much as the first. Those
      after the first are random, in pairs of which the second is the mirror image of the first, so
      that a model in which 0 and 1 may be exchanged is seen from both sides.
    - `key`: a key or seed for the random starts.
    - `unroll`: make all sweeps, so that beliefs can be differentiated in reverse mode; each sweep
      is recomputed to save memory. `iterations` must then be a Python integer, and `tol` None.
    - `chunk`: the number of instances that are processed at once. The default fits the device: on a
      CPU, the messages stay in the cache of a core; on a GPU, they fill at most a sixteenth of the
      memory. If the messages of a batch take more than 256 MiB they are not kept, and `pairwise`
      and `log_partition` run the inference again.
    """

    iterations: int | Int[Array, ""] | None = None
    _: KW_ONLY
    product: Product = eqx.field(static=True, default="sum")
    temperature: float | Float[Array, ""] = 1.0
    damping: float | Float[Array, ""] | Literal["auto"] = 0.0
    tol: float | Float[Array, ""] | None = None
    start: Start = eqx.field(static=True, default="centred")
    schedule: Schedule | Literal["residual"] | None = eqx.field(static=True, default=None)
    starts: int = eqx.field(static=True, default=1)
    key: Key = 0
    unroll: bool = eqx.field(static=True, default=False)
    chunk: int | None = eqx.field(static=True, default=None)
    takes = ("binary", "categorical", "gaussian")
    sends: ClassVar[bool] = True

    def __check_init__(self):
        _checks.choice("product", self.product, get_args(Product))
        _checks.choice("start", self.start, get_args(Start))
        if self.schedule is not None:
            _checks.choice("schedule", self.schedule, (*get_args(Schedule), "residual"))
        if isinstance(self.damping, str):
            _checks.choice("damping", self.damping, ("auto",))
        damping = 0.0 if isinstance(self.damping, str) else self.damping
        check_limits(self.iterations, damping, self.tol)
        _checks.number("temperature", self.temperature, 0, float("inf"), "(0, inf)")
        _checks.count("starts", self.starts)
        _checks.key(self.key)
        if self.chunk is not None:
            _checks.count("chunk", self.chunk)
        if self.unroll and self.tol is not None:
            raise ValueError(f"`tol` must be None with `unroll`, got {self.tol}.")
        if self.unroll and not isinstance(self.iterations, int):
            got = _checks.describe(self.iterations)
            raise TypeError(f"`iterations` must be a Python integer with `unroll`, got {got}.")

    def accepts(self, model: AbstractModel) -> bool:
        """Whether there are messages between all units that are joined."""
        return messages.serves(model)

    def check(self, model: AbstractModel) -> None:
        """Raises `TypeError` if it does not take this model, as far as that is seen at once."""
        if not isinstance(model, AbstractPlainModel):
            super().check(model)

    def _beliefs(self, problem: Problem) -> Beliefs:
        settings = settings_of(self, problem.model)
        found, converged, ends = solved(settings, problem)
        # Beliefs of real units are their moments.
        real = [x for x in found if isinstance(x, Moments)]
        found = tuple(None if isinstance(x, Moments) else x for x in found)
        return Beliefs(
            problem,
            _Passed(settings, None if ends.state is None else ends),
            log_odds=problem.told(found),
            converged=converged,
            iterations=ends.iterations,
            residual=ends.residual,
            stable=ends.stable,
            guarded=real[0].guarded if real else None,
            normal=Normal(real[0].mean, real[0].variance) if real else None,
        )

    def _statistics(self, problem: Problem) -> Statistics:
        return _statistics(settings_of(self, problem.model), problem)


class _Passed(AbstractDerived):
    """What messages say of pairs, and the Bethe approximation of log Z, exact on trees; for
    max-product that of the largest log-potential, for mixed-product that of the chosen visible
    configuration. Messages are kept, or passed again.
    """

    settings: "Settings"
    kept: Ends | None

    @eqx.filter_jit
    def pairwise(self, problem: Problem) -> PyTree:
        temperature = jnp.asarray(self.settings.temperature)

        def one(ends: Ends, view: Engine, instance: Any) -> PyTree:
            return ends.mean(lambda state: messages.pairwise(view, state, instance, temperature))

        return problem.model.by_factor(self._each(problem, one))

    @eqx.filter_jit
    def log_partition(self, problem: Problem) -> Float[Array, "*batch"]:
        def one(ends: Ends, view: Engine, instance: Any) -> Float[Array, ""]:
            if self.settings.limits.length is None:
                # The Bethe free energy is stationary in the messages at a fixed point, so its
                # gradient needs none through them.
                ends = jax.lax.stop_gradient(ends)
            return ends.log_sum(lambda state: messages.log_partition(view, state, instance))

        return self.settings.temperature * self._each(problem, one) + problem.offset

    def _each(self, problem: Problem, finish: Callable[[Ends, Engine, Any], PyTree]) -> PyTree:
        """A function of the ends of each instance, with messages as log-odds."""
        settings, model, shape = self.settings, problem.model, problem.shape
        size = math.prod(shape)
        kept = jax.tree.map(lambda x: x.reshape(size, *x.shape[len(shape) :]), self.kept)

        def run(form: Form) -> PyTree:
            def one(given: tuple[Any, Ends | None]) -> PyTree:
                at, ends = given
                view = settings.engine(model, "log-odds", at[1])
                ends = settings.ends(problem, form, at)[0] if ends is None else ends
                ends = ends._replace(state=view.as_logs(ends.state, form == "odds"))
                return finish(ends, view, view.posed(at[0]))

            return each(one, (settings.instances(problem), kept), shape, settings.chunk)

        return in_form(settings.fits(model), run)


def settings_of(bp: BP, model: AbstractModel) -> "Settings":
    """What belief propagation does on one model."""
    # Functions rather than methods: Equinox wraps each method in a new module, which costs as much
    # as a small inference. `type(model)` is used below for the same reason.
    dtype = model.dtype
    automatic, hottest = isinstance(bp.damping, str), bp.schedule == "residual"
    # Whether messages are sent whole and all in turn, so that some need not be kept.
    undamped = not hottest and isinstance(bp.damping, (int, float)) and bp.damping == 0
    temperature, own = traced(bp.temperature, dtype), messages.outline(model)
    if not own.serves:
        units = "binary or categorical units that products or tables join"
        refuse(model, f"be of a kind that BP takes, {units}, or Gaussian and binary units")
    own.check(bp.product, temperature)
    turns = own.sides is not None
    if bp.schedule == "layers" and not turns:
        raise ValueError(
            '`schedule="layers"` needs a bipartite model, whose layers have two sides with no two'
            f" units of a side joined, got {own.name}."
        )
    for written, is_set in (
        (f"starts={bp.starts}", bp.starts > 1),
        ('damping="auto"', automatic),
        ('schedule="residual"', hottest),
    ):
        if is_set:
            own.check_mixed(written)
    schedule: Schedule = "layers" if bp.schedule is None and turns else "flooding"
    if bp.schedule is not None and bp.schedule != "residual":
        schedule = bp.schedule
    with jax.ensure_compile_time_eval():
        fits = own.fits(temperature, bp.product, not undamped)
    return Settings(
        limits=limited(bp.iterations, bp.tol, dtype, bp.unroll),
        temperature=temperature,
        damping=None if undamped else traced(0.0 if automatic else bp.damping, dtype),
        # None if that has to be found at run time.
        fast=fits if isinstance(fits, bool) else None,
        product=bp.product,
        start=bp.start,
        schedule=schedule,
        starts=bp.starts,
        key=None if bp.starts == 1 else _checks.as_key(bp.key),
        automatic=automatic,
        hottest=hottest,
        chunk=bp.chunk or max(1, swept_at_once(own.size) // bp.starts),
    )


@static_fields("fast", "product", "start", "schedule", "starts", "automatic", "hottest", "chunk")
class Settings:
    """A BP fitted to one model, its numbers as arrays so that new values compile nothing."""

    limits: Limits
    temperature: Float[AnyArray, ""]
    damping: Float[AnyArray, ""] | None
    fast: bool | None
    product: Product
    start: Start
    schedule: Schedule
    starts: int
    key: PRNGKeyArray | None
    automatic: bool
    hottest: bool
    chunk: int

    def engine(
        self, model: AbstractModel, form: Form, outputs: Bool[Array, " variables"] | None = None
    ) -> Engine:
        """The messages of a model; `outputs` are the variables over which mixed-product maximises,
        if they are not those of whole groups.
        """
        # BP at temperature T is T times BP at 1 on the parameters divided by T.
        return messages.engine(
            model,
            product=self.product,
            form=form,
            schedule=self.schedule,
            damping=self.damping,
            temperature=self.temperature,
            outputs=outputs,
        )

    def instances(self, problem: Problem) -> tuple[Any, Any]:
        """The instances of a problem, and over what mixed-product maximises in each of them."""
        return problem.instances(), outputs_of(problem, self.product)

    def fits(self, model: AbstractModel) -> bool | Bool[AnyArray, ""]:
        """Whether messages are sent in the fast form. While the weights are traced that is found at
        run time.
        """
        if self.fast is not None:
            return self.fast
        own = messages.outline(model)
        return own.fits(self.temperature, self.product, self.damping is not None)

    def rows(self, shape: tuple[int, ...]) -> int:
        """How many instances of a batch are treated at once."""
        return min(math.prod(shape), self.chunk)

    def run(
        self, view: Engine, instance: Any, rows: int, begin: Any = None
    ) -> tuple[Any, Int[Array, ""], Float[Array, ""]]:
        """Passes messages, from those of another state on if it is given. `rows` is how many
        instances do so together.
        """
        start = view.start(instance, self.start) if begin is None else view.resume(begin, instance)
        return self._passed(view, instance, start, rows)

    def _passed(
        self, view: Engine, instance: Any, start: Any, rows: int
    ) -> tuple[Any, Int[Array, ""], Float[Array, ""]]:
        if self.automatic or self.hottest:
            return paced(view, instance, start, self.limits, self.automatic, self.hottest)
        return passed(view, instance, start, self.limits, rows)

    def ends(self, problem: Problem, form: Form, at: Any) -> tuple[Ends, Engine, Any]:
        """Passes messages from all starts: how they ended, the messages, and the instance as they
        take it.
        """
        instance, outputs = at
        view, rows = self.engine(problem.model, form, outputs), self.rows(problem.shape)
        instance = view.posed(instance)
        if self.key is None:
            return Ends(*self.run(view, instance, rows)), view, instance
        start = begun(view, instance, self.start, self.starts, self.key)
        ended = jax.vmap(lambda x: self._passed(view, instance, x, rows * self.starts))(start)
        last = self.engine(problem.model, "log-odds", outputs)

        def value(state: Any) -> Float[Array, ""]:
            state = last.as_logs(state, form == "odds")
            if self.product == "max":
                return messages.score(last, last.decode(last.beliefs(state, instance)), instance)
            return messages.log_partition(last, state, instance)

        tol = jnp.asarray(self.limits.tol)
        return judged(view, instance, self.product, ended, value, tol), view, instance


def in_form(fits: bool | Bool[AnyArray, ""], run: Callable[[Form], PyTree]) -> PyTree:
    """Runs in the fast form of messages if it is accurate enough, else in the general one."""
    if isinstance(fits, bool):
        return run("odds" if fits else "log-odds")
    return jax.lax.cond(fits, lambda: run("odds"), lambda: run("log-odds"))


# All leaves are arrays. `eqx.filter_jit` would take longer to see that than a small inference.
@jax.jit
def solved(settings: Settings, problem: Problem) -> tuple[Any, Array, Ends]:
    """The marginals of all units, whether messages converged, and how they ended. Messages are
    included if they may be kept.
    """
    model, shape = problem.model, problem.shape
    keep = math.prod(shape) * settings.starts * messages.outline(model).size <= KEPT

    def run(form: Form) -> PyTree:
        def one(at: Any) -> PyTree:
            ends, view, instance = settings.ends(problem, form, at)
            found = ends.beliefs(view, instance)
            possible = ends.is_possible(view, instance)
            return found, possible, ends if keep else ends._replace(state=None)

        return each(one, settings.instances(problem), shape, settings.chunk)

    found, possible, ends = in_form(settings.fits(model), run)
    found = jax.tree.map(lambda x: settings.temperature * x, found)
    possible = possible & (problem.offset > -jnp.inf)
    return found, possible & (ends.residual <= settings.limits.tol), ends


@eqx.filter_jit
def _statistics(settings: Settings, problem: Problem) -> Statistics:
    model = problem.model

    def run(form: Form) -> PyTree:
        def one(at: Any) -> PyTree:
            ends, view, instance = settings.ends(problem, form, at)
            last = view
            if not messages.tells_statistics(view):
                last = settings.engine(model, "log-odds", at[1])
            ends = ends._replace(state=last.as_logs(ends.state, last is not view))
            found = ends.mean(lambda state: messages.statistics(last, state, instance))
            converged = ends.is_possible(last, instance) & (ends.residual <= settings.limits.tol)
            how = converged, ends.iterations, ends.residual
            return (found.units, found.squares, how), found.pairs

        return each_and_mean(one, settings.instances(problem), problem.shape, settings.chunk)

    (units, squares, how), pairs = in_form(settings.fits(model), run)
    return Statistics(problem.expected(units), model.by_factor(pairs), squares, *how)
