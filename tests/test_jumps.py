import numpy as np

from benchmarks.equilibrium import centres, count_jumps


def test_count_jumps_wants_a_chain_to_stay():
    there = [0] * 12 + [1] * 9 + [0] * 12
    stays = [0] * 12 + [1] * 10 + [0] * 11
    thrice = [0] * 5 + [1] * 10 + [2] * 10 + [1] * 8
    nearest = np.asarray([there, stays, thrice]).T
    assert count_jumps(nearest).tolist() == [0, 2, 2]


def test_centres_finds_separate_clusters():
    rng = np.random.default_rng(0)
    means = np.repeat(rng.integers(0, 2, (3, 4)), 10, axis=1)
    means[:, :6] = np.repeat(np.eye(3), 2, axis=1)
    x = np.repeat(means, 50, axis=0)
    noise = rng.random(x.shape) < 0.02
    found = centres(np.abs(x - noise).astype(np.float32), None, 3)
    distance = np.abs(found[:, None] - means).max(-1)
    assert sorted(distance.argmin(1)) == [0, 1, 2]
    assert distance.min(1).max() < 0.2
