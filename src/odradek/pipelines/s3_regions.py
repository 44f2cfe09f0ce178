"""Which region a bucket of S3 is in, for pyarrow and deltalake: both sign requests for one, and neither looks for it.

Spark's own s3a needs no setting: it follows Amazon's answers to the bucket's region. So a user expects that a bucket
is found here, too. The region is, in this order: ``fs.s3a.endpoint.region``; what the name of Amazon's endpoint says;
``AWS_REGION``, ``AWS_DEFAULT_REGION``; what Amazon tells of the bucket. An endpoint that is not Amazon's takes any.
"""

from __future__ import annotations

import functools
import os
import re

from odradek.core.errors import ConfigError

ANY_REGION = "us-east-1"
_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_AMAZON = re.compile(r"(?:^|\.)amazonaws\.com(?:\.cn)?$")
_REGIONAL = re.compile(r"(?:^|\.)s3[a-z-]*(?:\.dualstack)?[.-]([a-z]{2}(?:-[a-z]+)+-\d+)\.(?:vpce\.)?amazonaws\.com")
_CENTRAL = ("s3.amazonaws.com", "s3-external-1.amazonaws.com")


def region_of(bucket: str, configured: str | None, host: str) -> str:
    """``configured``: by Spark's settings; ``host``: of the endpoint, empty where none is set. Asks Amazon where
    nothing else says it. Raises ConfigError where that does not tell either.
    """
    if configured:
        return configured
    named = host.lower().rpartition("@")[2].partition("/")[0].partition(":")[0]
    if found := _REGIONAL.search(named):
        return found[1]
    if said := next((value for name in _VARIABLES if (value := os.environ.get(name, "").strip())), ""):
        return said
    if named and not _AMAZON.search(named):
        return ANY_REGION
    return _told_by_amazon(bucket)


def is_central(host: str) -> bool:
    """Whether this is Amazon's endpoint for all regions: a bucket is reached by that of its own."""
    return host.lower() in _CENTRAL


@functools.lru_cache(maxsize=64)
def _told_by_amazon(bucket: str) -> str:
    from pyarrow.fs import resolve_s3_region

    try:
        return str(resolve_s3_region(bucket))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the region of the S3 bucket {bucket} is not known: set spark.hadoop.fs.s3a.endpoint.region "
            f"(--conf), or AWS_REGION for the driver ({' '.join(str(error).split())})"
        ) from error
