"""Name the user's training code by its content, so that equal code shares its results.

Called by `Study`; `explain` asks `difference`. Everything that a Trainable consists of becomes a
node of a graph: functions, classes, module-level names, attributes, values. A node has a content
of its own (a syntax tree in normal form, a plain value, the name of an installed thing) and
labelled edges to what it refers to. No name of a module, no file and no line enters, so running a
script, importing it and pasting it into a notebook come to the same.

*Why equal digests mean equal code.* Code is recursive, so a part can't hold the digests of what it
calls. Instead every node is coloured by its content, and again and again by that and the colours
at the ends of its edges, until no more nodes come apart [1]. Two graphs whose sets of last colours
are equal after equally many rounds are bisimilar: walking both from the root along equal labels
never meets a difference. Sets know no order, so the order of discovery is irrelevant.

*Rules where the design is silent.*

* A module-level name counts by its value, like an attribute. If the value has no fixed content (a
  data set of a library), the statements that bind the name count instead, with all they refer to;
  so does text that they compute from `__file__` or `__name__`.
* A default, or an attribute of a class, whose value has no fixed content counts by its expression,
  unless this may take a local of a function around: its value is not to be found any more.
* Special methods that were compiled from no file are generated (dataclass, namedtuple): the class
  determines them.
* The order of a dict counts: who builds layers from it draws their weights in that order. Sets
  have none, and a dict that is filled from a set differs from process to process: sort there.
* A name that is missing, or that Python supplies, counts by the syntax tree that reads it.

References:
    [1] Paige and Tarjan, "Three partition refinement algorithms", SIAM J. Comput. 16(6), 1987:
        the coarsest stable partition. Ours is the naive method: few rounds are needed here.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from enum import EnumMeta
from hashlib import sha256
from types import FunctionType, ModuleType

from dasktune.errors import InvalidStudyError
from dasktune.study.closure import (
    LOCATION,
    SENT_HERE,
    Dotted,
    Namespace,
    References,
    Sources,
    defaults,
    imported,
    normal_form,
    was_sent,
)
from dasktune.study.compiled import ChangedSourceError, FunctionNode
from dasktune.study.content import (
    contents,
    functions_in,
    is_generated,
    is_installed_class,
    is_installed_function,
    is_installed_module,
    plain,
    public_name,
    view,
    wrapped_code,
)
from dasktune.units import Digest

_MODULE_NAMES = LOCATION | {"__builtins__", "__cached__", "__doc__", "__loader__"}
"""Names that Python puts into every module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a Trainable is made of."""

    digest: Digest
    """Equal for equal code and equal attributes, whatever file or process they are in."""
    parts: tuple[tuple[str, Digest], ...]
    """Each function, class, module-level name and attribute by its qualified name, with the digest
    of its own syntax or value; sorted. Names may repeat."""


def fingerprint(trainable: object) -> Fingerprint:
    """Identify the user's training code and the attributes that it starts with.

    Args:
        trainable: An object of the user's; a class or a function counts by its code.

    Raises:
        InvalidStudyError: Source isn't found or has changed since it was imported, or an attribute
            has no content that is the same in every process.
    """
    graph = _Graph()
    try:
        root = graph.build(trainable)
    except RecursionError:
        raise InvalidStudyError(
            "trainable holds values or code nested too deeply to be read: build them in setup()"
        ) from None
    colours = _colours(graph.nodes, across_names=True)
    own = zip(graph.nodes, _colours(graph.nodes, across_names=False), strict=True)
    return Fingerprint(
        digest=Digest(_digest("dasktune-fingerprint-1", colours[root], *sorted(set(colours)))),
        parts=tuple(sorted({(node.name, Digest(colour)) for node, colour in own if node.name})),
    )


def difference(old: Fingerprint, new: Fingerprint) -> tuple[str, ...]:
    """Say in words which parts were added, removed or changed; empty if nothing was."""
    if old.digest == new.digest:
        return ()
    removed = {name for name, _ in set(old.parts) - set(new.parts)}
    added = {name for name, _ in set(new.parts) - set(old.parts)}
    words = dict.fromkeys(removed, "removed") | dict.fromkeys(added, "added")
    words |= dict.fromkeys(removed & added, "changed")
    return tuple(f"{name} {words[name]}" for name in sorted(words)) or (
        "the same parts refer to one another in another way",
    )


@dataclass(slots=True)
class _Node:
    content: str
    """What it is without its neighbours."""
    name: str
    """Qualified name of a part; empty for a value inside a part."""
    edges: list[tuple[str, int]] = field(default_factory=list)
    """Labels and the nodes that they lead to; a label may repeat, as in a set."""


class _Graph:
    """Everything that a trainable consists of; grows by following references."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self._index: dict[Hashable, int] = {}
        self._pending: list[Callable[[], None]] = []
        self._alive: list[object] = []  # so that no id is used twice
        self._sources = Sources()

    def build(self, trainable: object) -> int:
        """Fill the graph and give the node of the trainable."""
        if isinstance(trainable, FunctionType | type) or plain(trainable) is not None:
            root = self._of(trainable, "trainable")
        else:
            content, children = view(trainable, "trainable")
            root = self._add(id(trainable), content)
            for label, child in children:
                path = f"trainable{label}"
                is_attribute = label.startswith(".")
                part = (
                    self._named(path, path, child, path) if is_attribute else self._of(child, path)
                )
                self._edge(root, label, part)
        while self._pending:
            self._pending.pop()()
        return root

    def _add(self, key: Hashable, content: str, name: str = "") -> int:
        self._index[key] = len(self.nodes)
        self.nodes.append(_Node(content, name))
        return self._index[key]

    def _named(self, key: Hashable, name: str, value: object, path: str) -> int:
        """Add a part that is a value under a name."""
        index = self._add(key, "value", name)
        self._edge(index, "is", self._of(value, path))
        return index

    def _edge(self, index: int, label: str, target: int) -> None:
        self.nodes[index].edges.append((label, target))

    def _attempt(self, step: Callable[[], int]) -> int | None:
        """Take a step; if it is refused, undo what it added and give None."""
        n_nodes, n_pending = len(self.nodes), len(self._pending)
        try:
            return step()
        except ChangedSourceError:  # the statement that stands for a value may have changed too
            raise
        except InvalidStudyError:
            del self.nodes[n_nodes:], self._pending[n_pending:]
            self._index = {key: index for key, index in self._index.items() if index < n_nodes}
            return None

    def _of(self, value: object, path: str) -> int:
        """Give the node of a value."""
        text = plain(value)
        key: Hashable = id(value) if text is None else text
        if key in self._index:
            return self._index[key]
        if text is not None:
            return self._add(key, text)
        self._alive.append(value)
        match value:
            case ModuleType():
                return self._module(value)
            case FunctionType():
                return self._function(value)
            case type():
                return self._class(value)
        content, children = view(value, path)
        index = self._add(key, content)
        for label, child in children:
            self._edge(index, label, self._of(child, path + label))
        return index

    def _module(self, module: ModuleType) -> int:
        """Add a module that is used as a whole: all its names count."""
        if is_installed_module(module.__name__):
            return self._add(id(module), f"installed {module.__name__}")
        index = self._add(id(module), "module")
        names: list[Dotted] = [(name,) for name in vars(module)]
        self._pending.append(lambda: self._refer(index, names, vars(module)))
        return index

    # Functions

    def _function(self, function: FunctionType) -> int:
        code = function.__code__
        if is_installed_function(function):
            owner = str(function.__globals__["__name__"])
            name = public_name(owner, code.co_qualname, function)
            index = self._add(id(function), f"installed {name}")
            for wrapped in wrapped_code(function):
                self._edge(index, "wraps", self._of(wrapped, name))
            return index
        node = self._sources.function(function)
        index = self._add(id(function), normal_form(node), code.co_qualname)
        self._pending.append(lambda: self._link_function(index, function, node))
        return index

    def _link_function(self, index: int, function: FunctionType, node: FunctionNode) -> None:
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for name, cell in cells.items():
            for content in contents(cell):
                path = f"closure variable {name!r} of {code.co_qualname}"
                self._edge(index, f"closure {name}", self._of(content, path))
        self._link_references(index, References([node]), function.__globals__, cells)
        for name, default, is_said in defaults(function, node):
            path = f"default {name!r} of {code.co_qualname}"
            if is_said:
                self._try_edge(index, f"default {name}", default)
            else:
                self._edge(index, f"default {name}", self._of(default, path))
        for name, attribute in vars(function).items():
            self._try_edge(index, f".{name}", attribute)

    def _try_edge(self, index: int, label: str, value: object) -> None:
        """Add an edge to a value whose expression counts anyway, if it has a fixed content."""
        target = self._attempt(lambda: self._of(value, label))
        if target is not None:
            self._edge(index, label, target)

    # Classes

    def _class(self, cls: type) -> int:
        if is_installed_class(cls):
            return self._add(
                id(cls), f"installed {public_name(cls.__module__, cls.__qualname__, cls)}"
            )
        functions = [f for value in vars(cls).values() for f in _user_functions(value)]
        definition = self._sources.class_(cls, functions)
        if definition is None:
            return self._sourceless_class(cls, functions)
        tree, namespace = definition
        methods = self._sources.functions(functions)
        self._sources.refuse_if_edited([tree], namespace, cls.__qualname__)
        index = self._add(id(cls), normal_form(tree, methods), cls.__qualname__)
        references = References([tree], methods)
        self._pending.append(lambda: self._link_references(index, references, namespace))
        self._pending.append(lambda: self._link_class(index, cls))
        return index

    def _sourceless_class(self, cls: type, functions: Iterable[FunctionType]) -> int:
        """Add a class that a function made: a namedtuple or an enumeration, or else refuse it."""
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            content: object = cls._fields, getattr(cls, "_field_defaults", None)
        elif isinstance(cls, EnumMeta):
            content = {name: cls[name].value for name in cls.__members__}
        elif any(map(was_sent, functions)):
            raise InvalidStudyError(f"the source of class {cls.__qualname__!r} {SENT_HERE}")
        else:
            raise InvalidStudyError(
                f"the source of class {cls.__qualname__!r} isn't found: define it in a file or a "
                "notebook cell"
            )
        index = self._add(id(cls), f"class {cls.__name__}", cls.__qualname__)
        self._edge(index, "is", self._of(content, cls.__qualname__))
        return index

    def _link_class(self, index: int, cls: type) -> None:
        for i, base in enumerate(cls.__bases__):
            self._edge(index, f"base {i}", self._of(base, cls.__qualname__))
        if not is_installed_class(type(cls)):
            self._edge(index, "metaclass", self._of(type(cls), cls.__qualname__))
        for name, attribute in vars(cls).items():
            is_special = name.startswith("__") and name.endswith("__")
            functions = _user_functions(attribute)
            for function in functions:
                if not (is_special and is_generated(function)):
                    self._edge(index, f".{name}", self._of(function, name))
            # What Enum puts into its classes follows from their syntax and differs by version.
            if not (functions or is_special or isinstance(cls, EnumMeta)):
                self._try_edge(index, f".{name}", attribute)

    # Names

    def _link_references(
        self,
        index: int,
        references: References,
        namespace: Namespace,
        bound: Iterable[str] = (),
    ) -> None:
        """Follow all references of a syntax tree except names that are bound otherwise."""
        self._refer(index, (d for d in references.loads if d[0] not in bound), namespace)
        for statement in references.imports:
            for name, space, origin in imported(statement, namespace):
                loads = {d for d in references.loads if d[0] == name}
                self._refer(index, ((*origin, *d[1:]) for d in loads), space)

    def _refer(self, index: int, loads: Iterable[Dotted], namespace: Namespace) -> None:
        for dotted in sorted(loads):
            name, space, rest = dotted[0], namespace, dotted[1:]
            while rest and isinstance(module := space.get(name), ModuleType):
                if is_installed_module(module.__name__) or rest[0] not in vars(module):
                    break
                name, space, rest = rest[0], vars(module), rest[1:]
            if name in space and name not in _MODULE_NAMES:
                self._edge(index, ".".join(dotted), self._global(space, name))

    def _global(self, namespace: Namespace, name: str) -> int:
        """Give the node of a module-level name: its code, its value, or what binds it."""
        key = (id(namespace), name)
        if key in self._index:
            return self._index[key]
        value, path = namespace[name], f"module-level name {name!r}"
        if isinstance(value, ModuleType) or _is_written(value):
            return self._of(value, path)
        trees, home = self._sources.bindings(namespace, name, value)
        if not self._sources.is_location(value, trees, home):
            is_code = isinstance(value, FunctionType | type)
            found = self._attempt(
                lambda: self._of(value, path) if is_code else self._named(key, name, value, path)
            )
            if found is not None:
                return found
        if not trees:
            return self._of(value, path)  # refused again, now for good
        self._sources.refuse_if_edited(trees, home)
        index = self._add(key, "; ".join(normal_form(tree) for tree in trees), name)
        self._pending.append(lambda: self._link_references(index, References(trees), home))
        return index


def _is_written(value: object) -> bool:
    """Say whether a value is a function of a file, which must not be taken from anywhere else."""
    return isinstance(value, FunctionType) and not value.__code__.co_filename.startswith("<")


def _user_functions(attribute: object) -> list[FunctionType]:
    return [f for f in functions_in(attribute) if not is_installed_function(f)]


def _colours(nodes: list[_Node], *, across_names: bool) -> list[str]:
    """Colour nodes by what they are and lead to, until no more of them come apart.

    Args:
        nodes: All nodes of a graph.
        across_names: Whether a named part counts by its content for those that lead to it; else it
            counts by its name, and a change in it leaves their colours as they are.
    """
    contents = [_digest(node.content) for node in nodes]
    colours, n_colours, n_rounds = contents, 0, 0
    while len(set(colours)) > n_colours:
        n_colours, n_rounds = len(set(colours)), n_rounds + 1
        seen = [
            colour if across_names or not node.name else f"part {node.name}"
            for node, colour in zip(nodes, colours, strict=True)
        ]
        colours = [
            _digest(
                str(n_rounds), content, *sorted(f"{label!a} {seen[i]}" for label, i in node.edges)
            )
            for node, content in zip(nodes, contents, strict=True)
        ]
    return colours


def _digest(*texts: str) -> str:
    return sha256("".join(f"{len(text)}:{text}" for text in texts).encode()).hexdigest()
