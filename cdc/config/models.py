"""The shape of cdc.yaml (docs/formats.md, docs/configuration.md). No I/O.

A model's fields are what a person may write. What is derived (defaults that depend on names,
absolute paths) is filled in by ``cdc.config.loader``, so a loaded ``Config`` is complete.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cdc.codecs import CODECS, TYPE_NAMES, TypePolicies, policies
from cdc.config.base import Model, fail
from cdc.config.fields import (
    Bool,
    BootstrapServers,
    Count,
    Duration,
    FilePath,
    Identifier,
    JvmMemory,
    Listen,
    Name,
    Policy,
    Port,
    SlotName,
    Text,
    TopicPrefix,
    TypeName,
    refused,
)
from cdc.config.secret import Secret
from cdc.config.security import LogSecurity
from cdc.config.tables import TableConfig, short_forms
from cdc.config.units import parse_duration
from cdc.names import MAX_SNAPSHOT_WORKERS, TableId, default_publication, default_slot
from cdc.schema import ARRAY_POLICIES, STRING
from cdc.schema_policy import SchemaPolicies, SchemaPolicy
from cdc.table_names import TablePattern


class LogConfig(Model):
    """The Kafka log: one's own brokers, or the local stack's."""

    bootstrap_servers: BootstrapServers | None = None
    local: Bool = False
    security: LogSecurity | None = None
    topic_prefix: TopicPrefix = ""
    partitions: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    replication_factor: Annotated[int, Field(strict=True, ge=1, le=100)] = 1
    history: Duration = parse_duration("7d")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.local and (self.bootstrap_servers or self.security):
            raise fail(
                "conflict", "local: true takes no bootstrap_servers and no security", "local"
            )
        if not self.local and not self.bootstrap_servers:
            raise fail("conflict", "give bootstrap_servers, or local: true for the local stack")
        return self


class LakeConfig(Model):
    """Where the Delta tables are; absolute after loading."""

    path: Annotated[Text, Field(validate_default=True)] = "./lake"

    @field_validator("path")
    @classmethod
    def _local_folder(cls, path: str, info: ValidationInfo) -> str:
        if "://" in path and not path.startswith("file://"):
            raise fail("not_supported_yet", "a lake that is not a folder of this machine")
        root = (info.context or {}).get("root")
        # Before the file system sees a zero byte, and again for what it puts before the path.
        _check_lake_path(path)
        folder = Path(path.removeprefix("file://")).expanduser()
        resolved = str((root / folder).resolve()) if root is not None else path
        _check_lake_path(resolved)
        return resolved


def _check_lake_path(path: str) -> None:
    # Spark writes such a folder under its name; deltalake decodes %41, takes a backslash for a
    # slash and refuses control characters, so it would read another folder or none.
    sign = next((c for c in path if c in "%\\" or unicodedata.category(c) == "Cc"), None)
    if sign is not None:
        shown = sign if sign.isprintable() else f"a control character (U+{ord(sign):04X})"
        raise fail(
            "shape",
            f"the lake's folder has {shown} in its path, which not every reader of Delta tables "
            "takes as it is",
            remedy="name a folder without %, backslashes and control characters in its whole path",
        )


class PublicationConfig(Model):
    """The publication; with ``manage: false`` a person has made it."""

    name: Identifier | None = None
    manage: Bool = True


class SnapshotConfig(Model):
    """Loads of tables; both limits are of the source, whatever the number of tables."""

    workers: Annotated[int, Field(strict=True, ge=1, le=MAX_SNAPSHOT_WORKERS)] = 2
    rows_per_second: Annotated[int, Field(strict=True, ge=1)] | None = None


class SourceConfig(Model):
    """One source database. After loading, slot and publication have their names."""

    model_config = ConfigDict(json_schema_extra=short_forms)

    kind: Literal["postgres"]
    local: Bool = False
    host: Text | None = None
    port: Port = 5432
    database: Identifier
    user: Identifier | None = None
    password: Secret | None = None
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None = (
        None
    )
    sslrootcert: FilePath | None = None
    slot: SlotName | None = None
    publication: PublicationConfig = PublicationConfig()
    tables: Annotated[list[TableConfig], Field(min_length=1)]
    types: Annotated[dict[TypeName, Policy], Field(default_factory=dict)]
    schema_policy: SchemaPolicy = "lenient"
    snapshot: SnapshotConfig = SnapshotConfig()
    _name: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _address(self) -> Self:
        given = self.model_fields_set
        if self.local:
            refused_here = sorted(
                given & {"host", "port", "user", "password", "sslmode", "sslrootcert"}
            )
            if refused_here:
                raise fail(
                    "conflict",
                    f"local: true takes no {' and no '.join(refused_here)}",
                    refused_here[0],
                )
            return self
        for name in ("host", "user"):
            if getattr(self, name) is None:
                raise fail(
                    "conflict", f"{name} is missing (or give local: true for the local stack)"
                )
        return self

    @field_validator("tables")
    @classmethod
    def _each_once(cls, tables: list[TableConfig]) -> list[TableConfig]:
        seen: set[TableId | str] = set()
        for index, table in enumerate(tables):
            what = table.id or table.name
            if what in seen:
                kind = "pattern" if table.id is None else "table"
                raise fail("duplicate_table", f"the {kind} {what} is given twice", index)
            seen.add(what)
        return tables

    @field_validator("types")
    @classmethod
    def _types_with_limits(cls, types: dict[str, str]) -> dict[str, str]:
        for name, policy in types.items():
            oid, array = TYPE_NAMES[name]
            if policy in ARRAY_POLICIES:
                if not array:
                    raise fail("shape", f"{policy} is for arrays, such as {name}[]", name)
            elif policy != STRING and (array or oid not in policies.LIMITED):
                known = ", ".join(CODECS[oid].name for oid in policies.LIMITED)
                raise fail("shape", f"{policy} is for {known}; Delta holds all of {name}", name)
        return types

    @property
    def name(self) -> str:
        """The source's name: its key in cdc.yaml."""
        return self._name

    @property
    def table_ids(self) -> tuple[TableId, ...]:
        """The tables that are given by their names, in the order of cdc.yaml."""
        return tuple(table.id for table in self.tables if table.id is not None)

    @property
    def patterns(self) -> tuple[TablePattern, ...]:
        """The other entries; which tables match them is known by the source only."""
        return tuple(table.pattern for table in self.tables if table.id is None)

    @property
    def keys(self) -> dict[TableId, tuple[str, ...]]:
        """The keys of tables that have one of their own."""
        return {t.id: t.key for t in self.tables if t.id is not None and t.key is not None}

    def covers(self, id: TableId) -> bool:
        """Whether a table is given by its name or matches a pattern."""
        return any(table.pattern.matches(id) for table in self.tables)

    def policies_of(self, id: TableId) -> TypePolicies:
        """What becomes of values that a table's columns cannot hold in Delta.

        A table's own entry goes before patterns that it matches, the first of these before
        the others.
        """
        entries = (table.types for table in self._entries() if table.pattern.matches(id))
        return TypePolicies(self.types, next(entries, {}))

    @property
    def schema_policies(self) -> SchemaPolicies:
        """What is done about changes of tables' forms; entries count as for ``policies_of``."""
        return SchemaPolicies(
            self.schema_policy,
            tuple(
                (entry.pattern, entry.schema_policy or self.schema_policy)
                for entry in self._entries()
            ),
        )

    def _entries(self) -> list[TableConfig]:
        """Those of tables by their names first."""
        return sorted(self.tables, key=lambda table: table.id is None)

    def with_matches(self, known: Iterable[TableId]) -> tuple[TableId, ...]:
        """The tables that are given by their names, then those of ``known`` that are covered."""
        return tuple(dict.fromkeys([*self.table_ids, *sorted(filter(self.covers, known))]))

    @property
    def slot_name(self) -> str:
        """The replication slot, given or derived from project and source."""
        return self.slot or ""

    @property
    def publication_name(self) -> str:
        """The publication, given or derived from project and source."""
        return self.publication.name or ""

    def password_value(self) -> str | None:
        """The password, resolved now; None when cdc.yaml gives none.

        Raises:
            ConfigError: The reference does not resolve.
        """
        return self.password.value() if self.password is not None else None

    def complete(self, project: str, name: str) -> SourceConfig:
        """A copy that knows its name, with the names of slot and publication filled in."""
        copy = self.model_copy(
            update={
                "slot": self.slot or default_slot(project, name),
                "publication": self.publication.model_copy(
                    update={"name": self.publication.name or default_publication(project, name)}
                ),
            }
        )
        copy._name = name  # noqa: SLF001 - our own class
        return copy


class ApplyConfig(Model):
    """When replicas are merged, and how much at once."""

    interval: Duration = parse_duration("30s")
    max_records: Count = 500_000


class HttpConfig(Model):
    """Where the daemon answers; port 0 chooses a free one, recorded in .cdc/daemon.json."""

    listen: Listen = "127.0.0.1:0"


# What sessions set themselves, because correct results rest on it.
_OWN_SPARK_CONF = (
    "spark.master",
    "spark.driver.memory",
    "spark.jars.packages",
    "spark.sql.extensions",
    "spark.sql.catalog.spark_catalog",
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.databricks.delta.",
)


class SparkConfig(Model):
    """The Spark session of apply and rebuild."""

    master: Text = "local[*]"
    driver_memory: JvmMemory = "2048m"
    conf: dict[str, str] = Field(default_factory=dict)

    @field_validator("conf")
    @classmethod
    def _not_ours(cls, conf: dict[str, str]) -> dict[str, str]:
        for key in conf:
            if not key.startswith("spark."):
                raise fail("spark_conf", "the keys of conf begin with spark.", key)
            if any(
                key.startswith(own) if own.endswith(".") else key == own for own in _OWN_SPARK_CONF
            ):
                raise fail("spark_conf", f"{key} is set by cdc itself", key)
        return conf


class ViewConfig(Model):
    """A table derived by SQL; refused until it is implemented."""

    key: list[Identifier]
    sql: Text


class IndexConfig(Model):
    """A search index; refused until it is implemented."""

    model_config = ConfigDict(populate_by_name=False)

    from_: Annotated[Text, Field(alias="from")]
    engine: Literal["opensearch", "elasticsearch"]
    url: Text


class WarehouseConfig(Model):
    """A copy in a warehouse; refused until it is implemented."""

    url: Secret
    tables: list[Text]


def _no_double_slot(sources: dict[str, SourceConfig]) -> dict[str, SourceConfig]:
    seen: dict[tuple[str | None, int, str], str] = {}
    for name, source in sources.items():
        if source.slot is None:
            continue
        place = (source.host, source.port, source.slot)
        if place in seen:
            raise fail("conflict", f"the sources {seen[place]} and {name} share one slot", name)
        seen[place] = name
    return sources


class Config(Model):
    """A whole cdc.yaml. Made by ``cdc.config.load_config``."""

    project: Name
    log: LogConfig = LogConfig(local=True)
    # Not an instance, which pydantic would take as validated: the path depends on the root.
    lake: Annotated[LakeConfig, Field(default={"path": "./lake"}, validate_default=True)]
    spark: SparkConfig = SparkConfig()
    sources: Annotated[
        dict[Name, SourceConfig], Field(min_length=1), AfterValidator(_no_double_slot)
    ]
    apply: ApplyConfig = ApplyConfig()
    http: HttpConfig = HttpConfig()
    views: Annotated[dict[Name, ViewConfig] | None, refused("views")] = None
    indexes: Annotated[dict[Name, IndexConfig] | None, refused("indexes")] = None
    warehouses: Annotated[dict[Name, WarehouseConfig] | None, refused("warehouses")] = None
    _path: Path = PrivateAttr(default=Path("cdc.yaml"))
    _dev: bool = PrivateAttr(default=False)

    @property
    def path(self) -> Path:
        """cdc.yaml itself, absolute."""
        return self._path

    @property
    def root(self) -> Path:
        """The folder of cdc.yaml, absolute; relative paths in it start here."""
        return self._path.parent

    @property
    def state_dir(self) -> Path:
        """``.cdc`` beside cdc.yaml: locks, logs, the local stack; no pipeline state."""
        return self.root / ".cdc"

    @property
    def dev(self) -> bool:
        """Whether inline secrets were accepted (``--dev``)."""
        return self._dev

    @property
    def uses_local_stack(self) -> bool:
        """Whether the log or a source is the local stack's."""
        return self.log.local or any(source.local for source in self.sources.values())

    def complete(self, path: Path, *, dev: bool) -> Config:
        """A copy that knows its file, with everything derived filled in."""
        copy = self.model_copy(
            update={
                "sources": {
                    name: source.complete(self.project, name)
                    for name, source in self.sources.items()
                }
            }
        )
        copy._path = path  # noqa: SLF001 - our own class
        copy._dev = dev  # noqa: SLF001 - our own class
        return copy
