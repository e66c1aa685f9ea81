"""Pieces of catalog queries that both the stream's side and the snapshot's side ask.

All of them read the catalogs' tables, by the snapshot of the statement they are in. Functions such
as pg_relation_filenode() and pg_partition_tree() tell what is committed now: beside columns of a
moment ago they would hide that a table was rewritten when a column was added.
"""

from __future__ import annotations

from typing import Final

#: The members of a partitioned table's tree without its root: relation id, file (0 of those that
#: have none), the transaction that made it a partition, and whether that one created it, too.
#: What is made by CREATE TABLE and stays when a table is attached or detached is its row type.
#: ``{oid}`` is the root's.
PARTITION_TREE: Final = """
    (WITH RECURSIVE tree AS (
         SELECT i.inhrelid, i.xmin AS since FROM pg_catalog.pg_inherits i
         WHERE i.inhparent = {oid}
         UNION ALL
         SELECT i.inhrelid, i.xmin FROM pg_catalog.pg_inherits i
         JOIN tree ON i.inhparent = tree.inhrelid
     )
     SELECT tree.inhrelid::bigint AS relid, m.relfilenode::bigint AS filenode,
            tree.since::text::bigint AS since, t.xmin = tree.since AS made_there
     FROM tree
     JOIN pg_catalog.pg_class m ON m.oid = tree.inhrelid
     JOIN pg_catalog.pg_type t ON t.oid = m.reltype)
"""

#: What changes when a relation's rows were replaced without events: its file, or, for a
#: partitioned table, a number made of its partitions, their files, and since when they are
#: partitions of it. ``{c}`` is pg_class.
RELATION_FILE: Final = f"""
    CASE WHEN {{c}}.relkind = 'p'
         THEN (SELECT coalesce(hashtextextended(string_agg(
                          concat_ws(':', member.relid, member.filenode, member.since),
                          ' ' ORDER BY member.relid), 0), 0)
               FROM {PARTITION_TREE.format(oid="{c}.oid")} member)
         ELSE {{c}}.relfilenode::bigint END
"""  # noqa: S608  (put together from constants)

#: Labels of the enums and attributes of the composite types that values of a table's columns can
#: have, wherever in them; who altered each column last; and how many columns there ever were.
#: ``c`` is pg_class. What ``TableRecord.types`` holds.
VALUE_TYPES: Final = """
    (WITH RECURSIVE parts AS (
         SELECT a.atttypid AS type FROM pg_catalog.pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         UNION
         SELECT next.type FROM parts
         JOIN pg_catalog.pg_type t ON t.oid = parts.type
         CROSS JOIN LATERAL (
             SELECT t.typelem AS type WHERE t.typelem <> 0
             UNION ALL SELECT t.typbasetype WHERE t.typbasetype <> 0
             UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid = r.rngtypid
             UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                       WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid
                         AND a.attnum > 0 AND NOT a.attisdropped
         ) next
     )
     SELECT jsonb_object_agg(found.part, found.text)
     FROM (SELECT 'e' || e.oid, e.enumlabel::text
           FROM pg_catalog.pg_enum e WHERE e.enumtypid IN (SELECT type FROM parts)
           UNION ALL
           SELECT 'c' || t.typrelid,
                  string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', '
                             ORDER BY a.attnum)
           FROM pg_catalog.pg_type t
           JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid
           WHERE t.oid IN (SELECT type FROM parts) AND t.typrelid <> 0
             AND a.attnum > 0 AND NOT a.attisdropped
           GROUP BY t.typrelid
           UNION ALL
           SELECT 'a' || a.attnum, a.xmin::text FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
           UNION ALL SELECT 'w', c.relnatts::text) AS found(part, text))
"""
