"""Pieces of catalog queries about the partitions of a partitioned table ``c``."""

from __future__ import annotations

from typing import Final

from cdc.source_sql import PARTITION_TREE

#: Those that have rows whose changes are not in the WAL.
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
