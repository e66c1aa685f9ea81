"""Options of Java, for JVMs that more than one part of the platform starts."""

from __future__ import annotations

from typing import Final

#: For a JVM that ends after some minutes, where compiling well costs more than it gains. The code
#: cache would be a fifth of its usual size with these, and when it is full, its sweeper takes a
#: good part of a core. The classes are those of jars with known checksums: to verify each of them
#: once more is a sixth of what such a JVM does.
SHORT_LIVED_JVM: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
