"""The demo's folder with its cdc.yaml: made, and removed with everything that ran from it."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cdc.config import Config, load_config
from cdc.errors import ConfigError, EnvironmentProblem
from cdc.jvm import SHORT_LIVED_JVM
from cdc.runtime import state_folder
from deploy.demo.data import TABLES
from deploy.local.stack import LocalStack

SOURCE = "nyc"
DATABASE = "flights"
SCHEMA = "public"

_YAML = f"""\
# Written by cdc demo.
project: demo
log:
  local: true
lake:
  path: ./lake
sources:
  {SOURCE}:
    kind: postgres
    local: true
    database: {DATABASE}
    tables: [{", ".join(f"{SCHEMA}.{table.name}" for table in TABLES)}]
apply:
  interval: 10s
spark:
  master: local[2]
  driver_memory: 2g
  conf:
    spark.driver.extraJavaOptions: {" ".join(SHORT_LIVED_JVM)} -Xms2g -Xmn1200m
"""


@dataclass(frozen=True, slots=True)
class Project:
    """A project of its own, as a user would have it.

    Args:
        folder: Holds cdc.yaml, .cdc and lake; nothing else is in it.
        made: Whether the folder itself was made for the demo.
        config: The loaded cdc.yaml.
        outlives: Servers go on running when this process ends, however it ends.
    """

    folder: Path
    made: bool
    config: Config
    outlives: bool

    @property
    def stack(self) -> LocalStack:
        """The servers that ``cdc start`` finds, or would bring up."""
        return LocalStack(state_folder(self.config, "local"), die_with_parent=not self.outlives)

    def remove(self) -> None:
        """Stop the servers and remove everything, also what lies outside of the folder."""
        self.stack.destroy()
        if self.made:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for name in (".cdc", "lake"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / "cdc.yaml").unlink(missing_ok=True)


def create_project(folder: Path | None, *, outlives: bool) -> Project:
    """Write cdc.yaml into an empty or new folder; a temporary one when None is given.

    Raises:
        ConfigError: ``demo_folder``: there is something in it.
        EnvironmentProblem: ``demo_folder``: it cannot be written.
    """
    try:
        if folder is None:
            made, root = True, Path(tempfile.mkdtemp(prefix="cdc-demo-"))
        else:
            root = folder.expanduser().absolute()
            made = not root.exists()
            root.mkdir(parents=True, exist_ok=True)
            if any(root.iterdir()):
                raise ConfigError(
                    "demo_folder",
                    f"{root} is not empty; the demo takes a folder of its own",
                    remedy="name another with --dir; in the folder of a kept demo, "
                    "cdc destroy --yes && rm cdc.yaml",
                )
        path = root / "cdc.yaml"
        path.write_text(_YAML, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(
            "demo_folder", f"{error.filename} cannot be written: {error.strerror}"
        ) from None
    return Project(root, made, load_config(path), outlives)
