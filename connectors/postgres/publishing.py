"""Whether a publication sends what we need of a table: every operation, by its name. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from cdc.names import TableId, quote_ident
from connectors.postgres.publication import ALL_OPERATIONS, OPERATIONS, PublicationInfo


@dataclass(frozen=True, slots=True)
class Publishing:
    """What a table is judged by.

    Args:
        name: Of the publication.
        info: As it is now; None: there is none yet.
        managed: It is ours.
        wanted: Tables that ours has, or will have.
    """

    name: str
    info: PublicationInfo | None
    managed: bool
    wanted: Collection[TableId] = ()

    def has(self, table: TableId, ancestors: Sequence[TableId]) -> bool:
        """Whether it has a table by now; one that is ours has to list it."""
        if self.info is None:
            return False
        # Whoever publishes a partitioned table publishes its partitions.
        listed = (table,) if self.managed else (table, *ancestors)
        return any(map(self.info.publishes, listed))

    @property
    def _via_root(self) -> bool:
        return self.info.via_root if self.info is not None else self.managed

    def _published(self, table: TableId) -> bool:
        if self.managed and table in self.wanted:
            return True
        return self.info is not None and self.info.publishes(table)

    def problems(
        self, table: TableId, ancestors: Sequence[TableId], *, partitioned: bool
    ) -> Iterator[tuple[str, str, str]]:
        """Code, problem and remedy of what keeps one table from being told of in full.

        Args:
            table: That is, or will be, in the publication.
            ancestors: Partitioned tables that it is a part of, the nearest first.
            partitioned: It is partitioned itself.
        """
        name = quote_ident(self.name)
        via_root = f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);"
        if not self.managed and self.info is not None and self.info.operations != OPERATIONS:
            lacking = ", ".join(sorted(OPERATIONS - self.info.operations))
            yield (
                "publication_differs",
                f"the publication {self.name} does not publish {lacking} of {table}",
                f"ALTER PUBLICATION {name} SET (publish = '{ALL_OPERATIONS}');",
            )
        if self._via_root:
            # The topmost one gives its name to all below it.
            if above := [id for id in ancestors if self._published(id)]:
                yield (
                    "partition",
                    f"is a partition of {above[-1]}, under whose name its changes are published",
                    f"capture {above[-1]} and take {table} out of `tables` in cdc.yaml (out of a "
                    "pattern, by `except`)",
                )
        elif partitioned and self.info is not None and not self.managed:
            yield (
                "publication_differs",
                f"the publication {self.name} does not publish {table} under its own name, but "
                "each of its partitions by itself",
                f"{via_root} or name the partitions in cdc.yaml, not {table}",
            )
