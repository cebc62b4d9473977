"""Files of networks, `.uai`."""

import math
import os
from graphlib import CycleError, TopologicalSorter
from typing import Literal

import numpy as np
from jaxtyping import Float

from .. import _checks
from ..elimination import Network
from ..models import AbstractModel, TableModel
from ..training._file import write as write_file
from ._conversions import to_network
from ._words import Words


Kind = Literal["MARKOV", "BAYES"]
_KINDS = ("MARKOV", "BAYES")
# Of one float64, between the least and the largest normal number.
_LOWEST, _HIGHEST = -708.0, 709.0


def read_network(path: str | os.PathLike) -> Network:
    """Reads a `.uai` file as tables of log-potentials in float64, on the host.

    Files of both kinds, `MARKOV` and `BAYES`, hold tables that are multiplied. They are read in the
    same way, and tables of a `BAYES` file need not add up to 1.

    !!! example

        ```python
        from ebmlearn import uai

        uai.write("grid.uai", ebmlearn.RBM.init(4, 3))
        network = uai.read_network("grid.uai")
        network.counts, network.scopes
        ```

    **Arguments:**

    - `path`: the file. `#` begins a comment.

    **Returns:**

    `counts`, the number of states of each variable; `scopes`, the variables of each table; and
    `tables`, with one axis for each variable of the scope.
    """
    words = Words(path, _KINDS)
    number = words.whole(0, "the number of variables", 1)
    words.rest(1, number, "numbers of states, one for each variable")
    counts = words.wholes(1, number, "the number of states of a variable", 1)
    at = 1 + number
    size = words.whole(at, "the number of tables", 0)
    at += 1
    scopes = []
    for k in range(size):
        rank = words.whole(at, "the number of variables of a table", 0, number)
        words.rest(at + 1, rank, "variables of a table")
        scope = words.wholes(at + 1, rank, "a variable of a table", 0, number - 1)
        if len(set(scope)) < rank:
            words.fail(at + 1, f"table {k} must hold each variable once, got {scope}")
        scopes.append(scope)
        at += 1 + rank
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(words.numbers[at:])
    first, tables, starts = at, [], []
    for k, scope in enumerate(scopes):
        shape = tuple(counts[v] for v in scope)
        entries = math.prod(shape)
        if words.whole(at, "the number of entries of a table", 0) != entries:
            got = int(words.numbers[at])
            words.fail(at, f"table {k} of variables {scope} must have {entries} entries, got {got}")
        words.rest(at + 1, entries, "entries of a table")
        table = logs[at + 1 - first : at + 1 - first + entries]
        tables.append(table.reshape(shape))
        starts.append(at)
        at += 1 + entries
    words.ended(at, f"{size} tables")
    if not (logs < np.inf).all():
        bad = first + int(np.argmin(logs < np.inf))
        k = int(np.searchsorted(starts, bad, "right")) - 1
        got = f"{words.numbers[bad]:g}"
        words.fail(bad, f"entries of table {k} must be finite and at least 0, got {got}")
    return Network(counts, tuple(scopes), tuple(tables))


def read(path: str | os.PathLike) -> TableModel:
    """Reads a `.uai` file as a model, in the default dtype of JAX.

    !!! example

        ```python
        from ebmlearn import uai

        uai.write("grid.uai", ebmlearn.RBM.init(4, 3))
        model = uai.read("grid.uai")
        ebmlearn.BP(100, damping=0.5)(model).log_partition
        ```

    **Arguments:**

    - `path`: the file, `MARKOV` or `BAYES`. `#` begins a comment.
    """
    return TableModel(*read_network(path))


def write(path: str | os.PathLike, model: AbstractModel | Network, kind: Kind = "MARKOV") -> None:
    """Writes a model to a `.uai` file. The new file replaces an older one only when it is complete.

    !!! example

        ```python
        from ebmlearn import uai

        uai.write("rbm.uai", ebmlearn.RBM.init(4, 3))
        ```

    **Arguments:**

    - `path`: the file.
    - `model`: a model that [`ebmlearn.uai.to_tables`][] takes, or a network as
      [`ebmlearn.uai.read_network`][] returns it.
    - `kind`: the first word of the file. For `"BAYES"` there must be one table for each variable:
      its probabilities given those before it in the scope.
    """
    _checks.choice("kind", kind, _KINDS)
    network = to_network(model)
    if kind == "BAYES":
        _check_bayes(network)
    lines = [kind, str(len(network.counts)), " ".join(map(str, network.counts))]
    lines.append(str(len(network.scopes)))
    lines += [" ".join(map(str, (len(scope), *scope))) for scope in network.scopes]
    for k, table in enumerate(network.tables):
        lines += ["", str(table.size)]
        rows = _entries(k, table).reshape(-1, table.shape[-1] if table.ndim else 1)
        lines += [" " + " ".join(map(repr, row)) for row in rows.tolist()]
    write_file(path, ("\n".join(lines) + "\n").encode())


def _entries(k: int, table: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The exponentials of a table."""
    possible = table != -np.inf
    wrong = possible & ~((table >= _LOWEST) & (table <= _HIGHEST))
    if wrong.any():
        raise ValueError(
            f"`model` must have log-potentials from {_LOWEST:g} to {_HIGHEST:g}, or minus infinity,"
            f" since files hold their exponentials, got {table[wrong][0]:g} in table {k}."
        )
    return np.asarray(np.exp(table))


def _check_bayes(network: Network) -> None:
    """Raises `ValueError` unless each variable has one table of its own, last in the scope."""
    number = len(network.counts)
    own = [scope[-1] if scope else -1 for scope in network.scopes]
    if sorted(own) != list(range(number)):
        raise ValueError(
            f'`model` must have one table for each of {number} variables for `kind="BAYES"`, with'
            f" that variable last in its scope, got scopes that end in {own[:10]}."
        )
    for k, table in enumerate(network.tables):
        total = np.exp(table).sum(-1)
        if not np.allclose(total, 1, atol=1e-4):
            worst = total.flat[np.abs(total - 1).argmax()]
            raise ValueError(
                "`model` must have tables that add up to 1 over their last variable for"
                f' `kind="BAYES"`, got {worst:g} in table {k}.'
            )
    try:
        TopologicalSorter({scope[-1]: scope[:-1] for scope in network.scopes}).prepare()
    except CycleError as error:
        found = sorted(set(error.args[1]))[:10]
        raise ValueError(
            f'`model` must have no cycle for `kind="BAYES"`, got one of variables {found}.'
        ) from None
