"""The Java that runs the broker and Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from cdc.errors import EnvironmentProblem

OLDEST = 17


def find_java() -> Path:
    """The java program of JAVA_HOME, else of PATH, if it is new enough.

    Raises:
        EnvironmentProblem: ``java_missing``, ``java_too_old``.
    """
    remedy = (
        f"install Java {OLDEST} or newer "
        "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise EnvironmentProblem("java_missing", f"no java in {where}", remedy=remedy)
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', answer.stderr)
    if match is None or int(match.group(1)) < OLDEST:
        found = match.group(1) if match else "of unknown version"
        raise EnvironmentProblem(
            "java_too_old", f"{java} is Java {found}, not {OLDEST} or newer", remedy=remedy
        )
    return Path(java)
