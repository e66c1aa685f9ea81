"""Where the lake cannot be written."""

import pytest

from cdc import codecs
from cdc.errors import EnvironmentProblem
from spark_jobs.first_commit import write_first_commit
from spark_jobs.layout import Layout
from spark_jobs.staging import Staged
from tests.support.schemas import table_schema


def test_a_folder_that_cannot_be_written(tmp_path):
    layout = Layout(table_schema(("id", codecs.INT4)), "shop.public.orders")
    (tmp_path / "file").touch()
    table = layout.arrow_schema(gone=True).empty_table()
    with pytest.raises(EnvironmentProblem) as refused:
        Staged(str(tmp_path / "file")).frame(None, layout, table)
    assert (refused.value.code, refused.value.table) == ("lake_not_writable", "shop.public.orders")


def test_a_table_that_cannot_be_created(tmp_path):
    layout = Layout(table_schema(("id", codecs.INT4)), "shop.public.orders")
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem) as refused:
        write_first_commit(str(tmp_path / "file" / "orders"), layout, "app")
    assert (refused.value.code, refused.value.table) == ("lake_not_writable", "shop.public.orders")
