"""Reference pages of the public names, from signatures and docstrings.

A page is Markdown: a heading for each name, its signature, and its docstring, in which a line `name: what it is` of a
parameter is an item of a list. Settings are tables of keys, from the schema that also makes `--help`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

from batchnuts.settings.schema import Settings, expected, fields_of

WIDTH = 88
"""Most characters of a signature on one line: what a phone and a narrow column of code show of it."""

FEWEST_IN_TABLE = 8
"""Functions of which there is only a line to say are a table where there are so many."""

_PARAMETERS = re.compile(r"^(`?\*{0,2}\w+`?(?:, `?\*{0,2}\w+`?)*): +(.*)$")

_NAME = re.compile(r"(?<![\[`])`(?:(\w+)|([A-Z]\w*)\.\w+)`(?![\]`])")


@dataclasses.dataclass(frozen=True)
class Page:
    """A page: its name within the site, title, first paragraph, and sections of dotted names."""

    path: str
    title: str
    begins: str
    sections: tuple[tuple[str, tuple[str, ...]], ...]
    methods: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """By a class's dotted name: which of its methods and properties are shown; of others all that have a docstring."""

    def names(self) -> list[str]:
        """All names that the page is about."""
        return [name for _, names in self.sections for name in names]


def resolve(dotted: str) -> tuple[Any, Any]:
    """The object of a dotted name, and the module or class that has it. Modules on the way are imported."""
    parts = dotted.split(".")
    owner: Any = None
    found: Any = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 1):
        owner = found
        try:
            found = getattr(owner, part)
        except AttributeError:
            found = importlib.import_module(".".join(parts[: index + 1]))
    return found, owner


def render(page: Page, anchors: Mapping[str, str]) -> str:
    """The page's Markdown. anchors: where each public name is described, by its last part."""
    lines = [f"# {page.title}", "", linked(page.begins, page.path, anchors, set())]
    for title, names in page.sections:
        lines += [f"## {title}", ""] if title else []
        found = {dotted: resolve(dotted) for dotted in names}
        short = [dotted for dotted in names if _is_short(found[dotted][0])]
        short = short if len(short) >= FEWEST_IN_TABLE else []
        lines += _table({dotted: found[dotted][0] for dotted in short})
        for dotted in names:
            if dotted not in short:
                entry = "\n".join(_entry(dotted, *found[dotted], page.methods.get(dotted)))
                lines.append(linked(entry, page.path, anchors, _own_names(found[dotted][0])))
    return "\n".join(lines) + "\n"


def linked(text: str, path: str, anchors: Mapping[str, str], own: Set[str]) -> str:
    """Names in code as links, outside of code blocks, tables and headings: `batch`, `BatchedFunction.run`.

    own: names that mean something else here, parameters and members of a class.
    """

    def link(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        target = None if name in own else anchors.get(name)
        if target is None:
            return match[0]
        page, _, anchor = target.partition("#")
        return f"[{match[0]}]({'' if page == path else page.removeprefix('reference/')}#{anchor})"

    lines, fenced = [], False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        plain = fenced or fence or line.startswith(("#", "|"))
        item, said = line[: _head(line)], line[_head(line) :]
        lines.append(line if plain else item + _NAME.sub(link, said))
    return "\n".join(lines) + "\n"


def _head(line: str) -> int:
    """How many characters the names of parameters take at the beginning of an item about them."""
    match = re.match(r"- `[^:]*: ", line)
    return match.end() if match else 0


def _own_names(found: Any) -> set[str]:
    if inspect.isclass(found):
        fields = (name for base in found.__mro__ for name in vars(base).get("__annotations__", {}))
        return {name for name in (*dir(found), *fields) if not name.startswith("_")}
    return set(inspect.signature(found).parameters) if inspect.isfunction(found) else set()


def _table(functions: Mapping[str, Any]) -> Iterator[str]:
    """Functions of which there is only a line to say, by their dotted names."""
    if functions:
        yield from ("| function | |", "|---|---|")
    for dotted, function in functions.items():
        words = ", ".join(map(_untyped, inspect.signature(function).parameters.values()))
        said = _cell(inspect.getdoc(function) or "").replace("\n", " ")
        yield f"| `{dotted.rpartition('.')[2]}({words})`{{ #{dotted} }} | {said} |"
    yield ""


def listing(functions: Mapping[str, Callable[..., Any]]) -> str:
    """The table of a page that lists functions: how each is called, and the first sentence about it."""
    lines = ["| function | |", "|---|---|"]
    for name, function in functions.items():
        words = ", ".join(map(_untyped, inspect.signature(function).parameters.values()))
        said = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
        lines.append(f"| `{name}({words})` | {_cell(re.split(r'(?<=[.]) (?=[A-Z])', said)[0])} |")
    return "\n".join(lines) + "\n"


def _is_short(found: Any) -> bool:
    return inspect.isfunction(found) and "\n\n" not in (inspect.getdoc(found) or "\n\n")


def _untyped(parameter: inspect.Parameter) -> str:
    return _parameter(parameter.replace(annotation=parameter.empty))


def _entry(dotted: str, found: Any, owner: Any, methods: tuple[str, ...] | None) -> Iterator[str]:
    name = dotted.rpartition(".")[2]
    yield from (f"### `{name}` {{ #{dotted} }}", "")
    if inspect.isclass(found):
        yield from _class(dotted, found, methods)
    elif inspect.ismodule(found):
        yield from (docstring(found.__doc__ or "", ()), "")
    elif callable(found):
        yield from _function(name, found)
    else:
        yield from (docstring(_documented(owner, name), ()), "")


def _function(name: str, function: Callable[..., Any], leave: int = 0) -> Iterator[str]:
    """The signature and the docstring. leave: how many parameters are not shown, `self` and `cls`."""
    signature = inspect.signature(function)
    parameters = [*signature.parameters.values()][leave:]
    yield from ("```python", written(name, parameters, signature.return_annotation), "```", "")
    yield from (docstring(inspect.getdoc(function) or "", tuple(p.name for p in parameters)), "")


def _class(dotted: str, found: type, methods: tuple[str, ...] | None) -> Iterator[str]:
    if issubclass(found, Settings):
        yield from (docstring(inspect.getdoc(found) or "", ()), "")
        yield from (*_settings(found), "")
        return
    parameters: list[inspect.Parameter] = []
    if not issubclass(found, Exception):
        parameters = [*inspect.signature(found).parameters.values()]
        yield from ("```python", written(found.__name__, parameters, inspect.Signature.empty), "```", "")
    elif (base := found.__bases__[0]) is not Exception:
        yield from (f"Is a `{base.__name__}`.", "")
    yield from (docstring(inspect.getdoc(found) or "", tuple(p.name for p in parameters)), "")
    for name, member in found.__dict__.items():
        shown = name in methods if methods is not None else not name.startswith("_")
        if not shown or not _is_method(member) or issubclass(found, Exception):
            continue
        yield from (f"#### `{found.__name__}.{name}` {{ #{dotted}.{name} }}", "")
        if isinstance(member, (property, functools.cached_property)):
            yield from (docstring(inspect.getdoc(member) or "", ()), "")
        elif isinstance(member, (classmethod, staticmethod)):
            yield from _function(f"{found.__name__}.{name}", getattr(found, name))
        else:
            yield from _function(name, member, leave=1)


def _is_method(member: Any) -> bool:
    kinds = (classmethod, staticmethod, property, functools.cached_property)
    return (isinstance(member, kinds) or inspect.isfunction(member)) and bool(inspect.getdoc(member))


def written(name: str, parameters: list[inspect.Parameter], gives: Any) -> str:
    """A signature as code, on one line or one line for each parameter."""
    words: list[str] = []
    kind = None
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and kind not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
            words.append("*")
        words.append(_parameter(parameter))
        kind = parameter.kind
    end = "" if gives is inspect.Signature.empty else f" -> {_annotation(gives)}"
    line = f"{name}({', '.join(words)}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){end}"])


def _parameter(parameter: inspect.Parameter) -> str:
    word = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))  # with its stars
    typed = parameter.annotation is not parameter.empty
    if typed:
        word += f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return word
    default = repr(parameter.default)
    if not isinstance(parameter.default, (str, int, float, tuple, type(None))):
        default = "..."
    return f"{word} = {default}" if typed else f"{word}={default}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _settings(schema: type[Settings]) -> Iterator[str]:
    """The keys of a group as a table."""
    yield from ("| key | meaning | values (default) |", "|---|---|---|")
    for name, info in fields_of(schema).items():
        if isinstance(info.default, Settings):
            group = type(info.default)
            values = f"keys of [`{group.__name__}`](#{group.__module__}.{group.__name__})"
        else:
            default = "required" if info.is_required() else f"`{_yaml_word(info.default)}`"
            values = f"{_cell(expected(schema, name))} ({default})"
        yield f"| `{name}` | {_cell(info.description or '')} | {values} |"


def _yaml_word(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return re.sub(r"(?<!`)\bdocs/\w+\.md", r"`\g<0>`", text).replace("|", "\\|").replace("*", "\\*")


def docstring(text: str, parameters: tuple[str, ...]) -> str:
    """A docstring as Markdown. parameters: names whose lines `name: what it is` are items of a list."""
    lines: list[str] = []
    in_item = full = False
    for line in inspect.cleandoc(text).splitlines():
        item = _PARAMETERS.match(line)
        names = re.findall(r"\w+", item[1]) if item else []
        if item and (set(names) & set(parameters) or (in_item and not lines[-1].strip())):
            if not in_item and lines and lines[-1].strip():
                lines.append("")
            spoken = ", ".join(f"`{name}`" for name in re.findall(r"\*{0,2}\w+", item[1]))
            lines.append(f"- {spoken}: {item[2]}")
            in_item, full = True, len(line) > 95
        elif in_item and line.strip():
            continues = line.startswith(" ") or (full and not line.startswith("Raises "))
            if not continues and lines[-1].strip():
                lines.append("")
            lines.append(f"    {line.strip()}" if continues else line)
            in_item, full = continues, len(line) > 95
        else:
            lines.append(line)
            in_item = in_item and not line.strip()
            full = False
    joined = "\n".join(lines)
    return re.sub(r"(?<![`/\w])docs/[\w/]+\.md(?!`)", r"`\g<0>`", joined)


def _documented(owner: Any, name: str) -> str:
    """What stands below an assignment of a module: the docstring of a constant."""
    for module in (owner, *(value for value in vars(owner).values() if inspect.ismodule(value))):
        try:
            body = ast.parse(inspect.getsource(module)).body
        except (OSError, TypeError):
            continue
        for statement, after in itertools.pairwise(body):
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            here = any(isinstance(target, ast.Name) and target.id == name for target in targets)
            if here and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return str(after.value.value)
    return ""
