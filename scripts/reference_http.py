"""The page of the HTTP interface, and functions that build all pages of docs/reference."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
_WRITTEN: Final = "Written by `python -m scripts.reference` from {}: change that, not this page."
_METHODS: Final = ("get", "put", "post", "delete")
_SECTION: Final = re.compile(r"^ +# -- (.+?) -+$", re.MULTILINE)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    escaped = ([cell.replace("|", r"\|") for cell in row] for row in lines)
    return [*(f"| {' | '.join(row)} |" for row in escaped), ""]


def page(title: str, source: str, *lines: str) -> str:
    return "\n".join([f"# {title}", "", _WRITTEN.format(source), "", *lines]).rstrip("\n") + "\n"


def prose(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False) + "\n"


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _as_json(value: object) -> str:
    """Return a value as JSON; a text without its quotes."""
    return value if isinstance(value, str) else json.dumps(value)


class Api:
    """The OpenAPI document, from which the page of the HTTP interface is made."""

    def __init__(self) -> None:
        self._text = (ROOT / "haproc" / "doors" / "openapi.yaml").read_text(encoding="utf-8")
        self._api: dict[str, Any] = yaml.safe_load(self._text)

    def page(self) -> str:
        """Return the text of the page: all requests, and the values in them."""
        lines = [
            prose(
                f"{self._api['info']['description']} `GET /openapi.json` has all of this for "
                "programs. How to use it is in the [SQL guide](../guide/sql.md). Requests to the "
                "client door carry a user's token as `Authorization: Bearer TOKEN`, those below "
                "`/ha/v1/` that of a user with the role operator; health, status and metrics on "
                "the operator door need nothing. Each error has the body [Error](#error), "
                "its status says what kind it is, and the classes are on [a page of their "
                "own](errors.md)."
            ),
            *table(("status", "meaning"), self._statuses()),
            "## Requests",
            "",
        ]
        for title, paths in self._sections("paths:", r"^  (/\S*):$"):
            lines += [f"### {title}: requests", ""]
            for path in paths:
                for method in _METHODS:
                    if method in self._api["paths"][path]:
                        lines += self._request(path, method, self._api["paths"][path][method])
        lines += ["## Values", "", "`?` follows the name of a field that may be absent.", ""]
        for _, names in self._sections("  schemas:", r"^    (\w+):$"):
            for name in names:
                lines += self._schema(name, self._api["components"]["schemas"][name])
        return page("The HTTP interface", "`haproc/doors/openapi.yaml`", *lines)

    def _statuses(self) -> Iterator[tuple[str, str]]:
        found: dict[str, str] = {}
        for methods in self._api["paths"].values():
            for method in _METHODS:
                for status, answer in methods.get(method, {}).get("responses", {}).items():
                    if "$ref" in answer:
                        found[str(status)] = self._resolved(answer)["description"]
        for status, text in sorted(found.items()):
            yield status, " ".join(text.split())

    def _sections(self, begin: str, entry: str) -> Iterator[tuple[str, list[str]]]:
        body = self._text.split(f"\n{begin}\n")[1]
        body = body if begin.startswith(" ") else body.split("\ncomponents:\n")[0]
        parts = _SECTION.split(body)
        for title, text in zip(parts[1::2], parts[2::2], strict=True):
            yield title, re.findall(entry, text, re.MULTILINE)

    def _request(self, path: str, method: str, about: Mapping[str, Any]) -> Iterator[str]:
        yield f"#### {method.upper()} {path}"
        yield ""
        yield f"{' '.join(about['summary'].split())}. *{', '.join(about.get('tags', []))}*"
        yield ""
        if "description" in about:
            yield prose(about["description"])
        rows = [
            (f"`{each['name']}`", each["in"], *self._cells(each["schema"]))
            for each in map(self._resolved, about.get("parameters", []))
        ]
        if rows:
            yield from table(("parameter", "in", "type", "meaning"), rows)
        body = about.get("requestBody", {})
        optional = "" if body.get("required") else " (optional)"
        for kind, each in body.get("content", {}).items():
            yield f"- Body `{kind}`{optional}: {self._kind(each['schema'])}"
        refused = []
        for status, answer in about["responses"].items():
            if "$ref" in answer:
                refused.append(str(status))
                continue
            kinds = answer.get("content", {}).items()
            held = "; ".join(f"`{kind}`: {self._kind(each['schema'])}" for kind, each in kinds)
            text = " ".join(answer["description"].split())
            yield f"- {status}: {text}{f' {held}' if held else ''}"
        if refused:
            yield f"- Errors: {', '.join(refused)}"
        yield ""

    def _schema(self, name: str, schema: Mapping[str, Any]) -> Iterator[str]:
        yield f"### {name}"
        yield ""
        fields = schema.get("properties")
        if not fields:
            kind, text = self._cells(schema)
            yield f"{kind}. {text}".rstrip()
            yield ""
            return
        required = schema.get("required", ())
        if "description" in schema:
            yield prose(schema["description"])
        yield from table(
            ("field", "type", "meaning"),
            (
                (f"`{field}`{'' if field in required else '?'}", *self._cells(each))
                for field, each in fields.items()
            ),
        )

    def _resolved(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if "$ref" not in value:
            return value
        *_, group, name = value["$ref"].split("/")
        found: Mapping[str, Any] = self._api["components"][group][name]
        return found

    def _cells(self, schema: Mapping[str, Any]) -> tuple[str, str]:
        text = " ".join(schema.get("description", "").split())
        default = schema.get("default")
        if default not in (None, ""):
            text = f"{text} Default: `{_as_json(default)}`.".strip()
        return self._kind(schema), text

    def _kind(self, schema: Mapping[str, Any]) -> str:
        if "$ref" in schema:
            name = schema["$ref"].split("/")[-1]
            return f"[{name}](#{name.lower()})"
        for key in ("oneOf", "anyOf"):
            if key in schema:
                return " or ".join(map(self._kind, schema[key]))
        if "const" in schema:
            return f"`{_as_json(schema['const'])}`"
        if "enum" in schema:
            return code(map(_as_json, schema["enum"]))
        kinds = schema.get("type", "any")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return " or ".join(self._plain(each, schema) for each in kinds)

    def _plain(self, kind: str, schema: Mapping[str, Any]) -> str:
        if kind == "array":
            return f"list ({self._kind(schema['items'])})"
        if kind == "object":
            inner = schema.get("additionalProperties")
            if isinstance(inner, dict):
                return f"object of {self._kind(inner)}"
            fields = schema.get("properties", {})
            return f"object ({code(fields)})" if fields else "object"
        bounds = [
            f"{sign} {schema[key]}"
            for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
            if key in schema and kind in ("integer", "number")
        ]
        pattern = f" `{schema['pattern']}`" if "pattern" in schema and kind == "string" else ""
        return " ".join([kind, *bounds]) + pattern
