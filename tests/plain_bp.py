"""Loopy belief propagation in plain NumPy: all messages at once, half of the old ones kept."""

from typing import Any, NamedTuple

import numpy as np
import scipy.special


# Its types say less than it does.
logsumexp: Any = scipy.special.logsumexp


class Found(NamedTuple):
    marginals: list[np.ndarray]
    log_z: float


def merged(factors: Any) -> list[Any]:
    """The same factors, those of the same variables as one."""
    out: dict[tuple[int, ...], np.ndarray] = {}
    for scope, table in factors:
        order = np.argsort(scope)
        own = tuple(int(scope[k]) for k in order)
        out[own] = out.get(own, 0.0) + np.transpose(table, order)
    return list(out.items())


def run(factors: Any, counts: Any, rng: Any = None, sweeps: int = 600) -> Found | None:
    """Marginals and Bethe's log Z at a fixed point, or None if messages do not get there. `rng`
    draws where they start, at zero without it.
    """
    own = [np.zeros(n) for n in counts]
    constant, edges, tables = 0.0, [], []
    for scope, table in factors:
        if not scope:
            constant += float(table)
        elif len(scope) == 1:
            own[scope[0]] = own[scope[0]] + table
        else:
            edges += [(len(tables), axis, v) for axis, v in enumerate(scope)]
            tables.append(table)
    scopes = [scope for scope, _ in factors if len(scope) > 1]
    up = {
        e: np.zeros(counts[e[2]]) if rng is None else rng.normal(size=counts[e[2]]) for e in edges
    }

    def inward():
        total = [x.copy() for x in own]
        for e in edges:
            total[e[2]] = total[e[2]] + up[e]
        # A message leaves out what came from where it goes; minus infinity stays.
        out = {}
        for e in edges:
            others = own[e[2]].copy()
            for o in edges:
                if o[2] == e[2] and o != e:
                    others = others + up[o]
            out[e] = others - logsumexp(others)
        return total, out

    with np.errstate(invalid="ignore"):
        for _ in range(sweeps):
            _, down = inward()
            change = 0.0
            for k, (scope, table) in enumerate(zip(scopes, tables, strict=True)):
                whole = table
                for axis, v in enumerate(scope):
                    whole = whole + _along(down[k, axis, v], axis, table.ndim)
                for axis, v in enumerate(scope):
                    rest = tuple(i for i in range(table.ndim) if i != axis)
                    # Divided out again: what is impossible stays so.
                    sent = logsumexp(table + _others(down, k, scope, axis, table.ndim), axis=rest)
                    sent = sent - logsumexp(sent)
                    old = up[k, axis, v]
                    new = np.where(np.isfinite(sent) & np.isfinite(old), (old + sent) / 2, sent)
                    gap = np.abs(np.exp(new) - np.exp(old)).max()
                    change = max(change, float(gap))
                    up[k, axis, v] = new
            if change < 1e-7:
                break
        else:
            return None
        total, down = inward()
        marginals = [np.exp(x - logsumexp(x)) for x in total]
        value = constant + sum(float(logsumexp(x)) for x in total)
        for k, (scope, table) in enumerate(zip(scopes, tables, strict=True)):
            whole = table
            for axis, v in enumerate(scope):
                whole = whole + _along(down[k, axis, v], axis, table.ndim)
                value -= float(logsumexp(down[k, axis, v] + up[k, axis, v]))
            value += float(logsumexp(whole))
    return Found(marginals, value)


def _along(message: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return message.reshape([-1 if i == axis else 1 for i in range(rank)])


def _others(down: Any, k: int, scope: Any, axis: int, rank: int) -> Any:
    out: Any = 0.0
    for i, v in enumerate(scope):
        if i != axis:
            out = out + _along(down[k, i, v], i, rank)
    return out
