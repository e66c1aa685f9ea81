"""What a session leaves behind."""

import os
import tempfile

from spark_jobs import session


def test_an_empty_warehouse_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"cdc-warehouse-{os.getuid()}"
    session._remove_warehouse()
    folder.mkdir()
    (folder / "kept").touch()
    session._remove_warehouse()
    assert folder.exists()
    (folder / "kept").unlink()
    session._remove_warehouse()
    assert not folder.exists()
