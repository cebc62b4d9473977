from ._ais import (
    ais as ais,
    AISEstimate as AISEstimate,
    base_rate as base_rate,
    reverse_ais as reverse_ais,
)
from ._likelihood import (
    log_likelihood as log_likelihood,
    pseudo_log_likelihood as pseudo_log_likelihood,
    pseudo_log_likelihood_of as pseudo_log_likelihood_of,
    require_conditionals as require_conditionals,
)
from ._log_partition import (
    Estimate as Estimate,
    log_partition as log_partition,
    LogPartition as LogPartition,
)
from ._mmd import mmd as mmd
from ._pmp_bound import pmp_bound as pmp_bound, PMPBound as PMPBound
from ._prediction import classify as classify, error_rate as error_rate, predict as predict
from ._query_entropy import (
    cross_entropy as cross_entropy,
    independent_entropy as independent_entropy,
    mean_entropy as mean_entropy,
    query_entropy as query_entropy,
    QueryEntropy as QueryEntropy,
)
from ._sampled import sampled_marginals as sampled_marginals
