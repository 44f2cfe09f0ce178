"""Commands with Spark do not warn about pandas, which they do not use."""

from __future__ import annotations

import warnings

import pytest

from odradek.cli.pipeline.options import silence_pandas


def test_the_warning_of_pyspark_about_pandas_is_hidden_here_and_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    utils = pytest.importorskip("pyspark.sql.pandas.utils")
    monkeypatch.setattr(pandas, "__version__", "3.0.0")
    monkeypatch.setenv("PYTHONWARNINGS", "default::ResourceWarning")
    import os

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FutureWarning, match="pandas >= 3"):
            utils.require_minimum_pandas_version()
        silence_pandas()
        silence_pandas()
        utils.require_minimum_pandas_version()
        with pytest.raises(FutureWarning, match="another"):
            warnings.warn("another", FutureWarning, stacklevel=1)
    rule = "ignore:PySpark does not yet fully support pandas:FutureWarning"
    assert os.environ["PYTHONWARNINGS"] == f"default::ResourceWarning,{rule}"
