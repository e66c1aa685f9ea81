"""Pinned sets of jars; ``cdc.jars`` says where they are, ``deploy.jars.fetch`` brings them."""

from cdc.jars import cache_root, cached_folder, jar_folder, jar_paths, pins

__all__ = ["cache_root", "cached_folder", "jar_folder", "jar_paths", "pins"]
