"""Pieces of catalog queries about a table ``c``: its partitions, and what it is a partition of."""

from __future__ import annotations

from typing import Final

from cdc.source_sql import PARTITION_TREE

#: Names of the partitioned tables that it is a part of, the nearest first.
ANCESTORS: Final = """
    (SELECT coalesce(jsonb_agg(jsonb_build_array(an.nspname, ac.relname) ORDER BY up.n), '[]')
     FROM pg_catalog.pg_partition_ancestors(c.oid) WITH ORDINALITY AS up(relid, n)
     JOIN pg_catalog.pg_class ac ON ac.oid = up.relid
     JOIN pg_catalog.pg_namespace an ON an.oid = ac.relnamespace
     WHERE up.relid <> c.oid)
"""

#: The place in the publication ``pub`` of a partitioned table that it is a part of, which publishes
#: it, too.
PLACE_ABOVE: Final = """
    (SELECT r.oid, r.xmin FROM pg_catalog.pg_publication_rel r
     JOIN pg_catalog.pg_partition_ancestors(c.oid) AS up(relid) ON up.relid = r.prrelid
     WHERE r.prpubid = pub.oid AND r.prrelid <> c.oid ORDER BY r.oid LIMIT 1)
"""

#: Partitions that have rows whose changes are not in the WAL.
NOT_IN_WAL: Final = f"""
    CASE WHEN c.relkind = 'p' THEN ARRAY(
        SELECT m.oid::regclass::text
        FROM {PARTITION_TREE.format(oid="c.oid")} member
        JOIN pg_catalog.pg_class m ON m.oid = member.relid
        WHERE m.relkind = 'f' OR m.relkind = 'r' AND m.relpersistence <> 'p'
        ORDER BY 1)
    ELSE '{{}}' END
"""  # noqa: S608  (put together from constants)

# Columns of the index that identifies rows of a relation, and whether it is checked at once.
_IDENTIFYING = """
    (SELECT jsonb_build_array(i.indimmediate, jsonb_agg(a.attname ORDER BY a.attname))
     FROM pg_catalog.pg_index i
     CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
     JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
     WHERE i.indrelid = {rel}.oid AND i.indisvalid AND k.n <= i.indnkeyatts
       AND CASE {rel}.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
     GROUP BY i.indexrelid, i.indimmediate)
"""

#: Those whose replica identity, which counts for their rows and is not inherited, does not tell the
#: old key of a row: another index, or none. A key that is checked late needs whole old rows.
LEAVES_APART: Final = f"""
    CASE WHEN c.relkind = 'p' THEN ARRAY(
        SELECT m.oid::regclass::text
        FROM (SELECT {_IDENTIFYING.format(rel="c")} AS key) root,
             {PARTITION_TREE.format(oid="c.oid")} member
        JOIN pg_catalog.pg_class m ON m.oid = member.relid
        WHERE m.relkind = 'r' AND m.relreplident <> 'f'
          AND (m.relreplident = 'n' OR root.key IS NULL
               OR c.relreplident = 'f' AND NOT (root.key -> 0)::boolean
               OR root.key -> 1 IS DISTINCT FROM {_IDENTIFYING.format(rel="m")} -> 1)
        ORDER BY 1)
    ELSE '{{}}' END
"""  # noqa: S608  (put together from constants)
