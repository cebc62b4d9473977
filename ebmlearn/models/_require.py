"""What a function takes of a model, and the error if the model is another one."""

from typing import Any, NoReturn

from .. import _checks
from ._base import AbstractModel, AbstractPlainModel
from ._layered_base import AbstractLayeredModel
from ._named_base import AbstractNamedModel


class Refused(TypeError):
    """A function does not take a model of this class or kind."""


def require_model(model: Any) -> None:
    """Raises `TypeError` if this is not a model."""
    if not isinstance(model, AbstractModel):
        raise TypeError(f"`model` must be a model such as an RBM, got {_checks.describe(model)}.")


def require(model: Any, kinds: tuple[str, ...], what: str) -> Any:
    """The model, or `TypeError` unless it is of one of some kinds."""
    require_model(model)
    if model.kind not in kinds:
        refuse(model, f"be of a kind that {what} takes, {' or '.join(kinds)}")
    return model


def require_layers(model: Any, what: str) -> AbstractNamedModel:
    """The model, or `TypeError` unless it is one of layers."""
    require_model(model)
    if not isinstance(model, AbstractNamedModel):
        refuse(model, f"be one of layers of units for {what}")
    return model


def require_fields(model: Any, what: str) -> AbstractLayeredModel:
    """The model, or `TypeError` unless it is one of layers, each of which is in a field."""
    require_model(model)
    if not isinstance(model, AbstractLayeredModel):
        refuse(model, f"be one of layers of units joined by weights for {what}")
    return model


def require_chains(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless chains reach all its configurations."""
    found = _require_plain(model, what)
    reason = found.no_chains()
    if reason is not None:
        refuse(model, f"be one of which {what} reaches all configurations", reason)
    return found


def require_numbered(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless chains that follow fields reach all its configurations."""
    found = _require_plain(model, what)
    if not found.numbered:
        refuse(model, f"have binary or categorical units for {what}")
    reason = found.no_moves()
    if reason is not None:
        refuse(model, f"be one of which {what} reaches all configurations", reason)
    return found


def require_discrete(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless its units are binary, or it is a graph of variables."""
    found = _require_plain(model, what)
    families = {units.family for units in found.layers}
    if found.layerwise and families != {"binary"}:
        refuse(model, f"have binary units, or be a graph, for {what}")
    if not found.exact:
        refuse(model, f"have an energy that is linear in its parameters for {what}")
    return found


def require_possible(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless all configurations of its units are possible."""
    found = _require_plain(model, what)
    if found.no_moves() is not None:
        reason = "some of its factors exclude configurations; take `BP` or `Exact`"
        refuse(model, f"let all configurations be possible for {what}", reason)
    return found


def _require_plain(model: Any, what: str) -> AbstractPlainModel:
    require_model(model)
    if not isinstance(model, AbstractPlainModel):
        refuse(model, f"be one of layers of units, or a graph, for {what}")
    return model


def require_single(model: AbstractModel) -> None:
    """Raises `ValueError` if a model has batch axes."""
    if model.batch_shape != ():
        raise ValueError(
            f"`model` must be a single model, got a batch of shape {model.batch_shape}."
        )


def refuse(model: AbstractModel, wanted: str, hint: str | None = None) -> NoReturn:
    """Raises an error for a model that is not taken, and says why or what to do."""
    hint = model.hint if hint is None else hint
    hint = f": {hint}" if hint else ""
    kind = _checks.article(type(model).__name__)
    raise Refused(f"`model` must {wanted}, got {kind}, which is {model.kind}{hint}.")
