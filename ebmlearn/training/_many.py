"""Many runs of `fit` in one program, one lane per run."""

from collections.abc import Callable, Sequence
from typing import Any

import optax
from jaxtyping import PyTree

from .. import _checks
from .._types import Key
from ..learners import AbstractLearner
from ..models import AbstractModel
from ._history import Fitted
from ._loop import Asked, is_in_memory, MOVED, prepared
from ._validation import as_validation, Validation


@_checks.usage("fit_many(model, learner, data, optimizer=optimizers, key=keys)", **MOVED)
def fit_many(
    model: PyTree,
    learner: AbstractLearner,
    data: PyTree,
    *,
    optimizer: optax.GradientTransformation | Sequence[optax.GradientTransformation],
    key: Sequence[Key],
    epochs: int = 10,
    batch_size: int | None = None,
    validation: PyTree | Validation = None,
    augment: Callable[..., PyTree] | None = None,
    average: float | None = None,
    build: Callable[[PyTree], AbstractModel] | None = None,
    project: Callable[[PyTree], PyTree] | None = None,
    progress: bool = True,
    seconds: float | int | None = None,
) -> list[Fitted]:
    """Trains many models at once, one for each key. Use it to search over seeds and learning rates.
    Up to rounding, each result equals that of [`ebmlearn.fit`][] with the same key, model and
    optimizer. On a GPU, many small models take little longer than one.

    !!! example

        ```python
        from ebmlearn import datasets

        digits = datasets.digits()
        grid = [(rate, seed) for rate in (1e-3, 1e-2) for seed in range(2)]
        found = ebmlearn.fit_many(
            [ebmlearn.RBM.init(visible=64, hidden=32, key=seed) for _, seed in grid],
            ebmlearn.SAP(),
            digits.train.x,
            optimizer=[optax.adam(rate) for rate, _ in grid],
            key=[seed for _, seed in grid],
            epochs=5,
            validation=digits.valid.x,
        )
        best = min(found, key=lambda x: x.history.validations["metric"].min())
        ```

    **Arguments:**

    - `model`: one initial model for all runs, or a list with one for each key. All must have the
      same shapes.
    - `optimizer`: one for all runs, or a list with one for each key. They may differ only in
      numbers, such as learning rates and the numbers of schedules.
    - `key`: a list of seeds or keys, one for each run.
    - `data`, `batch_size`: as for `fit`, the same for all runs. `data` must be arrays.
    - `validation`: as for `fit`. A `metric` is compiled and mapped over all runs, so it must be
      traceable: it takes JAX arrays and returns one, as `ebmlearn.error_rate(...)` does. `patience`
      stops a run; the other runs continue.
    - `learner`, `epochs`, `augment`, `average`, `build`, `project`, `progress`: as for `fit`, the
      same for all runs.
    - `seconds`: stop all runs after this time, compilation included, as they are. They are
      validated once more, and have `stopped="seconds"`. None trains for all epochs.

    **Returns:**

    A list of [`ebmlearn.Fitted`][]. A run whose gradient is not finite stops at its last good step
    with `stopped="diverged"`; the other runs continue. Ctrl-C stops all runs.
    """
    if not isinstance(key, Sequence) or isinstance(key, str) or not len(key):
        got = _checks.describe(key)
        raise TypeError(f"`key` must be a list with one key for each run, got {got}.")
    # Free parameters may be a tuple, and optimizers of Optax are.
    models = _for_each("model", model, len(key), isinstance(model, list))
    several = isinstance(optimizer, Sequence) and not hasattr(optimizer, "update")
    optimizers = _for_each("optimizer", optimizer, len(key), several)
    data = _checks.as_data("data", data)
    if not is_in_memory(data):
        got = _checks.describe(data)
        raise TypeError(f"`data` must be an array or a tuple of arrays in `fit_many`, got {got}.")
    judging = as_validation(validation)
    asked = Asked(learner, epochs, batch_size, judging, project, build, augment, average)
    run = prepared(asked, models, data, optimizers, key, many=True)
    return run.to_end(epochs, judging.patience, progress, seconds)


def _for_each(name: str, x: Any, number: int, several: bool) -> Sequence[Any]:
    """One of them for each run."""
    if not several:
        return [x] * number
    if len(x) != number:
        raise ValueError(
            f"`{name}` must be one for all runs, or a list with one for each of the {number} keys,"
            f" got {len(x)}."
        )
    return x
