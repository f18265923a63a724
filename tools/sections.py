"""Sections on parameters in the docstrings of exported modules, made from the comments beside the parameters.

A comment beside a parameter is for readers of the source; `help()` and Shift-Tab show docstrings only. So
`tools/notebooks.py export` repeats it there, in numpydoc's form. What is generated stands last in a docstring.
"""
import ast
import io
import re
import textwrap
import tokenize

WIDTH = 106
HEADINGS = ("Parameters", "Returns", "Shapes")
GENERATED = re.compile(r"\n\n[ ]*(?:" + "|".join(f"{name}\n[ ]*{'-' * len(name)}" for name in HEADINGS) + r')\n(?:(?!""").)*?(?=\n[ ]*""")',
                       re.DOTALL)


def without_sections(source: str) -> str:
    """A module without its generated sections; a docstring of one line is on one line again."""
    return re.sub(r'("""(?:(?!""")[^\n])+)\n[ ]*"""', r'\1"""', GENERATED.sub("", source))


def with_sections(source: str) -> str:
    """A module with a section for each public function and class whose parameters have comments (idempotent)."""
    source = without_sections(source)
    tree, notes, lines = ast.parse(source), comments(source), source.splitlines(keepends=True)
    for text, sections in sorted(found(tree, notes, source), key=lambda pair: -pair[0].lineno):
        first, last = text.lineno - 1, text.end_lineno - 1
        indent = " " * text.col_offset
        body = "".join(lines[first:last + 1]).strip()
        prefix, quotes, inner = re.fullmatch(r'([rR]?)("""|\'\'\'|"|\')(.*)\2', body, re.DOTALL).groups()
        inner = inner.rstrip() if len(quotes) == 3 else inner.replace('\\"', '"')
        told = "\n\n".join(textwrap.indent("\n".join(section), indent) for section in sections)
        told = told if prefix else told.replace("\\", "\\\\")
        lines[first:last + 1] = [f'{indent}{prefix}"""{inner}\n\n{told}\n{indent}"""\n']
    return "".join(lines)


def comments(source: str) -> dict[int, tuple[str, bool]]:
    """By its line: what a comment says, and whether it stands alone there."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: (token.string.lstrip("# ").strip(), not token.line[:token.start[1]].strip())
            for token in tokens if token.type == tokenize.COMMENT}


def found(tree: ast.Module, notes: dict, source: str):
    """Docstrings of public functions, classes and methods, with the sections that they get."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield from given(node, function_sections(node, notes, source))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
            start = methods.get("__init__")
            yield from given(node, function_sections(start, notes, source)[:1] if start else field_sections(node, notes, source))
            for name, method in methods.items():
                if not name.startswith("_") or name == "__call__":
                    yield from given(method, function_sections(method, notes, source))


def given(node, sections: list[list[str]]):
    """The docstring of a node with its sections, if it has both."""
    first = node.body[0]
    if sections and isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        yield first.value, sections


def function_sections(node: ast.FunctionDef, notes: dict, source: str) -> list[list[str]]:
    """Parameters and what is returned; of a signature on one line, its comment as the shapes."""
    end = node.body[0].lineno - 1
    if not any(line in notes for line in range(node.lineno, end + 1)):
        return []
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    positional = arguments[:len(arguments) - len(node.args.kwonlyargs)]
    defaults = dict(zip(positional[::-1], node.args.defaults[::-1])) | dict(zip(node.args.kwonlyargs, node.args.kw_defaults))
    arguments = [argument for argument in arguments if argument.arg not in ("self", "cls")]
    ends = [(defaults.get(a) or a.annotation or a).end_lineno for a in arguments]
    if node.lineno in notes and (node.returns is None or node.returns.end_lineno == node.lineno):
        return [heading("Shapes") + textwrap.wrap(notes[node.lineno][0], WIDTH)]
    rows = [row(a.arg, a.annotation, defaults.get(a), comment(notes, line, ends[i + 1] if i + 1 < len(ends) else None), source)
            for i, (a, line) in enumerate(zip(arguments, ends))]
    sections = [heading("Parameters") + [line for lines in rows for line in lines]] if rows else []
    if node.returns is not None and node.returns.end_lineno not in ends and (told := comment(notes, node.returns.end_lineno)):
        sections.append(heading("Returns") + [ast.unparse(node.returns), *wrapped(told)])
    return sections


def field_sections(node: ast.ClassDef, notes: dict, source: str) -> list[list[str]]:
    """The fields of a dataclass, if any has a comment."""
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return []
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and not part.target.id.startswith("_")]
    if not any(field.end_lineno in notes for field in fields):
        return []
    rows = [row(field.target.id, field.annotation, field.value, comment(notes, field.end_lineno), source) for field in fields]
    return [heading("Parameters") + [line for lines in rows for line in lines]]


def comment(notes: dict, line: int, until: int | None = None) -> str:
    """The comment that ends on a line, with the lines of nothing else that go on with it; "" if the next one shares it."""
    if line == until or line not in notes or notes[line][1]:
        return ""
    parts = [notes[line][0]]
    while notes.get(line + 1, ("", False))[1]:
        line += 1
        parts.append(notes[line][0])
    return " ".join(parts)


def heading(name: str) -> list[str]:
    return [name, "-" * len(name)]


def row(name: str, annotation, default, told: str, source: str) -> list[str]:
    """A parameter in numpydoc's form: its name and type, its default, and below them what its comment says."""
    kind = ast.get_source_segment(source, annotation) if annotation is not None else ""
    usual = f"default {ast.get_source_segment(source, default)}" if default is not None else ""
    said = ", ".join(" ".join(part.split()) for part in (kind, usual) if part)
    return [f"{name} : {said}" if said else name, *wrapped(told)]


def wrapped(told: str) -> list[str]:
    return textwrap.wrap(told, WIDTH - 4, initial_indent="    ", subsequent_indent="    ")
