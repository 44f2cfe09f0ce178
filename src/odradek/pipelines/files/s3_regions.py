"""The region of an S3 bucket, for pyarrow and deltalake: both sign requests for a region, and neither looks it up.

Spark's own s3a needs no setting: it uses the region that Amazon's replies name, so users expect no setting here
either.
The region is the first of these: ``fs.s3a.endpoint.region``; the region in the name of Amazon's endpoint;
``AWS_REGION``, ``AWS_DEFAULT_REGION``; Amazon's reply for the bucket. A non-Amazon endpoint accepts any region.
"""

from __future__ import annotations

import functools
import os
import re

from odradek.core.errors import ConfigError
from odradek.text.printable import one_line

ANY_REGION = "us-east-1"
_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_AMAZON = re.compile(r"(?:^|\.)amazonaws\.com(?:\.cn)?$")
_REGIONAL = re.compile(r"(?:^|\.)s3[a-z-]*(?:\.dualstack)?[.-]([a-z]{2}(?:-[a-z]+)+-\d+)\.(?:vpce\.)?amazonaws\.com")
_CENTRAL = ("s3.amazonaws.com", "s3-external-1.amazonaws.com")


def region_of(bucket: str, configured: str | None, host: str) -> str:
    """Returns the region. ``configured``: the region in Spark's settings. ``host``: the endpoint's host, empty if none
    is set. Asks Amazon if nothing else determines the region. Raises ConfigError if Amazon does not return the region.
    """
    if configured:
        return configured
    named = host.lower().rpartition("@")[2].partition("/")[0].partition(":")[0]
    if found := _REGIONAL.search(named):
        return found[1]
    if region := next((value for name in _VARIABLES if (value := os.environ.get(name, "").strip())), ""):
        return region
    if named and not _AMAZON.search(named):
        return ANY_REGION
    return _amazons_region(bucket)


def is_central(host: str) -> bool:
    """Returns whether this is Amazon's global endpoint. A bucket is accessed through the endpoint of its own region."""
    return host.lower() in _CENTRAL


@functools.lru_cache(maxsize=64)
def _amazons_region(bucket: str) -> str:
    from pyarrow.fs import resolve_s3_region

    try:
        return str(resolve_s3_region(bucket))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the region of the S3 bucket {bucket} is unknown: set spark.hadoop.fs.s3a.endpoint.region "
            f"(--conf), or AWS_REGION for the driver ({one_line(error)})"
        ) from error
