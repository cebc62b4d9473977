from ._queries import (
    AbstractQueries as AbstractQueries,
    as_queries as as_queries,
    BlockTargets as BlockTargets,
    check_told as check_told,
    draw as draw,
    FixedTargets as FixedTargets,
    LeaveOneOut as LeaveOneOut,
    MixedTargets as MixedTargets,
    Query as Query,
    RandomTargets as RandomTargets,
    TargetCount as TargetCount,
)
