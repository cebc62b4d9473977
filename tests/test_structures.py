"""Structures drawn at random: each operation is right, or refuses with one clear sentence. The
campaign of `python -m benchmarks structures` runs thousands of them.
"""

import itertools

import numpy as np
import plain_bp
import pytest
import structure_checks
import structures


pytestmark = [pytest.mark.usefixtures("as_a_user"), pytest.mark.filterwarnings("default")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_operations_are_right_or_refuse(seed):
    structure = structures.structure(seed)
    # Compilation takes nearly all the time.
    for name in structure_checks.chosen(structure, 1 + seed % 2):
        found = structure_checks.outcome(structure, name)
        assert found.result != "wrong", f"{name}: {found.detail}\n{structure.code}"


def test_structures_are_the_same_each_time():
    for seed in range(5):
        assert structures.structure(seed).code == structures.structure(seed).code


@pytest.mark.slow
def test_structures_are_of_all_kinds_and_shapes():
    some = [structures.structure(seed) for seed in range(40)]
    kinds = {structure.kind.split(" ")[0].rstrip(",") for structure in some}
    assert {"LayeredModel", "TableModel", "GridMRF", "FactorGraphModel", "FactorModel"} <= kinds
    assert any(structure.truth.is_tree for structure in some)
    assert not all(structure.truth.is_tree for structure in some)
    assert all(len(structure.truth.states) <= 2**13 for structure in some)


def test_plain_bp_is_exact_on_a_tree():
    rng = np.random.default_rng(0)
    factors = [((0,), rng.normal(size=2)), ((1, 0), rng.normal(size=(3, 2)))]
    factors.append(
        ((2, 0, 3), np.where(rng.random((2, 2, 2)) < 0.3, -np.inf, rng.normal(size=(2, 2, 2))))
    )
    counts = (2, 3, 2, 2)
    scores = np.zeros(counts)
    for x in itertools.product(*map(range, counts)):
        scores[x] = sum(table[tuple(x[v] for v in scope)] for scope, table in factors)
    found = plain_bp.run(factors, counts)
    assert found is not None
    np.testing.assert_allclose(found.log_z, np.logaddexp.reduce(scores.ravel()), rtol=1e-6)
    p = np.exp(scores - np.logaddexp.reduce(scores.ravel()))
    for v, marginal in enumerate(found.marginals):
        wanted = p.sum(tuple(k for k in range(4) if k != v))
        np.testing.assert_allclose(marginal, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (ValueError("zip() argument 2 is longer than argument 1"), "wrong"),
        (KeyError("visible"), "wrong"),
    ],
)
def test_bare_errors_are_no_refusals(error, result):
    try:
        raise error
    except Exception as caught:
        assert structure_checks.judged(caught).result == result


def test_a_sentence_of_the_library_is_a_refusal():
    import ebmlearn as ebm

    with pytest.raises(ValueError) as caught:
        ebm.Exact(max_units=31)
    assert structure_checks.judged(caught.value).result == "refused"
