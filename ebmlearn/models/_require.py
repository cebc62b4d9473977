"""What a function takes of a model, and the error if the model is another one."""

from typing import Any, NoReturn

from .. import _checks
from ._base import AbstractModel, AbstractPlainModel


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


def require_plain(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless it is one of groups of units."""
    require_model(model)
    if not isinstance(model, AbstractPlainModel):
        refuse(model, f"be one of layers of units, or a graph, for {what}")
    return model


def require_layers(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless it is one of layers."""
    require_model(model)
    if not isinstance(model, AbstractPlainModel) or model.grouped:
        refuse(model, f"be one of layers of units for {what}")
    return model


def require_fields(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless it is one of layers, each of which is in a field."""
    require_model(model)
    if not isinstance(model, AbstractPlainModel) or model.turns is not None:
        refuse(model, f"be one of layers of units joined by weights for {what}")
    return model


def require_chains(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless chains reach all its configurations."""
    found = require_plain(model, what)
    reason = None if found.turns is None else found.turns.no_chains()
    if reason is not None:
        refuse(model, f"be one of which {what} reaches all configurations", reason)
    return found


def require_numbered(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless chains that follow fields reach all its configurations."""
    found = require_plain(model, what)
    if not found.numbered:
        refuse(model, f"have binary or categorical units for {what}")
    reason = None if found.turns is None else found.turns.no_moves()
    if reason is not None:
        refuse(model, f"be one of which {what} reaches all configurations", reason)
    return found


def require_discrete(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless its units are binary, or it is a graph of variables."""
    found = require_plain(model, what)
    if not found.grouped and found.kind != "binary":
        refuse(model, f"have binary units, or be a graph, for {what}")
    return found


def require_possible(model: Any, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless all configurations of its units are possible."""
    found = require_plain(model, what)
    if found.turns is not None and found.turns.no_moves() is not None:
        reason = "some of its factors exclude configurations; take `BP` or `Exact`"
        refuse(model, f"let all configurations be possible for {what}", reason)
    return found


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
