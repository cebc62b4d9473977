"""The whole transition matrix of a sampler, from all outcomes of what the code itself draws."""

import itertools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle

import ebmlearn as ebm
from ebmlearn.models import summed
from ebmlearn.units import _random


KEY = jax.random.key(0)
# What `Outcomes` puts in the place of.
RANDOM = ("uniforms", "decide", "accept", "accept_by", "accept_by_gumbel")
RANDOM += ("choices", "choose", "choose_several")
SMALL = {
    "rbm": lambda rng: oracle.random_rbm(rng, 2, 1, dtype="float64"),
    "wide_rbm": lambda rng: oracle.random_rbm(rng, 1, 2, dtype="float64"),
    "dbm": lambda rng: oracle.random_dbm(rng, (1, 1, 1), dtype="float64"),
    "boltzmann": lambda rng: oracle.random_boltzmann(rng, 3, dtype="float64"),
    "semi_restricted": lambda rng: oracle.random_semi(rng, 2, 1, dtype="float64"),
    "labelled": lambda rng: oracle.random_labelled(rng, 1, 1, 2, dtype="float64"),
    "categorical": lambda rng: layered(
        rng, {"visible": ebm.Categorical(1, 3), "hidden": ebm.Categorical(1, 2)}
    ),
    "joined_categorical": lambda rng: layered(
        rng,
        {"visible": ebm.Categorical(2, 2), "hidden": ebm.Categorical(1, 2)},
        inside=["visible"],
    ),
    "mixed": lambda rng: layered(
        rng, {"visible": ebm.Binary(1), "hidden": ebm.Categorical(1, 3), "label": ebm.Binary(1)}
    ),
    "joined_mixed": lambda rng: layered(
        rng,
        {"visible": ebm.Categorical(2, 2), "hidden": ebm.Binary(1)},
        inside=["visible"],
    ),
}


def layered(rng, layers, inside=(), dtype="float64"):
    """A random `LayeredModel`: `hidden` is joined to all other layers, and those of `inside` have
    couplings between their own units.
    """
    width = {name: units.width for name, units in layers.items()}
    blocks = {
        (name, "hidden"): rng.normal(size=(width[name], width["hidden"]))
        for name in layers
        if name != "hidden"
    }
    blocks |= {(name, name): oracle.symmetric(rng, width[name], 1.0) for name in inside}
    return ebm.LayeredModel(
        layers,
        {pair: jnp.asarray(w, dtype) for pair, w in blocks.items()},
        {name: jnp.asarray(rng.normal(size=n), dtype) for name, n in width.items()},
    )


def counts(model, layers=None):
    """How many states each unit has, layer by layer."""
    order = range(len(model.layers)) if layers is None else layers
    chosen = [model.layers[k] for k in order]
    return [getattr(layer, "states", 2) for layer in chosen for _ in range(layer.size)]


def configurations(model):
    """All states of all units, as users see them, in the order of the layers."""
    return np.array(list(itertools.product(*(range(c) for c in counts(model)))))


def cut(model, x):
    """States of all units, layer by layer."""
    return np.split(x, np.cumsum([layer.size for layer in model.layers])[:-1], axis=-1)


def scores(model, x):
    """The log-potentials of configurations."""
    parts = [
        np.eye(layer.states)[part].reshape(len(x), -1)
        if isinstance(layer, ebm.Categorical)
        else part
        for layer, part in zip(model.layers, cut(model, x), strict=True)
    ]
    f, x = oracle.flat(model), np.concatenate(parts, -1)
    return x @ f.bias + np.einsum("si,ij,sj->s", x, f.couplings, x) / 2


def draws_of(model, sweeps=1, replicas=1, reverse=False):
    """How many outcomes each draw of some sweeps has, in their order."""
    first = summed(model)
    order = [*first, *(k for k in range(len(model.layers)) if k not in first)]
    order = order[::-1] if reverse else order
    return [c for k in order for c in counts(model, [k]) * replicas] * sweeps


class Outcomes:
    """Stands for the random numbers of a sampler: chain c gets the outcomes `forced[c]`, and how
    likely they were is kept.
    """

    def __init__(self, forced):
        self.forced, self.at = forced, 0
        self.log_probability = np.zeros(len(forced))

    def take(self, number):
        self.at += number
        return self.forced[:, self.at - number : self.at]

    def uniforms(self, key, shape, dtype):
        copies = shape[0] // len(self.forced)  # replicas, one after the other
        bits = self.take(copies * shape[1]).reshape(len(self.forced), copies, shape[1])
        return jnp.asarray(bits.transpose(1, 0, 2).reshape(shape), dtype)

    def decide(self, log_odds, uniform):
        bits = np.asarray(uniform)
        log_p = -np.logaddexp(0, np.where(bits > 0, -1, 1) * np.asarray(log_odds)).sum(1)
        self.log_probability += log_p.reshape(-1, len(self.forced)).sum(0)
        return uniform

    def accept_by(self, log_ratio, uniform):
        bits, yes = np.asarray(uniform), np.minimum(np.asarray(log_ratio), 0)
        with np.errstate(divide="ignore"):
            log_p = np.where(bits > 0, yes, np.log(-np.expm1(yes))).sum(1)
        self.log_probability += log_p.reshape(-1, len(self.forced)).sum(0)
        return uniform

    def accept_by_gumbel(self, log_ratio, gumbel):
        return self.accept_by(log_ratio, self.uniforms(None, log_ratio.shape, log_ratio.dtype))

    def accept(self, log_ratio, key):
        ratio = np.atleast_2d(np.asarray(log_ratio)).T  # [chains, decisions]
        bits = self.take(ratio.shape[1])
        yes = np.minimum(ratio, 0)
        with np.errstate(divide="ignore"):
            self.log_probability += np.where(bits > 0, yes, np.log(-np.expm1(yes))).sum(1)
        return jnp.asarray(bits.T.reshape(log_ratio.shape), log_ratio.dtype)

    def choices(self, key, shape, dtype):
        return jnp.zeros(shape, dtype)  # Outcomes are taken where it is known of how many.

    def choose(self, logits, noise):
        logits = np.asarray(logits)
        rows, units = len(logits), logits[0, ..., 0].size
        copies = rows // len(self.forced)
        taken = self.take(copies * units).reshape(len(self.forced), copies, units).astype(int)
        chosen = taken.transpose(1, 0, 2).reshape(logits.shape[:-1])
        # An outcome of probability 0 may lead to where nothing is possible.
        with np.errstate(invalid="ignore"):
            logits = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        log_p = np.take_along_axis(logits, chosen[..., None], -1).reshape(rows, units).sum(1)
        self.log_probability += log_p.reshape(-1, len(self.forced)).sum(0)
        return jnp.asarray(chosen)

    def choose_several(self, logits, noise, number):
        left, out = np.array(logits), []
        for _ in range(number):
            out.append(np.asarray(self.choose(left, noise)))
            left[np.arange(len(left)), out[-1]] = -np.inf
        return jnp.asarray(np.stack(out, 1))


def looped(function, *arrays):
    """In place of `jax.vmap`, so that outcomes of draws can be told."""
    number = jax.tree.leaves(arrays[0])[0].shape[0]
    one = [jax.tree.map(operator.itemgetter(k), arrays) for k in range(number)]
    out = [function(*x) for x in one]
    return jax.tree.map(lambda *x: jnp.stack(x), *out)


def transition_matrix(monkeypatch, model, sampler, choices, replicas=1):
    """The matrix of one step of `sampler`, from all outcomes of its draws, `choices[k]` for the
    k-th of them.
    """
    one = configurations(model)
    n = one.shape[1]
    every = np.array([np.concatenate(x) for x in itertools.product(one, repeat=replicas)])
    outcomes = np.array(list(itertools.product(*(range(c) for c in choices))), float)
    starts = np.repeat(every, len(outcomes), 0)
    forced = np.tile(outcomes, (len(every), 1))
    draws = Outcomes(forced)
    for name in RANDOM:
        monkeypatch.setattr(_random, name, getattr(draws, name))
    with jax.disable_jit():
        chains = len(starts)
        by_replica = starts.reshape(chains, replicas, n).transpose(1, 0, 2)
        layers = [cut(model, x) for x in by_replica]
        if replicas == 1:
            start = model.named(tuple(jnp.asarray(x) for x in layers[0]))
            state = sampler.init(model, chains, key=KEY, start=start)
        else:
            state = sampler.init(model, chains, key=KEY)
            stacked = [jnp.asarray(np.stack(x), jnp.int32) for x in zip(*layers, strict=True)]
            state = eqx.tree_at(lambda s: s.replicas, state, model.named(tuple(stacked)))
        state, _ = sampler.step(model, state, key=KEY)
    monkeypatch.undo()
    assert draws.at == len(choices)
    units = jax.tree.leaves(state.units if replicas == 1 else state.replicas)
    ends = np.concatenate([np.asarray(x) for x in units], -1)
    if replicas > 1:
        ends = ends.transpose(1, 0, 2).reshape(chains, replicas * n)
    # Configurations are in the order of their numbers in mixed radix. What is impossible may lead
    # anywhere.
    weights = np.exp(draws.log_probability)
    starts, ends, weights = (x[weights > 0] for x in (starts, ends, weights))
    radix = counts(model) * replicas
    here, there = (np.ravel_multi_index(x.T, radix) for x in (starts, ends))
    matrix = np.zeros((len(every), len(every)))
    np.add.at(matrix, (here, there), weights)
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-12)
    return matrix


def probabilities(model, beta=1.0):
    score = beta * scores(model, configurations(model))
    return np.exp(score - np.logaddexp.reduce(score))


def drift(matrix, p):
    return np.abs(p @ matrix - p).max()
