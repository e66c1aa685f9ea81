"""Pieces of catalog queries that both the stream's side and the snapshot's side ask.

All of them read the catalogs' tables, by the snapshot of the statement they are in. Functions such
as pg_relation_filenode() and pg_partition_tree() tell what is committed now: beside columns of a
moment ago they would hide that a table was rewritten when a column was added.
"""

from __future__ import annotations

from typing import Final

#: The members of a partitioned table's tree without its root: relation id, file (0 of those that
#: have none), the transaction that made it a partition, and whether it was created as one: then
#: there was no time for rows. ATTACH writes the rows of all its columns in pg_attribute anew, later
#: than the row of a system column; CREATE TABLE writes them with it, or (a default) right behind
#: it, before a row could be inserted. ``{oid}`` is the root's.
PARTITION_TREE: Final = """
    (WITH RECURSIVE tree AS (
         SELECT i.inhrelid, i.xmin AS since FROM pg_catalog.pg_inherits i
         WHERE i.inhparent = {oid}
         UNION ALL
         SELECT i.inhrelid, i.xmin FROM pg_catalog.pg_inherits i
         JOIN tree ON i.inhparent = tree.inhrelid
     )
     SELECT tree.inhrelid::bigint AS relid, m.relfilenode::bigint AS filenode,
            tree.since::text::bigint AS since,
            EXISTS (SELECT FROM pg_catalog.pg_attribute made
                    JOIN pg_catalog.pg_attribute own ON own.attrelid = made.attrelid
                    WHERE made.attrelid = m.oid AND made.attnum = -1
                      AND own.attnum > 0 AND NOT own.attisdropped
                      AND made.xmin = tree.since AND made.xmax = '0'
                      AND own.xmin = tree.since AND own.xmax = '0'
                      AND own.cmin::text::bigint - made.cmin::text::bigint BETWEEN 0 AND 1
                   ) AS made_there
     FROM tree
     JOIN pg_catalog.pg_class m ON m.oid = tree.inhrelid)
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

#: Whether rows from before a column ``a`` of a table ``c`` hold a constant for it, which no event
#: tells. Of a partitioned table, its partitions know.
FILLED: Final = f"""
    CASE WHEN c.relkind = 'p'
         THEN EXISTS (SELECT FROM {PARTITION_TREE.format(oid="c.oid")} member
                      JOIN pg_catalog.pg_attribute leaf ON leaf.attrelid = member.relid
                      WHERE leaf.attname = a.attname AND leaf.attnum > 0
                        AND NOT leaf.attisdropped AND leaf.atthasmissing)
         ELSE a.atthasmissing END
"""

#: Labels of the enums and attributes of the composite types that values of a table's columns can
#: have, wherever in them, with who wrote them; who altered each column last; how many columns
#: there ever were; the unique indexes, by their constraint if they have one (REINDEX CONCURRENTLY
#: makes another index); where large values are; and who named the table last. ``c`` is pg_class.
#: What ``TableRecord.types`` holds, with ``connectors.postgres.publication.marks``.
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
             -- Through JSON, because older servers have no multiranges.
             UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r
                       WHERE t.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)
             UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                       WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid
                         AND a.attnum > 0 AND NOT a.attisdropped
         ) next
     )
     SELECT jsonb_object_agg(found.part, found.text)
     FROM (SELECT 'e' || e.oid, e.enumlabel || ' ' || e.xmin
           FROM pg_catalog.pg_enum e WHERE e.enumtypid IN (SELECT type FROM parts)
           UNION ALL
           SELECT 'c' || t.typrelid,
                  string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod),
                                       a.xmin), ', ' ORDER BY a.attnum)
           FROM pg_catalog.pg_type t
           JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid
           WHERE t.oid IN (SELECT type FROM parts) AND t.typrelid <> 0 AND a.attnum > 0
           GROUP BY t.typrelid
           UNION ALL
           SELECT 'a' || a.attnum, a.xmin::text FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
           UNION ALL SELECT 'w', c.relnatts::text
           UNION ALL SELECT 'x', c.reltoastrelid::text
           UNION ALL SELECT 't', t.xmin::text FROM pg_catalog.pg_type t WHERE t.oid = c.reltype
           UNION ALL
           SELECT 'k' || coalesce(con.oid, i.indexrelid),
                  (SELECT jsonb_agg(a.attname ORDER BY a.attname)::text
                   FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
                   JOIN pg_catalog.pg_attribute a
                     ON a.attrelid = c.oid AND a.attnum = k.attnum
                   WHERE k.n <= i.indnkeyatts)
           FROM pg_catalog.pg_index i
           LEFT JOIN pg_catalog.pg_constraint con
             ON con.conindid = i.indexrelid AND con.conrelid = c.oid AND con.contype IN ('p', 'u')
           WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
             AND i.indexprs IS NULL
          ) AS found(part, text))
"""
