"""What the source of a recipe says of its fields: the comments behind them.

The source is read, not run. `c.model = common.with_kernels(..., dropout=0.1)` sets
`model.dropout`, and so do the fields in the body of `with_kernels`; a function of another recipe is
followed likewise.
A comment belongs to all fields that end on its line. That of the recipe replaces that of a function
it calls.
"""

import ast
import functools
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

from firth.errors import FirthError
from firth.recipe import SHIPPED


class Source:
    """A recipe's file, parsed: its functions, its comments and the recipes that it imports."""

    def __init__(self, path: Path):
        self.path, text = path, path.read_text(encoding="utf-8")
        try:
            self.tree = ast.parse(text)
            tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        except (SyntaxError, tokenize.TokenError) as error:
            raise FirthError(f"{path} is not Python: {error}") from None
        self.title = (ast.get_docstring(self.tree) or "").partition("\n")[0]
        comments = [token for token in tokens if token.type == tokenize.COMMENT]
        self.comments = {t.start[0]: t.string.lstrip("# ").rstrip() for t in comments}  # by line
        nodes = [node for node in self.tree.body if isinstance(node, ast.FunctionDef)]
        self.functions = {node.name: node for node in nodes}
        self.imports = dict(self._imports())

    def _imports(self) -> Iterator[tuple[str, tuple[Path, str]]]:
        """(name here, (file, name of a function in it or "")) of imports from other recipes."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if path := self._file(alias.name):
                        yield alias.asname or alias.name, (path, "")
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    name = alias.asname or alias.name
                    if path := self._file(f"{node.module}.{alias.name}"):
                        yield name, (path, "")
                    elif path := self._file(node.module):
                        yield name, (path, alias.name)

    def _file(self, module: str) -> Path | None:
        """The file of a module that is one of Firth's recipes, or beside this one."""
        *package, name = module.split(".")
        folder = SHIPPED if package == ["firth", "configs"] else self.path.parent
        path = folder / f"{name}.py"
        known = package == ["firth", "configs"] or not package
        return path if known and path.is_file() else None

    def resolve(self, function: ast.expr) -> tuple["Source", ast.FunctionDef] | None:
        """The recipe's function that an expression names: `common.run`, `model`."""
        path, name = None, ""
        if isinstance(function, ast.Name):
            if function.id in self.functions:
                return self, self.functions[function.id]
            path, name = self.imports.get(function.id, (None, ""))
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            path, _ = self.imports.get(function.value.id, (None, ""))
            name = function.attr
        if path is None or name not in (source := read_source(path)).functions:
            return None
        return source, source.functions[name]


@functools.cache
def read_source(path: Path) -> Source:
    """The parsed file; FirthError if it is not Python."""
    return Source(path)


def comments_of(path: Path, function: str = "get_config", section: str = "") -> dict[str, str]:
    """{dotted field: comment} of the fields that a function of a recipe's file sets.

    `section` is put before their names. Raises FirthError if the file is not Python.
    """
    source, found = read_source(path), {}
    if function in source.functions:
        _read_function(source, source.functions[function], section, found)
    return found


def arguments(path: Path) -> dict[str, str]:
    """{argument of the recipe: its default, as written}, of its call of `parse_arg`."""
    for node in ast.walk(read_source(path).tree):
        if isinstance(node, ast.Call) and _dotted(node.func)[-1:] == ["parse_arg"]:
            return {k.arg: ast.unparse(k.value).strip("'\"") for k in node.keywords if k.arg}
    return {}


def _read_function(source: Source, function: ast.FunctionDef, prefix: str, found: dict) -> None:
    """Add the comments of the fields that a function sets below `prefix`, in their order."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
    for node in sorted(nodes, key=lambda node: node.lineno):
        if isinstance(node, ast.Assign):
            _, *path = _dotted(node.targets[0]) or [""]
            name = prefix + ".".join(path)
            if path and not isinstance(node.value, ast.Call | ast.Dict):
                _note(source, node, name, found)
            _read_value(source, node.value, f"{name}." if path else prefix, found)
        elif isinstance(node, ast.Return):  # return run(steps=steps, **every | fields)
            returned = {}
            _read_value(source, node.value, prefix, returned)
            found |= returned | found
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            *path, method = _dotted(node.value.func) or [""]
            if method == "update" and path:  # c.data.update(length=128)
                section = "".join(f"{part}." for part in path[1:])
                _read_fields(source, node.value, prefix + section, found)


def _read_value(source: Source, node: ast.expr | None, prefix: str, found: dict) -> None:
    """The same of an expression that makes a section: a call, a dict, or two of them joined."""
    if isinstance(node, ast.BinOp):
        _read_value(source, node.left, prefix, found)
        _read_value(source, node.right, prefix, found)
    elif isinstance(node, ast.Dict):
        _read_fields(source, node, prefix, found)
    elif isinstance(node, ast.Call):
        if resolved := source.resolve(node.func):
            _read_function(*resolved, prefix, found)
            _read_fields(source, node, prefix, found)
        elif _dotted(node.func) == ["dict"]:
            _read_fields(source, node, prefix, found)


def _read_fields(source: Source, node: ast.Call | ast.Dict, prefix: str, found: dict) -> None:
    """The same of the fields in a call or a dict."""
    if isinstance(node, ast.Call):
        fields = [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
    else:
        keys = zip(node.keys, node.values, strict=True)
        fields = [(key.value, value) for key, value in keys if isinstance(key, ast.Constant)]
    for name, value in fields:
        _note(source, value, f"{prefix}{name}", found)
        _read_value(source, value, f"{prefix}{name}.", found)


def _note(source: Source, node: ast.AST, name: str, found: dict) -> None:
    if comment := source.comments.get(node.end_lineno):
        found[name] = comment


def _dotted(node: ast.expr) -> list[str]:
    """["c", "data", "length"] of `c.data.length`; [] of any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (path := _dotted(node.value)):
        return [*path, node.attr]
    return []
