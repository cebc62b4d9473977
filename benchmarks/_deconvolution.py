"""Blind deconvolution as a PGMax graph: Lázaro-Gredilla et al. 2021, section 5.6."""

import itertools
from typing import Any, NamedTuple

import jax
import numpy as np
from pgmax import fgraph, fgroup, vgroup

import ebmlearn as ebm
from ebmlearn.pgmax import FactorGraphModel


class Deconvolution(NamedTuple):
    """A graph whose variables are features (shared by all images), locations, and images."""

    model: FactorGraphModel
    features: Any
    locations: Any
    images: Any


def built(
    seen: np.ndarray,
    num_features: int,
    side: int,
    log_odds_feature: float,
    log_odds_location: float,
    log_odds_seen: float,
) -> Deconvolution:
    """A pixel is the OR of all ANDs of a location and a pixel of its feature that fall on it.

    It is as it was seen but for a tiny probability. That lets messages leave a pixel unexplained
    for a while: held for sure, pixels would be explained one by one.
    """
    num_images, size, _ = seen.shape
    room = size - side + 1
    features = vgroup.NDVarArray(2, (num_features, side, side))
    locations = vgroup.NDVarArray(2, (num_images, num_features, room, room))
    placed = vgroup.NDVarArray(2, (*locations.shape, side, side))
    images = vgroup.NDVarArray(2, (num_images, size, size))
    graph = fgraph.FactorGraph([features, locations, placed, images])
    # Where each AND has its parents, and the pixel that it may switch on.
    image, feature, down, across, row, column = np.indices(placed.shape).reshape(6, -1)
    places = np.ravel_multi_index((image, feature, down, across), locations.shape)
    parts = np.ravel_multi_index((feature, row, column), features.shape)
    pixels = np.ravel_multi_index((image, down + row, across + column), images.shape)
    both, place, part, pixel = (group[:] for group in (placed, locations, features, images))
    ands = [[place[i], part[j], x] for i, j, x in zip(places, parts, both, strict=True)]
    graph.add_factors(fgroup.ANDFactorGroup(variables_for_factors=ands))
    ors = [[] for _ in pixel]
    for i, x in zip(pixels, both, strict=True):
        ors[i].append(x)
    ors = [[*parents, x] for parents, x in zip(ors, pixel, strict=True)]
    graph.add_factors(fgroup.ORFactorGroup(variables_for_factors=ors))
    model = FactorGraphModel(graph).with_evidence(
        {
            features: np.array([0.0, log_odds_feature], np.float32),
            locations: np.array([0.0, log_odds_location], np.float32),
            images: np.stack([np.zeros(seen.shape), log_odds_seen * (2.0 * seen - 1)], -1),
        }
    )
    return Deconvolution(model, features, locations, images)


class Found(NamedTuple):
    """Samples of features and locations, with energies without the perturbation and the changes of
    the last sweep.
    """

    features: np.ndarray
    locations: np.ndarray
    energy: np.ndarray
    residual: np.ndarray


def in_turns(problem: Deconvolution, sweeps: int, damping: float) -> ebm.PMP:
    """A sampler that spreads the sweeps over several runs of max-product: on all variables; with
    the features held that it found, so that the locations settle; and, for each feature, with all
    others held.
    """
    shape = problem.features.shape
    numbers = np.arange(shape[0])[:, None, None]
    held = [np.broadcast_to(numbers != free, shape) for free in (-1, *range(shape[0]))]
    turns = [{problem.features: mask} for mask in held]
    return ebm.PMP(sweeps // (len(turns) + 1), damping=damping, turns=turns)


def sampled(problem: Deconvolution, sampler: ebm.PMP, number: int, seed: int) -> Found:
    """Posterior samples."""
    samples, info = ebm.sample_with_info(problem.model, sampler, number, key=jax.random.key(seed))
    parts = (
        samples[problem.features],
        samples[problem.locations],
        info.energy.reshape(-1),
        info.residual.reshape(-1),
    )
    return Found(*(np.asarray(x) for x in parts))


def recovered(found: np.ndarray, true: np.ndarray) -> list[float]:
    """The intersection over union of each true feature with one found, after the best shift and
    with the best assignment, by which each found one serves once.
    """
    side, small = found.shape[-1], true.shape[-1]
    overlap = np.zeros((len(true), len(found)))
    for k, feature in enumerate(true):
        for down, across in np.ndindex(side - small + 1, side - small + 1):
            moved = np.zeros((side, side), int)
            moved[down : down + small, across : across + small] = feature
            both, either = (found & moved).sum((1, 2)), (found | moved).sum((1, 2))
            overlap[k] = np.maximum(overlap[k], both / np.maximum(either, 1))
    rows = range(len(true))
    orders = itertools.permutations(range(len(found)), len(true))
    best = max(
        orders, key=lambda order: ((overlap[rows, order] >= 0.9).sum(), overlap[rows, order].sum())
    )
    return [float(x) for x in overlap[rows, best]]
