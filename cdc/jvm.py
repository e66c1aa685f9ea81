"""Options of Java that more than one part of the platform starts."""

from __future__ import annotations

from typing import Final

#: For a JVM that ends after some minutes, where compiling well costs more than it gains. The code
#: cache would be a fifth of its usual size with these: full, it stops the compiler for good, and
#: its sweeper takes a core.
SHORT_LIVED_JVM: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:ReservedCodeCacheSize=240m",
)
