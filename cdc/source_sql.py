"""Pieces of catalog queries that both the stream's side and the snapshot's side ask."""

from __future__ import annotations

from typing import Final

#: What changes when a relation's rows were replaced without events: its file, or, for a
#: partitioned table, a number made of its leaves and their files. ``{oid}`` and ``{kind}`` are
#: pg_class's columns.
RELATION_FILE: Final = """
    CASE WHEN {kind} = 'p'
         THEN (SELECT coalesce(hashtextextended(string_agg(
                          leaf.relid::oid::text || ':'
                          || coalesce(pg_relation_filenode(leaf.relid), 0)::text,
                          ' ' ORDER BY leaf.relid::oid), 0), 0)
               FROM pg_partition_tree({oid}) leaf
               WHERE leaf.isleaf)
         ELSE pg_relation_filenode({oid})::bigint END
"""
