"""Pieces of catalog queries that both the stream's side and the snapshot's side ask."""

from __future__ import annotations

from typing import Final

#: What changes when a relation's rows were replaced without events: its file, or, for a
#: partitioned table, a number made of its partitions, their files, and since when they are
#: partitions of it. ``{oid}`` and ``{kind}`` are pg_class's columns.
RELATION_FILE: Final = """
    CASE WHEN {kind} = 'p'
         THEN (SELECT coalesce(hashtextextended(string_agg(
                          member.relid::oid::text || ':'
                          || coalesce(pg_relation_filenode(member.relid), 0)::text || ':'
                          || inherits.xmin::text,
                          ' ' ORDER BY member.relid::oid), 0), 0)
               FROM pg_partition_tree({oid}) member
               JOIN pg_catalog.pg_inherits inherits ON inherits.inhrelid = member.relid
               WHERE member.level > 0)
         ELSE pg_relation_filenode({oid})::bigint END
"""
