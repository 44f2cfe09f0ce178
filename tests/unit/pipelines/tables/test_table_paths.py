"""The paths of tables are never decoded, and deltalake gets a URI of the same folder, or the path is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.core.errors import ConfigError
from odradek.text.table_paths import delta_uri, local_path


def test_a_path_is_not_decoded() -> None:
    for given in ("/lake/x%41", "file:///lake/x%41", "file:/lake/x%41", "FILE://localhost/lake/x%41"):
        assert local_path(given) == Path("/lake/x%41")


@pytest.mark.parametrize("name", ["x%41", "a%2Fb", "%2e%2e", "ü%C3", "back\\slash", "a%2520b"])
def test_a_path_that_deltalake_would_change_is_refused(name: str) -> None:
    for given in (f"/lake/{name}", f"file:///lake/{name}/t", f"s3a://bucket/{name}", f"hdfs://host:8020/{name}"):
        with pytest.raises(ConfigError, match=r"would use another folder\. Choose a path"):
            delta_uri(given)


def test_a_link_to_such_a_folder_is_refused_and_a_link_of_such_a_name_is_not(tmp_path: Path) -> None:
    for folder, link in (("x%41", "plain"), ("table", "y%41")):
        (tmp_path / folder).mkdir()
        (tmp_path / link).symlink_to(tmp_path / folder)
    with pytest.raises(ConfigError, match="does not read %41"):
        delta_uri(str(tmp_path / "plain"))
    assert delta_uri(str(tmp_path / "y%41")) == (tmp_path.resolve() / "table").as_uri()


def test_a_control_character_is_refused() -> None:
    with pytest.raises(ConfigError, match="control character"):
        delta_uri("/lake/a\nb")


def test_no_part_of_a_uri_is_cut() -> None:
    assert delta_uri("s3a://b/a#b?c ü+1=2/t") == "s3://b/a%23b%3Fc%20%C3%BC+1=2/t"
    assert delta_uri("abfss://box@host.net/t") == "abfss://box@host.net/t"
    assert delta_uri("s3://bucket") == "s3://bucket"
