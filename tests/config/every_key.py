"""Every key of an experiment file by its table, as the schema describes it, and values to try there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from wafl.config import experiment as config
from wafl.config.method_keys import METHOD_TABLES, OWN, PART_TABLES

NAN, INF = math.nan, math.inf
SCHEMA: dict[str, Any] = config.Experiment.model_json_schema()


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value conforms to a schema, for the part of JSON schema that is used here."""
    if "$ref" in schema:
        return conforms(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            fits = sum(conforms(value, option) for option in schema[union])
            return fits >= 1 if union == "anyOf" else fits == 1
    types: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
        "null": type(None),
    }  # fmt: skip
    if "type" in schema and (
        not isinstance(value, types[schema["type"]])
        or (isinstance(value, bool) and schema["type"] in ("integer", "number"))
    ):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, dict):
        known: dict[str, Any] = schema.get("properties", {})
        return (
            all(name in value for name in schema.get("required", []))
            and (schema.get("additionalProperties") is not False or set(value) <= set(known))
            and all(conforms(item, known[name]) for name, item in value.items() if name in known)
        )
    if isinstance(value, list):
        return schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", INF) and all(
            conforms(item, schema.get("items", {})) for item in value
        )
    if isinstance(value, str):
        return "pattern" not in schema or re.search(schema["pattern"], value) is not None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (
            schema.get("minimum", -INF) <= value <= schema.get("maximum", INF)
            and schema.get("exclusiveMinimum", -INF) < value < schema.get("exclusiveMaximum", INF)
        ) or value in (INF, -INF)
    return True


LEAST: dict[str, Any] = {"schedule": {"rounds": 1, "local_steps": 1}, "methods": [{"method": "FedAvg"}]}


@dataclass(frozen=True)
class Table:
    """A table of a file: where it is, what it must have, and the schema of each of its keys."""

    section: str
    start: dict[str, Any]
    keys: dict[str, Any]

    def holding(self, **values: Any) -> dict[str, Any]:
        """An experiment in which the table has these values."""
        content = {**self.start, **values}
        *path, last = self.section.split(".") if self.section else [""]
        if not self.section:
            return {**LEAST, **content}
        if path == ["methods", "0", "server"]:
            content, last = {"kind": "median", last: content}, "server"
        if path:
            return {**LEAST, "methods": [{"method": "FedAvg", last: content}]}
        return {**LEAST, last: [content] if last == "methods" else {**LEAST.get(last, {}), **content}}

    def path_of(self, key: str) -> str:
        return ".".join(filter(None, (self.section.replace("methods", "methods.0", self.section == "methods"), key)))


def all_tables() -> dict[str, Table]:
    """Every table by its name in the schema; what all methods share is in one of them alone."""
    defs, listed = SCHEMA["$defs"], dict[str, Table]()
    sections = {
        key: re.search(r"\$defs/(\w+)", json.dumps(schema))[1]  # pyright: ignore[reportOptionalSubscript]
        for key, schema in SCHEMA["properties"].items()
        if key != "methods" and "$ref" in json.dumps(schema)
    }
    plain = {key: schema for key, schema in SCHEMA["properties"].items() if key not in (*sections, "methods")}
    listed["Experiment"] = Table("", {}, plain)
    for key, name in sections.items():
        listed[name] = Table(key, {}, defs[name]["properties"])
    for name, table in METHOD_TABLES.items():
        keys = {key: schema for key, schema in defs[table.__name__]["properties"].items() if key != "method"}
        if name != "FedAvg":
            keys = {key: schema for key, schema in keys.items() if key not in defs["FedAvg"]["properties"]}
        listed[table.__name__] = Table("methods", {"method": "mine:make" if name == OWN else name}, keys)
    for slot, tables in PART_TABLES.items():
        section = "methods.0.server.optimizer" if slot == "optimizer" else f"methods.0.{slot}"
        for kind, table in tables.items():
            keys = {key: schema for key, schema in defs[table.__name__]["properties"].items() if key != "kind"}
            listed[table.__name__] = Table(section, {"kind": "mine:make" if kind == OWN else kind}, keys)
    return listed


TABLES = all_tables()
KEYS = [(name, key) for name, table in TABLES.items() for key in table.keys]


SCALARS = (True, 0, 1, -1, 2.5, -0.5, "1", "abc", "", "a b", "mine:make", "cuda:1", "../up", {}, {"a": 1})
ENDS = {"minimum": "greater than or equal to", "exclusiveMinimum": "greater than", "maximum": "less than or equal to"}
ENDS["exclusiveMaximum"] = "less than"


def inside(schema: Any) -> Generator[dict[str, Any], None, None]:
    """All schemas within one, itself included."""
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from inside(each)
    if isinstance(schema, dict):
        yield schema


def tried(schema: Any) -> list[Any]:
    """Values of every type, at both sides of every limit, alone and in lists, whether they are allowed or not."""
    limits = [each[end] for each in inside(schema) for end in ENDS if end in each]
    words = [
        word
        for each in inside(schema)
        for word in (*each.get("enum", ()), *each.get("examples", ()), *([each["const"]] if "const" in each else ()))
    ]
    near = [limit + change for limit in limits for change in (-1, -1e-3, 0, 1e-3, 1)]
    wrong = [word.upper() for word in words if isinstance(word, str)]
    scalars = list({repr(each): each for each in (*SCALARS, *near, *words, *wrong)}.values())
    return [*scalars, [], [[0.5, 1.0]], *([each] for each in scalars), *([each, each] for each in scalars), NAN]
