from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib
import numpy as np
from jaxtyping import Float, PyTree, Real
from matplotlib.axes import Axes

from .. import _checks
from .._types import AnyArray
from ..estimate import AISEstimate
from ..inference import Beliefs
from ..training import History
from ._axes import below, instance, labelled, named, numbers, on, places, several


# What a history is drawn by, the first that is there.
_MAIN = ("metric", "loss", "gap", "converged")
_MARK: dict[str, Any] = {"color": "gray", "linestyle": ":", "linewidth": 1}
_ABOUT = {
    "loss": "loss",
    "gap": "energy of data less that of the model",
    "converged": "share converged",
    "iterations": "sweeps",
    "accepted": "share accepted",
    "metric": "validation metric",
    "seconds": "seconds",
}


def history(
    history: History | Mapping[str, History],
    name: str | None = None,
    *,
    per: Literal["epochs", "steps"] = "epochs",
    ax: Axes | None = None,
) -> Axes:
    """Draws the history of a training run.

    !!! example

        ```python
        from ebmlearn import datasets, plotting

        data, rbm = datasets.digits().train.x, ebmlearn.RBM.init(64, 8)
        one = ebmlearn.fit(rbm, ebmlearn.CD(), data, epochs=2)
        other = ebmlearn.fit(rbm, ebmlearn.SAP(), data, epochs=2)
        plotting.history({"CD": one.history, "SAP": other.history}, "gap", per="steps")
        ```

    **Arguments:**

    - `history`: a [`History`][ebmlearn.training.History], or a dictionary of several.
    - `name`: `"loss"`, `"gap"`, `"converged"`, `"iterations"` or `"accepted"`; for epochs also
      `"metric"` and `"seconds"`. By default the first of metric, loss, gap and converged that all
      histories have.
    - `per`: `"epochs"`, counted from 1, or `"steps"`.
    - `ax`: the axes to draw on; a new figure by default.

    **Returns:**

    The axes, with a line for each history.
    """
    _checks.choice("per", per, ("epochs", "steps"))
    found = named("history", history)
    for one in found.values():
        instance("history", one, History, "be what `fit` returns as `history`")
    told = {label: getattr(one, per) for label, one in found.items()}
    if name is None:
        shared = [k for k in _MAIN if all(k in values for values in told.values())]
        name = shared[0] if shared else "converged"
    curves = {}
    for label, values in told.items():
        _checks.choice("name", name, values)
        curves[label] = numbers(f"history.{per}[{name!r}]", values[name], 1)
    ax = on(ax)
    for label, values in curves.items():
        marker = "." if per == "epochs" else None
        ax.plot(places(None, len(values)), values, marker=marker, label=label)
    return labelled(ax, per.removesuffix("s"), _ABOUT.get(name, name), "x")


def convergence(beliefs: Beliefs | Mapping[str, Beliefs], *, ax: Axes | None = None) -> Axes:
    """Draws the share of instances on which an inference has converged, by sweep.

    !!! example

        ```python
        from ebmlearn import datasets, plotting

        crbm = ebmlearn.CRBM.init(64, 8, 64, scale=0.3)
        x = datasets.digits().test.x
        plotting.convergence(ebmlearn.BP(50, tol=1e-4)(crbm.condition(x)))
        ```

    **Arguments:**

    - `beliefs`: the beliefs of [`ebmlearn.BP`][] or another inference about a batch, with `tol`
      set; or a dictionary of several beliefs.
    - `ax`: the axes to draw on; a new figure by default.

    **Returns:**

    The axes, with a line for each.
    """
    curves = {}
    for label, one in named("beliefs", beliefs).items():
        instance("beliefs", one, Beliefs, "be what an inference returns")
        iterations = np.asarray(one.iterations).ravel()
        ended = iterations[np.asarray(one.converged).ravel()]
        last = int(iterations.max(initial=1))
        counts = np.bincount(ended, minlength=last + 1).cumsum()
        curves[label] = counts / max(len(iterations), 1)
    ax = on(ax)
    for label, share in curves.items():
        ax.step(np.arange(len(share)), share, where="post", label=label)
    ax.set_ylim(-0.02, 1.02)
    return labelled(ax, "sweeps", "share converged", "x")


def residuals(
    residuals: Float[AnyArray, "sweeps *instances"] | Mapping[str, Float[AnyArray, "_ *_"]],
    *,
    tol: float | int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws the residual of an inference after each sweep.

    !!! example

        ```python
        from ebmlearn import plotting

        rbm = ebmlearn.RBM.init(16, 8, scale=1.0)
        found = [ebmlearn.BP(k)(rbm).residual for k in range(1, 31)]
        plotting.residuals(jnp.stack(found), tol=1e-3)
        ```

    **Arguments:**

    - `residuals`: the residual after each sweep, `[sweeps]`; for several instances
      `[sweeps, instances]`, drawn as the line of the median and a band over all; or a dictionary of
      these.
    - `tol`: a tolerance to mark.
    - `ax`: the axes to draw on; a new figure by default.

    **Returns:**

    The axes, with a logarithmic y axis.
    """
    curves = {
        label: numbers("residuals", one, 1, 2)
        for label, one in named("residuals", residuals).items()
    }
    if tol is not None:
        _checks.number("tol", tol, 0, float("inf"), "(0, inf)")
    ax = on(ax)
    for label, values in curves.items():
        x = places(None, len(values))
        middle = values if values.ndim == 1 else np.median(values, axis=1)
        (line,) = ax.plot(x, middle, label=label)
        if values.ndim == 2 and values.shape[1] > 1:
            colour = line.get_color()
            low, high = values.min(1), values.max(1)
            ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    if tol is not None:
        ax.axhline(tol, **_MARK)
    ax.set_yscale("log")
    return labelled(ax, "sweeps", "residual", "x")


def ais_bracket(
    forward: AISEstimate | Sequence[AISEstimate],
    reverse: AISEstimate | Sequence[AISEstimate] | None = None,
    *,
    x: Real[AnyArray, " points"] | Sequence[float | int] | None = None,
    unnormalised: float | int | Real[AnyArray, "*points"] | Sequence[float | int] | None = None,
    exact: float | int | Real[AnyArray, "*points"] | Sequence[float | int] | None = None,
    width: float | int = 2.0,
    ax: Axes | None = None,
) -> Axes:
    """Draws the bracket of log Z, or of the log-likelihood of data, that annealing gives:
    [`ebmlearn.ais`][] tends to be too low and [`ebmlearn.reverse_ais`][] too high.

    !!! example

        ```python
        from ebmlearn import plotting

        rbm = ebmlearn.RBM.init(16, 8)
        samples = ebmlearn.sample(rbm, ebmlearn.Gibbs(), 100, burn_in=100)
        forward, reverse = ebmlearn.ais(rbm), ebmlearn.reverse_ais(rbm, samples)
        score = -rbm.free_energy(samples.visible).mean()  # minus log Z, it is the log-likelihood
        plotting.ais_bracket([forward], [reverse], unnormalised=[score])
        ```

    **Arguments:**

    - `forward`: one estimate by `ais`, or several, for instance at several epochs or with more and
      more temperatures.
    - `reverse`: the same number of estimates by `reverse_ais`, if available.
    - `x`: the position of each estimate, such as an epoch or a number of temperatures; 1, 2, ... by
      default.
    - `unnormalised`: the mean of $-F(v)$ over the data, one number for each estimate. With it the
      log-likelihood is drawn, without it log Z.
    - `exact`: the exact log Z, if known.
    - `width`: the length of the error bars on each side, in standard errors.
    - `ax`: the axes to draw on; a new figure by default.

    **Returns:**

    The axes: estimates with bars for their standard errors, a band between forward and reverse.
    """
    ways = {"AIS": _estimates("forward", forward)}
    number = len(ways["AIS"][0])
    if reverse is not None:
        ways["reverse AIS"] = _estimates("reverse", reverse)
        if len(ways["reverse AIS"][0]) != number:
            got = len(ways["reverse AIS"][0])
            raise ValueError(f"`reverse` must hold {number} estimates, as `forward`, got {got}.")
    where = places(x, number)
    _checks.number("width", width, 0, float("inf"), "[0, inf)")
    scores = None if unnormalised is None else _each("unnormalised", unnormalised, number)
    truth = None if exact is None else _each("exact", exact, number)

    def shown(log_z: np.ndarray) -> np.ndarray:
        return log_z if scores is None else scores - log_z

    ax = on(ax)
    # One estimate alone stands beside the reverse one, several stand along a curve.
    alone = x is None and number == 1
    if len(ways) == 2:
        low, high = (shown(values) for values, _ in ways.values())
        span, repeats = ([-0.5, 1.5], 2) if alone else (where, 1)
        low, high = low.repeat(repeats), high.repeat(repeats)
        ax.fill_between(span, low, high, color="gray", alpha=0.25, linewidth=0)
    for k, (label, (values, errors)) in enumerate(ways.items()):
        # A single chain has no standard error.
        bars = width * np.nan_to_num(errors)
        here = np.array([float(k)]) if alone else where
        style: dict[str, Any] = {"marker": "^v"[k], "markersize": 5, "capsize": 3, "label": label}
        ax.errorbar(here, shown(values), bars, **style)
    if truth is not None:
        line: dict[str, Any] = {"color": "black", "linestyle": ":", "label": "exact"}
        if alone:
            ax.axhline(float(shown(truth)[0]), **line)
        else:
            ax.plot(where, shown(truth), **line)
    if alone:
        ax.set_xticks(range(len(ways)), list(ways))
        ax.set_xlim(-0.5, len(ways) - 0.5)
    return labelled(ax, "", "log Z" if scores is None else "log-likelihood, nats")


def spectra(
    values: Real[AnyArray, "times values"] | Sequence[PyTree],
    *,
    x: Real[AnyArray, " times"] | Sequence[float | int] | None = None,
    block: int = 0,
    log: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draws the singular values of the weights during training. Values that grow away from the rest
    show the directions that the model has learned.

    !!! example

        ```python
        from ebmlearn import datasets, plotting

        seen = []

        def look(report):
            seen.append(ebmlearn.samplers.singular_values(report.model))

        data, rbm = datasets.digits().train.x, ebmlearn.RBM.init(64, 8)
        ebmlearn.fit(rbm, ebmlearn.CD(), data, epochs=3, callbacks=[look])
        plotting.spectra(seen)
        ```

    **Arguments:**

    - `values`: the results of [`ebmlearn.samplers.singular_values`][] at several times, or singular
      values of shape `[times, values]`.
    - `x`: the epochs or steps of these times; 1, 2, ... by default.
    - `block`: the index of the block of weights, if a model has several.
    - `log`: whether the y axis is logarithmic.
    - `ax`: the axes to draw on; a new figure by default.

    **Returns:**

    The axes, with a line for each singular value.
    """
    rows = numbers("values", _block(values, block), 2)
    where = places(x, len(rows))
    ax = on(ax)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, rows.shape[1]))
    for column, colour in zip(rows.T[::-1], colours[::-1], strict=True):
        ax.plot(where, column, color=colour, linewidth=1)
    if log:
        ax.set_yscale("log")
    return labelled(ax, "epoch", "singular values")


def discrepancy(
    curves: Mapping[str, Real[AnyArray, " points"] | Sequence[float | int]],
    sweeps: Real[AnyArray, " points"] | Sequence[float | int],
    *,
    floor: float | int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws the discrepancy ([`ebmlearn.estimate.mmd`][]) between samples and data against sweeps.

    !!! example

        ```python
        from ebmlearn import plotting

        curves = {"Gibbs": [0.2, 0.1, 0.05], "PMP": [0.1, 0.08, 0.08]}
        plotting.discrepancy(curves, [10, 100, 1000], floor=0.02)
        ```

    **Arguments:**

    - `curves`: a dictionary from names of samplers or learners to squared discrepancies, one for
      each entry of `sweeps`.
    - `sweeps`: the numbers of sweeps.
    - `floor`: the discrepancy between two sets of data, drawn as a reference line.
    - `ax`: the axes to draw on; a new figure by default.

    **Returns:**

    The axes, both logarithmic, with a line for each name.
    """
    where = _positive("sweeps", numbers("sweeps", sweeps, 1))
    instance("curves", curves, Mapping, "be a dictionary from names to numbers")
    lines = {}
    for label, one in named("curves", curves).items():
        name = f"curves[{label!r}]"
        lines[label] = _positive(name, several(name, one, len(where)))
    if floor is not None:
        _checks.number("floor", floor, 0, float("inf"), "(0, inf)")
    ax = on(ax)
    for label, values in lines.items():
        ax.plot(where, values, "o-", markersize=4, label=label)
    if floor is not None:
        ax.axhline(floor, label="data and data", **_MARK)
    ax.set(xscale="log", yscale="log")
    return labelled(ax, "sweeps", "squared MMD")


def _estimates(name: str, x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Log Z and its standard error, of each."""
    found = [x] if isinstance(x, AISEstimate) else list(x)
    for one in found:
        instance(name, one, AISEstimate, "hold what `ais` or `reverse_ais` returns")
    if not found:
        raise ValueError(f"`{name}` must not be empty, got {x!r}.")
    log_z = np.array([float(one.log_partition) for one in found])
    return log_z, np.array([float(one.standard_error) for one in found])


def _each(name: str, x: Any, number: int) -> np.ndarray:
    array = numbers(name, x, 0, 1)
    if array.shape not in ((), (number,)):
        raise ValueError(
            f"`{name}` must be a number or {number} numbers, got {_checks.describe(array)}."
        )
    return np.broadcast_to(array, (number,))


def _block(values: Any, block: int) -> Any:
    """Singular values of one block, from arrays or from tuples of arrays."""
    if hasattr(values, "shape"):
        return values
    rows = list(values)
    if rows and isinstance(rows[0], tuple):
        below("block", block, min(map(len, rows)))
        rows = [row[block] for row in rows]
    if len({np.shape(row) for row in rows}) > 1:
        raise ValueError("`values` must hold the same number of singular values at each time.")
    return np.stack([np.asarray(row) for row in rows]) if rows else np.zeros((0, 0))


def _positive(name: str, x: np.ndarray) -> np.ndarray:
    if not (x > 0).all():
        raise ValueError(f"`{name}` must be positive on a logarithmic scale, got {x.min()}.")
    return x
